//! `ternarize verify` and `ternarize inspect` as programs: exit codes and streams.

#![allow(clippy::unwrap_used, reason = "helpers of tests are parts of tests")]

#[path = "../src/testing.rs"]
#[allow(dead_code, reason = "shared with the unit tests")]
mod testing;

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use tempfile::TempDir;

fn ternarize(dir: &Path, args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_ternarize"))
        .args(args)
        .current_dir(dir)
        .env_remove("TERNARIZE_THREADS")
        .output()
        .unwrap()
}

/// Exit code, standard output, standard error.
fn run(dir: &Path, args: &[&str]) -> (Option<i32>, String, String) {
    let Output { status, stdout, stderr } = ternarize(dir, args);
    (status.code(), String::from_utf8(stdout).unwrap(), String::from_utf8(stderr).unwrap())
}

/// `float/` and its ternary forms `m.q4nx` and `m.gguf`.
fn drafter() -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    testing::write_drafter(&dir.path().join("float"), 1, |_| {});
    let args = ["float", "-o", "m.q4nx", "-o", "m.gguf", "--block", "256", "-q"];
    assert_eq!(run(dir.path(), &args), (Some(0), String::new(), String::new()));
    dir
}

#[test]
fn verify_answers_with_its_exit_code_and_last_line() {
    let dir = drafter();
    for args in [
        &["verify", "m.q4nx"][..],
        &["verify", "m.q4nx", "--against", "float"],
        &["verify", "m.gguf", "--against", "m.q4nx", "-v"],
    ] {
        let (code, out, err) = run(dir.path(), args);
        assert_eq!((code, err.as_str()), (Some(0), ""), "{out}");
        assert_eq!(out.lines().last(), Some("verdict: ok"));
        assert_eq!(out.contains("layers.0.self_attn.q_proj.weight"), args.contains(&"-v"));
    }
    let args = ["verify", "m.gguf", "--against", "float", "--max-error", "0.1"];
    let (code, out, _) = run(dir.path(), &args);
    assert_eq!(code, Some(1));
    let last = out.lines().last().unwrap();
    assert!(last.starts_with("verdict: no (`fc.weight`: relative squared error: "), "{last}");

    let (code, out, err) = run(dir.path(), &[&args[..], &["--json"]].concat());
    assert_eq!((code, err.as_str()), (Some(1), ""));
    let json: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!((&json["schema"], &json["verdict"]), (&1.into(), &"no".into()));
    assert!(json["reason"].as_str().unwrap().starts_with("`fc.weight`"));
    assert_eq!(json["matrices"].as_array().unwrap().len(), 11);
    assert_eq!(json["against"]["max_error"], 0.1);
}

#[test]
fn verify_tells_damage_from_wrong_usage() {
    let dir = drafter();
    let bytes = fs::read(dir.path().join("m.q4nx")).unwrap();
    fs::write(dir.path().join("cut.q4nx"), &bytes[..bytes.len() - 1]).unwrap();
    let (code, out, err) = run(dir.path(), &["verify", "cut.q4nx"]);
    assert_eq!((code, out.as_str()), (Some(3), ""));
    assert!(err.contains("truncated"), "{err}");
    let (code, out, _) = run(dir.path(), &["verify", "cut.q4nx", "--json"]);
    let json: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!((code, &json["error"]["exit_code"]), (Some(3), &3.into()));
    for args in [
        &["verify"][..],
        &["verify", "m.gguf", "--max-error", "0.1"],
        &["verify", "m.gguf", "--against", "float", "--max-error", "-1"],
        &["verify", "m.gguf", "--against", "float", "--max-error", "nan"],
    ] {
        assert_eq!(run(dir.path(), args).0, Some(2), "{args:?}");
    }
}

#[test]
fn inspect_tells_what_a_file_is() {
    let dir = drafter();
    let (code, out, err) = run(dir.path(), &["inspect", "m.q4nx"]);
    assert_eq!((code, err.as_str()), (Some(0), ""));
    let first = out.lines().next().unwrap();
    assert_eq!(first, "DFlash 2 drafter, ternary, q4nx exact-ternary profile, rotation block 256");
    assert!(out.contains("layers.0.mlp.down_proj.weight"), "{out}");
    let (code, out, _) = run(dir.path(), &["inspect", "m.gguf", "--json"]);
    let json: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!((code, &json["kind"]), (Some(0), &"drafter".into()));
    assert_eq!(json["lineage"]["rule"], "optimal");
    fs::write(dir.path().join("junk"), [0xFF; 100]).unwrap();
    assert_eq!(run(dir.path(), &["inspect", "junk"]).0, Some(3));
    assert_eq!(run(dir.path(), &["inspect"]).0, Some(2));
}

#[test]
fn inspect_escapes_what_a_file_says() {
    let dir = tempfile::tempdir().unwrap();
    let header = r#"{"\u001b[31mred\n":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"__metadata__":{"k\u0007":"v\u001b]0;title"}}"#;
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.as_bytes());
    bytes.push(0);
    fs::write(dir.path().join("x.safetensors"), bytes).unwrap();
    let (code, out, err) = run(dir.path(), &["inspect", "x.safetensors"]);
    assert_eq!(code, Some(0), "{err}");
    assert!(out.contains(r"\u{1b}[31mred\n"), "{out}");
    assert!(!out.contains('\u{1b}') && !out.contains('\u{7}'), "{out}");
    assert!(err.contains("note: not a drafter"), "{err}");
}
