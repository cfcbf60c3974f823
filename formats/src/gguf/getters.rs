//! Metadata by key and type. Converters disagree on the width and sign of
//! integers, so an integer getter takes any integer type whose value fits.

use super::{Array, File, Value};
use crate::Error;
use crate::error::shown;

/// A required and an optional getter over one conversion from a value.
macro_rules! getters {
    ($($require:ident, $opt:ident -> $out:ty, $what:literal, $convert:expr;)*) => {
        $(
            #[doc = concat!("The value of `key`: ", $what, ".")]
            ///
            /// # Errors
            /// [`Error::Key`] when the key is absent, or its value is something else.
            pub fn $require(&self, key: &str) -> Result<$out, Error> {
                match self.$opt(key)? {
                    Some(value) => Ok(value),
                    None => Err(self.key_error(key, $what, "nothing")),
                }
            }

            #[doc = concat!("The value of `key` if it is there: ", $what, ".")]
            ///
            /// # Errors
            /// [`Error::Key`] when the value is something else.
            pub fn $opt(&self, key: &str) -> Result<Option<$out>, Error> {
                let Some(value) = self.get(key) else {
                    return Ok(None);
                };
                match $convert(value) {
                    Some(value) => Ok(Some(value)),
                    None => Err(self.key_error(key, $what, &value.to_string())),
                }
            }
        )*
    };
}

impl File {
    getters! {
        require_u32, opt_u32 -> u32, "an integer that fits u32",
            |v: &Value| v.as_u64().and_then(|v| v.try_into().ok());
        require_u64, opt_u64 -> u64, "an integer that fits u64", Value::as_u64;
        require_f32, opt_f32 -> f32, "a float", as_f32;
        require_bool, opt_bool -> bool, "a bool", as_bool;
        require_str, opt_str -> &str, "a string", as_str;
        require_strs, opt_strs -> &[String], "an array of strings", as_strs;
        require_f32s, opt_f32s -> &[f32], "an array of f32", as_f32s;
        require_bools, opt_bools -> &[bool], "an array of bools", as_bools;
        require_u64s, opt_u64s -> Vec<u64>, "an array of integers that fit u64", as_u64s;
    }

    /// The key with the file's `general.architecture` before it: `block_count`
    /// is `dflash.block_count` in a drafter. No other prefix matches, whatever
    /// else in the file ends alike.
    ///
    /// # Errors
    /// [`Error::Key`] when the file names no architecture.
    pub fn arch_key(&self, suffix: &str) -> Result<String, Error> {
        Ok(format!(
            "{}.{suffix}",
            self.require_str("general.architecture")?
        ))
    }

    fn key_error(&self, key: &str, expected: &str, found: &str) -> Error {
        Error::Key {
            path: self.source().path().to_path_buf(),
            key: shown(key),
            expected: expected.into(),
            found: found.into(),
            hint: None,
        }
    }
}

fn as_f32(value: &Value) -> Option<f32> {
    match *value {
        Value::F32(v) => Some(v),
        Value::F64(v) => Some(v as f32),
        _ => None,
    }
}

fn as_bool(value: &Value) -> Option<bool> {
    match *value {
        Value::Bool(v) => Some(v),
        _ => None,
    }
}

fn as_str(value: &Value) -> Option<&str> {
    match value {
        Value::String(v) => Some(v),
        _ => None,
    }
}

fn as_strs(value: &Value) -> Option<&[String]> {
    match value {
        Value::Array(Array::String(v)) => Some(v),
        _ => None,
    }
}

fn as_f32s(value: &Value) -> Option<&[f32]> {
    match value {
        Value::Array(Array::F32(v)) => Some(v),
        _ => None,
    }
}

fn as_bools(value: &Value) -> Option<&[bool]> {
    match value {
        Value::Array(Array::Bool(v)) => Some(v),
        _ => None,
    }
}

fn as_u64s(value: &Value) -> Option<Vec<u64>> {
    match value {
        Value::Array(v) => v.to_u64s(),
        _ => None,
    }
}
