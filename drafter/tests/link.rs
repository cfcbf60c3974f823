//! `drafter link` and its kin in a home of their own.

#![allow(clippy::unwrap_used, reason = "tests, which clippy does not see in helpers")]

mod common;

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use assert_cmd::Command;
use common::support::Shape;
use common::support::drafter::{Kind, config, write};
use common::{Pair, json_of, refused};
use serde_json::Value;
use tempfile::TempDir;

/// A user with nothing but a home.
struct Home {
    dir: TempDir,
    pair: Pair,
}

impl Home {
    fn new() -> Self {
        Self { dir: tempfile::tempdir().unwrap(), pair: Pair::new() }
    }

    fn drafter(&self, name: &str) -> Command {
        let mut command = Command::cargo_bin("drafter").unwrap();
        command.env_clear().env("HOME", self.dir.path()).timeout(Duration::from_secs(120));
        command.arg(name);
        command
    }

    /// `drafter link` of the pair's drafter.
    fn link(&self, args: &[&str]) -> Command {
        let mut command = self.drafter("link");
        command.arg(&self.pair.drafter).args(args);
        command
    }

    /// Installs the pair's target at this path of the home.
    fn install(&self, path: &str) -> PathBuf {
        let path = self.dir.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::copy(&self.pair.target, &path).unwrap();
        path
    }

    fn links(&self) -> Vec<String> {
        let dir = self.dir.path().join(".local/share/drafter/links");
        let Ok(listed) = fs::read_dir(dir) else { return Vec::new() };
        let mut names: Vec<String> =
            listed.map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }
}

const SNAPSHOT: &str = ".cache/huggingface/hub/models--prism-ml--Ternary-Bonsai-2-27B-gguf/snapshots/0a1b/\
                        Ternary-Bonsai-2-27B-PQ2_0.gguf";

#[test]
fn an_installed_target_is_found_and_the_pair_runs_by_name() {
    let home = Home::new();
    let installed = home.install(SNAPSHOT);
    let found = json_of(&mut home.link(&["--name", "mini"]));
    assert_eq!(found["link"]["name"], "mini");
    assert_eq!(found["link"]["target"]["path"], installed.to_str().unwrap());
    assert_eq!(found["link"]["facts"]["hidden_size"], 128);
    assert_eq!(found["default"], true);
    assert_eq!(home.links(), ["mini.json"]);

    // By its name, by the default, and by paths: the same answer.
    let ids = ["--ids", "1,2,3", "-n", "8"];
    let plain = json_of(home.pair.command("run").args(ids));
    for command in [home.drafter("run").arg("mini"), &mut home.drafter("run")] {
        let answer = json_of(command.args(ids));
        assert_eq!(answer["ids"], plain["ids"]);
        assert_eq!(answer["spec"]["state"], "active");
    }
    let prompts = home.dir.path().join("prompts.jsonl");
    fs::write(&prompts, "{\"ids\": [5, 6]}").unwrap();
    let mut verify = home.drafter("verify-exact");
    verify.args(["mini", "-n", "4", "--draft-max", "3", "--prompts"]).arg(prompts);
    let report = json_of(&mut verify);
    assert_eq!(report["verdict"], "exact");

    let shown = json_of(home.drafter("show").arg("mini"));
    assert_eq!(shown["link"], found["link"]);
    let rows = json_of(&mut home.drafter("list"));
    assert_eq!(rows["links"][0]["link"], found["link"]);
    assert_eq!(rows["links"][0]["problem"], Value::Null);
    assert_eq!(json_of(home.drafter("unlink").arg("mini"))["unlinked"], "mini");
    assert_eq!(home.links().len(), 0);
    assert!(installed.exists());
    refused(home.drafter("run").args(ids), 2, &["--target"]);
}

#[test]
fn names_find_targets_in_every_folder() {
    let home = Home::new();
    for (place, name) in [
        (SNAPSHOT, "prism-ml/Ternary-Bonsai-2-27B-gguf"),
        (".local/share/drafter/models/ours.gguf", "ours"),
        (".cache/llama.cpp/prism-ml_Bonsai_cpp.gguf", "bonsai_cpp"),
        (".lmstudio/models/prism-ml/studio/b.gguf", "prism-ml/studio"),
        (".config/oflm/models/olfm-bonsai/b.gguf", "olfm-bonsai"),
        (".flm/models/flm-bonsai/b.gguf", "flm-bonsai"),
    ] {
        let installed = home.install(place);
        let found = json_of(&mut home.link(&["--name", "x", "--force", "--target", name]));
        assert_eq!(found["link"]["target"]["path"], installed.to_str().unwrap(), "{name}");
    }
    // All of them fit: one has to be chosen.
    refused(&mut home.link(&["--name", "y"]), 2, &["several fit", "ours.gguf", "1 more"]);
    refused(
        &mut home.link(&["--name", "y", "--target", "gemma"]),
        3,
        &["`gemma`", "nothing found"],
    );
    assert_eq!(home.links(), ["x.json"]);
}

#[test]
fn a_variable_names_the_cache() {
    let home = Home::new();
    for (variable, below) in
        [("HF_HUB_CACHE", ""), ("HF_HOME", "hub/"), ("XDG_CACHE_HOME", "huggingface/hub/")]
    {
        let dir = home.dir.path().join(variable);
        let file = format!("{variable}/{below}models--o--n/snapshots/1/{variable}.gguf");
        let installed = home.install(&file);
        let mut command = home.link(&["--name", "x", "--force"]);
        let found = json_of(command.env(variable, dir));
        assert_eq!(found["link"]["target"]["path"], installed.to_str().unwrap());
    }
}

#[test]
fn a_pair_that_does_not_fit_is_refused_with_the_reason() {
    let home = Home::new();
    home.install(SNAPSHOT);
    let dir = tempfile::tempdir().unwrap();
    let shape = Shape { vocab: 96, ..Shape::mini() };
    let wide = write(dir.path(), &config(&shape), Kind::Float, shape.block, 3);
    let fit = ["does not fit", "vocabulary size", "96", "64"];
    refused(home.drafter("link").arg(&wide).args(["--name", "w"]), 1, &fit);
    refused(home.drafter("link").arg(&wide).arg("--target").arg(&home.pair.target), 1, &fit);
    // The same for files that are none, or not what was meant.
    let target = home.pair.target.to_str().unwrap();
    refused(home.drafter("link").arg(target).args(["--target", target]), 3, &["target.gguf"]);
    let drafter = home.pair.drafter.to_str().unwrap();
    refused(&mut home.link(&["--target", drafter]), 3, &["general.architecture"]);
    refused(&mut home.link(&["--target", "/nowhere/x.gguf"]), 3, &["/nowhere/x.gguf"]);
    assert_eq!(home.links().len(), 0);
}

#[test]
fn a_container_of_another_engine_is_named_with_what_to_get() {
    let home = Home::new();
    let path = home.dir.path().join(".config/flm/models/Bonsai-2-27B-NPU2/model.q4nx");
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, "whatever it holds").unwrap();
    let mut command = home.link(&["--target", "bonsai-2-27b-npu2"]);
    refused(&mut command, 3, &["q4nx container of a target", "model.q4nx"]);
    let output = command.output().unwrap();
    assert!(
        String::from_utf8(output.stderr).unwrap().contains("hint: get Ternary-Bonsai-2-27B-PQ2_0")
    );
}

#[test]
fn files_that_changed_are_not_run() {
    let home = Home::new();
    let installed = home.install(SNAPSHOT);
    json_of(&mut home.link(&["--name", "mini", "--hash"]));
    json_of(home.drafter("show").args(["mini", "--hash"]));

    // A copy with another time is the same file.
    let bytes = fs::read(&installed).unwrap();
    fs::write(&installed, &bytes).unwrap();
    json_of(home.drafter("show").args(["mini", "--hash"]));
    // One byte of a weight: seen by the whole hash only.
    let mut damaged = bytes.clone();
    *damaged.last_mut().unwrap() ^= 1;
    fs::write(&installed, &damaged).unwrap();
    refused(home.drafter("show").args(["mini", "--hash"]), 3, &["changed", "SHA-256"]);
    // Its header, its length, its absence: seen by every command.
    let mut damaged = bytes.clone();
    damaged[40] ^= 1;
    let run = ["mini", "--ids", "1"];
    for (content, part) in [(&damaged[..], "SHA-256"), (&bytes[..bytes.len() - 1], "bytes")] {
        fs::write(&installed, content).unwrap();
        refused(home.drafter("run").args(run), 3, &[SNAPSHOT.rsplit('/').next().unwrap(), part]);
        refused(home.drafter("show").arg("mini"), 3, &[part]);
        let rows = json_of(&mut home.drafter("list"));
        assert!(rows["links"][0]["problem"].as_str().unwrap().contains(part), "{rows}");
    }
    fs::remove_file(&installed).unwrap();
    refused(home.drafter("run").args(run), 3, &["Ternary-Bonsai-2-27B-PQ2_0.gguf"]);
    // It can still be removed.
    json_of(home.drafter("unlink").arg("mini"));
}

#[test]
fn a_name_is_replaced_only_by_force_and_one_link_is_the_default() {
    let home = Home::new();
    let target = home.pair.target.to_str().unwrap();
    for name in ["one", "two"] {
        json_of(&mut home.link(&["--target", target, "--name", name]));
    }
    refused(&mut home.link(&["--target", target, "--name", "one"]), 2, &["`one`", "--force"]);
    json_of(&mut home.link(&["--target", target, "--name", "one", "--force"]));
    refused(&mut home.drafter("default"), 2, &["default"]);
    refused(home.drafter("default").arg("three"), 2, &["three", "one, two"]);
    assert_eq!(json_of(home.drafter("default").arg("two"))["default"], "two");
    let answer = json_of(home.drafter("run").args(["--ids", "1", "-n", "1"]));
    assert_eq!(answer["target"], target);
    json_of(home.drafter("unlink").arg("two"));
    assert_eq!(json_of(&mut home.drafter("default"))["default"], "one");
    for bad in ["Upper", "a/b", "", "ü", "x y"] {
        home.link(&["--target", target, "--name", bad]).assert().code(2);
    }
    assert_eq!(home.links(), ["one.json"]);
}

#[test]
fn any_path_can_be_linked() {
    let home = Home::new();
    for folder in [&b"\xc5\xbdeljko \xf0\x9f\x99\x82 'quoted'"[..], b"not \xff\xfe text"] {
        let dir = home.dir.path().join(std::ffi::OsStr::from_bytes(folder));
        fs::create_dir(&dir).unwrap();
        let (target, drafter) = (dir.join("t.gguf"), dir.join("d.gguf"));
        fs::copy(&home.pair.target, &target).unwrap();
        fs::copy(&home.pair.drafter, &drafter).unwrap();
        // From its folder, by relative paths.
        let mut command = home.drafter("link");
        command.args(["d.gguf", "--target", "t.gguf", "--name", "x", "--force"]).current_dir(&dir);
        json_of(&mut command);
        let answer = json_of(home.drafter("run").args(["x", "--ids", "1", "-n", "3"]));
        assert_eq!(answer["spec"]["state"], "active");
    }
}

/// Hashes that were never made cannot be compared with, pipes among the links are no links, and what a
/// killed program left goes in time.
#[test]
fn what_others_left_among_the_links_does_no_harm() {
    let home = Home::new();
    let target = home.pair.target.to_str().unwrap();
    json_of(&mut home.link(&["--target", target, "--name", "x"]));
    refused(home.drafter("show").args(["x", "--hash"]), 2, &["--hash"]);
    let links = home.dir.path().join(".local/share/drafter/links");
    let pipe = links.join("pipe.json");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    assert_eq!(json_of(&mut home.drafter("list"))["links"].as_array().unwrap().len(), 1);
    refused(home.drafter("show").arg("pipe"), 3, &["pipe.json"]);
    fs::remove_file(pipe).unwrap();
    for (name, age) in [(".link-old", 10_000), (".link-new", 0)] {
        let file = fs::File::create(links.join(name)).unwrap();
        file.set_modified(std::time::SystemTime::now() - Duration::from_secs(age)).unwrap();
    }
    json_of(home.drafter("default").arg("x"));
    assert_eq!(home.links(), [".link-new", "default", "x.json"]);
}

#[test]
fn a_link_that_cannot_be_kept_leaves_nothing() {
    let home = Home::new();
    let target = home.pair.target.to_str().unwrap();
    // A file where the folder would be, and a place where none can be made.
    let data = home.dir.path().join("data");
    fs::write(&data, "").unwrap();
    for (data, code) in [(data.as_path(), 3), (Path::new("/proc/none"), 4)] {
        let mut command = home.link(&["--target", target, "--name", "x"]);
        refused(command.env("XDG_DATA_HOME", data), code, &["drafter/links"]);
    }
    // No home at all.
    let mut command = home.link(&["--target", target, "--name", "x"]);
    refused(command.env_remove("HOME"), 2, &["HOME"]);
    // A link that was cut off is named, and does not hide the others.
    json_of(&mut home.link(&["--target", target, "--name", "good"]));
    let links = home.dir.path().join(".local/share/drafter/links");
    fs::write(Path::join(&links, "cut.json"), "{\"schema\": 1, \"na").unwrap();
    refused(home.drafter("run").args(["cut", "--ids", "1"]), 3, &["cut.json"]);
    assert_eq!(json_of(&mut home.drafter("list"))["links"].as_array().unwrap().len(), 1);
    json_of(home.drafter("unlink").arg("cut"));
    assert_eq!(home.links(), ["good.json"]);
}

/// Ends with the test.
struct Served(std::process::Child);

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A server that is killed leaves its link as it was, and the next one starts from it: while it loads,
/// just when it listens, and in the middle of an answer.
#[test]
fn a_server_that_is_killed_leaves_the_link_whole() {
    let home = Home::new();
    let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/pair");
    let mut linking = home.drafter("link");
    linking.arg(fixture.join("drafter")).arg("--target").arg(fixture.join("target.gguf"));
    linking.args(["--name", "mini"]).assert().success();
    let file = home.dir.path().join(".local/share/drafter/links/mini.json");
    let link = fs::read(&file).unwrap();
    let names = home.links();
    let start = || {
        let child = std::process::Command::new(env!("CARGO_BIN_EXE_drafter"))
            .args(["serve", "mini", "--port", "0", "--json"])
            .env_clear()
            .env("HOME", home.dir.path())
            .stdout(std::process::Stdio::piped())
            .stderr(std::process::Stdio::null())
            .spawn()
            .unwrap();
        Served(child)
    };
    for delay in [0, 5, 20, 60] {
        let served = start();
        std::thread::sleep(Duration::from_millis(delay));
        drop(served);
        assert_eq!(fs::read(&file).unwrap(), link);
        assert_eq!(home.links(), names);
    }
    for _ in 0..2 {
        let mut served = start();
        let mut document = String::new();
        let mut lines = BufReader::new(served.0.stdout.take().unwrap()).lines();
        let url = loop {
            document += &lines.next().expect("a document").unwrap();
            if let Ok(document) = serde_json::from_str::<Value>(&document) {
                break document["url"].as_str().unwrap().to_owned();
            }
        };
        let mut socket = TcpStream::connect(url.strip_prefix("http://").unwrap()).unwrap();
        let body = r#"{"prompt": [1, 2, 3], "max_tokens": 20, "stream": true}"#;
        let length = body.len();
        let head =
            "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json";
        write!(socket, "{head}\r\nContent-Length: {length}\r\n\r\n{body}").unwrap();
        // The answer has begun.
        let mut first = [0; 1];
        socket.read_exact(&mut first).unwrap();
        drop(served);
        assert_eq!(fs::read(&file).unwrap(), link);
        assert_eq!(home.links(), names);
    }
    let shown = json_of(home.drafter("show").arg("mini"));
    assert_eq!(shown["link"]["name"], "mini");
}
