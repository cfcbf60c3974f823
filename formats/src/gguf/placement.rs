//! Where the tensors of a file lie.
//!
//! ggml says that each tensor starts where the padded one before it ends, and
//! its readers rely on it. So an offset also tells the size of the tensor before,
//! which shows when the file's writer had another idea of a type than we have.

use super::reader::tensor_error;
use super::{Description, File, GgmlType, TensorInfo, padded};
use crate::error::shown;
use crate::{Error, Source};

/// A tensor's entry; the offset is relative to the data section.
pub(super) struct Entry {
    pub(super) name: String,
    pub(super) dims: Vec<u64>,
    pub(super) ty: GgmlType,
    pub(super) offset: u64,
    pub(super) len: u64,
}

/// Checks that each tensor starts where the padded one before it ends, and that
/// the file holds all of them.
pub(super) fn placed(
    file: &File,
    entries: Vec<Entry>,
    alignment: u64,
) -> Result<Vec<TensorInfo>, Error> {
    let source = &file.source;
    let mut tensors: Vec<TensorInfo> = Vec::with_capacity(entries.len());
    let mut next = 0_u64;
    for entry in entries {
        if entry.offset != next {
            if let Some(previous) = tensors.last() {
                let span =
                    (entry.offset).checked_sub(previous.offset - file.data_start).filter(|span| {
                        prism_q2_0_len(previous)
                            .is_some_and(|len| padded(len, alignment) == Some(*span))
                    });
                if let Some(span) = span {
                    return Err(prism_q2_0(source, previous, span));
                }
            }
            return Err(tensor_error(
                source,
                &entry.name,
                format!("offset {next}, where the padded tensor before ends"),
                format!("{}", entry.offset),
                None,
            ));
        }
        let too_large = || {
            let expected = "a size and offset that fit 64 bits";
            let found = format!("{} bytes at {}", entry.len, entry.offset);
            tensor_error(source, &entry.name, expected, found, None)
        };
        let offset = file.data_start.checked_add(next).ok_or_else(too_large)?;
        offset.checked_add(entry.len).ok_or_else(too_large)?;
        next = padded(entry.len, alignment)
            .and_then(|len| next.checked_add(len))
            .ok_or_else(too_large)?;
        tensors.push(TensorInfo {
            name: entry.name,
            dims: entry.dims,
            ty: entry.ty,
            offset,
            len: entry.len,
        });
    }
    // The last one has no follower to be measured by, but the file's end.
    if let Some(last) = tensors.last()
        && let Some(len) = prism_q2_0_len(last)
        && last.offset + last.len > source.len()
        && let Some(span) = source.len().checked_sub(last.offset)
        && (span == len || padded(len, alignment) == Some(span))
    {
        return Err(prism_q2_0(source, last, span));
    }
    for tensor in &tensors {
        let end = tensor.offset + tensor.len;
        if end > source.len() {
            return Err(Error::Truncated {
                path: source.path().to_path_buf(),
                what: format!("tensor `{}`", shown(&tensor.name)),
                expected: end,
                found: source.len(),
            });
        }
    }
    Ok(tensors)
}

/// Bytes that a type-42 tensor has in the layout of older PrismML files, which
/// is that of today's PQ2_0. Very small tensors are padded to the same size in
/// both layouts; they are taken for upstream's.
fn prism_q2_0_len(tensor: &TensorInfo) -> Option<u64> {
    if tensor.ty != GgmlType::Q2_0 {
        return None;
    }
    let (dims, ty) = (tensor.dims.as_slice(), GgmlType::PQ2_0);
    Description { dims, ty }.byte_len().ok()
}

fn prism_q2_0(source: &Source, tensor: &TensorInfo, span: u64) -> Error {
    tensor_error(
        source,
        &tensor.name,
        format!("{} bytes for type 42 (Q2_0: 64 values in 18 bytes)", tensor.len),
        format!("{span}: the older PrismML layout of 128 values in 34 bytes under the same type"),
        Some("use a file with PQ2_0 (type 142) tensors, which name this layout unambiguously"),
    )
}
