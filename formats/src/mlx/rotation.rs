//! `hadamard.json` of a pack: which modules are rotated, and with which signs.
//!
//! The keys are those of a GGUF, `prism.hadamard.*`, side by side in one object; names are those of
//! the pack's `weight` tensors. Everything that the reference loader refuses is refused here: a
//! rotation that is misread computes noise without any other symptom.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde_json::{Value, json};

use super::object::{self, Object};
use crate::Error;
use crate::error::shown;

const PREFIX: &str = "prism.hadamard.";
const TRANSFORM: &str = "normalized-sylvester-walsh-hadamard";
const AXIS: &str = "input-last-dimension";
const MAX_BLOCK: u64 = 1 << 24;

/// The rotation of a pack's modules.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PackRotation {
    /// Inputs per transform, a power of two.
    pub block: usize,
    /// Per input width, its signs, each +1 or -1; none where all signs of all widths are +1.
    pub signs: Option<BTreeMap<usize, Vec<i8>>>,
    /// Tensors whose input is rotated.
    pub weight_names: BTreeSet<String>,
    /// Tensors whose rows are rotated.
    pub inverse_weight_names: BTreeSet<String>,
}

impl PackRotation {
    /// Reads the text of a `hadamard.json`; `path` stands in messages.
    ///
    /// # Errors
    /// [`Error::Structure`] when it is not a JSON object, [`Error::Key`] when a key is missing or has
    /// a value that a pack does not have.
    pub fn parse(path: impl AsRef<Path>, json: &[u8]) -> Result<Self, Error> {
        let path = path.as_ref();
        let root = object::parse(path, json)?;
        Self::from_root(&Object::root(path, &root))
    }

    pub(super) fn from_root(root: &Object<'_>) -> Result<Self, Error> {
        root.one_of(&key("version"), &[1])?;
        if root.map.contains_key(&key("tied_output")) {
            return Err(root.wrong(&key("tied_output"), "no such key in version 1"));
        }
        root.exactly(&key("transform"), TRANSFORM)?;
        root.exactly(&key("axis"), AXIS)?;
        if root.get(&key("gdn_v_grouped")) != Some(&json!(true)) {
            return Err(root.wrong(&key("gdn_v_grouped"), "true"));
        }
        let block = root.size(&key("block_size"), MAX_BLOCK)?;
        if !block.is_power_of_two() {
            return Err(root.wrong(&key("block_size"), "a power of two"));
        }
        let weight_names = names(root, "weight_names")?;
        if weight_names.is_empty() {
            return Err(root.found(&key("weight_names"), "at least one tensor", "none"));
        }
        let inverse_weight_names = names(root, "inverse_weight_names")?;
        if let Some(both) = weight_names.intersection(&inverse_weight_names).next() {
            let found = format!("`{}` in both lists", shown(both));
            return Err(root.found(&key("inverse_weight_names"), "none of weight_names", found));
        }
        let signs = match root.get(&key("sign_mode")).and_then(Value::as_str) {
            Some("explicit") => Some(signs(root, block)?),
            Some("identity") => None,
            _ => return Err(root.wrong(&key("sign_mode"), "\"explicit\" or \"identity\"")),
        };
        Ok(Self { block, signs, weight_names, inverse_weight_names })
    }
}

/// The whole key.
pub(super) fn key(suffix: &str) -> String {
    format!("{PREFIX}{suffix}")
}

/// The names of a list, each once.
fn names(root: &Object<'_>, list: &str) -> Result<BTreeSet<String>, Error> {
    let mut seen = BTreeSet::new();
    for (i, name) in root.list(&key(list))?.iter().enumerate() {
        let Some(name) = name.as_str() else {
            let found = object::describe(name);
            return Err(root.found(&format!("{}[{i}]", key(list)), "a name", found));
        };
        if !seen.insert(name.to_owned()) {
            let found = format!("`{}` twice", shown(name));
            return Err(root.found(&key(list), "each name once", found));
        }
    }
    Ok(seen)
}

fn signs(root: &Object<'_>, block: usize) -> Result<BTreeMap<usize, Vec<i8>>, Error> {
    let (widths, values) = (root.list(&key("sign_widths"))?, root.list(&key("sign_values"))?);
    if widths.is_empty() {
        return Err(root.found(&key("sign_widths"), "at least one width", "none"));
    }
    let mut by_width = BTreeMap::new();
    let mut rest = values;
    for (i, width) in widths.iter().enumerate() {
        let at = format!("{}[{i}]", key("sign_widths"));
        let whole = |width: &usize| *width > 0 && width.is_multiple_of(block);
        let number = width.as_u64().and_then(|width| usize::try_from(width).ok());
        let Some(width) = number.filter(whole) else {
            let expected = format!("a positive multiple of the block {block}");
            return Err(root.found(&at, expected, object::describe(width)));
        };
        let Some((signs, more)) = rest.split_at_checked(width) else {
            let found = format!("{} values", values.len());
            let expected = "as many signs as the widths add up to";
            return Err(root.found(&key("sign_values"), expected, found));
        };
        rest = more;
        let first = values.len() - rest.len() - width;
        let sign = |(i, value): (usize, &Value)| match value.as_f64() {
            Some(1.0) => Ok(1),
            Some(-1.0) => Ok(-1),
            _ => {
                let at = format!("{}[{}]", key("sign_values"), first + i);
                Err(root.found(&at, "+1 or -1", object::describe(value)))
            }
        };
        let signs = signs.iter().enumerate().map(sign).collect::<Result<_, _>>()?;
        if by_width.insert(width, signs).is_some() {
            return Err(root.found(&at, "each width once", format!("{width} twice")));
        }
    }
    if rest.is_empty() {
        return Ok(by_width);
    }
    let (expected, found) = ("as many signs as the widths add up to", values.len());
    Err(root.found(&key("sign_values"), expected, format!("{found} values")))
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in crate::mlx) fn rotation(block: usize, weights: &[&str], inverse: &[&str]) -> Value {
        let signs: Vec<i32> = (0..block as i32).map(|i| if i % 3 == 0 { -1 } else { 1 }).collect();
        json!({
            "prism.hadamard.version": 1,
            "prism.hadamard.block_size": block,
            "prism.hadamard.transform": TRANSFORM,
            "prism.hadamard.axis": AXIS,
            "prism.hadamard.sign_mode": "explicit",
            "prism.hadamard.sign_widths": [block],
            "prism.hadamard.sign_values": signs,
            "prism.hadamard.weight_names": weights,
            "prism.hadamard.inverse_weight_names": inverse,
            "prism.hadamard.gdn_v_grouped": true
        })
    }

    fn parse(value: &Value) -> Result<PackRotation, Error> {
        PackRotation::parse("hadamard.json", value.to_string().as_bytes())
    }

    #[test]
    fn signs_are_cut_by_width() {
        let mut value = rotation(4, &["a.weight"], &["b.weight"]);
        value["prism.hadamard.sign_widths"] = json!([8, 4]);
        value["prism.hadamard.sign_values"] = json!([1, 1, 1, 1, 1.0, -1, 1, 1, -1, 1, 1, -1.0]);
        let found = parse(&value).unwrap();
        assert_eq!(found.block, 4);
        let signs = found.signs.unwrap();
        assert_eq!(signs[&8], [1, 1, 1, 1, 1, -1, 1, 1]);
        assert_eq!(signs[&4], [-1, 1, 1, -1]);
        value["prism.hadamard.sign_mode"] = json!("identity");
        assert_eq!(parse(&value).unwrap().signs, None);
    }

    #[test]
    fn wrong_values_are_named_by_key() {
        for (suffix, value, named) in [
            ("version", json!(2), "version"),
            ("tied_output", json!(true), "tied_output"),
            ("transform", json!("fourier"), "transform"),
            ("axis", json!(1), "axis"),
            ("gdn_v_grouped", json!(false), "gdn_v_grouped"),
            ("block_size", json!(6), "block_size"),
            ("block_size", json!(-4), "block_size"),
            ("sign_mode", json!("random"), "sign_mode"),
            ("weight_names", json!([]), "weight_names"),
            ("weight_names", json!("a"), "weight_names"),
            ("weight_names", json!([3]), "weight_names[0]"),
            ("weight_names", json!(["a", "a"]), "weight_names"),
            ("weight_names", json!(["b.weight"]), "inverse_weight_names"),
            ("sign_widths", json!([]), "sign_widths"),
            ("sign_widths", json!([6]), "sign_widths[0]"),
            ("sign_widths", json!([0]), "sign_widths[0]"),
            ("sign_widths", json!([8]), "sign_values"),
            ("sign_widths", json!([u64::MAX]), "sign_widths[0]"),
            ("sign_values", json!([1, 1, 1, 1, 1]), "sign_values"),
            ("sign_values", json!([1, 1, 0, 1]), "sign_values[2]"),
            ("sign_values", json!([1, 1, "x", 1]), "sign_values[2]"),
        ] {
            let mut rotation = rotation(4, &["a.weight"], &["b.weight"]);
            rotation[key(suffix)] = value;
            match parse(&rotation) {
                Err(Error::Key { key: found, .. }) => assert_eq!(found, key(named)),
                other => panic!("{suffix}: {other:?}"),
            }
        }
        let mut twice = rotation(4, &["a.weight"], &[]);
        twice[key("sign_widths")] = json!([4, 4]);
        twice[key("sign_values")] = json!([1, 1, 1, 1, 1, 1, 1, 1]);
        assert!(parse(&twice).unwrap_err().to_string().contains("4 twice"));
        for suffix in ["version", "block_size", "weight_names", "inverse_weight_names", "sign_mode"]
        {
            let mut rotation = rotation(4, &["a.weight"], &[]);
            rotation.as_object_mut().unwrap().remove(&key(suffix));
            let message = parse(&rotation).unwrap_err().to_string();
            assert!(message.contains(suffix) && message.contains("found nothing"), "{message}");
        }
    }
}
