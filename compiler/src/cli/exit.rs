//! Exit codes of the compiler's errors.

use command_line::exit::{INPUT, OUTPUT, USAGE, Usage, interrupted};
use compiler::{Error, Failure};

/// The exit code of an error.
pub(crate) fn code(error: &anyhow::Error) -> u8 {
    for cause in error.chain() {
        if let Some(error) = cause.downcast_ref::<Error>() {
            return match error.failure() {
                Failure::Input => INPUT,
                Failure::Output => OUTPUT,
                Failure::Interrupted => interrupted(),
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

/// The next step that an error names.
pub(crate) fn hint(error: &anyhow::Error) -> Option<&str> {
    error.chain().find_map(|cause| {
        cause
            .downcast_ref::<Error>()
            .and_then(Error::hint)
            .or_else(|| cause.downcast_ref::<formats::Error>().and_then(formats::Error::hint))
    })
}
