//! Typed look-ups in a `config.json`, with the places a field may stand in.

use std::path::Path;

use serde_json::{Map, Value};

use super::{ARCHITECTURE, DFLASH1_ARCHITECTURE, LayerType};
use crate::Error;
use crate::error::{shown, shown_number};

/// Largest dimension or id that is believed.
pub(super) const MAX_INT: u64 = (1 << 31) - 1;

/// More list entries than this are refused (taps, layers, stop tokens).
const MAX_LIST: usize = 4096;

/// Fields that stand in `dflash_config` or at the top level.
const BLOCK_FIELDS: [&str; 11] = [
    "block_size",
    "conv_group_size",
    "conv_kernel_size",
    "final_logit_softcapping",
    "input_embedding_scale",
    "is_causal",
    "mask_token_id",
    "output_multiplier",
    "selector_rank",
    "selector_top_k",
    "target_layer_ids",
];

/// Fields that stand in `rope_parameters` or at the top level.
const ROPE_FIELDS: [&str; 2] = ["partial_rotary_factor", "rope_theta"];

pub(super) struct Fields<'a> {
    path: &'a Path,
    top: &'a Map<String, Value>,
    block: Option<&'a Map<String, Value>>,
    rope: Option<&'a Map<String, Value>>,
}

impl<'a> Fields<'a> {
    pub(super) fn new(path: &'a Path, top: &'a Map<String, Value>) -> Result<Self, Error> {
        let mut fields = Self { path, top, block: None, rope: None };
        fields.block = fields.object("dflash_config")?;
        fields.rope = fields.object("rope_parameters")?;
        Ok(fields)
    }

    /// An object at the top level; null counts as absent, as everywhere here.
    pub(super) fn object(&self, name: &str) -> Result<Option<&'a Map<String, Value>>, Error> {
        match self.top.get(name) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::Object(map)) => Ok(Some(map)),
            Some(other) => Err(self.fault(name, "an object", describe(other))),
        }
    }

    /// The object that may hold `name` beside the top level.
    fn inner(&self, name: &str) -> Option<(&'static str, Option<&'a Map<String, Value>>)> {
        if BLOCK_FIELDS.contains(&name) {
            Some(("dflash_config", self.block))
        } else if ROPE_FIELDS.contains(&name) {
            Some(("rope_parameters", self.rope))
        } else {
            None
        }
    }

    /// The value of `name`, from the one or two places where it may stand.
    fn find(&self, name: &str) -> Result<Option<&'a Value>, Error> {
        let top = self.top.get(name).filter(|v| !v.is_null());
        let Some((parent, map)) = self.inner(name) else {
            return Ok(top);
        };
        let inner = map.and_then(|m| m.get(name)).filter(|v| !v.is_null());
        match (inner, top) {
            (Some(a), Some(b)) if !same(a, b) => Err(self.fault(
                name,
                "one value",
                format!("{} in `{parent}` and {} at the top level", describe(a), describe(b)),
            )),
            (inner, top) => Ok(inner.or(top)),
        }
    }

    /// `name` with its parent, for messages about a value that was found.
    pub(super) fn key(&self, name: &str) -> String {
        match self.inner(name) {
            Some((parent, Some(map))) if map.contains_key(name) => format!("{parent}.{name}"),
            _ => name.into(),
        }
    }

    pub(super) fn fault(&self, name: &str, expected: &str, found: impl Into<String>) -> Error {
        Error::Key {
            path: self.path.to_path_buf(),
            key: self.key(name),
            expected: expected.into(),
            found: found.into(),
            hint: None,
        }
    }

    fn absent(&self, name: &str, expected: &str) -> Error {
        let (key, place) = match self.inner(name) {
            Some((parent, _)) => {
                (format!("{parent}.{name}"), format!(" (in `{parent}` or at the top level)"))
            }
            None => (name.into(), String::new()),
        };
        Error::Key {
            path: self.path.to_path_buf(),
            key,
            expected: format!("{expected}{place}"),
            found: "nothing".into(),
            hint: Some(
                "the value is never guessed; take it from the drafter's published config.json"
                    .into(),
            ),
        }
    }

    fn as_int(&self, name: &str, value: &Value) -> Result<usize, Error> {
        value
            .as_u64()
            .filter(|v| *v <= MAX_INT)
            .and_then(|v| usize::try_from(v).ok())
            .ok_or_else(|| self.fault(name, INT, describe(value)))
    }

    fn as_token(&self, name: &str, value: &Value) -> Result<u32, Error> {
        value
            .as_u64()
            .filter(|v| *v <= MAX_INT)
            .and_then(|v| u32::try_from(v).ok())
            .ok_or_else(|| self.fault(name, "a token id", describe(value)))
    }

    pub(super) fn int(&self, name: &str) -> Result<Option<usize>, Error> {
        self.find(name)?.map(|v| self.as_int(name, v)).transpose()
    }

    pub(super) fn need_int(&self, name: &str) -> Result<usize, Error> {
        self.int(name)?.ok_or_else(|| self.absent(name, "an integer"))
    }

    pub(super) fn token(&self, name: &str) -> Result<Option<u32>, Error> {
        self.find(name)?.map(|v| self.as_token(name, v)).transpose()
    }

    pub(super) fn need_token(&self, name: &str) -> Result<u32, Error> {
        self.token(name)?.ok_or_else(|| self.absent(name, "a token id"))
    }

    pub(super) fn token_or_tokens(&self, name: &str) -> Result<Vec<u32>, Error> {
        match self.find(name)? {
            None => Ok(Vec::new()),
            Some(Value::Array(list)) if list.len() <= MAX_LIST => {
                list.iter().map(|v| self.as_token(name, v)).collect()
            }
            Some(one) => Ok(vec![self.as_token(name, one)?]),
        }
    }

    pub(super) fn need_ints(&self, name: &str) -> Result<Vec<usize>, Error> {
        match self.find(name)? {
            None => Err(self.absent(name, "a list of integers")),
            Some(Value::Array(list)) if list.len() <= MAX_LIST => {
                list.iter().map(|v| self.as_int(name, v)).collect()
            }
            Some(other) => Err(self.fault(name, "a list of integers", describe(other))),
        }
    }

    pub(super) fn number(&self, name: &str) -> Result<Option<f64>, Error> {
        let Some(value) = self.find(name)? else {
            return Ok(None);
        };
        value.as_f64().map(Some).ok_or_else(|| self.fault(name, "a number", describe(value)))
    }

    pub(super) fn need_number(&self, name: &str) -> Result<f64, Error> {
        self.number(name)?.ok_or_else(|| self.absent(name, "a number"))
    }

    pub(super) fn boolean(&self, name: &str) -> Result<Option<bool>, Error> {
        let Some(value) = self.find(name)? else {
            return Ok(None);
        };
        value.as_bool().map(Some).ok_or_else(|| self.fault(name, "true or false", describe(value)))
    }

    pub(super) fn refuse_foreign_architectures(&self) -> Result<(), Error> {
        let expected = format!("[\"{ARCHITECTURE}\"]");
        let value = self.top.get("architectures");
        let list = value.and_then(Value::as_array).map(Vec::as_slice);
        let Some([Value::String(name)]) = list else {
            let found = value.map_or_else(|| "nothing".into(), describe);
            return Err(self.fault("architectures", &expected, found));
        };
        if name == ARCHITECTURE {
            return Ok(());
        }
        let hint = if name == DFLASH1_ARCHITECTURE {
            Some(format!("this is a DFlash 1 drafter; need {ARCHITECTURE}"))
        } else if strsim::normalized_damerau_levenshtein(
            &shown(name).to_lowercase(),
            &ARCHITECTURE.to_lowercase(),
        ) > 0.7
        {
            Some(format!(
                "the nearest supported architecture is `{ARCHITECTURE}`; letter case counts"
            ))
        } else {
            None
        };
        Err(Error::Key {
            path: self.path.to_path_buf(),
            key: "architectures".into(),
            expected: format!("one of the supported architectures (`{ARCHITECTURE}`)"),
            found: format!("`{}`", shown(name)),
            hint,
        })
    }

    /// Variants of the backbone that the forward pass does not have.
    pub(super) fn refuse_unsupported_variants(&self) -> Result<(), Error> {
        if self.boolean("attention_bias")? == Some(true) {
            return Err(self.fault("attention_bias", "false", "true"));
        }
        if let Some(act) = self.find("hidden_act")?
            && act != "silu"
        {
            return Err(self.fault("hidden_act", "\"silu\"", describe(act)));
        }
        if let Some(scaling) = self.find("rope_scaling")? {
            return Err(self.fault("rope_scaling", "null (plain RoPE)", describe(scaling)));
        }
        if let Some(rope_type) = self.rope.and_then(|m| m.get("rope_type"))
            && rope_type != "default"
        {
            return Err(self.fault(
                "rope_parameters.rope_type",
                "\"default\"",
                describe(rope_type),
            ));
        }
        match self.number("partial_rotary_factor")? {
            Some(f) if f != 1.0 => Err(self.fault(
                "partial_rotary_factor",
                "1 (all dimensions of a head rotate)",
                shown_number(f),
            )),
            _ => Ok(()),
        }
    }

    /// `sliding_window` and `layer_types`, which say the same thing twice.
    pub(super) fn attention_window(
        &self,
        n_layers: usize,
    ) -> Result<(Option<usize>, Vec<LayerType>), Error> {
        let window = match self.boolean("use_sliding_window")? {
            Some(false) => None,
            _ => self.int("sliding_window")?,
        };
        let Some(types) = self.find("layer_types")? else {
            if window.is_none() && n_layers <= MAX_LIST {
                return Ok((None, vec![LayerType::Full; n_layers]));
            }
            // Which layers a window applies to has no safe default.
            return Err(self.absent(
                "layer_types",
                "one of \"sliding_attention\" and \"full_attention\" per layer",
            ));
        };
        let expected = "a list of \"sliding_attention\" and \"full_attention\"";
        let Value::Array(types) = types else {
            return Err(self.fault("layer_types", expected, describe(types)));
        };
        if types.len() != n_layers {
            return Err(self.fault(
                "layer_types",
                &format!("{n_layers} entries, one per layer"),
                format!("{} entries", types.len()),
            ));
        }
        let types = types
            .iter()
            .map(|t| match t.as_str() {
                Some("sliding_attention") => Ok(LayerType::Sliding),
                Some("full_attention") => Ok(LayerType::Full),
                _ => Err(self.fault("layer_types", expected, describe(t))),
            })
            .collect::<Result<_, _>>()?;
        Ok((window, types))
    }
}

const INT: &str = "an integer from 0 to 2147483647";

/// Equal, where 8 and 8.0 are the same number.
fn same(a: &Value, b: &Value) -> bool {
    a == b || matches!((a.as_f64(), b.as_f64()), (Some(a), Some(b)) if a == b)
}

/// A value for an error message, cut to a readable length.
pub(super) fn describe(value: &Value) -> String {
    match value {
        Value::Object(_) => "an object".into(),
        Value::Array(list) if list.len() > 8 => format!("a list of {} values", list.len()),
        Value::Array(list) => {
            let parts: Vec<_> = list.iter().map(describe_short).collect();
            format!("[{}]", parts.join(", "))
        }
        scalar => describe_short(scalar),
    }
}

fn describe_short(value: &Value) -> String {
    match value {
        Value::String(s) => format!("\"{}\"", shown(s)),
        Value::Array(_) => "a list".into(),
        Value::Object(_) => "an object".into(),
        scalar => scalar.to_string(),
    }
}
