//! Writing calibration data: tiles as they come, the header last.

use std::collections::BTreeMap;

use super::{Document, FORMAT, Input, Tile, triangle};
use crate::digest::sha256;
use crate::safetensors::{Dtype, Layout, NewTensor, layout};

pub(super) const FORMAT_KEY: &str = "format";
pub(super) const DOCUMENT: &str = "document";
pub(super) const DOCUMENT_SHA256: &str = "document_sha256";

/// Where the tiles of a new file come from.
pub trait Tiles<E> {
    /// The integers of a tile, in the order of [`Tile`].
    ///
    /// # Errors
    /// What its maker says.
    fn tile(&mut self, input: Input, tile: Tile) -> Result<Vec<i64>, E>;
}

/// The tensor that holds a tile, and its place there.
pub(super) fn tensor_of(input: Input, tile: Tile, n_blocks: usize) -> (String, usize) {
    let name = match tile {
        Tile::Diagonal(_) => input.to_string(),
        Tile::Pair(..) => format!("{input}.pairs"),
    };
    (name, tile.place(n_blocks))
}

/// The tensors of a file with this document.
pub(super) fn tensors(document: &Document) -> Vec<NewTensor> {
    let block = document.models.block as u64;
    let mut tensors = Vec::new();
    for (name, record) in &document.inputs {
        let n = (record.width as u64) / block;
        let new = |name: String, shape| NewTensor { name, dtype: Dtype::I64, shape };
        tensors.push(new(name.clone(), vec![n, triangle(document.models.block) as u64]));
        if record.full {
            tensors.push(new(format!("{name}.pairs"), vec![n * (n - 1) / 2, block, block]));
        }
    }
    tensors
}

/// Bytes of the file that [`write()`] makes of `document`.
#[must_use]
pub fn file_len(document: &Document) -> u64 {
    let mut document = document.clone();
    for record in document.inputs.values_mut() {
        blank(record, document.models.block);
    }
    planned(&document).file_len
}

/// Makes a file of `document`, whose hashes are filled in; `put` writes bytes at an offset, each byte of
/// the file once, the header at last: a file that was not written to its end has none.
///
/// # Errors
/// What `tiles` and `put` say.
///
/// # Panics
/// If the document is impossible (a width that is no multiple of the block, a name of no input) or a tile
/// has another size.
pub fn write<E>(
    document: &mut Document,
    tiles: &mut dyn Tiles<E>,
    put: &mut impl FnMut(u64, &[u8]) -> Result<(), E>,
) -> Result<(), E> {
    let block = document.models.block;
    for record in document.inputs.values_mut() {
        blank(record, block);
    }
    let plan = planned(document);
    let offset_of: BTreeMap<&str, u64> =
        plan.tensors.iter().map(|t| (t.name.as_str(), t.offset)).collect();
    let mut bytes = Vec::new();
    for (name, record) in &mut document.inputs {
        #[expect(clippy::expect_used, reason = "stated panic")]
        let input = Input::parse(name).expect("the name of an input");
        for (number, tile) in record.tiles(block).enumerate() {
            let values = tiles.tile(input, tile)?;
            assert_eq!(values.len(), tile.len(block));
            bytes.clear();
            values.iter().for_each(|value| bytes.extend(value.to_le_bytes()));
            record.sha256[number] = sha256(&bytes);
            let (tensor, place) = tensor_of(input, tile, record.width / block);
            put(offset_of[tensor.as_str()] + (place * bytes.len()) as u64, &bytes)?;
        }
    }
    let done = planned(document);
    assert_eq!(done.header.len(), plan.header.len(), "hashes have one length");
    put(0, &done.header)
}

/// Hashes of the right number and length.
fn blank(record: &mut super::InputRecord, block: usize) {
    let n = record.tiles(block).count();
    record.sha256 = vec!["0".repeat(64); n];
}

fn planned(document: &Document) -> Layout {
    let text = document.text();
    let metadata = BTreeMap::from([
        (FORMAT_KEY.to_owned(), FORMAT.to_owned()),
        (DOCUMENT_SHA256.to_owned(), sha256(&text)),
        (DOCUMENT.to_owned(), text),
    ]);
    layout(tensors(document), &metadata)
}
