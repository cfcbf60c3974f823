//! GGUF version 3 (and 2, which is laid out alike): typed metadata, then tensors.
//!
//! ```text
//! "GGUF" | u32 version | u64 tensors | u64 keys
//! keys:    name, u32 type, value
//! tensors: name, u32 dimensions, u64 each (fastest first), u32 type, u64 offset
//! zeros up to the alignment | tensor data, each tensor padded to the alignment
//! ```
//!
//! All numbers are little-endian; a string is a u64 length and UTF-8. Offsets
//! count from the data section and are exactly the running sum of the padded
//! sizes: ggml's own reader relies on it, so the reader here demands it and the
//! writer keeps to it.

mod cursor;
mod getters;
mod reader;
mod types;
mod value;
mod writer;

use crate::{Error, Source};

pub use types::GgmlType;
pub use value::{Array, Value};
pub use writer::{Layout, NewTensor, layout};

const MAGIC: [u8; 4] = *b"GGUF";
const VERSION: u32 = 3;
/// Alignment of a file that has no key for it.
const ALIGNMENT: u64 = 32;
const ALIGNMENT_KEY: &str = "general.alignment";
/// Most tensors, and most keys.
const MAX_ENTRIES: u64 = 65_536;
/// Longest key in bytes.
const MAX_KEY: u64 = 65_535;
/// Longest tensor name in bytes; ggml's buffer holds 64 with the final NUL.
const MAX_NAME: u64 = 63;
const MAX_DIMS: u32 = 4;

/// One tensor of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorInfo {
    /// Its name.
    pub name: String,
    /// Dimensions, fastest (input) first.
    pub dims: Vec<u64>,
    /// Type of its elements.
    pub ty: GgmlType,
    /// First byte, counted from the start of the file.
    pub offset: u64,
    /// Size in bytes, without padding.
    pub len: u64,
}

/// One file: its header, read and checked against the file's size.
#[derive(Debug, Clone)]
pub struct File {
    source: Source,
    version: u32,
    metadata: Vec<(String, Value)>,
    /// Positions in `metadata`, by key.
    by_key: Vec<u32>,
    tensors: Vec<TensorInfo>,
    /// Positions in `tensors`, by name.
    by_name: Vec<u32>,
    data_start: u64,
}

impl File {
    /// Reads the header of `source` and checks all of it. Bytes after the last
    /// tensor are not looked at.
    ///
    /// # Errors
    /// [`Error::Truncated`] when the file is shorter than its header promises;
    /// [`Error::Structure`] for a wrong magic, version, count or name;
    /// [`Error::Key`] and [`Error::Tensor`] when one entry breaks a rule.
    pub fn open(source: Source) -> Result<Self, Error> {
        reader::open(source)
    }

    /// Where the tensors' bytes are read from.
    #[must_use]
    pub fn source(&self) -> &Source {
        &self.source
    }

    /// Version of the format: 2 or 3.
    #[must_use]
    pub fn version(&self) -> u32 {
        self.version
    }

    /// All keys and values, in the file's order.
    #[must_use]
    pub fn metadata(&self) -> &[(String, Value)] {
        &self.metadata
    }

    /// The value of exactly this key.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.by_key
            .binary_search_by(|i| self.metadata[*i as usize].0.as_str().cmp(key))
            .ok()
            .map(|at| &self.metadata[self.by_key[at] as usize].1)
    }

    /// All tensors, in the file's order, which is that of their bytes.
    #[must_use]
    pub fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    /// The tensor called `name`.
    #[must_use]
    pub fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        self.by_name
            .binary_search_by(|i| self.tensors[*i as usize].name.as_str().cmp(name))
            .ok()
            .map(|at| &self.tensors[self.by_name[at] as usize])
    }

    /// First byte of the data section, counted from the start of the file.
    #[must_use]
    pub fn data_start(&self) -> u64 {
        self.data_start
    }
}

/// `len` with its padding, if that fits.
fn padded(len: u64, alignment: u64) -> Option<u64> {
    len.checked_next_multiple_of(alignment)
}

/// Shape and type of a tensor, from a file or for one.
struct Description<'a> {
    dims: &'a [u64],
    ty: GgmlType,
}

impl Description<'_> {
    /// Size in bytes, or what is legal and what was given.
    fn byte_len(&self) -> Result<u64, (String, String)> {
        let Self { dims, ty } = self;
        let found = || format!("{ty} {dims:?}");
        if dims.is_empty() || dims.len() > MAX_DIMS as usize {
            return Err((
                format!("1 to {MAX_DIMS} dimensions"),
                format!("{}", dims.len()),
            ));
        }
        if dims.contains(&0) {
            return Err(("dimensions of at least 1".into(), found()));
        }
        if dims[0] % ty.block_values() != 0 {
            let expected = format!(
                "a first dimension in whole blocks of {} values",
                ty.block_values()
            );
            return Err((expected, found()));
        }
        dims.iter()
            .try_fold(1_u64, |n, dim| n.checked_mul(*dim))
            .filter(|n| *n <= i64::MAX as u64)
            .and_then(|n| (n / ty.block_values()).checked_mul(ty.block_bytes()))
            .filter(|n| *n <= i64::MAX as u64)
            .ok_or_else(|| {
                (
                    "a tensor smaller than 2^63 values and bytes".into(),
                    found(),
                )
            })
    }
}
