//! One error type for all readers and writers, by the place where a file is wrong.
//!
//! Every variant carries what a person needs in one line: the file, the part of
//! it, what was expected, what was found, and where there is a concrete next
//! step, a hint (printed by the programs on a line of its own).

use std::fmt::{Display, LowerExp};
use std::io;
use std::path::{Path, PathBuf};

/// Why a file could not be read, or could not be described.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The operating system refused an operation on the file.
    #[error("`{}`: {source}", shown_path(path))]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The file ends before the bytes that its header promises.
    #[error(
        "`{}`: truncated: {what} needs {expected} bytes, the file has {found}",
        shown_path(path)
    )]
    Truncated {
        /// The file.
        path: PathBuf,
        /// What the missing bytes belong to, for example "the header" or "tensor `fc.weight`".
        what: String,
        /// Bytes that the file must have.
        expected: u64,
        /// Bytes that the file has.
        found: u64,
    },
    /// The file's frame (magic, version, header, layout) is wrong.
    #[error("`{}`: {part}: expected {expected}, found {found}", shown_path(path))]
    Structure {
        /// The file.
        path: PathBuf,
        /// Which part of the frame.
        part: String,
        /// What is legal there.
        expected: String,
        /// What stands there.
        found: String,
        /// What to do about it, if there is a concrete step.
        hint: Option<String>,
    },
    /// A metadata key or configuration field is missing or has a wrong value.
    #[error("`{}`: key `{key}`: expected {expected}, found {found}", shown_path(path))]
    Key {
        /// The file.
        path: PathBuf,
        /// The key, with its parents (`dflash_config.block_size`).
        key: String,
        /// What is legal there.
        expected: String,
        /// What stands there; "nothing" when the key is absent.
        found: String,
        /// What to do about it, if there is a concrete step.
        hint: Option<String>,
    },
    /// A tensor's description (dtype, shape, offsets) is wrong.
    #[error("`{}`: tensor `{tensor}`: expected {expected}, found {found}", shown_path(path))]
    Tensor {
        /// The file.
        path: PathBuf,
        /// The tensor's name.
        tensor: String,
        /// What is legal there.
        expected: String,
        /// What stands there.
        found: String,
        /// What to do about it, if there is a concrete step.
        hint: Option<String>,
    },
    /// A tensor's contents break the rules of its encoding.
    #[error("`{}`: tensor `{tensor}`: {fault}", shown_path(path))]
    Contents {
        /// The file.
        path: PathBuf,
        /// The tensor's name.
        tensor: String,
        /// Where in the tensor, and what is wrong there.
        fault: Fault,
    },
    /// The set of tensor names is not that of the model.
    #[error("`{}`: {problem}: {}", shown_path(path), names.join(", "))]
    Names {
        /// The file.
        path: PathBuf,
        /// What is wrong with the names, for example "missing tensors".
        problem: String,
        /// The names.
        names: Vec<String>,
        /// What to do about it, if there is a concrete step.
        hint: Option<String>,
    },
}

impl Error {
    /// Wraps an I/O error with the path it happened on.
    #[must_use]
    pub fn io(path: impl AsRef<Path>, source: io::Error) -> Self {
        Self::Io { path: path.as_ref().to_path_buf(), source }
    }

    /// An [`Error::Key`] without a next step.
    #[must_use]
    pub fn key(
        path: impl AsRef<Path>,
        key: impl Into<String>,
        expected: impl Into<String>,
        found: impl Into<String>,
    ) -> Self {
        Self::Key {
            path: path.as_ref().to_path_buf(),
            key: key.into(),
            expected: expected.into(),
            found: found.into(),
            hint: None,
        }
    }

    /// The concrete next step for the user, where there is one.
    #[must_use]
    pub fn hint(&self) -> Option<&str> {
        match self {
            Self::Structure { hint, .. }
            | Self::Key { hint, .. }
            | Self::Tensor { hint, .. }
            | Self::Names { hint, .. } => hint.as_deref(),
            Self::Io { .. } | Self::Truncated { .. } | Self::Contents { .. } => None,
        }
    }
}

/// A rule of an encoding broken inside a tensor. Codecs return it; the caller,
/// who knows file and tensor, adds them through [`Fault::at`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{unit} {index}: expected {expected}, found {found}")]
pub struct Fault {
    /// What is counted by `index`: "group", "chunk", "value".
    pub unit: &'static str,
    /// Which one, from the start of the bytes or rows given to the codec.
    pub index: u64,
    /// What the encoding allows.
    pub expected: String,
    /// What stands there.
    pub found: String,
}

impl Fault {
    /// The fault as an error of one tensor of one file.
    #[must_use]
    pub fn at(self, path: impl AsRef<Path>, tensor: impl Into<String>) -> Error {
        Error::Contents { path: path.as_ref().to_path_buf(), tensor: tensor.into(), fault: self }
    }

    /// The same fault counted from `base` units earlier: a codec that was given
    /// a part of a tensor counts from the part's start.
    #[must_use]
    pub fn offset_by(mut self, base: u64) -> Self {
        self.index += base;
        self
    }
}

/// Text from a file made fit for a one-line message: control characters are
/// escaped, and what is longer than a name should be is cut. Programs print names,
/// keys and values from files through it.
#[must_use]
pub fn shown(text: &str) -> String {
    const MAX_CHARS: usize = 200;
    let mut chars = text.chars();
    let mut out = escaped(chars.by_ref().take(MAX_CHARS));
    if chars.next().is_some() {
        out.push_str("...");
    }
    out
}

/// A path made fit for a one-line message: whole, with control characters escaped.
/// Programs print every path through it.
#[must_use]
pub fn shown_path(path: impl AsRef<Path>) -> String {
    escaped(path.as_ref().to_string_lossy().chars())
}

/// A number in few characters: one of hundreds of digits gets an exponent.
#[must_use]
pub fn shown_number(number: impl Display + LowerExp) -> String {
    const MAX_CHARS: usize = 24;
    let plain = number.to_string();
    if plain.len() > MAX_CHARS { format!("{number:e}") } else { plain }
}

fn escaped(chars: impl Iterator<Item = char>) -> String {
    let mut out = String::new();
    for c in chars {
        // What moves the cursor, ends a line or turns the direction of writing.
        let escape =
            c.is_control() || matches!(c, '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
        if escape {
            out.extend(c.escape_default());
        } else {
            out.push(c);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shown_text_is_one_short_line() {
        assert_eq!(shown("fc.weight"), "fc.weight");
        assert_eq!(shown("a\nb\0c"), "a\\nb\\u{0}c");
        assert_eq!(shown(&"x".repeat(1 << 20)).len(), 203);
        assert_eq!(shown(&"x".repeat(200)).len(), 200);
    }

    #[test]
    fn shown_paths_are_one_line_and_whole() {
        assert_eq!(shown_path("a b/\u{17d}eljko \u{1f642}"), "a b/\u{17d}eljko \u{1f642}");
        assert_eq!(shown_path("a\nb\u{1b}[2J\u{9b}\u{202e}"), "a\\nb\\u{1b}[2J\\u{9b}\\u{202e}");
        assert_eq!(shown_path("x".repeat(1000)).len(), 1000);
        let error = Error::io("a\nb", io::Error::other("full"));
        assert_eq!(error.to_string(), "`a\\nb`: full");
    }

    #[test]
    fn shown_numbers_are_short() {
        assert_eq!(shown_number(1e300), "1e300");
        assert_eq!(shown_number(f32::MAX), "3.4028235e38");
        assert_eq!(shown_number(-1e-300), "-1e-300");
        assert_eq!(shown_number(0.0625), "0.0625");
        assert_eq!(shown_number(f64::INFINITY), "inf");
    }
}
