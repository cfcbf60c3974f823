//! Fields of a request, each with its own complaint. Unknown ones are nobody's business; `null` is the
//! same as absent.

use serde_json::{Map, Value};

use crate::error::ApiError;

/// A JSON object, and where it stands in the request.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Fields<'a> {
    map: &'a Map<String, Value>,
    path: &'a str,
}

impl<'a> Fields<'a> {
    /// The fields of a whole request.
    pub(crate) fn of(body: &'a Value) -> Result<Self, ApiError> {
        match body {
            Value::Object(map) => Ok(Self { map, path: "" }),
            other => {
                let message = format!("the body: expected a JSON object, found {}", kind(other));
                Err(ApiError::invalid(message))
            }
        }
    }

    /// The fields of an object inside; `path` is its name.
    pub(crate) fn inside(value: &'a Value, path: &'a str) -> Result<Self, ApiError> {
        match value {
            Value::Object(map) => Ok(Self { map, path }),
            other => Err(wrong(path, "an object", other)),
        }
    }

    pub(crate) fn name(&self, name: &str) -> String {
        if self.path.is_empty() { name.to_owned() } else { format!("{}.{name}", self.path) }
    }

    pub(crate) fn get(&self, name: &str) -> Option<&'a Value> {
        self.map.get(name).filter(|value| !value.is_null())
    }

    fn typed<T>(
        &self,
        name: &str,
        expected: &str,
        read: impl FnOnce(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, ApiError> {
        let Some(value) = self.get(name) else { return Ok(None) };
        read(value).map(Some).ok_or_else(|| wrong(&self.name(name), expected, value))
    }

    pub(crate) fn string(&self, name: &str) -> Result<Option<&'a str>, ApiError> {
        self.typed(name, "a string", Value::as_str)
    }

    pub(crate) fn boolean(&self, name: &str) -> Result<Option<bool>, ApiError> {
        self.typed(name, "true or false", Value::as_bool)
    }

    pub(crate) fn number(&self, name: &str) -> Result<Option<f64>, ApiError> {
        self.typed(name, "a number", Value::as_f64)
    }

    pub(crate) fn array(&self, name: &str) -> Result<Option<&'a [Value]>, ApiError> {
        self.typed(name, "an array", |value| value.as_array().map(Vec::as_slice))
    }

    pub(crate) fn object(&self, name: &str) -> Result<Option<&'a Map<String, Value>>, ApiError> {
        self.typed(name, "an object", Value::as_object)
    }

    /// An integer in `range`; one that is written `2.0` is one.
    pub(crate) fn integer(
        &self,
        name: &str,
        range: std::ops::RangeInclusive<i128>,
    ) -> Result<Option<i128>, ApiError> {
        let expected = format!("an integer from {} to {}", range.start(), range.end());
        self.typed(name, &expected, |value| integer(value).filter(|n| range.contains(n)))
    }

    /// Refuses a value that asks for something that there is not.
    pub(crate) fn lacks(
        &self,
        name: &str,
        neutral: impl FnOnce(&Value) -> bool,
    ) -> Result<(), ApiError> {
        match self.get(name) {
            Some(value) if !neutral(value) => {
                let name = self.name(name);
                let message = format!("`{name}`: {} is not supported", shown(value));
                Err(ApiError::field(name, message).code("unsupported_value"))
            }
            _ => Ok(()),
        }
    }
}

/// An integer, if the value is one.
pub(crate) fn integer(value: &Value) -> Option<i128> {
    let number = value.as_number()?;
    if let Some(n) = number.as_i128() {
        return Some(n);
    }
    let n = number.as_f64()?;
    (n.fract() == 0.0 && n.abs() < 1e30).then_some(n as i128)
}

/// A value of the wrong type.
pub(crate) fn wrong(name: &str, expected: &str, found: &Value) -> ApiError {
    ApiError::field(name, format!("`{name}`: expected {expected}, found {}", shown(found)))
}

/// A value in a message: short ones as they are.
fn shown(value: &Value) -> String {
    match value {
        Value::Bool(_) | Value::Number(_) => value.to_string(),
        Value::String(text) if text.len() <= 40 => value.to_string(),
        other => kind(other).to_owned(),
    }
}

pub(crate) fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "an array",
        Value::Object(_) => "an object",
    }
}
