//! The header of a file to be written, and where each tensor's bytes go.

use super::value::{Value, write_string};
use super::{
    ALIGNMENT, ALIGNMENT_KEY, Description, GgmlType, MAGIC, MAX_ENTRIES, MAX_KEY, MAX_NAME,
    TensorInfo, VERSION, padded,
};
use crate::Error;
use crate::error::shown;
use std::collections::HashSet;

/// A tensor to be written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewTensor {
    /// Its name, at most 63 bytes.
    pub name: String,
    /// Dimensions, fastest first.
    pub dims: Vec<u64>,
    /// Type of its elements.
    pub ty: GgmlType,
}

/// A planned file. Bytes that belong neither to the header nor to a tensor are zero.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    /// The file's first bytes, up to the first tensor.
    pub header: Vec<u8>,
    /// The tensors in the given order, with offsets from the file's start.
    pub tensors: Vec<TensorInfo>,
    /// Size of the whole file, with the padding after the last tensor.
    pub file_len: u64,
}

/// What stands for the path in errors: the layout is made before the file is.
const PLANNED: &str = "new GGUF file";

/// Plans a version 3 file: metadata and tensors in the given order, alignment 32
/// (and no key for it, because some readers take 32 whatever the key says).
///
/// # Errors
/// [`Error::Key`] for a key that is empty, too long, repeated, or sets the
/// alignment, and for a value past the readers' limits; [`Error::Tensor`] for a
/// name that is empty, longer than 63 bytes or repeated, and for dimensions
/// that are zero, more than four, too large, or not whole blocks of the type;
/// [`Error::Structure`] for more entries than readers take.
pub fn layout(metadata: &[(String, Value)], tensors: Vec<NewTensor>) -> Result<Layout, Error> {
    let mut header = MAGIC.to_vec();
    header.extend(VERSION.to_le_bytes());
    for (part, count) in [
        ("tensor count", tensors.len()),
        ("metadata count", metadata.len()),
    ] {
        if count as u64 > MAX_ENTRIES {
            return Err(Error::Structure {
                path: PLANNED.into(),
                part: part.into(),
                expected: format!("at most {MAX_ENTRIES}"),
                found: format!("{count}"),
                hint: None,
            });
        }
        header.extend((count as u64).to_le_bytes());
    }
    write_metadata(&mut header, metadata)?;

    let mut names = HashSet::new();
    let mut end = 0_u64;
    let mut planned = Vec::with_capacity(tensors.len());
    for NewTensor { name, dims, ty } in &tensors {
        let error = |(expected, found)| Error::Tensor {
            path: PLANNED.into(),
            tensor: shown(name),
            expected,
            found,
            hint: None,
        };
        check_name(name, MAX_NAME).map_err(error)?;
        if !names.insert(name.as_str()) {
            return Err(error(("one tensor of this name".into(), "several".into())));
        }
        let len = Description { dims, ty: *ty }.byte_len().map_err(error)?;
        write_string(&mut header, name).map_err(error)?;
        // There are at most four dimensions.
        header.extend((dims.len() as u32).to_le_bytes());
        dims.iter().for_each(|dim| header.extend(dim.to_le_bytes()));
        header.extend(ty.id().to_le_bytes());
        header.extend(end.to_le_bytes());
        planned.push((end, len));
        end = padded(len, ALIGNMENT)
            .and_then(|len| end.checked_add(len))
            .filter(|end| *end < i64::MAX as u64)
            .ok_or_else(|| error(("a file smaller than 2^63 bytes".into(), "more".into())))?;
    }

    header.resize(header.len().next_multiple_of(ALIGNMENT as usize), 0);
    let data_start = header.len() as u64;
    Ok(Layout {
        tensors: tensors
            .into_iter()
            .zip(planned)
            .map(|(tensor, (offset, len))| TensorInfo {
                name: tensor.name,
                dims: tensor.dims,
                ty: tensor.ty,
                offset: data_start + offset,
                len,
            })
            .collect(),
        // Both are less than 2^63.
        file_len: data_start + end,
        header,
    })
}

fn write_metadata(header: &mut Vec<u8>, metadata: &[(String, Value)]) -> Result<(), Error> {
    let mut keys = HashSet::new();
    for (key, value) in metadata {
        let error = |(expected, found)| Error::Key {
            path: PLANNED.into(),
            key: shown(key),
            expected,
            found,
            hint: None,
        };
        check_name(key, MAX_KEY).map_err(error)?;
        if !keys.insert(key) {
            return Err(error(("the key once".into(), "it several times".into())));
        }
        if key == ALIGNMENT_KEY {
            return Err(error((
                format!("no such key (alignment is {ALIGNMENT})"),
                value.to_string(),
            )));
        }
        write_string(header, key).map_err(error)?;
        value.write(header).map_err(error)?;
    }
    Ok(())
}

fn check_name(name: &str, max: u64) -> Result<(), (String, String)> {
    let found = if name.is_empty() {
        "an empty one".into()
    } else if name.len() as u64 > max {
        format!("{} bytes", name.len())
    } else if name.contains('\0') {
        "a NUL in it".into()
    } else {
        return Ok(());
    };
    Err((format!("a name of 1 to {max} bytes without NUL"), found))
}
