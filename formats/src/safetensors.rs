//! safetensors: a JSON header, then raw tensors.
//!
//! ```text
//! u64 n | n bytes of JSON, space-padded | tensor data, back to back
//! ```
//!
//! The JSON maps each name to `dtype`, `shape` and `data_offsets` (begin and end,
//! counted from the end of the header); `__metadata__` maps strings to strings.
//! Values are little-endian and row-major.
//!
//! The reader is stricter than the reference library, because a file that two
//! programs read differently is worse than a refused one: repeated keys, fields
//! other than the three, bytes before the `{`, names with NUL, holes, overlaps
//! and trailing bytes are errors. What real writers do is accepted: any order
//! of tensors, any amount of padding, unaligned data, scalars, empty tensors.

mod checkpoint;
mod dtype;
mod header;
mod writer;

use std::collections::BTreeMap;

use crate::error::shown;
use crate::{Error, Source};

pub use checkpoint::Checkpoint;
pub use dtype::Dtype;
pub use writer::{Layout, NewTensor, layout};

/// Longest header in bytes that is read. A drafter's has some 10 kB and that of a
/// target of 100,000 tensors some 15 MB; the format's own limit is
/// [`FORMAT_HEADER_LEN`].
pub const MAX_HEADER_LEN: u64 = 16_000_000;

/// Longest header in bytes that the format allows.
pub const FORMAT_HEADER_LEN: u64 = 100_000_000;

/// Most tensors, and most keys of `__metadata__`, that are read.
pub const MAX_ENTRIES: usize = 1 << 18;

/// Most dimensions of a tensor that are read; PyTorch's own limit.
pub const MAX_DIMS: usize = 64;

/// Bytes of the length field that starts a file.
const LEN_FIELD: u64 = 8;

/// One tensor of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorInfo {
    /// Its name.
    pub name: String,
    /// Type of its elements.
    pub dtype: Dtype,
    /// Dimensions, slowest first; none for a scalar.
    pub shape: Vec<u64>,
    /// First byte, counted from the start of the file.
    pub offset: u64,
    /// Size in bytes.
    pub len: u64,
}

/// One file: its header, read and checked against the file's size.
#[derive(Debug, Clone)]
pub struct File {
    source: Source,
    header_len: u64,
    metadata: BTreeMap<String, String>,
    /// By offset.
    tensors: Vec<TensorInfo>,
    /// Positions in `tensors`, by name.
    by_name: Vec<u32>,
}

impl File {
    /// Reads the header of `source` and checks all of it.
    ///
    /// # Errors
    /// [`Error::Truncated`] when the file is shorter than its header promises;
    /// [`Error::Structure`], [`Error::Key`] and [`Error::Tensor`] when header,
    /// `__metadata__` or one tensor's entry breaks a rule of the format.
    pub fn open(source: Source) -> Result<Self, Error> {
        let json = read_json(&source)?;
        let parsed = header::parse(&json).map_err(|bad| malformed(&source, bad))?;
        let data_start = LEN_FIELD + json.len() as u64;

        let mut tensors = Vec::with_capacity(parsed.entries.len());
        for (name, entry) in parsed.entries {
            tensors.push(described(&source, name, entry)?);
        }
        tensors.sort_by(|a, b| (a.offset, a.len, &a.name).cmp(&(b.offset, b.len, &b.name)));
        // There are at most MAX_ENTRIES.
        let mut by_name: Vec<u32> = (0..tensors.len() as u32).collect();
        by_name.sort_by(|a, b| tensors[*a as usize].name.cmp(&tensors[*b as usize].name));
        for pair in by_name.windows(2) {
            let name = &tensors[pair[0] as usize].name;
            if *name == tensors[pair[1] as usize].name {
                return Err(tensor_error(&source, name, "one entry of this name", "several"));
            }
        }
        check_tiling(&source, data_start, &tensors)?;
        for tensor in &mut tensors {
            tensor.offset += data_start;
        }
        Ok(Self {
            source,
            header_len: json.len() as u64,
            metadata: parsed.metadata,
            tensors,
            by_name,
        })
    }

    /// Where the tensors' bytes are read from.
    #[must_use]
    pub fn source(&self) -> &Source {
        &self.source
    }

    /// The strings of `__metadata__`.
    #[must_use]
    pub fn metadata(&self) -> &BTreeMap<String, String> {
        &self.metadata
    }

    /// All tensors, in the order of their bytes.
    #[must_use]
    pub fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    /// The tensor called `name`.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&TensorInfo> {
        self.by_name
            .binary_search_by(|i| self.tensors[*i as usize].name.as_str().cmp(name))
            .ok()
            .map(|at| &self.tensors[self.by_name[at] as usize])
    }

    /// Bytes of JSON with its padding, without the length field before it.
    #[must_use]
    pub fn header_len(&self) -> u64 {
        self.header_len
    }

    /// First byte of the data section, counted from the start of the file.
    #[must_use]
    pub fn data_start(&self) -> u64 {
        LEN_FIELD + self.header_len
    }

    /// Bytes of the data section.
    #[must_use]
    pub fn data_len(&self) -> u64 {
        self.source.len() - self.data_start()
    }
}

/// Reads the JSON text; its length is held against limit and file first.
fn read_json(source: &Source) -> Result<Vec<u8>, Error> {
    let truncated = |what: &str, expected| Error::Truncated {
        path: source.path().to_path_buf(),
        what: what.into(),
        expected,
        found: source.len(),
    };
    if source.len() < LEN_FIELD {
        return Err(truncated("the header's length field", LEN_FIELD));
    }
    let mut field = [0; LEN_FIELD as usize];
    source.read_exact_at(0, &mut field)?;
    let len = u64::from_le_bytes(field);
    if len > MAX_HEADER_LEN {
        return Err(Error::Structure {
            path: source.path().to_path_buf(),
            part: "header length".into(),
            expected: format!(
                "at most {MAX_HEADER_LEN} bytes (the format's own limit is {FORMAT_HEADER_LEN})"
            ),
            found: format!("{len} in a file of {} bytes", source.len()),
            hint: other_format(field),
        });
    }
    if len > source.len() - LEN_FIELD {
        return Err(truncated("the header", LEN_FIELD + len));
    }
    let json = source.read_vec(LEN_FIELD, len)?;
    match json.first() {
        Some(b'{') => Ok(json),
        first => Err(Error::Structure {
            path: source.path().to_path_buf(),
            part: "header".into(),
            expected: "a JSON object, `{` as its first byte".into(),
            found: match first {
                None => "an empty header".into(),
                Some(byte) => format!("byte 0x{byte:02x}"),
            },
            hint: None,
        }),
    }
}

/// What a file is that starts with these bytes instead of a header length.
fn other_format(start: [u8; 8]) -> Option<String> {
    let hint = match &start {
        b"version " => "this looks like a Git LFS pointer; run `git lfs pull` to get the file",
        [b'G', b'G', b'U', b'F', ..] => "this is a GGUF file; give the float safetensors instead",
        [b'P', b'K', 3, 4, ..] => {
            "this is a zip archive, perhaps a PyTorch checkpoint; \
             convert it to safetensors"
        }
        _ => return None,
    };
    Some(hint.into())
}

fn malformed(source: &Source, bad: header::Malformed) -> Error {
    let path = source.path().to_path_buf();
    let found = shown(&bad.message);
    match bad.key {
        None => Error::Structure {
            path,
            part: "header".into(),
            expected: "a JSON object of tensor entries".into(),
            found,
            hint: None,
        },
        Some(key) if key == header::METADATA => {
            Error::Key { path, key, expected: "one object of strings".into(), found, hint: None }
        }
        Some(key) => Error::Tensor {
            path,
            tensor: shown(&key),
            expected: "an entry of dtype, shape and data_offsets".into(),
            found,
            hint: None,
        },
    }
}

fn tensor_error(source: &Source, name: &str, expected: impl Into<String>, found: &str) -> Error {
    Error::Tensor {
        path: source.path().to_path_buf(),
        tensor: shown(name),
        expected: expected.into(),
        found: found.into(),
        hint: None,
    }
}

/// Checks one entry by itself. The offset stays relative to the data section.
fn described(source: &Source, name: String, entry: header::Entry) -> Result<TensorInfo, Error> {
    if name.contains('\0') {
        return Err(tensor_error(source, &name, "a name without NUL", "a NUL"));
    }
    let dtype = match entry.dtype {
        Ok(dtype) => dtype,
        Err(other) => {
            let legacy = &*other == "Q4NX";
            return Err(Error::Tensor {
                path: source.path().to_path_buf(),
                tensor: shown(&name),
                expected: "a dtype of safetensors".into(),
                found: format!(
                    "`{}`{}",
                    shown(&other),
                    if legacy { ", the dtype of a legacy q4nx container" } else { "" }
                ),
                hint: legacy.then(|| {
                    "legacy q4nx files (before August 2026) cannot be read; re-export the model"
                        .into()
                }),
            });
        }
    };
    if entry.shape.count > MAX_DIMS {
        let found = format!("{} dimensions", entry.shape.count);
        return Err(tensor_error(source, &name, format!("at most {MAX_DIMS} dimensions"), &found));
    }
    let dims = entry.shape.kept;
    let shape = || format!("{dtype} {:?}", Shape(&dims));
    if entry.begin > entry.end {
        let found = format!("[{}, {}]", entry.begin, entry.end);
        return Err(tensor_error(source, &name, "data_offsets in ascending order", &found));
    }
    let len = entry.end - entry.begin;
    match dtype.byte_len(&dims) {
        None => {
            Err(tensor_error(source, &name, "a size in whole bytes that fits 64 bits", &shape()))
        }
        Some(expected) if expected != len => Err(tensor_error(
            source,
            &name,
            format!("{expected} bytes for {}", shape()),
            &format!("{len} by its data_offsets"),
        )),
        Some(_) => Ok(TensorInfo { name, dtype, shape: dims, offset: entry.begin, len }),
    }
}

/// A shape for a message: a file may give many dimensions.
struct Shape<'a>(&'a [u64]);

impl std::fmt::Debug for Shape<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            [first, .., last] if self.0.len() > 8 => {
                write!(f, "[{first}, ... {} dimensions ..., {last}]", self.0.len())
            }
            dims => write!(f, "{dims:?}"),
        }
    }
}

/// Checks that the tensors, sorted by offset, cover the data section exactly.
fn check_tiling(source: &Source, data_start: u64, tensors: &[TensorInfo]) -> Result<(), Error> {
    let mut end = 0;
    for tensor in tensors {
        if tensor.offset != end {
            let kind = if tensor.offset > end { "a hole" } else { "an overlap" };
            let expected = format!("data_offsets from {end} on, where the tensor before ends");
            let found = format!("{kind}: from {} on", tensor.offset);
            return Err(tensor_error(source, &tensor.name, expected, &found));
        }
        // The sum is the entry's own end offset, a u64.
        end += tensor.len;
    }
    let data_len = source.len() - data_start;
    if end > data_len {
        return Err(Error::Truncated {
            path: source.path().to_path_buf(),
            what: "the data that the header promises".into(),
            expected: data_start.saturating_add(end),
            found: source.len(),
        });
    }
    if end < data_len {
        return Err(Error::Structure {
            path: source.path().to_path_buf(),
            part: "data section".into(),
            expected: format!("{end} bytes, as the header says"),
            found: format!("{data_len}"),
            hint: None,
        });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(json: &str, data: &[u8]) -> Vec<u8> {
        let mut bytes = (json.len() as u64).to_le_bytes().to_vec();
        bytes.extend(json.as_bytes());
        bytes.extend(data);
        bytes
    }

    fn open(json: &str, data: &[u8]) -> Result<File, Error> {
        File::open(Source::from_bytes("x.safetensors", file(json, data)))
    }

    #[test]
    fn golden_two_tensors_out_of_order() {
        let json = r#"{"b":{"dtype":"BF16","shape":[2,1],"data_offsets":[3,7]},"__metadata__":{"format":"pt"},"a":{"dtype":"I8","shape":[3],"data_offsets":[0,3]}}  "#;
        let file = open(json, &[1, 2, 3, 4, 5, 6, 7]).unwrap();
        let start = 8 + json.len() as u64;
        assert_eq!(file.metadata()["format"], "pt");
        assert_eq!(
            (file.header_len(), file.data_start(), file.data_len()),
            (json.len() as u64, start, 7)
        );
        let names: Vec<_> = file.tensors().iter().map(|t| t.name.as_str()).collect();
        assert_eq!(names, ["a", "b"]);
        let b = file.get("b").unwrap();
        assert_eq!(
            (b.dtype, b.shape.as_slice(), b.offset, b.len),
            (Dtype::BF16, &[2, 1][..], start + 3, 4)
        );
        assert_eq!(file.source().read_vec(b.offset, b.len).unwrap(), [4, 5, 6, 7]);
        assert!(file.get("c").is_none());
    }
}
