//! The NPU as a user meets it: simulated, missing, looked at and tested.

#![allow(clippy::unwrap_used, reason = "tests, which clippy does not see in helpers")]

mod common;

use std::fs;
use std::path::Path;
use std::time::Duration;

use assert_cmd::Command;
use common::{Pair, json_of, refused};
use serde_json::{Value, json};

const PROMPT: [&str; 4] = ["--ids", "1,2,3,4,5", "-n", "6"];

fn program(args: &[&str]) -> Command {
    let mut command = Command::cargo_bin("drafter").unwrap();
    command.args(args).timeout(Duration::from_secs(120));
    // Places of this machine are not those of the tests.
    for name in ["DRAFTER_XRT_SHIM", "DRAFTER_NPU_IMAGE"] {
        command.env_remove(name);
    }
    command.env("XDG_DATA_HOME", "/nonexistent");
    command
}

/// Standard output as a document, and the exit code.
#[track_caller]
fn document(command: &mut Command) -> (Value, Option<i32>, String) {
    let output = command.arg("--json").output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(!stderr.contains("panicked"), "{stderr}");
    (serde_json::from_slice(&output.stdout).unwrap(), output.status.code(), stderr)
}

#[test]
fn the_simulated_npu_answers_as_the_cpu() {
    let pair = Pair::new();
    let sampled = ["--temp", "0.9", "--top-k", "40", "--seed", "5"];
    for sampling in [&[][..], &sampled] {
        let run = |device: &str, drafts: &str| {
            let mut command = pair.drafting("run");
            command.args(PROMPT).args(sampling).args(["--device", device, "--draft-max", drafts]);
            json_of(command.args(["--top-logits", "3", "--act", "n16"]))
        };
        let plain = run("cpu", "0");
        for drafts in ["0", "7"] {
            let (cpu, npu) = (run("cpu", drafts), run("npu-sim", drafts));
            assert_eq!(npu["ids"], plain["ids"]);
            assert_eq!(npu["top_logits"], plain["top_logits"]);
            assert_eq!(npu["timings"]["draft_n_accepted"], cpu["timings"]["draft_n_accepted"]);
            assert_eq!(
                npu["device"],
                json!({"name": "npu-sim", "reason": "--device npu-sim", "replays": 0})
            );
            assert_eq!(cpu["device"]["name"], "cpu");
        }
    }
    // Without --act each device has its own.
    let act = |device: &str| {
        let mut command = pair.command("run");
        json_of(command.args(["--ids", "1", "-n", "1", "--device", device]))["act"].clone()
    };
    assert_eq!((act("cpu"), act("npu-sim")), ("a8".into(), "n16".into()));
}

#[test]
fn packs_of_the_npu_are_kept_beside_those_of_the_cpu() {
    let pair = Pair::new();
    let dir = pair.dir.path().join("packs");
    let run = |device: &str| {
        let mut command = pair.drafting("run");
        command.args(PROMPT).args(["--device", device, "--pack-cache"]).arg(&dir);
        let output = command.output().unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.success(), "{stderr}");
        (output.stdout, stderr.matches("packing the weights of").count())
    };
    run("cpu");
    let (text, packed) = run("npu-sim");
    assert_eq!(packed, 2);
    assert_eq!(run("npu-sim"), (text, 0));
    let listed = json_of(program(&["cache", "list", "--pack-cache"]).arg(&dir));
    let kinds = listed["packs"].as_array().unwrap().iter().map(|pack| pack["kind"].clone());
    let mut kinds: Vec<_> = kinds.map(|kind| kind.as_str().unwrap().to_owned()).collect();
    kinds.sort();
    assert_eq!(kinds, ["cpu-tiles/1", "cpu-tiles/1", "npu-pack/1", "npu-pack/1"]);
    let checked = json_of(program(&["cache", "verify", "--pack-cache"]).arg(&dir));
    assert_eq!(checked["packs"].as_array().unwrap().len(), 4);
}

/// There is no NPU where this is tested.
#[test]
fn without_an_npu_it_is_refused_or_replaced_as_asked() {
    let pair = Pair::new();
    let paths = |command: &mut Command| {
        command.arg("--target").arg(&pair.target).arg("--drafter").arg(&pair.drafter).args(PROMPT);
    };
    let mut required = program(&["run", "--device", "npu"]);
    paths(&mut required);
    refused(&mut required, 5, &["npu: no `libdrafter_xrt.so`: looked in", "--xrt-shim"]);
    let (error, code, _) = document(&mut required);
    assert_eq!((error["error"]["exit_code"].as_i64(), code), (Some(5), Some(5)));
    assert!(error["error"]["hint"].as_str().unwrap().contains("drafter doctor"));

    let mut auto = program(&["run", "--device", "auto"]);
    paths(&mut auto);
    let (answer, code, stderr) = document(&mut auto);
    assert_eq!((code, &answer["act"]), (Some(0), &json!("a8")), "{stderr}");
    assert!(stderr.contains("the CPU takes the place of the NPU: npu: no `lib"), "{stderr}");
    assert_eq!(answer["device"]["name"], "cpu");
    assert!(answer["device"]["reason"].as_str().unwrap().contains("--xrt-shim"));
    let plain = json_of(pair.drafting("run").args(PROMPT));
    assert_eq!(plain["ids"], answer["ids"]);

    // A library that is none, and an image that is not there.
    let shim = pair.dir.path().join("libdrafter_xrt.so");
    fs::write(&shim, "no library").unwrap();
    let mut wrong = program(&["run", "--device", "npu", "--npu-image"]);
    wrong.arg(&pair.target).arg("--xrt-shim").arg(&shim);
    paths(&mut wrong);
    refused(&mut wrong, 5, &["npu: `", "libdrafter_xrt.so"]);
    let mut wrong =
        program(&["run", "--device", "npu", "--npu-image", "/nowhere/image", "--xrt-shim"]);
    wrong.arg(&shim);
    paths(&mut wrong);
    refused(&mut wrong, 5, &["--npu-image: `/nowhere/image`"]);

    // Another arithmetic than the NPU's is asked for.
    for device in ["npu", "npu-sim"] {
        let mut wrong = program(&["run", "--act", "a8", "--device", device]);
        paths(&mut wrong);
        refused(&mut wrong, 2, &["--act a8: the NPU multiplies n16 and n8"]);
    }
}

#[test]
fn selftest_compares_bits_and_tokens() {
    let (found, code, _) = document(&mut program(&["selftest", "--device", "npu-sim"]));
    assert_eq!(
        (code, &found["passed"], &found["device"]),
        (Some(0), &json!(true), &json!("npu-sim"))
    );
    let tests = found["tests"].as_array().unwrap();
    let ok = tests.iter().filter(|test| test["status"] == "ok").count();
    // Two arithmetics, each with products of integers and floats in several shapes.
    assert!(ok + 1 == tests.len() && ok >= 18, "{found}");
    assert_eq!(tests.last().unwrap()["status"], "skipped");

    let pair = Pair::new();
    let mut command = pair.drafting("selftest");
    let (found, code, _) = document(command.args(["--device", "npu-sim"]));
    assert_eq!(code, Some(0), "{found}");
    let last = found["tests"].as_array().unwrap().last().unwrap().clone();
    assert_eq!(
        (&last["status"], &last["name"]),
        (&json!("ok"), &json!("speculative output is plain output"))
    );

    refused(&mut program(&["selftest", "--device", "npu"]), 5, &["libdrafter_xrt.so"]);
    let (found, code, stderr) = document(&mut program(&["selftest", "--device", "auto"]));
    assert_eq!((code, &found["device"]), (Some(0), &json!("cpu")));
    assert!(stderr.contains("the CPU takes the place of the NPU"), "{stderr}");
}

/// A machine with everything but the device.
fn root(dir: &Path) {
    for (path, text) in [
        ("proc/sys/kernel/osrelease", "6.17.0-5-generic\n"),
        ("proc/self/limits", "Max locked memory         67108864   67108864   bytes\n"),
        ("proc/meminfo", "MemAvailable:   20000000 kB\n"),
    ] {
        let path = dir.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
}

#[test]
fn doctor_names_what_is_missing_and_what_to_do() {
    let pair = Pair::new();
    root(pair.dir.path());
    let mut command = program(&["doctor", "--root"]);
    command.arg(pair.dir.path()).arg("--target").arg(&pair.target);
    command.arg("--drafter").arg(&pair.drafter);
    let (found, code, _) = document(&mut command);
    assert_eq!((code, &found["usable"]), (Some(1), &json!(false)));
    let need = found["need_locked_bytes"].as_u64().unwrap();
    // The heap of the device, and the weights, which are padded to whole blocks.
    assert!(need > 64 << 20, "{need}");
    let check = |name: &str| {
        let checks = found["checks"].as_array().unwrap();
        checks.iter().find(|check| check["name"] == name).unwrap().clone()
    };
    assert_eq!(check("linux")["status"], "ok");
    // 64 MiB may be locked: enough without models, not for these.
    let memlock = check("memlock");
    assert_eq!(memlock["status"], "failed");
    assert!(memlock["found"].as_str().unwrap().contains(&need.to_string()), "{memlock}");
    for (name, remedy) in [
        ("driver", "modprobe"),
        ("device", "XDNA2"),
        ("node", "--device"),
        ("memlock", "limits.d"),
        ("xrt", "libxrt2"),
        ("xrt_plugin", "libxrt-npu2"),
        ("shim", "g++"),
        ("image", "docs/npu.md"),
    ] {
        let check = check(name);
        assert_eq!(check["status"], "failed", "{check}");
        assert!(check["remedy"].as_str().unwrap().contains(remedy), "{check}");
    }
    let kernels = found["checks"].as_array().unwrap().iter();
    let kernels = kernels.filter(|check| check["name"] == "kernel").count();
    assert_eq!(kernels, 3);

    // For people, and this machine, whatever it is.
    let output = program(&["doctor"]).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("memlock") && text.contains("--device cpu"), "{text}");
    assert!([Some(0), Some(1)].contains(&output.status.code()));
    assert_eq!(text.matches("FAILED").count(), text.matches("-> ").count(), "{text}");
}

/// A server that ends with the test.
struct Server(std::process::Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The trained pair, served from the simulated NPU, says what the CPU's form of the arithmetic says.
#[test]
fn a_server_on_the_simulated_npu_answers_as_the_cpu() {
    let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/pair");
    let target = fixture.join("target.gguf");
    let mut plain = program(&["run", "--act", "n16", "-p", "def fib", "-n", "4", "--target"]);
    let plain = json_of(plain.arg(&target));

    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_drafter"));
    command.args(["serve", "--port", "0", "--json", "--device", "npu-sim", "--draft-max", "2"]);
    command.arg("--target").arg(&target).arg("--drafter").arg(fixture.join("drafter"));
    let command = command.env_remove("DRAFTER_API_KEY").stdout(std::process::Stdio::piped());
    let mut server = Server(command.stderr(std::process::Stdio::null()).spawn().unwrap());
    let stdout = server.0.stdout.take().unwrap();
    let document = serde_json::Deserializer::from_reader(stdout).into_iter::<Value>().next();
    let document = document.expect("a document").unwrap();
    let url = document["url"].as_str().unwrap();

    let health = ureq::get(format!("{url}/health")).call().unwrap();
    let health: Value = serde_json::from_reader(health.into_body().into_reader()).unwrap();
    assert_eq!(health["about"]["device"]["name"], "npu-sim", "{health}");
    assert_eq!(health["about"]["act"], "n16");
    let request = json!({"prompt": "def fib", "max_tokens": 4, "temperature": 0});
    let answer = ureq::post(format!("{url}/v1/completions"))
        .header("Content-Type", "application/json")
        .send(request.to_string())
        .unwrap();
    let answer: Value = serde_json::from_reader(answer.into_body().into_reader()).unwrap();
    assert_eq!(answer["choices"][0]["text"], plain["text"], "{answer}");
    assert_eq!(answer["usage"]["completion_tokens"], 4);
}
