//! `prism_hadamard`: the mark in `config.json` that the matrices are rotated.
//!
//! The stored matrices act on `H (s * x)` instead of `x`, with `H` the
//! normalized Walsh-Hadamard transform of each `block_size` inputs. `og_signs`
//! are the signs `s` of the attention output; all other widths have none.

use std::path::Path;

use serde_json::{Map, Value};

use super::Config;
use super::fields::{Fields, describe};
use crate::{Error, shown};

pub(super) const KEY: &str = "prism_hadamard";

/// [`PrismHadamard::lm_head`] of a head in the rotated basis.
pub const HEAD_ROTATED: &str = "rotated";
/// [`PrismHadamard::lm_head`] of a head in the primal basis.
pub const HEAD_UNROTATED: &str = "unrotated";

/// The mark's contents.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PrismHadamard {
    /// Inputs per transform, a power of two.
    pub block_size: usize,
    /// `[q_width]`, each +1 or -1: signs on the input of `o_proj`.
    pub og_signs: Vec<i8>,
    /// Names of the rotated tensors.
    pub folded: Vec<String>,
    /// [`HEAD_ROTATED`] or [`HEAD_UNROTATED`].
    pub lm_head: String,
    /// Always [`HEAD_UNROTATED`].
    pub embedding: String,
}

impl PrismHadamard {
    /// The mark of a drafter of ours: no signs, head and embedding borrowed and
    /// so untouched.
    #[must_use]
    pub fn unsigned(config: &Config, block_size: usize, folded: Vec<String>) -> Self {
        Self {
            block_size,
            og_signs: vec![1; config.q_width()],
            folded,
            lm_head: HEAD_UNROTATED.into(),
            embedding: HEAD_UNROTATED.into(),
        }
    }

    pub(super) fn from_fields(fields: &Fields<'_>) -> Result<Option<Self>, Error> {
        let Some(map) = fields.object(KEY)? else {
            return Ok(None);
        };
        let fault = |name: &str, expected: &str, found: Option<&Value>| {
            let found = found.map_or_else(|| "nothing".into(), describe);
            fields.fault(&format!("{KEY}.{name}"), expected, found)
        };
        let block_size = map
            .get("block_size")
            .and_then(Value::as_u64)
            .and_then(|v| usize::try_from(v).ok())
            .ok_or_else(|| fault("block_size", "an integer", map.get("block_size")))?;
        let signs = map
            .get("og_signs")
            .and_then(Value::as_array)
            .ok_or_else(|| fault("og_signs", "a list of +1 and -1", map.get("og_signs")))?;
        let og_signs = signs
            .iter()
            .map(|v| match v.as_f64() {
                Some(1.0) => Ok(1),
                Some(-1.0) => Ok(-1),
                _ => Err(fault("og_signs", "+1 or -1", Some(v))),
            })
            .collect::<Result<_, _>>()?;
        let folded = map
            .get("folded")
            .and_then(Value::as_str)
            .ok_or_else(|| fault("folded", "a comma-separated list of names", map.get("folded")))?
            .split(',')
            .map(|name| name.trim().to_owned())
            .collect();
        let basis = |name: &str| match map.get(name) {
            None => Ok(HEAD_UNROTATED.to_owned()),
            Some(Value::String(s)) if s == HEAD_UNROTATED => Ok(s.clone()),
            Some(Value::String(s)) if s == HEAD_ROTATED && name == "lm_head" => Ok(s.clone()),
            other if name == "lm_head" => Err(fault(name, "\"rotated\" or \"unrotated\"", other)),
            other => Err(fault(name, "\"unrotated\"", other)),
        };
        Ok(Some(Self {
            block_size,
            og_signs,
            folded,
            lm_head: basis("lm_head")?,
            embedding: basis("embedding")?,
        }))
    }

    /// Checks the mark against the dimensions of its drafter.
    pub(super) fn check(&self, path: &Path, config: &Config) -> Result<(), Error> {
        let fault = |name: &str, expected: String, found: String| Error::Key {
            path: path.to_path_buf(),
            key: format!("{KEY}.{name}"),
            expected,
            found,
            hint: None,
        };
        if !self.block_size.is_power_of_two() {
            let expected = "a power of two".into();
            return Err(fault("block_size", expected, self.block_size.to_string()));
        }
        for width in config.matrix_widths() {
            if width % self.block_size != 0 {
                let expected = format!("a divisor of the input width {width}");
                return Err(fault("block_size", expected, self.block_size.to_string()));
            }
        }
        if self.og_signs.len() != config.q_width() {
            let expected = format!("{} signs, the width of the attention output", config.q_width());
            return Err(fault("og_signs", expected, self.og_signs.len().to_string()));
        }
        let mut names: Vec<_> = self.folded.iter().collect();
        names.sort_unstable();
        if names.first().is_some_and(|name| name.is_empty()) {
            return Err(fault("folded", "names".into(), "an empty name".into()));
        }
        if let Some(pair) = names.windows(2).find(|p| p[0] == p[1]) {
            let found = format!("`{}` twice", shown(pair[0]));
            return Err(fault("folded", "each name once".into(), found));
        }
        Ok(())
    }

    pub(super) fn to_value(&self) -> Value {
        let mut map = Map::new();
        map.insert("block_size".into(), self.block_size.into());
        map.insert("og_signs".into(), self.og_signs.clone().into());
        map.insert("folded".into(), self.folded.join(",").into());
        map.insert("lm_head".into(), self.lm_head.clone().into());
        map.insert("embedding".into(), self.embedding.clone().into());
        Value::Object(map)
    }
}
