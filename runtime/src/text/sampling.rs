//! How a model wants to be sampled when the caller does not say.

use std::path::Path;

use formats::Error;
use formats::gguf::{File, Value as GgufValue};
use formats::shown;
use serde_json::Value;

use super::json_file::JsonFile;

/// Settings that a model recommends; `None` where its file says nothing.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
#[non_exhaustive]
pub struct SamplingDefaults {
    /// Divides the logits, at least 0; 0 is greedy.
    pub temperature: Option<f32>,
    /// Number of most likely tokens that are kept; 0 is all.
    pub top_k: Option<u32>,
    /// Smallest mass of most likely tokens that is kept, above 0 and at most 1.
    pub top_p: Option<f32>,
    /// Tokens below this part of the largest probability are dropped, 0 to 1.
    pub min_p: Option<f32>,
}

impl SamplingDefaults {
    /// From `general.sampling.{temp, top_k, top_p, min_p}` of a GGUF.
    ///
    /// # Errors
    /// [`Error::Key`] when one is no number, or outside its range.
    pub fn from_gguf(file: &File) -> Result<Self, Error> {
        let number = |name: &str| {
            let key = format!("general.sampling.{name}");
            let value = file.get(&key).map(|value| match *value {
                GgufValue::F32(v) => Found::Number(v.into()),
                GgufValue::F64(v) => Found::Number(v),
                GgufValue::I32(v) => Found::Number(v.into()),
                GgufValue::I64(v) => Found::Number(v as f64),
                ref other => other
                    .as_u64()
                    .map_or_else(|| Found::Other(other.to_string()), |v| Found::Number(v as f64)),
            });
            (key, value)
        };
        let path = file.source().path();
        let mut out = Self::default();
        for name in ["temp", "top_k", "top_p", "min_p"] {
            let (key, value) = number(name);
            out.set(path, name, &key, value)?;
        }
        Ok(out)
    }

    /// From `temperature`, `top_k`, `top_p` and `min_p` of a `generation_config.json`; `do_sample:
    /// false` makes the temperature 0.
    ///
    /// # Errors
    /// [`Error::Key`] when one is no number, or outside its range.
    pub fn from_generation_config(file: &JsonFile) -> Result<Self, Error> {
        let mut out = Self::default();
        for (name, key) in
            [("temp", "temperature"), ("top_k", "top_k"), ("top_p", "top_p"), ("min_p", "min_p")]
        {
            let value = file.get(key).map(|value| match value.as_f64() {
                Some(number) => Found::Number(number),
                None => Found::Other(shown(&value.to_string())),
            });
            out.set(file.path(), name, key, value)?;
        }
        if file.get("do_sample") == Some(&Value::Bool(false)) {
            out.temperature = Some(0.0);
        }
        Ok(out)
    }

    /// These settings, and those of `other` where these say nothing.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        Self {
            temperature: self.temperature.or(other.temperature),
            top_k: self.top_k.or(other.top_k),
            top_p: self.top_p.or(other.top_p),
            min_p: self.min_p.or(other.min_p),
        }
    }

    fn set(
        &mut self,
        path: &Path,
        name: &str,
        key: &str,
        value: Option<Found>,
    ) -> Result<(), Error> {
        let (expected, holds): (&str, fn(f64) -> bool) = match name {
            "temp" => ("a number of at least 0", |v| v >= 0.0 && v <= f32::MAX.into()),
            // llama.cpp writes 0 or -1 for all tokens.
            "top_k" => ("an integer of at least -1", |v| {
                v.fract() == 0.0 && (-1.0..=u32::MAX.into()).contains(&v)
            }),
            "top_p" => ("a number above 0 and at most 1", |v| v as f32 > 0.0 && v <= 1.0),
            _ => ("a number of 0 to 1", |v| (0.0..=1.0).contains(&v)),
        };
        let value = match value {
            None => return Ok(()),
            Some(Found::Number(v)) if holds(v) => v,
            Some(Found::Number(v)) => return Err(Error::key(path, key, expected, v.to_string())),
            Some(Found::Other(found)) => return Err(Error::key(path, key, expected, found)),
        };
        match name {
            "temp" => self.temperature = Some(value as f32),
            "top_k" => self.top_k = Some(value.max(0.0) as u32),
            "top_p" => self.top_p = Some(value as f32),
            _ => self.min_p = Some(value as f32),
        }
        Ok(())
    }
}

/// A value that should be a number.
enum Found {
    Number(f64),
    /// As a message shows it.
    Other(String),
}
