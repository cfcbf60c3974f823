//! `prism.hadamard.*` of a target: which matrices are rotated, and how.
//!
//! Every refusal of the reference loader is made here. A rotation that is misread computes noise
//! without any other symptom.

use std::collections::{BTreeMap, BTreeSet};

use formats::Error;
use formats::gguf::{Array, File, GgmlType, Value};

use super::config::fault;
use super::tensors::{EMBEDDING, HEAD};

const PREFIX: &str = "prism.hadamard.";
const TRANSFORM: &str = "normalized-sylvester-walsh-hadamard";
const AXIS: &str = "input-last-dimension";

/// Matrices of a layer that may be rotated.
const FOLDABLE: [&str; 12] = [
    "attn_q",
    "attn_k",
    "attn_v",
    "attn_qkv",
    "attn_gate",
    "attn_output",
    "ffn_gate",
    "ffn_up",
    "ffn_down",
    "ssm_out",
    "ssm_alpha",
    "ssm_beta",
];

/// The rotation of a target's matrices.
#[derive(Debug)]
pub(super) struct Hadamard {
    pub(super) block: usize,
    /// By width, each +1 or -1.
    pub(super) signs: BTreeMap<usize, Vec<i8>>,
    /// Matrices whose input is rotated.
    pub(super) forward: BTreeSet<String>,
    /// Whether rows of the embedding are rotated.
    pub(super) embedding: bool,
    /// Whether `ssm_out` has its columns in grouped order.
    pub(super) v_grouped: bool,
}

impl Hadamard {
    /// Nothing when the file has no such key and no ternary tensor.
    pub(super) fn from_gguf(file: &File) -> Result<Option<Self>, Error> {
        if !file.metadata().iter().any(|(k, _)| k.starts_with(PREFIX)) {
            let mut tensors = file.tensors().iter();
            let ternary = tensors.find(|t| matches!(t.ty, GgmlType::PQ2_0 | GgmlType::PTQ1_0));
            return match ternary {
                None => Ok(None),
                Some(tensor) => Err(wrong(
                    file,
                    "weight_names",
                    format!("the rotation of the ternary tensor `{}`", tensor.name),
                    "no `prism.hadamard.*` key",
                )),
            };
        }
        frame(file)?;
        let block = file.require_u32(&key("block_size"))? as usize;
        if !block.is_power_of_two() {
            return Err(wrong(file, "block_size", "a power of two", block));
        }
        let forward = names(file, "weight_names")?;
        if forward.is_empty() {
            return Err(wrong(file, "weight_names", "at least one matrix", "none"));
        }
        if let Some(name) = forward.iter().find(|name| !is_foldable(name)) {
            return Err(wrong(file, "weight_names", "matrices that can be rotated", shown(name)));
        }
        let inverse = match file.get(&key("inverse_weight_names")) {
            None => BTreeSet::new(),
            Some(_) => names(file, "inverse_weight_names")?,
        };
        if let Some(name) = inverse.iter().find(|name| *name != EMBEDDING) {
            let expected = format!("no name but `{EMBEDDING}`");
            return Err(wrong(file, "inverse_weight_names", expected, shown(name)));
        }
        let mut widths = BTreeSet::new();
        for (name, list) in forward
            .iter()
            .map(|name| (name, "weight_names"))
            .chain(inverse.iter().map(|name| (name, "inverse_weight_names")))
        {
            let Some(tensor) = file.tensor(name) else {
                return Err(wrong(file, list, "tensors of this file", shown(name)));
            };
            let width = tensor.dims[0];
            if !width.is_multiple_of(block as u64) {
                let expected = format!("matrices with inputs in whole blocks of {block}");
                let found = format!("{} with {width} inputs", shown(name));
                return Err(wrong(file, list, expected, found));
            }
            // A tensor's bytes lie in memory or in a file: its width fits.
            widths.insert(width as usize);
        }
        let signs = signs(file, block, &widths)?;
        if let Some(width) = widths.iter().find(|width| !signs.contains_key(width)) {
            let found = format!("none for the width {width}");
            return Err(wrong(file, "sign_widths", "signs for every rotated matrix", found));
        }
        for tensor in file.tensors() {
            let ternary = matches!(tensor.ty, GgmlType::PQ2_0 | GgmlType::PTQ1_0);
            let name = tensor.name.as_str();
            if ternary && !forward.contains(name) && !inverse.contains(name) && is_foldable(name) {
                let expected = "every ternary matrix of the model";
                return Err(wrong(file, "weight_names", expected, format!("no {}", shown(name))));
            }
        }
        let embedding = file.tensor(EMBEDDING);
        if inverse.is_empty()
            && embedding.is_some_and(|t| matches!(t.ty, GgmlType::PQ2_0 | GgmlType::PTQ1_0))
        {
            let expected = format!("the ternary `{EMBEDDING}`");
            return Err(wrong(file, "inverse_weight_names", expected, "nothing"));
        }
        Ok(Some(Self {
            block,
            signs,
            forward,
            embedding: !inverse.is_empty(),
            v_grouped: file.opt_bool(&key("gdn_v_grouped"))?.unwrap_or(false),
        }))
    }
}

fn key(suffix: &str) -> String {
    format!("{PREFIX}{suffix}")
}

fn wrong(file: &File, suffix: &str, expected: impl Into<String>, found: impl ToString) -> Error {
    fault(file, &key(suffix), expected, found)
}

fn shown(name: &str) -> String {
    format!("`{}`", name.escape_debug())
}

/// Version, transform and axis. Version 2 is version 1 with a head that is the embedding.
fn frame(file: &File) -> Result<(), Error> {
    let version = file.require_u32(&key("version"))?;
    let tied = file.opt_bool(&key("tied_output"))?;
    match (version, tied) {
        (1, None) | (2, Some(true)) => {}
        (1, Some(_)) => return Err(wrong(file, "tied_output", "no such key in version 1", "one")),
        (2, _) => return Err(wrong(file, "tied_output", "true in version 2", "something else")),
        _ => return Err(wrong(file, "version", "1 or 2", version)),
    }
    if version == 2 && file.tensor(HEAD).is_some() {
        return Err(wrong(file, "tied_output", format!("no `{HEAD}` in version 2"), "one"));
    }
    for (suffix, expected) in [("transform", TRANSFORM), ("axis", AXIS)] {
        let found = file.require_str(&key(suffix))?;
        if found != expected {
            return Err(wrong(file, suffix, format!("`{expected}`"), shown(found)));
        }
    }
    Ok(())
}

/// The names of a list, each once.
fn names(file: &File, list: &str) -> Result<BTreeSet<String>, Error> {
    let mut seen = BTreeSet::new();
    for name in file.require_strs(&key(list))? {
        if !seen.insert(name.clone()) {
            return Err(wrong(file, list, "each name once", format!("{} twice", shown(name))));
        }
    }
    Ok(seen)
}

fn is_foldable(name: &str) -> bool {
    if name == HEAD {
        return true;
    }
    let kind = name
        .strip_prefix("blk.")
        .and_then(|rest| rest.split_once('.'))
        .filter(|(layer, _)| !layer.is_empty() && layer.bytes().all(|b| b.is_ascii_digit()))
        .and_then(|(_, rest)| rest.strip_suffix(".weight"));
    kind.is_some_and(|kind| FOLDABLE.contains(&kind))
}

/// Signs by width; all +1 for `widths` where the mode says that there are none.
fn signs(
    file: &File,
    block: usize,
    widths: &BTreeSet<usize>,
) -> Result<BTreeMap<usize, Vec<i8>>, Error> {
    match file.require_str(&key("sign_mode"))? {
        "explicit" => {}
        "identity" => return Ok(widths.iter().map(|width| (*width, vec![1; *width])).collect()),
        other => {
            return Err(wrong(file, "sign_mode", "`explicit` or `identity`", shown(other)));
        }
    }
    let widths = file.require_u64s(&key("sign_widths"))?;
    if widths.is_empty() {
        return Err(wrong(file, "sign_widths", "at least one width", "none"));
    }
    let values = match file.get(&key("sign_values")) {
        Some(Value::Array(values)) => plus_minus(values)
            .map_err(|found| wrong(file, "sign_values", "only +1 and -1", found))?,
        Some(other) => return Err(wrong(file, "sign_values", "an array", other)),
        None => return Err(wrong(file, "sign_values", "an array", "nothing")),
    };
    let total = widths.iter().try_fold(0u64, |sum, width| sum.checked_add(*width));
    if total != Some(values.len() as u64) {
        let expected = format!("as many signs as the {} widths add up to", widths.len());
        return Err(wrong(file, "sign_values", expected, values.len()));
    }
    let mut by_width = BTreeMap::new();
    let mut rest = values.as_slice();
    for width in widths {
        // The widths add up to the length of a list in memory.
        let width = width as usize;
        if width == 0 || !width.is_multiple_of(block) {
            let expected = format!("positive multiples of the block {block}");
            return Err(wrong(file, "sign_widths", expected, width));
        }
        let (signs, more) = rest.split_at(width);
        rest = more;
        if by_width.insert(width, signs.to_vec()).is_some() {
            return Err(wrong(file, "sign_widths", "each width once", format!("{width} twice")));
        }
    }
    Ok(by_width)
}

/// Signs of any number type. `Err` says what else stands there.
fn plus_minus(array: &Array) -> Result<Vec<i8>, String> {
    fn each<T: Copy + Into<f64>>(values: &[T]) -> Result<Vec<i8>, String> {
        let sign = |(i, v): (usize, &T)| match (*v).into() {
            1.0 => Ok(1),
            -1.0 => Ok(-1),
            other => Err(format!("{other} at index {i}")),
        };
        values.iter().enumerate().map(sign).collect()
    }
    match array {
        Array::I8(v) => each(v),
        Array::I16(v) => each(v),
        Array::I32(v) => each(v),
        Array::U8(v) => each(v),
        Array::U16(v) => each(v),
        Array::U32(v) => each(v),
        Array::F32(v) => each(v),
        Array::F64(v) => each(v),
        other => Err(other.type_name().into()),
    }
}
