//! Keys and values of a file's metadata, with long arrays reduced to their length.

use std::collections::BTreeMap;

use formats::gguf::{Array, Value};
use serde::Serialize;

use crate::facts::shortest;

/// Longest array whose elements are shown.
const MAX_ELEMENTS: usize = 16;

/// One key.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Entry {
    /// The key.
    pub key: String,
    /// Type of the value, or of an array's elements.
    #[serde(rename = "type")]
    pub kind: &'static str,
    /// The value; absent for arrays of more than 16 elements.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub value: Option<serde_json::Value>,
    /// Number of elements of an array.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub length: Option<usize>,
}

impl Entry {
    pub(super) fn of_gguf(key: &str, value: &Value) -> Self {
        let (value_json, length) = match value {
            Value::Array(array) => {
                (elements(array).filter(|_| array.len() <= MAX_ELEMENTS), Some(array.len()))
            }
            scalar => (of_scalar(scalar), None),
        };
        let kind = value.type_name();
        let kind = kind.strip_prefix("array of ").unwrap_or(kind);
        Self { key: key.to_owned(), kind, value: value_json, length }
    }

    /// The entries of a safetensors `__metadata__`, all strings.
    pub(super) fn of_strings(strings: &BTreeMap<String, String>) -> impl Iterator<Item = Self> {
        strings.iter().map(|(key, text)| Self {
            key: key.clone(),
            kind: "string",
            value: Some(text.as_str().into()),
            length: None,
        })
    }

    /// The value in words.
    #[must_use]
    pub fn text(&self) -> String {
        match (&self.value, self.length) {
            (Some(serde_json::Value::String(text)), _) => text.clone(),
            (Some(value), _) => value.to_string(),
            (None, Some(n)) => format!("array of {n} {}s", self.kind),
            (None, None) => String::new(),
        }
    }
}

fn of_scalar(value: &Value) -> Option<serde_json::Value> {
    Some(match value {
        Value::U8(v) => (*v).into(),
        Value::I8(v) => (*v).into(),
        Value::U16(v) => (*v).into(),
        Value::I16(v) => (*v).into(),
        Value::U32(v) => (*v).into(),
        Value::I32(v) => (*v).into(),
        Value::U64(v) => (*v).into(),
        Value::I64(v) => (*v).into(),
        Value::Bool(v) => (*v).into(),
        Value::String(v) => v.as_str().into(),
        Value::F32(v) => shortest(f64::from(*v)).into(),
        Value::F64(v) => (*v).into(),
        Value::Array(_) => return None,
    })
}

/// The elements of a short array.
fn elements(array: &Array) -> Option<serde_json::Value> {
    if array.len() > MAX_ELEMENTS {
        return None;
    }
    Some(match array {
        Array::U8(v) => v.as_slice().into(),
        Array::I8(v) => v.as_slice().into(),
        Array::U16(v) => v.as_slice().into(),
        Array::I16(v) => v.as_slice().into(),
        Array::U32(v) => v.as_slice().into(),
        Array::I32(v) => v.as_slice().into(),
        Array::U64(v) => v.as_slice().into(),
        Array::I64(v) => v.as_slice().into(),
        Array::Bool(v) => v.as_slice().into(),
        Array::String(v) => v.as_slice().into(),
        Array::F32(v) => v.iter().map(|v| shortest(f64::from(*v))).collect(),
        Array::F64(v) => v.as_slice().into(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_arrays_are_told_by_their_length() {
        let tokens = Value::Array(Array::String(vec!["x".into(); 248_320]));
        let entry = Entry::of_gguf("tokenizer.ggml.tokens", &tokens);
        assert_eq!(entry.text(), "array of 248320 strings");
        assert_eq!((entry.kind, entry.length, entry.value), ("string", Some(248_320), None));
        let entry = Entry::of_gguf("dflash.target_layers", &Value::Array(Array::U32(vec![6, 20])));
        assert_eq!((entry.text().as_str(), entry.length), ("[6,20]", Some(2)));
    }

    #[test]
    fn scalars_keep_their_digits() {
        assert_eq!(Entry::of_gguf("eps", &Value::F32(1e-6)).text(), "1e-6");
        assert_eq!(Entry::of_gguf("name", &Value::String("a b".into())).text(), "a b");
        assert_eq!(Entry::of_gguf("nan", &Value::F32(f32::NAN)).text(), "null");
    }
}
