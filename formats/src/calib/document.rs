//! The document of a calibration file: what was run over what, and what is in the tensors.

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::{Input, Tile};
use crate::Error;
use crate::error::shown;

/// The weight of a row that counts fully.
pub const WEIGHT_ONE: u64 = 1 << 16;

/// Widest input, and most layers and units, that a document may name.
const MAX_WIDTH: usize = 1 << 24;
const MAX_BLOCK: usize = 8192;
const MAX_UNITS: u64 = 1 << 32;

/// What is known of a calibration file beside its moments.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Document {
    /// The program and its version.
    pub program: String,
    /// What the texts ran through.
    pub models: Models,
    /// What was run, by what it was; parts of the same are one entry.
    pub texts: Vec<Texts>,
    /// The inputs by name.
    pub inputs: BTreeMap<String, InputRecord>,
}

/// Models and arithmetic; files that differ in any of it are never merged.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Models {
    /// SHA-256 of the target: of its file, or of the listing that `sha256sum` prints of its files.
    pub target_sha256: String,
    /// SHA-256 of the float drafter's weights, likewise.
    pub drafter_sha256: String,
    /// Integers that met the target's ternary matrices.
    pub act: String,
    /// How keys and values were kept.
    pub kv: String,
    /// Inputs per Hadamard transform. All signs are +1.
    pub block: usize,
    /// The weight of each row of a block, in units of `1 / WEIGHT_ONE`. Context rows have the weight one.
    pub row_weights: Vec<u64>,
}

/// Texts of one origin that rounds went over.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Texts {
    /// `prompts`: the target's own answers; `text`: given text.
    pub kind: String,
    /// SHA-256 of the file of prompts or text; of the listing, if there are several.
    pub sha256: String,
    /// SHA-256 of the chat template, where messages were rendered.
    pub template_sha256: Option<String>,
    /// Whether the model was told to think or not, where it was told.
    pub think: Option<bool>,
    /// `greedy`, or the parameters of the draws.
    pub decoding: String,
    /// Most drafts of a round.
    pub draft_max: usize,
    /// The bounds of a unit: most tokens of an answer or window, and most positions of all units.
    pub max_tokens: u64,
    /// See `max_tokens`; none without such a bound.
    pub max_positions: Option<u64>,
    /// Units (prompts, or windows of text) that there are.
    pub n_units: u64,
    /// Units that were run.
    pub units: Units,
    /// Positions that rounds went over.
    pub positions: u64,
    /// Rounds.
    pub rounds: u64,
    /// Context rows that the blocks of all rounds saw, each as often as it was seen.
    pub context_rows: u64,
}

impl Texts {
    /// Whether both are parts of the same.
    #[must_use]
    pub fn same_origin(&self, other: &Self) -> bool {
        let bare = |texts: &Self| Self {
            units: Units::default(),
            positions: 0,
            rounds: 0,
            context_rows: 0,
            ..texts.clone()
        };
        bare(self) == bare(other)
    }
}

/// A set of units, as ranges with both ends included, ascending and apart.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Units(Vec<(u64, u64)>);

impl Units {
    /// Whether `unit` is in it.
    #[must_use]
    pub fn contains(&self, unit: u64) -> bool {
        let at = self.0.partition_point(|(_, last)| *last < unit);
        self.0.get(at).is_some_and(|(first, _)| *first <= unit)
    }

    /// Adds a unit.
    pub fn insert(&mut self, unit: u64) {
        if !self.contains(unit) {
            self.0.push((unit, unit));
            self.tidy();
        }
    }

    /// The units of both; nothing when they share one.
    #[must_use]
    pub fn union(&self, other: &Self) -> Option<Self> {
        let mut all = Self(self.0.iter().chain(&other.0).copied().collect());
        all.0.sort_unstable();
        if all.0.windows(2).any(|pair| pair[1].0 <= pair[0].1) {
            return None;
        }
        all.tidy();
        Some(all)
    }

    /// How many.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.0.iter().map(|(first, last)| last - first + 1).sum()
    }

    fn tidy(&mut self) {
        self.0.sort_unstable();
        let mut tidy: Vec<(u64, u64)> = Vec::with_capacity(self.0.len());
        for (first, last) in self.0.drain(..) {
            match tidy.last_mut() {
                Some(before) if before.1 + 1 == first => before.1 = last,
                _ => tidy.push((first, last)),
            }
        }
        self.0 = tidy;
    }

    fn is_sound(&self, n_units: u64) -> bool {
        self.0.iter().all(|(first, last)| first <= last && *last < n_units)
            && self.0.windows(2).all(|pair| pair[0].1 + 1 < pair[1].0)
    }
}

/// One input's moments.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct InputRecord {
    /// Values of a row.
    pub width: usize,
    /// An element counts units of `2^exponent`.
    pub exponent: i32,
    /// Rows.
    pub rows: u64,
    /// The sum of their weights, in units of `1 / WEIGHT_ONE`.
    pub weight: u64,
    /// Whether the tiles beside the diagonal are there.
    pub full: bool,
    /// SHA-256 of each tile's bytes, in the order of [`Tile::all`].
    pub sha256: Vec<String>,
}

impl InputRecord {
    /// The sum of the rows' weights.
    #[must_use]
    pub fn total_weight(&self) -> f64 {
        self.weight as f64 / WEIGHT_ONE as f64
    }

    /// Its tiles, in the order of the file.
    pub fn tiles(&self, block: usize) -> impl Iterator<Item = Tile> + use<> {
        Tile::all(self.width / block, self.full)
    }
}

impl Document {
    /// Reads the text of a document and checks that it is possible.
    pub(super) fn parse(path: &Path, text: &str) -> Result<Self, Error> {
        let document: Self = serde_json::from_str(text).map_err(|e| {
            let found = shown(&e.to_string());
            Error::key(path, "document", "the description of calibration data", found)
        })?;
        document.check(path)?;
        Ok(document)
    }

    /// The text, the same for the same contents.
    pub(super) fn text(&self) -> String {
        // Strings, numbers and lists cannot fail.
        serde_json::to_string(self).unwrap_or_default()
    }

    fn check(&self, path: &Path) -> Result<(), Error> {
        let bad = |key: &str, expected: &str, found: String| Error::key(path, key, expected, found);
        let block = self.models.block;
        if !block.is_power_of_two() || !(2..=MAX_BLOCK).contains(&block) {
            let expected = "a power of two from 2 to 8192";
            return Err(bad("document.models.block", expected, block.to_string()));
        }
        for (name, hash) in [
            ("document.models.target_sha256", &self.models.target_sha256),
            ("document.models.drafter_sha256", &self.models.drafter_sha256),
        ] {
            if !is_sha256(hash) {
                return Err(bad(name, "64 hexadecimal digits", shown(hash)));
            }
        }
        for texts in &self.texts {
            if texts.n_units > MAX_UNITS || !texts.units.is_sound(texts.n_units) {
                let expected = format!("ascending ranges below {}", texts.n_units.min(MAX_UNITS));
                return Err(bad("document.texts.units", &expected, "others".into()));
            }
        }
        for (name, record) in &self.inputs {
            let key = format!("document.inputs.{}", shown(name));
            if Input::parse(name).is_none() {
                return Err(bad(&key, "the name of an input", shown(name)));
            }
            if record.width == 0 || record.width > MAX_WIDTH || record.width % block != 0 {
                let expected = format!("a width that is a multiple of {block}");
                return Err(bad(&key, &expected, record.width.to_string()));
            }
            let n = record.width / block;
            let expected = if record.full { n * (n + 1) / 2 } else { n };
            if record.sha256.len() != expected || !record.sha256.iter().all(|s| is_sha256(s)) {
                let found = format!("{} entries", record.sha256.len());
                return Err(bad(&key, &format!("the SHA-256 of {expected} tiles"), found));
            }
            if !(-200..=200).contains(&record.exponent) {
                let found = format!("an exponent of {}", record.exponent);
                return Err(bad(&key, "an exponent from -200 to 200", found));
            }
            if (record.rows == 0) != (record.weight == 0) {
                let found = format!("{} rows with a weight of {}", record.rows, record.weight);
                return Err(bad(&key, "rows with their weight", found));
            }
        }
        Ok(())
    }
}

fn is_sha256(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
}
