//! Exit codes of the runtime's errors.

use command_line::exit::{COMPUTATION, INPUT, OUTPUT, USAGE, Usage};
use runtime::Error;

/// An input that is no model.
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

/// The next step that an error names.
pub(crate) fn hint(error: &anyhow::Error) -> Option<&str> {
    error.chain().find_map(|cause| match cause.downcast_ref::<Error>() {
        Some(Error::Formats(error)) => error.hint(),
        _ => cause.downcast_ref::<formats::Error>()?.hint(),
    })
}
