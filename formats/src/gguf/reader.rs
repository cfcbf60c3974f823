//! Reading a header, and checking all of it before any of it is used.

use super::cursor::{Cursor, Short};
use super::placement::{Entry, placed};
use super::value::{self, Unreadable, Value};
use super::{
    ALIGNMENT, ALIGNMENT_KEY, Description, File, GgmlType, MAGIC, MAX_DIMS, MAX_ENTRIES, MAX_KEY,
    MAX_NAME,
};
use crate::error::shown;
use crate::{Error, Source};

/// Bytes of the smallest metadata entry: key length, key, type, value.
const MIN_ENTRY: u64 = 8 + 1 + 4 + 1;
/// Bytes of the smallest tensor entry: name length, name, one dimension, type, offset.
const MIN_TENSOR: u64 = 8 + 1 + 4 + 8 + 4 + 8;

pub(super) fn open(source: Source) -> Result<File, Error> {
    let mut reader = Reader { source: &source, cursor: Cursor::new(&source) };
    let version = reader.version()?;
    let tensor_count = reader.count("tensor", MIN_TENSOR)?;
    let entry_count = reader.count("metadata", MIN_ENTRY)?;

    let mut metadata = Vec::with_capacity(entry_count);
    for i in 0..entry_count {
        metadata.push(reader.entry(i)?);
    }
    let by_key = sorted_index(&metadata, |entry| &entry.0);
    if let Some(key) = repeated(&metadata, &by_key, |entry| &entry.0) {
        return Err(key_error(&source, key, "the key once", "it several times"));
    }
    let mut entries = Vec::with_capacity(tensor_count);
    for i in 0..tensor_count {
        entries.push(reader.tensor(i)?);
    }
    let by_name = sorted_index(&entries, |entry| &entry.name);
    if let Some(name) = repeated(&entries, &by_name, |entry| &entry.name) {
        return Err(tensor_error(&source, name, "one entry of this name", "several", None));
    }

    let header_len = reader.cursor.position();
    let mut file =
        File { version, metadata, by_key, tensors: Vec::new(), by_name, data_start: 0, source };
    let alignment = alignment(&file)?;
    // The header is inside a file, and an alignment at most 1 MiB.
    file.data_start = header_len.next_multiple_of(alignment);
    file.tensors = placed(&file, entries, alignment)?;
    Ok(file)
}

/// Positions in `items`, by name.
fn sorted_index<T>(items: &[T], name: impl Fn(&T) -> &str) -> Vec<u32> {
    // There are at most MAX_ENTRIES.
    let mut index: Vec<u32> = (0..items.len() as u32).collect();
    index.sort_by(|a, b| name(&items[*a as usize]).cmp(name(&items[*b as usize])));
    index
}

fn repeated<'a, T>(
    items: &'a [T],
    index: &[u32],
    name: impl Fn(&'a T) -> &'a str,
) -> Option<&'a str> {
    index
        .windows(2)
        .map(|pair| (name(&items[pair[0] as usize]), name(&items[pair[1] as usize])))
        .find(|(a, b)| a == b)
        .map(|(a, _)| a)
}

fn key_error(source: &Source, key: &str, expected: &str, found: &str) -> Error {
    Error::key(source.path(), shown(key), expected, found)
}

pub(super) fn tensor_error(
    source: &Source,
    name: &str,
    expected: impl Into<String>,
    found: impl Into<String>,
    hint: Option<&str>,
) -> Error {
    Error::Tensor {
        path: source.path().to_path_buf(),
        tensor: shown(name),
        expected: expected.into(),
        found: found.into(),
        hint: hint.map(Into::into),
    }
}

fn short_error(source: &Source, what: &str, short: Short) -> Error {
    match short {
        Short::Io(error) => *error,
        Short::End { expected } => Error::Truncated {
            path: source.path().to_path_buf(),
            what: what.into(),
            expected,
            found: source.len(),
        },
    }
}

struct Reader<'a> {
    source: &'a Source,
    cursor: Cursor<'a>,
}

impl Reader<'_> {
    fn structure(
        &self,
        part: impl Into<String>,
        expected: impl Into<String>,
        found: impl Into<String>,
    ) -> Error {
        Error::Structure {
            path: self.source.path().to_path_buf(),
            part: part.into(),
            expected: expected.into(),
            found: found.into(),
            hint: None,
        }
    }

    fn short(&self, what: &str, short: Short) -> Error {
        short_error(self.source, what, short)
    }

    /// Reads magic and version.
    fn version(&mut self) -> Result<u32, Error> {
        let magic: [u8; 4] = self.cursor.array().map_err(|e| self.short("the magic", e))?;
        if magic != MAGIC {
            return Err(self.structure("magic", "`GGUF`", format!("`{}`", magic.escape_ascii())));
        }
        let version = self.cursor.u32().map_err(|e| self.short("the version", e))?;
        if version & 0xffff == 0 {
            let swapped = version.swap_bytes();
            return Err(self.structure(
                "version",
                "a little-endian file",
                format!("a big-endian one (version {swapped} in that order)"),
            ));
        }
        if !(2..=3).contains(&version) {
            return Err(self.structure(
                "version",
                "2 or 3, which this build reads",
                format!("{version}"),
            ));
        }
        Ok(version)
    }

    /// Reads how many entries of at least `min` bytes follow.
    fn count(&mut self, kind: &str, min: u64) -> Result<usize, Error> {
        let what = format!("the {kind} count");
        let count = self.cursor.u64().map_err(|e| self.short(&what, e))?;
        if count > MAX_ENTRIES {
            return Err(self.structure(
                format!("{kind} count"),
                format!("at most {MAX_ENTRIES}"),
                format!("{count}"),
            ));
        }
        self.cursor
            .check(count * min)
            .map_err(|e| self.short(&format!("a header of {count} {kind} entries"), e))?;
        Ok(count as usize)
    }

    fn entry(&mut self, i: usize) -> Result<(String, Value), Error> {
        let what = format!("metadata entry {i}");
        let key = self.name(&what, MAX_KEY)?;
        match Value::read(&mut self.cursor) {
            Ok(value) => Ok((key, value)),
            Err(Unreadable::Short(short)) => {
                Err(self.short(&format!("key `{}`", shown(&key)), short))
            }
            Err(Unreadable::Wrong { expected, found }) => {
                Err(key_error(self.source, &key, &expected, &found))
            }
        }
    }

    /// Reads the key or name that starts entry `what`.
    fn name(&mut self, what: &str, max: u64) -> Result<String, Error> {
        let name = match value::string(&mut self.cursor, max) {
            Ok(name) => name,
            Err(Unreadable::Short(short)) => return Err(self.short(what, short)),
            Err(Unreadable::Wrong { expected, found }) => {
                return Err(self.structure(format!("the name of {what}"), expected, found));
            }
        };
        let found = if name.is_empty() {
            "an empty one"
        } else if name.contains('\0') {
            "a NUL in it"
        } else {
            return Ok(name);
        };
        Err(self.structure(format!("the name of {what}"), "a name without NUL", found))
    }

    fn tensor(&mut self, i: usize) -> Result<Entry, Error> {
        let name = self.name(&format!("tensor entry {i}"), MAX_NAME)?;
        let short = |short| {
            let what = format!("the entry of tensor `{}`", shown(&name));
            short_error(self.source, &what, short)
        };
        let n_dims = self.cursor.u32().map_err(short)?;
        if !(1..=MAX_DIMS).contains(&n_dims) {
            let expected = format!("1 to {MAX_DIMS} dimensions");
            let found = format!("{n_dims}");
            return Err(tensor_error(self.source, &name, expected, found, None));
        }
        let mut dims = Vec::new();
        for _ in 0..n_dims {
            dims.push(self.cursor.u64().map_err(short)?);
        }
        let id = self.cursor.u32().map_err(short)?;
        let offset = self.cursor.u64().map_err(short)?;
        let Some(ty) = GgmlType::from_id(id) else {
            return Err(unknown_type(self.source, &name, id));
        };
        let len = Description { dims: &dims, ty }
            .byte_len()
            .map_err(|(expected, found)| tensor_error(self.source, &name, expected, found, None))?;
        Ok(Entry { name, dims, ty, offset, len })
    }
}

fn unknown_type(source: &Source, name: &str, id: u32) -> Error {
    let found = match id {
        4 | 5 | 31..=33 | 36..=38 => format!("type {id}, which ggml removed"),
        _ => format!("type {id}"),
    };
    tensor_error(
        source,
        name,
        "a ggml type of 0 to 42, 142 (PQ2_0) or 143 (PTQ1_0)",
        found,
        Some("a newer or forked quantizer wrote this file; quantize to PQ2_0 or a type of ggml"),
    )
}

/// The file's alignment: the value of its key, or 32.
fn alignment(file: &File) -> Result<u64, Error> {
    match file.get(ALIGNMENT_KEY) {
        None => Ok(ALIGNMENT),
        Some(Value::U32(a)) if a.is_power_of_two() && (8..=1 << 20).contains(a) => {
            Ok(u64::from(*a))
        }
        Some(other) => Err(key_error(
            &file.source,
            ALIGNMENT_KEY,
            "a u32 that is a power of two from 8 to 1048576",
            &other.to_string(),
        )),
    }
}
