//! `prism.hadamard.*`: which matrices of a GGUF are rotated, and how.
//!
//! A stored row is `H (s * w)`, with `H` the normalized Walsh-Hadamard transform
//! of each block of inputs and `s` the signs of that input width; the engine
//! gives the matrix `H (s * x)`. Every refusal of the reference loader is made
//! here: a misread rotation drafts noise without any other symptom.

use std::collections::{BTreeMap, BTreeSet};

use crate::Error;
use crate::dflash2::config::Config;
use crate::dflash2::names::{Codebooks, specs, today_in_gguf};
use crate::error::shown;
use crate::gguf::{Array, File, GgmlType, Value};

const PREFIX: &str = "prism.hadamard.";
const VERSION: u32 = 1;
const TRANSFORM: &str = "normalized-sylvester-walsh-hadamard";
const AXIS: &str = "input-last-dimension";
const EXPLICIT: &str = "explicit";
const IDENTITY: &str = "identity";

/// The rotation of a drafter's matrices.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hadamard {
    /// Inputs per transform, a power of two.
    pub block_size: usize,
    /// Per input width, its signs, each +1 or -1.
    pub signs: BTreeMap<usize, Vec<i8>>,
    /// GGUF names of the rotated matrices.
    pub weight_names: Vec<String>,
}

impl Hadamard {
    /// The rotation of a drafter of ours: all matrices, all signs +1.
    #[must_use]
    pub fn unsigned(config: &Config, block_size: usize) -> Self {
        let matrices =
            specs(config, Codebooks::Bare).into_iter().filter(|spec| spec.role.is_matrix());
        Self {
            block_size,
            signs: plus(config),
            weight_names: matrices.map(|spec| spec.gguf_name).collect(),
        }
    }

    /// The keys, in the order they are written.
    #[must_use]
    pub fn keys(&self) -> Vec<(String, Value)> {
        let string = |text: &str| Value::String(text.into());
        let widths = self.signs.keys().map(|width| *width as i32).collect();
        let signs = self.signs.values().flatten().map(|sign| i32::from(*sign));
        [
            ("version", Value::U32(VERSION)),
            ("block_size", Value::U32(self.block_size as u32)),
            ("transform", string(TRANSFORM)),
            ("axis", string(AXIS)),
            ("sign_mode", string(EXPLICIT)),
            ("sign_widths", Value::Array(Array::I32(widths))),
            ("sign_values", Value::Array(Array::I32(signs.collect()))),
            ("weight_names", Value::Array(Array::String(self.weight_names.clone()))),
            ("inverse_weight_names", Value::Array(Array::String(Vec::new()))),
        ]
        .map(|(suffix, value)| (key(suffix), value))
        .into()
    }

    /// Reads the rotation of a drafter GGUF; none when the file has no such key
    /// and no ternary tensor.
    ///
    /// # Errors
    /// [`Error::Key`] for everything the reference loader refuses: an unknown
    /// version, transform, axis or sign mode; a block that is no power of two;
    /// widths and signs that do not fit; names that are repeated, absent, or no
    /// matrix of the drafter; and ternary tensors without a rotation.
    pub fn from_gguf(file: &File, config: &Config) -> Result<Option<Self>, Error> {
        if !file.metadata().iter().any(|(k, _)| k.starts_with(PREFIX)) {
            return match ternary_tensor(file) {
                None => Ok(None),
                Some(name) => Err(fault(
                    file,
                    "weight_names",
                    format!("the rotation of the ternary tensor `{}`", shown(name)),
                    "no `prism.hadamard.*` key",
                    Some(
                        "the file was quantized without a rotation, or lost its keys; it would draft noise",
                    ),
                )),
            };
        }
        frame(file)?;
        let block_size = file.require_u32(&key("block_size"))? as usize;
        if !block_size.is_power_of_two() {
            return Err(fault(file, "block_size", "a power of two", block_size.to_string(), None));
        }
        let rotation = Self {
            block_size,
            signs: signs(file, config, block_size)?,
            weight_names: weight_names(file, config, block_size)?,
        };
        rotation.refuse_unsigned_widths(file)?;
        Ok(Some(rotation))
    }

    fn refuse_unsigned_widths(&self, file: &File) -> Result<(), Error> {
        for name in &self.weight_names {
            let width = file.tensor(name).and_then(|tensor| tensor.dims.first());
            let signed = width
                .and_then(|width| usize::try_from(*width).ok())
                .is_some_and(|width| self.signs.contains_key(&width));
            if !signed {
                return Err(fault(
                    file,
                    "sign_widths",
                    format!("signs for the inputs of `{}`", shown(name)),
                    format!("none for the width {}", width.unwrap_or(&0)),
                    None,
                ));
            }
        }
        Ok(())
    }
}

fn key(suffix: &str) -> String {
    format!("{PREFIX}{suffix}")
}

fn fault(
    file: &File,
    suffix: &str,
    expected: impl Into<String>,
    found: impl Into<String>,
    hint: Option<&str>,
) -> Error {
    Error::Key {
        path: file.source().path().to_path_buf(),
        key: key(suffix),
        expected: expected.into(),
        found: found.into(),
        hint: hint.map(str::to_owned),
    }
}

/// All +1, for each input width of the matrices.
fn plus(config: &Config) -> BTreeMap<usize, Vec<i8>> {
    let widths = config.matrix_widths().into_iter();
    widths.map(|width| (width, vec![1; width])).collect()
}

fn ternary_tensor(file: &File) -> Option<&str> {
    let mut tensors = file.tensors().iter();
    tensors.find(|t| matches!(t.ty, GgmlType::PQ2_0 | GgmlType::PTQ1_0)).map(|t| t.name.as_str())
}

/// Version, transform, axis, and the keys that only targets have.
fn frame(file: &File) -> Result<(), Error> {
    let version = file.require_u32(&key("version"))?;
    if version != VERSION {
        let found = format!("version {version}");
        let expected = format!("version {VERSION}, the only one that this build reads");
        return Err(fault(file, "version", expected, found, None));
    }
    for (suffix, expected) in [("transform", TRANSFORM), ("axis", AXIS)] {
        let found = file.require_str(&key(suffix))?;
        if found != expected {
            let found = format!("`{}`", shown(found));
            return Err(fault(file, suffix, format!("`{expected}`"), found, None));
        }
    }
    if let Some(value) = file.get(&key("tied_output")) {
        let expected = "no such key in version 1";
        return Err(fault(file, "tied_output", expected, value.to_string(), None));
    }
    if file.opt_bool(&key("gdn_v_grouped"))? == Some(true) {
        let expected = "false or nothing: a drafter has no recurrent layers";
        return Err(fault(file, "gdn_v_grouped", expected, "true", None));
    }
    match file.opt_strs(&key("inverse_weight_names"))? {
        None | Some([]) => Ok(()),
        Some([name, ..]) => {
            let expected = "no names: a drafter has no embedding";
            let found = format!("`{}`", shown(name));
            Err(fault(file, "inverse_weight_names", expected, found, None))
        }
    }
}

fn signs(
    file: &File,
    config: &Config,
    block_size: usize,
) -> Result<BTreeMap<usize, Vec<i8>>, Error> {
    match file.require_str(&key("sign_mode"))? {
        EXPLICIT => {}
        IDENTITY => return Ok(plus(config)),
        other => {
            let expected = format!("`{EXPLICIT}` or `{IDENTITY}`");
            let found = format!("`{}`", shown(other));
            return Err(fault(file, "sign_mode", expected, found, None));
        }
    }
    let widths = file.require_u64s(&key("sign_widths"))?;
    if widths.is_empty() {
        return Err(fault(file, "sign_widths", "at least one width", "none", None));
    }
    let values = match file.get(&key("sign_values")) {
        Some(Value::Array(values)) => values,
        other => {
            let found = other.map_or_else(|| "nothing".into(), Value::to_string);
            return Err(fault(file, "sign_values", "an array of +1 and -1", found, None));
        }
    };
    let values = plus_minus(values)
        .map_err(|found| fault(file, "sign_values", "only +1 and -1", found, None))?;
    let total = widths.iter().try_fold(0u64, |sum, width| sum.checked_add(*width));
    if total != Some(values.len() as u64) {
        let expected = format!("as many signs as the {} widths add up to", widths.len());
        return Err(fault(file, "sign_values", expected, values.len().to_string(), None));
    }
    let mut by_width = BTreeMap::new();
    let mut rest = values.as_slice();
    for width in widths {
        // The widths add up to the length of a list in memory.
        let width = width as usize;
        if width == 0 || !width.is_multiple_of(block_size) {
            let expected = format!("positive multiples of the block {block_size}");
            return Err(fault(file, "sign_widths", expected, width.to_string(), None));
        }
        let (signs, more) = rest.split_at(width);
        rest = more;
        if by_width.insert(width, signs.to_vec()).is_some() {
            let found = format!("{width} twice");
            return Err(fault(file, "sign_widths", "each width once", found, None));
        }
    }
    Ok(by_width)
}

/// Signs of any number type. `Err` says what else stands there.
fn plus_minus(array: &Array) -> Result<Vec<i8>, String> {
    fn each<T: Copy + PartialEq + std::fmt::Display>(
        values: &[T],
        plus: T,
        minus: Option<T>,
    ) -> Result<Vec<i8>, String> {
        let sign = |(i, v): (usize, &T)| match *v {
            v if v == plus => Ok(1),
            v if Some(v) == minus => Ok(-1),
            v => Err(format!("{v} at index {i}")),
        };
        values.iter().enumerate().map(sign).collect()
    }
    match array {
        Array::I8(v) => each(v, 1, Some(-1)),
        Array::I16(v) => each(v, 1, Some(-1)),
        Array::I32(v) => each(v, 1, Some(-1)),
        Array::I64(v) => each(v, 1, Some(-1)),
        Array::F32(v) => each(v, 1.0, Some(-1.0)),
        Array::F64(v) => each(v, 1.0, Some(-1.0)),
        Array::U8(v) => each(v, 1, None),
        Array::U16(v) => each(v, 1, None),
        Array::U32(v) => each(v, 1, None),
        Array::U64(v) => each(v, 1, None),
        Array::Bool(_) | Array::String(_) => Err(array.type_name().into()),
    }
}

fn weight_names(file: &File, config: &Config, block_size: usize) -> Result<Vec<String>, Error> {
    let wrong = |expected: &str, found: String| fault(file, "weight_names", expected, found, None);
    let names = file.require_strs(&key("weight_names"))?;
    if names.is_empty() {
        return Err(wrong("at least one matrix", "none".into()));
    }
    let matrices: BTreeSet<String> = specs(config, Codebooks::Bare)
        .into_iter()
        .filter(|spec| spec.role.is_matrix())
        .map(|spec| spec.gguf_name)
        .collect();
    let mut seen = BTreeSet::new();
    for name in names {
        let shown = format!("`{}`", shown(name));
        if !seen.insert(name) {
            return Err(wrong("each name once", format!("{shown} twice")));
        }
        let today = today_in_gguf(name);
        if !matrices.contains(today.as_ref().unwrap_or(name)) {
            return Err(wrong("matrices of the drafter", shown));
        }
        let Some(tensor) = file.tensor(name) else {
            return Err(wrong("tensors of this file", shown));
        };
        if !tensor.dims.first().is_some_and(|n| n.is_multiple_of(block_size as u64)) {
            let expected = format!("matrices with inputs in whole blocks of {block_size}");
            return Err(wrong(&expected, format!("{shown} with dimensions {:?}", tensor.dims)));
        }
    }
    Ok(names.to_vec())
}
