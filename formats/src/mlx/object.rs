//! JSON objects with their place, for messages that name file and key.

use std::path::Path;

use serde_json::{Map, Value};

use crate::{Error, Source};

/// The JSON object in the file at `path`, of at most `max` bytes.
pub(super) fn read(path: &Path, max: u64) -> Result<Map<String, Value>, Error> {
    let source = Source::open(path)?;
    if source.len() > max {
        return Err(Error::Structure {
            path: path.to_path_buf(),
            part: "the file".into(),
            expected: format!("at most {max} bytes"),
            found: format!("{}", source.len()),
            hint: None,
        });
    }
    parse(path, &source.read_vec(0, source.len())?)
}

/// The JSON object in `json`.
pub(super) fn parse(path: &Path, json: &[u8]) -> Result<Map<String, Value>, Error> {
    serde_json::from_slice(crate::without_bom(json)).map_err(|e| Error::Structure {
        path: path.to_path_buf(),
        part: "the JSON".into(),
        expected: "an object".into(),
        found: e.to_string(),
        hint: None,
    })
}

/// A JSON object with its place, for messages.
pub(super) struct Object<'a> {
    pub(super) path: &'a Path,
    /// The key it stands under; empty for the root.
    pub(super) key: String,
    pub(super) map: &'a Map<String, Value>,
}

impl<'a> Object<'a> {
    /// The object that a file holds.
    pub(super) fn root(path: &'a Path, map: &'a Map<String, Value>) -> Self {
        Self { path, key: String::new(), map }
    }

    pub(super) fn child(&self, name: &str) -> String {
        if self.key.is_empty() { name.to_owned() } else { format!("{}.{name}", self.key) }
    }

    pub(super) fn wrong(&self, name: &str, expected: impl Into<String>) -> Error {
        Error::Key {
            path: self.path.to_path_buf(),
            key: self.child(name),
            expected: expected.into(),
            found: self.map.get(name).map_or_else(|| "nothing".into(), describe),
            hint: None,
        }
    }

    pub(super) fn exactly(&self, name: &str, expected: &str) -> Result<(), Error> {
        if self.map.get(name).and_then(Value::as_str) == Some(expected) {
            Ok(())
        } else {
            Err(self.wrong(name, format!("\"{expected}\"")))
        }
    }

    pub(super) fn one_of(&self, name: &str, allowed: &[u64]) -> Result<u64, Error> {
        self.map.get(name).and_then(Value::as_u64).filter(|n| allowed.contains(n)).ok_or_else(
            || {
                let allowed: Vec<_> = allowed.iter().map(u64::to_string).collect();
                self.wrong(name, allowed.join(", "))
            },
        )
    }

    pub(super) fn object(&self, name: &str) -> Result<Object<'a>, Error> {
        match self.map.get(name) {
            Some(Value::Object(map)) => Ok(Object { path: self.path, key: self.child(name), map }),
            _ => Err(self.wrong(name, "an object")),
        }
    }

    /// As [`Object::wrong`], with other words for what was found.
    pub(super) fn found(
        &self,
        name: &str,
        expected: impl Into<String>,
        found: impl Into<String>,
    ) -> Error {
        Error::Key {
            path: self.path.to_path_buf(),
            key: self.child(name),
            expected: expected.into(),
            found: found.into(),
            hint: None,
        }
    }

    /// What stands under `name`, unless that is nothing or null.
    pub(super) fn get(&self, name: &str) -> Option<&'a Value> {
        self.map.get(name).filter(|value| !value.is_null())
    }

    /// A whole number from 1 to `max`.
    pub(super) fn size(&self, name: &str, max: u64) -> Result<usize, Error> {
        let value = self.get(name).and_then(Value::as_u64).filter(|n| (1..=max).contains(n));
        // No size passes what memory can hold.
        value
            .and_then(|n| usize::try_from(n).ok())
            .ok_or_else(|| self.wrong(name, format!("a whole number from 1 to {max}")))
    }

    /// A positive number.
    pub(super) fn positive(&self, name: &str) -> Result<f64, Error> {
        let value = self.get(name).and_then(Value::as_f64);
        value
            .filter(|x| x.is_finite() && *x > 0.0)
            .ok_or_else(|| self.wrong(name, "a positive number"))
    }

    /// A list under `name`.
    pub(super) fn list(&self, name: &str) -> Result<&'a [Value], Error> {
        match self.map.get(name) {
            Some(Value::Array(list)) => Ok(list),
            _ => Err(self.wrong(name, "a list")),
        }
    }

    /// Refuses a value other than `expected` where there is one.
    pub(super) fn only(&self, name: &str, expected: &Value) -> Result<(), Error> {
        match self.get(name) {
            Some(found) if found != expected => Err(self.wrong(name, expected.to_string())),
            _ => Ok(()),
        }
    }
}

/// A value for a message: scalars as they are, shortened; the rest by kind.
pub(super) fn describe(value: &Value) -> String {
    match value {
        Value::Array(_) => "a list".into(),
        Value::Object(_) => "an object".into(),
        scalar => {
            let text = scalar.to_string();
            match text.char_indices().nth(60) {
                Some((cut, _)) => format!("{}…", &text[..cut]),
                None => text,
            }
        }
    }
}
