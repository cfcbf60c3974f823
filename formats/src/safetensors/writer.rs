//! The header of a file to be written, and where each tensor's bytes go.
//!
//! The layout is known before any tensor is, so the bytes can be written in any
//! order at their final places. The bytes are those of the reference library:
//! tensors by dtype (widest first) and name, compact JSON padded to 8 bytes.
//! With more than one metadata entry the library's order is random; here it is
//! that of the keys.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::{Dtype, LEN_FIELD, TensorInfo, header};

/// A tensor to be written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewTensor {
    /// Its name.
    pub name: String,
    /// Type of its elements.
    pub dtype: Dtype,
    /// Dimensions, slowest first.
    pub shape: Vec<u64>,
}

/// A planned file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    /// The file's first bytes: length field, JSON, padding.
    pub header: Vec<u8>,
    /// The tensors in the order of their bytes, with offsets from the file's start.
    pub tensors: Vec<TensorInfo>,
    /// Size of the whole file.
    pub file_len: u64,
}

/// Plans a file of `tensors`, sorted as the reference library sorts them.
///
/// # Panics
/// If two tensors have the same name, one is called `__metadata__`, or a size is
/// not in whole bytes or passes 64 bits: the caller made these descriptions.
#[must_use]
pub fn layout(mut tensors: Vec<NewTensor>, metadata: &BTreeMap<String, String>) -> Layout {
    tensors.sort_by(|a, b| (b.dtype, &a.name).cmp(&(a.dtype, &b.name)));
    let mut names: Vec<&str> = tensors.iter().map(|t| t.name.as_str()).collect();
    names.push(header::METADATA);
    names.sort_unstable();
    assert!(
        names.windows(2).all(|pair| pair[0] != pair[1]),
        "names of tensors are unique and none is `__metadata__`"
    );

    let mut json = String::from("{");
    if !metadata.is_empty() {
        quote(&mut json, header::METADATA);
        json.push_str(":{");
        for (i, (key, value)) in metadata.iter().enumerate() {
            if i > 0 {
                json.push(',');
            }
            quote(&mut json, key);
            json.push(':');
            quote(&mut json, value);
        }
        json.push('}');
    }
    let mut end = 0_u64;
    let mut planned = Vec::with_capacity(tensors.len());
    for NewTensor { name, dtype, shape } in tensors {
        let len = dtype
            .byte_len(&shape)
            .expect("a tensor's size is in whole bytes and fits 64 bits");
        let offset = end;
        end = end.checked_add(len).expect("a file's size fits 64 bits");
        if json.len() > 1 {
            json.push(',');
        }
        quote(&mut json, &name);
        let dims: Vec<String> = shape.iter().map(u64::to_string).collect();
        // Writing to a string does not fail.
        let _ = write!(
            json,
            r#":{{"dtype":"{dtype}","shape":[{}],"data_offsets":[{offset},{end}]}}"#,
            dims.join(",")
        );
        planned.push(TensorInfo {
            name,
            dtype,
            shape,
            offset,
            len,
        });
    }
    json.push('}');

    let mut json = json.into_bytes();
    json.resize(json.len().next_multiple_of(8), b' ');
    let data_start = LEN_FIELD + json.len() as u64;
    for tensor in &mut planned {
        tensor.offset += data_start;
    }
    let mut header = (json.len() as u64).to_le_bytes().to_vec();
    header.append(&mut json);
    Layout {
        header,
        tensors: planned,
        file_len: data_start
            .checked_add(end)
            .expect("a file's size fits 64 bits"),
    }
}

/// Appends `text` as a JSON string, escaped as the reference library escapes it.
fn quote(json: &mut String, text: &str) {
    json.push_str(&serde_json::Value::from(text).to_string());
}
