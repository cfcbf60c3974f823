//! Exit codes of the runtime's errors.

use command_line::exit::{COMPUTATION, INPUT, NO, OUTPUT, USAGE, Usage};
use runtime::Error;

/// An input that is no model.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Input(pub(crate) String);

/// Sound models that are no pair.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Refused(pub(crate) String);

/// An error about an input, with a next step that only the command line knows.
#[derive(Debug, thiserror::Error)]
#[error("{error:#}")]
pub(crate) struct Advised {
    pub(crate) error: anyhow::Error,
    pub(crate) hint: String,
}

/// What makes numbers that are none.
const NO_NUMBER: &str =
    "a weight of the target or of the drafter is no number, or so large that sums overflow";

/// The exit code of an error.
pub(crate) fn code(error: &anyhow::Error) -> u8 {
    for cause in error.chain() {
        if let Some(error) = cause.downcast_ref::<Error>() {
            return match error {
                Error::FloatEnvironment { .. }
                | Error::NonFinite { .. }
                | Error::BrokenState
                | Error::Device { .. } => COMPUTATION,
                _ => INPUT,
            };
        }
        if let Some(advised) = cause.downcast_ref::<Advised>() {
            return code(&advised.error);
        }
        if cause.is::<formats::Error>() || cause.is::<Input>() {
            return INPUT;
        }
        if cause.is::<Refused>() {
            return NO;
        }
        if cause.is::<Usage>() {
            return USAGE;
        }
    }
    OUTPUT
}

/// The next step that an error names.
pub(crate) fn hint(error: &anyhow::Error) -> Option<&str> {
    error.chain().find_map(|cause| {
        match cause.downcast_ref() {
            Some(Error::Formats(error)) => return error.hint(),
            Some(Error::NonFinite { .. }) => return Some(NO_NUMBER),
            Some(Error::Device { hint: Some(hint), .. }) => return Some(hint),
            _ => {}
        }
        if let Some(advised) = cause.downcast_ref::<Advised>() {
            return Some(&advised.hint);
        }
        cause.downcast_ref::<formats::Error>()?.hint()
    })
}
