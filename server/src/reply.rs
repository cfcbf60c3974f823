//! Small things that every answer needs.

use std::time::{SystemTime, UNIX_EPOCH};

use crate::sampling::random;

/// Seconds since 1970.
pub(crate) fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// A name that no other answer has: `prefix` and 24 letters or digits.
pub(crate) fn id(prefix: &str) -> String {
    let digits = format!("{:016x}{:016x}", random(), random());
    format!("{prefix}{}", &digits[..24])
}
