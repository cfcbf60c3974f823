//! One drafter in a folder of its own, and an empty folder for what is made of it.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use super::{Model, Run, program};

/// `in/model.safetensors` with its `config.json`, and `out/`.
#[derive(Debug)]
pub(crate) struct Case {
    dir: TempDir,
}

impl Case {
    pub(crate) fn new(model: &Model) -> Self {
        let case = Self::empty();
        model.write(&case.dir.path().join("in"));
        case
    }

    /// No input yet.
    pub(crate) fn empty() -> Self {
        let dir = tempfile::tempdir().unwrap();
        for folder in ["in", "out"] {
            fs::create_dir(dir.path().join(folder)).unwrap();
        }
        Self { dir }
    }

    /// The folder that holds both.
    pub(crate) fn root(&self) -> &Path {
        self.dir.path()
    }

    /// A file of the input's folder.
    pub(crate) fn input(&self, name: impl AsRef<OsStr>) -> PathBuf {
        self.dir.path().join("in").join(name.as_ref())
    }

    /// The weights.
    pub(crate) fn weights(&self) -> PathBuf {
        self.input("model.safetensors")
    }

    /// A file of the outputs' folder.
    pub(crate) fn out(&self, name: impl AsRef<OsStr>) -> PathBuf {
        self.dir.path().join("out").join(name.as_ref())
    }

    /// What is in the outputs' folder.
    pub(crate) fn made(&self) -> Vec<OsString> {
        let mut names: Vec<OsString> =
            fs::read_dir(self.out("")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        names
    }

    /// The program, about to ternarize the weights to outputs of these names in
    /// rotation blocks of 256.
    pub(crate) fn command(&self, outputs: &[&str], more: &[&str]) -> Command {
        let mut command = Command::new(program());
        command.arg(self.weights()).args(["--block", "256"]).args(more);
        for name in outputs {
            command.arg("-o").arg(self.out(name));
        }
        command
    }

    /// Ternarizes the weights to outputs of these names.
    pub(crate) fn ternarize(&self, outputs: &[&str], more: &[&str]) -> Run {
        Run::of(self.command(outputs, more))
    }

    /// Converts one file to another, both in the outputs' folder.
    pub(crate) fn convert(&self, from: &str, to: &str, more: &[&str]) -> Run {
        let mut command = Command::new(program());
        command.arg("convert").arg(self.out(from)).arg("-o").arg(self.out(to)).args(more);
        Run::of(command)
    }

    /// Ternarizes to a q4nx and demands a clean error that leaves nothing behind.
    #[track_caller]
    pub(crate) fn is_refused(&self, code: i32, parts: &[&str]) {
        self.ternarize(&["m.q4nx"], &[]).refused(code, parts);
        assert!(self.made().is_empty(), "left behind: {:?}", self.made());
    }

    /// Ternarizes to a q4nx and returns its bytes; `parts` are those of a note.
    #[track_caller]
    pub(crate) fn q4nx(&self, parts: &[&str]) -> Vec<u8> {
        let run = self.ternarize(&["m.q4nx"], &[]).ok();
        if !parts.is_empty() {
            run.notes(parts);
        }
        fs::read(self.out("m.q4nx")).unwrap()
    }
}
