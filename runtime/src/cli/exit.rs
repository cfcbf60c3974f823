//! Exit codes.

use std::io;
use std::sync::atomic::Ordering;

use runtime::Error;

use super::signals;

/// The files are sound, but the answer is no.
const NO: u8 = 1;
/// The command line makes no sense.
pub(crate) const USAGE: u8 = 2;
/// A model or another input is missing, damaged or not supported.
const INPUT: u8 = 3;
/// The output cannot be written.
const OUTPUT: u8 = 4;
/// The computation failed: numbers that are none, a changed floating-point environment.
const COMPUTATION: u8 = 5;
/// Stopped, but by no signal that we saw.
const INTERRUPTED: u8 = 130;

/// How a command ended that did not fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// Done, or the answer is yes.
    Done,
    /// The answer is no, and was printed.
    No,
    /// A signal ended it early; what there was by then was printed.
    Interrupted,
}

impl Outcome {
    /// The exit code.
    pub(crate) fn code(self) -> u8 {
        match self {
            Self::Done => 0,
            Self::No => NO,
            Self::Interrupted => match signals::RECEIVED.load(Ordering::Relaxed) {
                0 => INTERRUPTED,
                code => code as u8,
            },
        }
    }
}

/// A combination of arguments that the parser cannot see is wrong.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Usage(pub(crate) String);

/// An input file that is no model.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Input(pub(crate) String);

/// The exit code of an error.
pub(crate) fn code(error: &anyhow::Error) -> u8 {
    for cause in error.chain() {
        if let Some(error) = cause.downcast_ref::<Error>() {
            return match error {
                Error::FloatEnvironment { .. } | Error::NonFinite { .. } | Error::BrokenState => {
                    COMPUTATION
                }
                _ => INPUT,
            };
        }
        if cause.is::<formats::Error>() || cause.is::<Input>() {
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
        let formats = cause.downcast_ref::<formats::Error>();
        formats.or_else(|| match cause.downcast_ref::<Error>() {
            Some(Error::Formats(error)) => Some(error),
            _ => None,
        })?.hint()
    })
}
