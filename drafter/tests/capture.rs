//! `drafter capture` on models of noise, as a user meets it.

#![allow(clippy::unwrap_used, reason = "tests, which clippy does not see in helpers")]

mod common;

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use assert_cmd::Command;
use common::support::Shape;
use common::support::drafter::{Kind, config, write};
use common::{Pair, json_of, refused};
use formats::calib::{self, File, Tiles};
use formats::{Source, labels, safetensors};

/// A pair with a float drafter, and prompts.
struct Case {
    pair: Pair,
    prompts: PathBuf,
}

impl Case {
    fn new() -> Self {
        let mut pair = Pair::new();
        let shape = Shape::mini();
        pair.drafter = write(pair.dir.path(), &config(&shape), Kind::Float, shape.block, 3);
        let prompts = pair.dir.path().join("prompts.jsonl");
        let line = |n: usize| {
            let ids: Vec<usize> = (0..9 + 5 * n).map(|i| (i * 13 + n) % 60).collect();
            format!("{{\"ids\": {ids:?}}}\n")
        };
        std::fs::write(&prompts, (0..7).map(line).collect::<String>()).unwrap();
        Self { pair, prompts }
    }

    fn out(&self, name: &str) -> PathBuf {
        self.pair.dir.path().join(name)
    }

    fn command(&self) -> Command {
        let mut command = self.pair.drafting("capture");
        command.arg("--prompts").arg(&self.prompts).args(["--block", "64", "-n", "24"]);
        command
    }

    fn capture(&self, name: &str, more: &[&str]) -> Vec<u8> {
        let out = self.out(name);
        json_of(self.command().arg("-o").arg(&out).args(more));
        std::fs::read(&out).unwrap()
    }
}

fn merged(paths: &[PathBuf]) -> Result<Vec<u8>, formats::Error> {
    let files = paths.iter().map(File::open).collect::<Result<Vec<_>, _>>()?;
    let (mut document, mut tiles) = calib::merge(&files)?;
    let mut bytes = vec![0; calib::file_len(&document) as usize];
    let tiles: &mut dyn Tiles<formats::Error> = &mut tiles;
    calib::write(&mut document, tiles, &mut |offset, part: &[u8]| {
        bytes[offset as usize..][..part.len()].copy_from_slice(part);
        Ok(())
    })?;
    Ok(bytes)
}

#[test]
fn shards_are_one_run_in_any_order_and_with_any_threads() {
    let case = Case::new();
    let one = case.capture("one", &["--threads", "1"]);
    assert_eq!(case.capture("again", &["--threads", "3"]), one);
    let parts: Vec<PathBuf> = [("1/3", "2"), ("2/3", "1"), ("3/3", "2")]
        .iter()
        .map(|(shard, threads)| {
            let name = format!("part-{}", &shard[..1]);
            case.capture(&name, &["--shard", shard, "--threads", threads]);
            case.out(&name)
        })
        .collect();
    for order in [[0, 1, 2], [2, 1, 0], [1, 2, 0]] {
        assert_eq!(merged(&order.map(|i: usize| parts[i].clone())).unwrap(), one);
    }
    // A shard twice is refused, and so are other models, another arithmetic and other weights.
    let twice = merged(&[parts[0].clone(), parts[0].clone()]).unwrap_err().to_string();
    assert!(twice.contains("units"), "{twice}");
    let shard = ["--shard", "2/3"];
    for (name, more, part) in [
        ("act", &["--act", "a16"][..], "act"),
        ("weights", &["--weights", "uniform"], "row_weights"),
        ("block", &["--block", "128"], "block"),
    ] {
        let mut command = case.pair.drafting("capture");
        command.arg("--prompts").arg(&case.prompts).args(["-n", "24"]).args(shard).args(more);
        if !more.contains(&"--block") {
            command.args(["--block", "64"]);
        }
        json_of(command.arg("-o").arg(case.out(name)));
        let error = merged(&[parts[0].clone(), case.out(name)]).unwrap_err().to_string();
        assert!(error.contains(part), "{error}");
    }
    let other = Case::new();
    let shape = Shape::mini();
    write(other.pair.dir.path(), &config(&shape), Kind::Float, shape.block, 4);
    other.capture("other", &shard);
    let error = merged(&[parts[0].clone(), other.out("other")]).unwrap_err().to_string();
    assert!(error.contains("drafter_sha256"), "{error}");
    // What is there is not replaced.
    refused(case.command().arg("-o").arg(case.out("one")), 4, &["exists", "--force"]);
    assert_eq!(case.capture("one", &["--force"]), one);
}

#[test]
fn a_killed_run_goes_on_where_it_was_saved() {
    let case = Case::new();
    let whole = case.capture("whole", &[]);
    let out = case.out("killed");
    let state = case.out("killed.state");
    let mut killed = 0;
    for round in 0..40 {
        let mut command = case.command();
        command.args(["--threads", "1"]).arg("-o").arg(&out);
        let program = command.get_program().to_owned();
        let mut child = std::process::Command::new(program)
            .args(command.get_args())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let begin = Instant::now();
        let patience = Duration::from_millis(30 + 40 * round);
        let ended = loop {
            if let Some(status) = child.try_wait().unwrap() {
                break Some(status);
            }
            if begin.elapsed() > patience {
                break None;
            }
            std::thread::sleep(Duration::from_millis(3));
        };
        match ended {
            Some(status) => {
                assert!(status.success());
                break;
            }
            None => {
                child.kill().unwrap();
                child.wait().unwrap();
                killed += 1;
                assert!(!out.exists(), "the output appears when it is whole");
                if state.exists() {
                    // The old state or the new one, never a part.
                    File::open(&state).unwrap();
                }
            }
        }
    }
    assert!(killed > 0);
    assert_eq!(std::fs::read(&out).unwrap(), whole);
    assert!(!state.exists() && !case.out("killed.state.partial").exists());

    // Another run's state is refused, a damaged one too.
    std::fs::write(&state, &whole).unwrap();
    let mut other = case.command();
    other.arg("-o").arg(&out).args(["--force", "--act", "a16"]);
    refused(&mut other, 3, &["killed.state", "models"]);
    std::fs::write(&state, &whole[..whole.len() / 2]).unwrap();
    refused(case.command().arg("-o").arg(&out).arg("--force"), 3, &["killed.state", "truncated"]);
}

#[test]
fn labels_are_files_that_others_read() {
    let case = Case::new();
    let folder = case.out("labels");
    let found = json_of(case.command().arg("--labels").arg(&folder).args(["--positions", "60"]));
    assert_eq!(found["units"]["done"], 7);
    assert_eq!(found["positions"], 60);
    let path = folder.join("000002.safetensors");
    let bytes = std::fs::read(&path).unwrap();
    let document = labels::document(Source::open(&path).unwrap()).unwrap();
    let file = safetensors::File::open(Source::open(&path).unwrap()).unwrap();
    let shape = |name: &str| file.get(name).unwrap().shape.clone();
    // 60 positions among 7 prompts: 9 for the first four, 8 for the others; and one that begins.
    let n = 19 + 10;
    assert_eq!((document.first, document.texts.positions), (19, 9));
    assert_eq!(
        (shape("ids"), shape("top_ids"), shape("top_logprobs")),
        (vec![n], vec![10, 32], vec![10, 32])
    );
    assert_eq!(shape("taps"), [n - 1, 256]);
    // The rounds' last one may have had no room for drafts.
    assert!(shape("anchors")[0] + 1 >= document.texts.rounds);
    // Again: nothing is left to do. Of other texts: refused.
    let again = json_of(case.command().arg("--labels").arg(&folder).args(["--positions", "60"]));
    assert_eq!((&again["units"]["resumed"], &again["positions"]), (&7.into(), &60.into()));
    assert_eq!(std::fs::read(&path).unwrap(), bytes);
    refused(case.command().arg("--labels").arg(&folder), 3, &["labels of other"]);
    // With moments the labels are the same.
    let out = case.out("both");
    let mut both = case.command();
    both.arg("--labels").arg(&folder).arg("-o").arg(&out).args(["--positions", "60"]);
    json_of(&mut both);
    assert_eq!(std::fs::read(&path).unwrap(), bytes);
    assert_eq!(File::open(&out).unwrap().document().texts[0].positions, 60);
}

#[test]
fn given_text_of_the_trained_pair() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/pair");
    let dir = tempfile::tempdir().unwrap();
    let capture = |name: &str| {
        let mut command = Command::cargo_bin("drafter").unwrap();
        command.arg("capture").arg("--target").arg(folder.join("target.gguf"));
        command.arg("--drafter").arg(folder.join("drafter/model.safetensors"));
        command.args(["--block", "256", "-o"]).arg(dir.path().join(name));
        command
    };
    let text = dir.path().join("text.py");
    let body =
        "def add(self, name, value):\n    if name is None:\n        raise ValueError(name)\n";
    std::fs::write(&text, body.repeat(8)).unwrap();
    let mut given = capture("given");
    let found = json_of(given.arg("--text").arg(&text).args(["-n", "64", "--full", "fc"]));
    let rate = found["tokens_per_round"].as_f64().unwrap();
    assert!(rate > 1.5, "{rate}");
    let file = File::open(dir.path().join("given")).unwrap();
    assert!(file.pair(calib::Input::Fc, 0, 2).unwrap().is_some());
    let record = file.input(calib::Input::Qkv(1)).unwrap();
    assert!(record.rows >= 8 * (found["rounds"].as_u64().unwrap() - 3));

    let sampled = |name: &str| {
        let mut command = capture(name);
        command.arg("--prompts").arg(folder.join("prompts.jsonl"));
        command.args(["--shard", "5/96", "-n", "20", "--temp", "0.8", "--ignore-eos"]);
        json_of(&mut command);
        std::fs::read(dir.path().join(name)).unwrap()
    };
    assert_eq!(sampled("a"), sampled("b"));
}

#[test]
fn wrong_wishes_are_refused() {
    let case = Case::new();
    // Nothing to write, nothing to read, a part that there is not.
    let prompts = case.prompts.to_str().unwrap();
    for wish in [
        &["--text", "x"][..],
        &["-o", "x"],
        &["--text", "x", "--force"],
        &["--prompts", prompts, "-o", "x", "--shard", "4/3"],
        &["--prompts", prompts, "-o", "x", "--text", "y"],
    ] {
        let output = case.pair.drafting("capture").args(wish).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{wish:?}");
    }
    let out = case.out("x");
    let with = |more: &[&str]| {
        let mut command = case.command();
        command.arg("-o").arg(&out).args(more);
        command
    };
    refused(&mut with(&["--full", "fc,layers.9.qkv"]), 2, &["layers.9.qkv"]);
    refused(&mut with(&["--think", "on"]), 2, &["--think"]);
    let mut block = case.pair.drafting("capture");
    block.arg("--prompts").arg(&case.prompts).arg("-o").arg(&out);
    refused(&mut block, 3, &["1024"]);
    // The pair that `Pair` makes has a ternary drafter.
    let pair = Pair::new();
    let mut ternary = pair.drafting("capture");
    ternary.arg("--prompts").arg(&case.prompts).arg("-o").arg(&out).args(["--block", "64"]);
    refused(&mut ternary, 3, &["float drafter"]);
    assert!(!out.exists() && !case.out("x.state").exists());
}
