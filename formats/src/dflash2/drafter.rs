//! A drafter's files, opened: which tensor lies where, in which encoding, in
//! which basis.
//!
//! Three containers hold a drafter: float safetensors (primal basis, a
//! `config.json` beside it), q4nx (ternary in the rotated basis, a `config.json`
//! with the rotation's mark), and GGUF (ternary, everything in one file). Opening
//! reads headers only and checks all names, shapes, types and sizes; contents are
//! checked as they are read, in any order and from any thread.

mod open;
mod read;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::config::Config;
use super::names::{Codebooks, TensorSpec};
use crate::{Error, Source, View};

pub use read::Buffer;

/// How the values of one tensor are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Encoding {
    /// IEEE single precision.
    F32,
    /// IEEE half precision.
    F16,
    /// The upper half of single precision.
    Bf16,
    /// [`crate::pq2_0`] blocks, row by row.
    Pq2_0,
    /// [`crate::ptq1_0`] blocks, row by row.
    Ptq1_0,
    /// [`crate::q4nx`] exact-ternary chunks of 32 rows by 256 columns.
    Q4nx,
}

impl Encoding {
    /// The name used in messages and reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "F32",
            Self::F16 => "F16",
            Self::Bf16 => "BF16",
            Self::Pq2_0 => "PQ2_0",
            Self::Ptq1_0 => "PTQ1_0",
            Self::Q4nx => "q4nx exact-ternary",
        }
    }

    /// Whether codes and scales are stored rather than values.
    #[must_use]
    pub fn is_ternary(self) -> bool {
        matches!(self, Self::Pq2_0 | Self::Ptq1_0 | Self::Q4nx)
    }

    /// Bytes per value of a float encoding.
    fn value_bytes(self) -> Option<usize> {
        match self {
            Self::F32 => Some(4),
            Self::F16 | Self::Bf16 => Some(2),
            Self::Pq2_0 | Self::Ptq1_0 | Self::Q4nx => None,
        }
    }
}

/// The kind of file a drafter was read from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Container {
    /// Float safetensors: one file, or shards.
    Safetensors,
    /// q4nx: safetensors with ternary chunks.
    Q4nx,
    /// GGUF.
    Gguf,
}

impl Container {
    /// The name used in messages and reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Safetensors => "safetensors",
            Self::Q4nx => "q4nx",
            Self::Gguf => "GGUF",
        }
    }
}

/// The basis of the ternary matrices: their input is `H (signs * x)` per block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rotation {
    /// Inputs per transform, a power of two.
    pub block: usize,
    /// Signs by input width, each +1 or -1; a width that is absent has none.
    pub signs: BTreeMap<usize, Vec<i8>>,
}

impl Rotation {
    /// Whether no input has a sign of -1.
    #[must_use]
    pub fn is_unsigned(&self) -> bool {
        self.signs.values().flatten().all(|s| *s == 1)
    }
}

/// One tensor of an opened drafter.
#[derive(Debug, Clone)]
pub struct Tensor {
    /// What it is, and its shape.
    pub spec: TensorSpec,
    /// The name in the file.
    pub stored_name: String,
    /// How it is stored.
    pub encoding: Encoding,
    source: Source,
    offset: u64,
    len: u64,
}

impl Tensor {
    /// The file it lies in.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.source.path()
    }

    /// First byte in its file.
    #[must_use]
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Size in bytes.
    #[must_use]
    pub fn byte_len(&self) -> u64 {
        self.len
    }

    /// Its bytes as they are stored: in place where the file is mapped, otherwise
    /// a copy.
    ///
    /// # Errors
    /// [`Error::Truncated`] or [`Error::Io`].
    pub fn view(&self) -> Result<View, Error> {
        self.source.view(self.offset, self.len)
    }
}

/// An opened drafter.
#[derive(Debug, Clone)]
pub struct Drafter {
    /// The path that was asked for.
    pub path: PathBuf,
    /// The kind of file.
    pub container: Container,
    /// Its configuration.
    pub config: Config,
    /// Where the configuration was read; none when it came with the container.
    pub config_path: Option<PathBuf>,
    /// Spelling of the codebooks' names in the file.
    pub codebooks: Codebooks,
    /// Basis of the ternary matrices; none for float drafters.
    pub rotation: Option<Rotation>,
    /// All tensors, in the order of [`super::names::specs`].
    pub tensors: Vec<Tensor>,
    /// The files that hold tensors.
    pub files: Vec<Source>,
    /// What was normalised, skipped or looks odd, one sentence each.
    pub notes: Vec<String>,
}

impl Drafter {
    /// The same drafter with its files mapped; see [`Source::mapped`] for the
    /// contract.
    ///
    /// # Errors
    /// As [`Source::mapped`].
    pub fn mapped(mut self) -> Result<Self, Error> {
        for file in &mut self.files {
            let mapped = file.mapped()?;
            for tensor in self.tensors.iter_mut().filter(|t| t.source.path() == file.path()) {
                tensor.source = mapped.clone();
            }
            *file = mapped;
        }
        Ok(self)
    }
}

/// Where the `config.json` of a weights file is looked for: `<stem>.config.json`
/// first, then `config.json`, both in the file's folder.
#[must_use]
pub fn config_candidates(weights: &Path) -> [PathBuf; 2] {
    let stem = weights.file_stem().unwrap_or_default();
    let mut named = stem.to_os_string();
    named.push(".config.json");
    [weights.with_file_name(named), weights.with_file_name("config.json")]
}
