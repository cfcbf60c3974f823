//! A small JSON file beside a model: `config.json`, `generation_config.json`.

use std::path::{Path, PathBuf};

use formats::{Error, Source, shown};
use serde_json::{Map, Value};

/// A larger file is refused unread.
const MAX_BYTES: u64 = 16 << 20;

/// An object, and the path it came from for error messages.
#[derive(Debug, Clone)]
pub struct JsonFile {
    path: PathBuf,
    fields: Map<String, Value>,
}

impl JsonFile {
    /// Reads all of `source`.
    ///
    /// # Errors
    /// [`Error::Structure`] when it is larger than 16 MiB, or no JSON object; [`Error::Io`].
    pub fn read(source: &Source) -> Result<Self, Error> {
        let path = source.path();
        match parse(source, MAX_BYTES)? {
            Value::Object(fields) => Ok(Self { path: path.to_path_buf(), fields }),
            _ => Err(structure(path, "a JSON object", "another value".into())),
        }
    }

    /// Where it was read.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The field `key`; a null counts as absent.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.fields.get(key).filter(|value| !value.is_null())
    }
}

/// The JSON document that `source` is.
pub(super) fn parse<T: serde::de::DeserializeOwned>(
    source: &Source,
    max_bytes: u64,
) -> Result<T, Error> {
    let path = source.path();
    if source.len() > max_bytes {
        let expected = format!("at most {max_bytes} bytes");
        return Err(structure(path, &expected, format!("{} bytes", source.len())));
    }
    let bytes = source.read_vec(0, source.len())?;
    serde_json::from_slice(&bytes).map_err(|e| {
        structure(path, "a JSON document", format!("a JSON error: {}", shown(&e.to_string())))
    })
}

fn structure(path: &Path, expected: &str, found: String) -> Error {
    Error::Structure {
        path: path.to_path_buf(),
        part: "the contents".into(),
        expected: expected.into(),
        found,
        hint: None,
    }
}
