//! A pair on disk, and what the tests of the program demand of its output.

#![allow(clippy::unwrap_used, dead_code, reason = "each test file uses a part of it")]

#[path = "../../../runtime/tests/support/mod.rs"]
pub(crate) mod support;

use std::path::PathBuf;
use std::time::Duration;

use assert_cmd::Command;
use formats::gguf::GgmlType;
use serde_json::Value;
use support::drafter::{Kind, config, write};
use support::{Shape, Storage, noise};
use tempfile::TempDir;

/// A pair of noise on disk.
pub(crate) struct Pair {
    pub(crate) dir: TempDir,
    pub(crate) target: PathBuf,
    pub(crate) drafter: PathBuf,
}

impl Pair {
    pub(crate) fn new() -> Self {
        let shape = Shape::mini();
        let dir = tempfile::tempdir().unwrap();
        let target = dir.path().join("target.gguf");
        let source = noise(&shape, Storage::Pq2_0, 7).source();
        std::fs::write(&target, source.read_vec(0, source.len()).unwrap()).unwrap();
        let kind = Kind::Gguf(GgmlType::PQ2_0);
        let drafter = write(dir.path(), &config(&shape), kind, shape.block, 3);
        Self { dir, target, drafter }
    }

    pub(crate) fn command(&self, name: &str) -> Command {
        let mut command = Command::cargo_bin("drafter").unwrap();
        command.env_remove("TERNARIZE_THREADS").timeout(Duration::from_secs(120));
        command.arg(name).arg("--target").arg(&self.target);
        command
    }

    pub(crate) fn drafting(&self, name: &str) -> Command {
        let mut command = self.command(name);
        command.arg("--drafter").arg(&self.drafter);
        command
    }
}

#[track_caller]
pub(crate) fn json_of(command: &mut Command) -> Value {
    let output = command.arg("--json").output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{stderr}");
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Demands this exit code and one line on standard error that contains all `parts`.
#[track_caller]
pub(crate) fn refused(command: &mut Command, code: i32, parts: &[&str]) {
    let output = command.output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(code), "{stderr}");
    let mut lines = stderr.lines().filter(|line| line.starts_with("drafter: "));
    let line = lines.next().unwrap_or_else(|| panic!("no message in {stderr}"));
    assert!(parts.iter().all(|part| line.contains(part)), "{parts:?} in {stderr}");
    assert_eq!(lines.next(), None, "{stderr}");
    assert!(!stderr.contains("panicked"), "{stderr}");
}

/// Demands exit code 3 and a hint that contains `part`.
#[track_caller]
pub(crate) fn hinted(command: &mut Command, part: &str) {
    let output = command.output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(3), "{stderr}");
    let hint = stderr.lines().find(|line| line.starts_with("hint: "));
    assert!(hint.is_some_and(|line| line.contains(part)), "{part:?} in {stderr}");
}
