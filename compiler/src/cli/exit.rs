//! Exit codes.

use std::io;
use std::path::Path;
use std::sync::atomic::Ordering;

use compiler::{Error, Failure};
use formats::shown_path;

use super::signals;

/// The files are sound, but the answer is no.
const NO: u8 = 1;
/// The command line makes no sense.
pub(crate) const USAGE: u8 = 2;
/// An input is missing, damaged or not supported.
const INPUT: u8 = 3;
/// An output cannot be written.
pub(crate) const OUTPUT: u8 = 4;
/// Stopped, but by no signal that we saw.
const INTERRUPTED: u8 = 130;

/// How a command ended that did not fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// Done, or the answer is yes.
    Done,
    /// The answer is no, and was printed.
    No,
}

impl Outcome {
    /// The exit code.
    pub(crate) fn code(self) -> u8 {
        match self {
            Self::Done => 0,
            Self::No => NO,
        }
    }
}

/// A combination of arguments that the parser cannot see is wrong.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Usage(pub(crate) String);

/// The exit code of an error.
pub(crate) fn code(error: &anyhow::Error) -> u8 {
    for cause in error.chain() {
        if let Some(error) = cause.downcast_ref::<Error>() {
            return match error.failure() {
                Failure::Input => INPUT,
                Failure::Output => OUTPUT,
                Failure::Interrupted => match signals::RECEIVED.load(Ordering::Relaxed) {
                    0 => INTERRUPTED,
                    code => code as u8,
                },
            };
        }
        if cause.is::<formats::Error>() {
            return INPUT;
        }
        if cause.is::<Usage>() {
            return USAGE;
        }
    }
    OUTPUT
}

/// Whether nobody reads standard output any more.
pub(crate) fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error
        .chain()
        .filter_map(|cause| cause.downcast_ref::<io::Error>())
        .any(|e| e.kind() == io::ErrorKind::BrokenPipe)
}

/// The next step that an error names.
pub(crate) fn hint(error: &anyhow::Error) -> Option<&str> {
    error.chain().find_map(|cause| {
        cause
            .downcast_ref::<Error>()
            .and_then(Error::hint)
            .or_else(|| cause.downcast_ref::<formats::Error>().and_then(formats::Error::hint))
    })
}

/// Says which argument an error is about, where that is not what it names first.
pub(crate) fn reading(path: &Path, error: formats::Error) -> anyhow::Error {
    let name = format!("`{}`", shown_path(path));
    if error.to_string().starts_with(&name) {
        error.into()
    } else {
        anyhow::Error::new(error).context(format!("reading {name}"))
    }
}
