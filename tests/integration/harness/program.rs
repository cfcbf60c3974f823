//! The program under test: building it once, running it, judging how it ended.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use cargo_metadata::Message;
use sha2::{Digest, Sha256};

/// A refusal takes less than a second on an idle machine; the cases run beside
/// each other, and beside whatever else the machine does.
const REFUSAL: Duration = Duration::from_secs(5);

/// No run of a case takes so long: it hangs.
const HANGS: Duration = Duration::from_secs(120);

/// Variables that change what the program does or prints.
const VARIABLES: [&str; 5] =
    ["TERNARIZE_THREADS", "TERNARIZE_RULE", "NO_COLOR", "CLICOLOR_FORCE", "FORCE_COLOR"];

/// The path of `ternarize`. Cargo gives the paths of programs to tests of their
/// own package only, so it is asked to build the program into the folder and the
/// profile that this test was built with. It is asked for this test as well:
/// then all crates have the features that they have here, and are there already.
pub(crate) fn program() -> &'static Path {
    static PATH: OnceLock<PathBuf> = OnceLock::new();
    PATH.get_or_init(|| {
        // <target>/<profile>/deps/integration-<hash>
        let test = std::env::current_exe().unwrap();
        let profile_dir = test.ancestors().nth(2).unwrap();
        let profile = match profile_dir.file_name().and_then(OsStr::to_str).unwrap() {
            "debug" => "dev",
            other => other,
        };
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let output = Command::new(cargo)
            .current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
            .args(["build", "--quiet", "--package", "compiler", "--bin", "ternarize"])
            .args(["--package", env!("CARGO_PKG_NAME"), "--test", env!("CARGO_CRATE_NAME")])
            .args(["--message-format", "json-render-diagnostics", "--profile", profile])
            .arg("--target-dir")
            .arg(profile_dir.parent().unwrap())
            .stderr(Stdio::inherit())
            .output()
            .unwrap();
        assert!(output.status.success(), "cargo cannot build the program");
        Message::parse_stream(output.stdout.as_slice())
            .find_map(|message| match message.unwrap() {
                Message::CompilerArtifact(artifact) if artifact.target.name == "ternarize" => {
                    artifact.executable.map(PathBuf::from)
                }
                _ => None,
            })
            .unwrap()
    })
}

/// How a run ended.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) output: Output,
    took: Duration,
}

/// Runs the program with `args`, texts and paths side by side.
pub(crate) fn run(args: &[&dyn AsRef<OsStr>]) -> Run {
    let mut command = Command::new(program());
    command.args(args);
    Run::of(command)
}

impl Run {
    /// Runs `command`, which is the program or starts it.
    pub(crate) fn of(mut command: Command) -> Self {
        for variable in VARIABLES {
            command.env_remove(variable);
        }
        let start = Instant::now();
        let output = assert_cmd::Command::from_std(command).timeout(HANGS).output().unwrap();
        Self { output, took: start.elapsed() }
    }

    pub(crate) fn stdout(&self) -> &str {
        std::str::from_utf8(&self.output.stdout).unwrap()
    }

    pub(crate) fn stderr(&self) -> &str {
        std::str::from_utf8(&self.output.stderr).unwrap()
    }

    /// The document on standard output.
    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.output.stdout)
            .unwrap_or_else(|e| panic!("{e} in {}", self.stdout()))
    }

    /// Demands exit code 0 and no complaint.
    #[track_caller]
    pub(crate) fn ok(self) -> Self {
        assert_eq!(self.output.status.code(), Some(0), "{}", self.stderr());
        assert_eq!(self.messages(), 0, "{}", self.stderr());
        self
    }

    /// Demands a note that contains all `parts`.
    #[track_caller]
    pub(crate) fn notes(self, parts: &[&str]) -> Self {
        let notes = self.stderr().lines().filter(|line| line.starts_with("note: "));
        let found = notes.clone().any(|note| parts.iter().all(|part| note.contains(part)));
        assert!(found, "no note with {parts:?} in {}", self.stderr());
        self
    }

    /// Demands a clean error: this exit code, one line that names what is wrong
    /// by containing all `parts` (the hint's line counts too), nothing on
    /// standard output, no panic, no long wait.
    #[track_caller]
    pub(crate) fn refused(self, code: i32, parts: &[&str]) -> Self {
        let stderr = self.stderr();
        assert_eq!(self.output.status.code(), Some(code), "{stderr}");
        assert_eq!(self.messages(), 1, "{stderr}");
        assert!(stderr.lines().filter(|line| line.starts_with("hint: ")).count() <= 1, "{stderr}");
        assert!(!stderr.contains("panicked"), "{stderr}");
        assert!(!stderr.contains('\u{1b}'), "{stderr}");
        assert_eq!(self.stdout(), "");
        let message: Vec<&str> =
            stderr.lines().skip_while(|line| !line.starts_with("ternarize: ")).collect();
        assert!(message.len() <= 2, "more than a message and its hint: {stderr}");
        for part in parts {
            assert!(message.iter().any(|line| line.contains(part)), "no {part:?} in {message:?}");
        }
        assert!(self.took < REFUSAL, "{:?} for {stderr}", self.took);
        self
    }

    fn messages(&self) -> usize {
        self.stderr().lines().filter(|line| line.starts_with("ternarize: ")).count()
    }
}

/// SHA-256 of a file in lower-case hex.
pub(crate) fn sha256(path: &Path) -> String {
    let digest = Sha256::digest(std::fs::read(path).unwrap());
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}
