//! Why a conversion stopped, by whose turn it is to act.

use std::io;
use std::path::{Path, PathBuf};

use formats::shown_path;

/// What went wrong.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An input file is missing, damaged, or not what it should be.
    #[error(transparent)]
    Input(#[from] formats::Error),
    /// The input is sound, but this output cannot hold it.
    #[error(
        "`{}`: {format} cannot hold this drafter: expected {expected}, found {found}",
        shown_path(path)
    )]
    Unsupported {
        /// The output that was asked for.
        path: PathBuf,
        /// Its format.
        format: &'static str,
        /// What the format holds.
        expected: String,
        /// What the drafter has.
        found: String,
        /// What to do about it, if there is a concrete step.
        hint: Option<String>,
    },
    /// An output may not be written to this path.
    #[error("`{}`: {problem}", shown_path(path))]
    OutputPath {
        /// The output.
        path: PathBuf,
        /// Why not.
        problem: String,
        /// What to do about it, if there is a concrete step.
        hint: Option<String>,
    },
    /// The file system has too little room.
    #[error(
        "`{}`: not enough space: the outputs need {needed} bytes, {available} are available",
        shown_path(path)
    )]
    NoSpace {
        /// The output.
        path: PathBuf,
        /// Bytes that all outputs on this file system need.
        needed: u64,
        /// Bytes that are available to this user.
        available: u64,
    },
    /// The system refused to write.
    #[error("{doing} `{}`: {source}", shown_path(path))]
    Write {
        /// What was being done: "writing", "creating", "renaming".
        doing: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The user asked to stop a run.
    #[error("interrupted; nothing was written")]
    Interrupted,
    /// The user asked to stop before there was an answer.
    #[error("interrupted; the file was not read to its end")]
    Undecided,
}

/// Whose turn it is after an [`Error`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failure {
    /// The input's.
    Input,
    /// The output's, or the machine's.
    Output,
    /// Nobody's: the user stopped it.
    Interrupted,
}

impl Error {
    /// The class of the error.
    #[must_use]
    pub fn failure(&self) -> Failure {
        match self {
            Self::Input(_) | Self::Unsupported { .. } => Failure::Input,
            Self::OutputPath { .. } | Self::NoSpace { .. } | Self::Write { .. } => Failure::Output,
            Self::Interrupted | Self::Undecided => Failure::Interrupted,
        }
    }

    /// The concrete next step for the user, where there is one.
    #[must_use]
    pub fn hint(&self) -> Option<&str> {
        match self {
            Self::Input(e) => e.hint(),
            Self::Unsupported { hint, .. } | Self::OutputPath { hint, .. } => hint.as_deref(),
            Self::NoSpace { .. } | Self::Write { .. } | Self::Interrupted | Self::Undecided => None,
        }
    }

    pub(crate) fn write(doing: &'static str, path: impl AsRef<Path>, source: io::Error) -> Self {
        Self::Write { doing, path: path.as_ref().to_path_buf(), source }
    }
}
