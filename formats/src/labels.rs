//! Labels for a tuner: one text with what the target made of it, and where a drafter's rounds began.
//!
//! A file `drafter-labels/1` is a safetensors file that any reader of that format opens:
//!
//! ```text
//! ids           I32  [n]               the tokens
//! anchors       I32  [rounds]          positions of the tokens that rounds started from
//! taps          BF16 [m, taps · hidden]  the target's tapped states of positions 0..m
//! top_ids       I32  [l, k]            likeliest tokens of positions first..first + l, likeliest first
//! top_logprobs  F32  [l, k]            their natural log-probabilities under the target, given ids before
//! __metadata__  format, document (JSON, see [`Document`]), document_sha256
//! ```
//!
//! A block that starts at anchor `a` has the context rows `taps[..a]`, the pending token `ids[a]`, and in
//! slot `j` the label of position `a + j`: row `a + j - first` of the last two.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::calib::Texts;
use crate::digest::sha256;
use crate::error::shown;
use crate::safetensors::{self, Dtype, NewTensor, layout};
use crate::{Error, Source};

/// The value of `format` in the metadata.
pub const FORMAT: &str = "drafter-labels/1";

/// What a file of labels was made of.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Document {
    /// The program and its version.
    pub program: String,
    /// SHA-256 of the target, as in calibration data.
    pub target_sha256: String,
    /// SHA-256 of the drafter whose rounds these are.
    pub drafter_sha256: String,
    /// Integers that met the target's ternary matrices.
    pub act: String,
    /// How keys and values were kept.
    pub kv: String,
    /// Layers of the target whose outputs are the taps, in their order.
    pub target_layer_ids: Vec<usize>,
    /// Where the text is from; its only unit is the one of this file.
    pub texts: Texts,
    /// The first position that has labels.
    pub first: usize,
}

/// The contents of a file.
#[derive(Debug, Clone, Copy)]
pub struct Contents<'a> {
    /// Tokens.
    pub ids: &'a [u32],
    /// Positions that rounds started from.
    pub anchors: &'a [usize],
    /// Tapped states, row by row.
    pub taps: &'a [f32],
    /// Values of one such row.
    pub tap_width: usize,
    /// Per position from `first` on, tokens and log-probabilities; all of one length.
    pub likeliest: &'a [Vec<(u32, f64)>],
}

/// The bytes of a file.
///
/// # Panics
/// If `taps` are no whole rows or `likeliest` has several lengths.
#[must_use]
pub fn bytes(document: &Document, contents: &Contents<'_>) -> Vec<u8> {
    let Contents { ids, anchors, taps, tap_width, likeliest } = *contents;
    assert!(taps.len().is_multiple_of(tap_width));
    let k = likeliest.first().map_or(0, Vec::len);
    assert!(likeliest.iter().all(|row| row.len() == k));
    let new = |name: &str, dtype, shape: &[usize]| NewTensor {
        name: name.into(),
        dtype,
        shape: shape.iter().map(|n| *n as u64).collect(),
    };
    let tensors = vec![
        new("ids", Dtype::I32, &[ids.len()]),
        new("anchors", Dtype::I32, &[anchors.len()]),
        new("taps", Dtype::BF16, &[taps.len() / tap_width, tap_width]),
        new("top_ids", Dtype::I32, &[likeliest.len(), k]),
        new("top_logprobs", Dtype::F32, &[likeliest.len(), k]),
    ];
    // Strings, numbers and lists cannot fail.
    let text = serde_json::to_string(document).unwrap_or_default();
    let metadata = BTreeMap::from([
        ("format".to_owned(), FORMAT.to_owned()),
        ("document_sha256".to_owned(), sha256(&text)),
        ("document".to_owned(), text),
    ]);
    let plan = layout(tensors, &metadata);
    let mut file = vec![0; plan.file_len as usize];
    file[..plan.header.len()].copy_from_slice(&plan.header);
    for tensor in &plan.tensors {
        let out = &mut file[tensor.offset as usize..][..tensor.len as usize];
        let row = likeliest.iter().flatten();
        match tensor.name.as_str() {
            "ids" => words(out, ids.iter().map(|id| id.to_le_bytes())),
            "anchors" => words(out, anchors.iter().map(|at| (*at as u32).to_le_bytes())),
            "taps" => words(out, taps.iter().map(|x| half::bf16::from_f32(*x).to_le_bytes())),
            "top_ids" => words(out, row.map(|(id, _)| id.to_le_bytes())),
            _ => words(out, row.map(|(_, p)| (*p as f32).to_le_bytes())),
        }
    }
    file
}

/// Reads the document of a file.
///
/// # Errors
/// What [`safetensors::File::open`] says; [`Error::Key`] when the file has other contents, or its document
/// was damaged.
pub fn document(source: Source) -> Result<Document, Error> {
    let file = safetensors::File::open(source)?;
    let get = |name: &str| file.metadata().get(name).map_or("nothing", String::as_str);
    let key = |key: &str, expected: String, found: &str| {
        Error::key(file.source().path(), key, expected, shown(found))
    };
    if get("format") != FORMAT {
        return Err(key("format", FORMAT.into(), get("format")));
    }
    let text = get("document");
    let expected = sha256(text);
    if get("document_sha256") != expected {
        return Err(key("document_sha256", expected, get("document_sha256")));
    }
    serde_json::from_str(text)
        .map_err(|e| key("document", "the description of labels".into(), &e.to_string()))
}

fn words<const N: usize>(out: &mut [u8], values: impl Iterator<Item = [u8; N]>) {
    for (out, value) in out.as_chunks_mut().0.iter_mut().zip(values) {
        *out = value;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::calib::Units;

    #[test]
    fn the_reference_library_reads_what_is_written() {
        let mut units = Units::default();
        units.insert(3);
        let texts = Texts {
            kind: "text".into(),
            sha256: "ab".repeat(32),
            template_sha256: None,
            think: Some(true),
            decoding: "given".into(),
            draft_max: 7,
            max_tokens: 9,
            max_positions: Some(100),
            n_units: 4,
            units,
            positions: 2,
            rounds: 1,
            context_rows: 3,
        };
        let hash = "cd".repeat(32);
        let written = Document {
            program: "test 1".into(),
            target_sha256: hash.clone(),
            drafter_sha256: hash,
            act: "a8".into(),
            kv: "f16".into(),
            target_layer_ids: vec![1, 3],
            texts,
            first: 2,
        };
        let likeliest = [vec![(7, -0.5), (8, -1.5)], vec![(9, -0.25), (1, -3.0)]];
        let contents = Contents {
            ids: &[5, 6, 7, 9],
            anchors: &[2],
            taps: &[1.0, -2.0, 0.5, 3.0, 0.0, 1e9],
            tap_width: 2,
            likeliest: &likeliest,
        };
        let bytes = bytes(&written, &contents);
        let read = ::safetensors::SafeTensors::deserialize(&bytes).unwrap();
        let (_, metadata) = ::safetensors::SafeTensors::read_metadata(&bytes).unwrap();
        assert_eq!(metadata.metadata().as_ref().unwrap()["format"], FORMAT);
        assert_eq!(read.tensor("taps").unwrap().shape(), [3, 2]);
        let halves = [0x3f80u16, 0xc000, 0x3f00, 0x4040, 0, 0x4e6e];
        let expected: Vec<u8> = halves.iter().flat_map(|half| half.to_le_bytes()).collect();
        assert_eq!(read.tensor("taps").unwrap().data(), expected);
        assert_eq!(read.tensor("top_ids").unwrap().data()[4..8], [8, 0, 0, 0]);
        assert_eq!(read.tensor("top_logprobs").unwrap().data()[8..12], (-0.25f32).to_le_bytes());
        assert_eq!(read.tensor("anchors").unwrap().data(), [2, 0, 0, 0]);
        assert_eq!(document(Source::from_bytes("x", bytes.clone())).unwrap(), written);
        let mut other = bytes;
        let at = other.windows(4).position(|w| w == b"test").unwrap();
        other[at] = b'b';
        assert!(document(Source::from_bytes("x", other)).is_err());
    }
}
