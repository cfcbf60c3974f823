//! Packed weights on disk, as a user meets them.

#![allow(clippy::unwrap_used, reason = "tests, which clippy does not see in helpers")]

mod common;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use assert_cmd::Command;
use common::{Pair, json_of, refused};
use serde_json::Value;

const PROMPT: [&str; 4] = ["--ids", "1,2,3,4,5", "-n", "6"];

fn cache(dir: &Path, args: &[&str]) -> Command {
    let mut command = Command::cargo_bin("drafter").unwrap();
    command.arg("cache").args(args).arg("--pack-cache").arg(dir).timeout(Duration::from_secs(60));
    command
}

fn packs(dir: &Path) -> Vec<Value> {
    json_of(&mut cache(dir, &["list"]))["packs"].as_array().unwrap().clone()
}

fn files(dir: &Path) -> Vec<PathBuf> {
    let Ok(listed) = fs::read_dir(dir) else { return Vec::new() };
    listed.map(|entry| entry.unwrap().path()).filter(|path| !path.ends_with(".lock")).collect()
}

#[test]
fn packs_are_made_listed_checked_and_removed() {
    let pair = Pair::new();
    let dir = pair.dir.path().join("packs");
    let plain = json_of(pair.drafting("run").args(PROMPT).arg("--no-pack-cache"));
    assert!(packs(&dir).is_empty());
    for round in 0..2 {
        let mut command = pair.drafting("run");
        let output = command.args(PROMPT).arg("--pack-cache").arg(&dir).output().unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        let announced = stderr.matches("packing the weights of").count();
        assert_eq!(announced, if round == 0 { 2 } else { 0 }, "{stderr}");
        assert_eq!(stderr.contains("target.gguf"), round == 0, "{stderr}");
        let found = json_of(pair.drafting("run").args(PROMPT).arg("--pack-cache").arg(&dir));
        assert_eq!(found["ids"], plain["ids"]);
    }
    let listed = packs(&dir);
    assert_eq!(listed.len(), 2);
    for pack in &listed {
        assert_eq!((&pack["kind"], &pack["state"]), (&"cpu-tiles/1".into(), &"current".into()));
        assert!(pack["size_bytes"].as_u64().unwrap() > 0 && pack["problem"].is_null());
    }
    let of_target = |packs: &[Value]| {
        let of = |pack: &&Value| pack["sources"][0].as_str().unwrap().ends_with("target.gguf");
        packs.iter().find(of).unwrap().clone()
    };
    let exact = pair.drafting("verify-exact").args(["-n", "4", "--pack-cache"]).arg(&dir).output();
    // The pair has no tokenizer for the built-in prompts.
    assert_eq!(exact.unwrap().status.code(), Some(3));

    let checked = json_of(&mut cache(&dir, &["verify"]));
    assert_eq!(checked["packs"].as_array().unwrap().len(), 2);
    let pack = of_target(&listed);
    let (name, path) = (pack["name"].as_str().unwrap(), Path::new(pack["path"].as_str().unwrap()));
    let mut bytes = fs::read(path).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::remove_file(path).unwrap();
    fs::write(path, &bytes).unwrap();
    let output = cache(&dir, &["verify", name, "--json"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let document: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(document["packs"][0]["state"], "damaged");
    assert_eq!(document["packs"][0]["damaged"].as_array().unwrap().len(), 1);

    // A half of a file is seen without reading it, and made anew.
    fs::write(path, &bytes[..middle]).unwrap();
    assert_eq!(of_target_state(&packs(&dir), name), "damaged");
    let output = pair.drafting("run").args(PROMPT).arg("--pack-cache").arg(&dir).output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success() && stderr.contains("again, because"), "{stderr}");
    assert_eq!(of_target_state(&packs(&dir), name), "current");

    // A model that changed makes its pack stale.
    let weights = fs::read(&pair.target).unwrap();
    fs::write(&pair.target, weights).unwrap();
    assert_eq!(of_target_state(&packs(&dir), name), "stale");
    let removed = json_of(&mut cache(&dir, &["remove", "--stale"]));
    assert_eq!(removed["packs"].as_array().unwrap().len(), 1);
    let listed = packs(&dir);
    assert_eq!(listed.len(), 1);
    refused(&mut cache(&dir, &["remove", "nothing"]), 2, &["nothing"]);
    refused(&mut cache(&dir, &["verify", name]), 2, &[name]);
    let drafter = pair.drafter.to_str().unwrap();
    assert!(cache(&dir, &["remove", drafter]).output().unwrap().status.success());
    assert!(packs(&dir).is_empty() && files(&dir).is_empty());
    assert!(cache(&dir, &["remove", "--all"]).output().unwrap().status.success());
}

fn of_target_state(packs: &[Value], name: &str) -> String {
    let pack = packs.iter().find(|pack| pack["name"] == name).unwrap();
    pack["state"].as_str().unwrap().to_owned()
}

#[test]
fn small_models_leave_nothing_in_the_users_cache() {
    let pair = Pair::new();
    let home = pair.dir.path().join("home");
    let mut command = pair.drafting("run");
    json_of(command.args(PROMPT).env("XDG_CACHE_HOME", &home).env("HOME", &home));
    assert!(!home.exists());
    let mut listed = Command::cargo_bin("drafter").unwrap();
    let listed = json_of(listed.args(["cache", "list"]).env("XDG_CACHE_HOME", &home));
    assert_eq!(listed["dir"], home.join("drafter/packs").to_str().unwrap());
    let both = ["--no-pack-cache", "--pack-cache", "x"];
    let output = pair.command("run").args(PROMPT).args(both).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    let mut homeless = Command::cargo_bin("drafter").unwrap();
    homeless.args(["cache", "list"]).env_remove("XDG_CACHE_HOME").env_remove("HOME");
    refused(&mut homeless, 2, &["HOME"]);
}

/// A cache that cannot be used costs time, no answer.
#[test]
fn without_a_usable_folder_weights_are_packed_in_memory() {
    let pair = Pair::new();
    let plain = json_of(pair.command("run").args(PROMPT));
    let no_folder = pair.dir.path().join("file");
    fs::write(&no_folder, "").unwrap();
    let mut command = pair.command("run");
    let output = command.args(PROMPT).arg("--json").arg("--pack-cache").arg(&no_folder).output();
    let output = output.unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(stderr.contains("pack cache: ") && stderr.contains("in memory"), "{stderr}");
    let document: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(document["ids"], plain["ids"]);
}

/// Two programs that start at once, and one that is killed at some moment of its start.
#[test]
fn programs_share_a_cache() {
    let pair = Pair::new();
    let dir = pair.dir.path().join("packs");
    let start = || {
        std::process::Command::new(env!("CARGO_BIN_EXE_drafter"))
            .args(["run", "--target"])
            .arg(&pair.target)
            .arg("--pack-cache")
            .arg(&dir)
            .args(PROMPT)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap()
    };
    let plain = json_of(pair.command("run").args(PROMPT));
    let ids: Vec<String> = plain["ids"].as_array().unwrap().iter().map(Value::to_string).collect();
    let both = [start(), start()].map(|child| child.wait_with_output().unwrap());
    for output in both {
        assert_eq!(String::from_utf8(output.stdout).unwrap().trim(), ids.join(" "));
    }
    assert_eq!(files(&dir).len(), 1);
    for delay in 0..12 {
        fs::remove_file(&files(&dir)[0]).unwrap();
        let mut child = start();
        std::thread::sleep(Duration::from_millis(delay));
        child.kill().unwrap();
        child.wait().unwrap();
        // What is there under its name is whole.
        json_of(&mut cache(&dir, &["verify"]));
        let output = start().wait_with_output().unwrap();
        assert_eq!(String::from_utf8(output.stdout).unwrap().trim(), ids.join(" "));
        assert_eq!(files(&dir).len(), 1);
    }
}
