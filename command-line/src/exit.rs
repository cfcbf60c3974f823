//! Exit codes, the same for both programs.

use std::io;
use std::path::Path;

use formats::shown_path;

use super::signals;

/// The files are sound, but the answer is no.
pub const NO: u8 = 1;
/// The command line makes no sense.
pub const USAGE: u8 = 2;
/// An input is missing, damaged or not supported.
pub const INPUT: u8 = 3;
/// An output cannot be written.
pub const OUTPUT: u8 = 4;
/// The computation failed: numbers that are none, a changed floating-point environment.
pub const COMPUTATION: u8 = 5;
/// Stopped, but by no signal that we saw.
const INTERRUPTED: u8 = 130;

/// How a command ended that did not fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// Done, or the answer is yes.
    Done,
    /// The answer is no, and was printed.
    No,
    /// A signal ended it early; what there was by then was printed.
    Interrupted,
}

impl Outcome {
    /// The exit code.
    #[must_use]
    pub fn code(self) -> u8 {
        match self {
            Self::Done => 0,
            Self::No => NO,
            Self::Interrupted => interrupted(),
        }
    }
}

/// The exit code of the signal that ended the run.
#[must_use]
pub fn interrupted() -> u8 {
    signals::code().unwrap_or(INTERRUPTED)
}

/// A combination of arguments that the parser cannot see is wrong.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Usage(pub String);

/// Whether nobody reads standard output any more.
#[must_use]
pub fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error
        .chain()
        .filter_map(|cause| cause.downcast_ref::<io::Error>())
        .any(|e| e.kind() == io::ErrorKind::BrokenPipe)
}

/// Says which argument an error is about, where that is not what it names first.
pub fn reading(
    path: &Path,
    error: impl std::error::Error + Send + Sync + 'static,
) -> anyhow::Error {
    let name = format!("`{}`", shown_path(path));
    let named = error.to_string().starts_with(&name);
    let error = anyhow::Error::new(error);
    if named { error } else { error.context(format!("reading {name}")) }
}
