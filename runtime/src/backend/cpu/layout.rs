//! The packed order of a ternary matrix.
//!
//! A matrix is cut into tiles of 16 outputs, one after the other; outputs that fill up the last tile
//! are zero. A tile holds two groups of 128 inputs at a time, and at the end a single one if their
//! number is odd:
//!
//! ```text
//! pair   16 scales of the first group, 16 of the second   fp16        64 bytes
//!        8 chunks of the first group                      64 bytes   512 bytes
//!        8 chunks of the second                           64 bytes   512 bytes
//! single 16 scales, 32 bytes of zeros, 8 chunks                      576 bytes
//!
//! chunk c, 32-bit lane r, byte t, bits 2j and 2j + 1: the code of output r, input 16c + 4j + t
//! ```
//!
//! All is little-endian and whole cache lines: no vector is loaded across two. Shifting a chunk right
//! by 2j and masking gives, lane by lane, 4 codes of 16 outputs that meet the 4 integers of inputs
//! 16c + 4j to 16c + 4j + 3, so a dot of four leaves 16 sums in 16 lanes and nothing is added across.
//! A weight takes 2.125 bits, as in PQ2_0.

use std::ops::Range;

use formats::{GROUP, TernaryRows};

use crate::Error;
use crate::weights::TernaryMatrix;

/// Outputs of a tile.
pub(super) const TILE: usize = 16;

/// Outputs that are packed at a time: whole tiles, and whole bands of every encoding.
pub(super) const BAND: usize = 64;

/// One value per output of a tile.
pub(super) type Lanes = [f32; TILE];

const LINE: usize = 64;
const CHUNKS: usize = 8;
const CODES: usize = CHUNKS * LINE;
const PAIR: usize = LINE + 2 * CODES;
const SINGLE: usize = LINE + CODES;

/// The chunks of a group.
pub(super) type Codes = [[u8; LINE]; CHUNKS];
/// The scales of a group, fp16.
pub(super) type Scales = [[u8; 2]; TILE];

/// The bytes of a tile with so many inputs.
pub(super) fn tile_bytes(in_features: usize) -> usize {
    let groups = in_features / GROUP;
    groups / 2 * PAIR + groups % 2 * SINGLE
}

/// The bytes of a matrix.
pub(super) fn packed_bytes(out_features: usize, in_features: usize) -> usize {
    out_features.div_ceil(TILE) * tile_bytes(in_features)
}

/// Where group `g` of a tile lies: its scales, then its codes.
fn offsets(g: usize) -> (usize, usize) {
    let pair = g / 2 * PAIR;
    (pair + g % 2 * LINE / 2, pair + LINE + g % 2 * CODES)
}

/// A packed tile.
#[derive(Debug, Clone, Copy)]
pub(super) struct Tile<'a> {
    bytes: &'a [u8],
}

impl<'a> Tile<'a> {
    /// `bytes`: [`tile_bytes`] of them.
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes }
    }

    /// Scales and codes of group `g`.
    #[inline]
    pub(super) fn group(self, g: usize) -> (&'a Scales, &'a Codes) {
        let (scales, codes) = offsets(g);
        let scales = self.bytes[scales..][..size_of::<Scales>()].as_chunks().0;
        let codes = self.bytes[codes..][..size_of::<Codes>()].as_chunks().0;
        let scales = scales.try_into().expect("16 scales");
        (scales, codes.try_into().expect("8 chunks"))
    }
}

/// Packs band number `band` of [`BAND`] outputs, fewer at the end; `out`: the bytes of its tiles.
///
/// # Errors
/// As [`pack`].
pub(super) fn pack_band(matrix: &TernaryMatrix, band: usize, out: &mut [u8]) -> Result<(), Error> {
    let first = band * BAND;
    pack(matrix, first..matrix.out_features().min(first + BAND), out)
}

/// Packs outputs `range`, whole bands except at the end of the matrix; `out`: the bytes of its tiles.
///
/// # Errors
/// [`Error::Formats`] where the bytes break a rule of their encoding.
pub(super) fn pack(
    matrix: &TernaryMatrix,
    range: Range<usize>,
    out: &mut [u8],
) -> Result<(), Error> {
    let (first, bytes) = (range.start, tile_bytes(matrix.in_features()));
    assert_eq!(out.len(), packed_bytes(range.len(), matrix.in_features()));
    fill_up(range.len(), matrix.in_features(), out);
    let mut words = vec![0; matrix.in_features() / TILE];
    matrix.for_each_row(range, |o, rows, r| {
        let at = o - first;
        put(rows, r, &mut words, at % TILE, &mut out[at / TILE * bytes..][..bytes]);
    })
}

/// Makes the last tile one of zeros, if `n` outputs do not fill it, and what lies beside the scales of
/// single groups.
fn fill_up(n: usize, in_features: usize, out: &mut [u8]) {
    let (groups, bytes) = (in_features / GROUP, tile_bytes(in_features));
    for (tile, out) in out.chunks_exact_mut(bytes).enumerate() {
        if groups % 2 == 1 {
            out[offsets(groups - 1).0 + LINE / 2..][..LINE / 2].fill(0);
        }
        if (tile + 1) * TILE > n {
            for g in 0..groups {
                let (scales, codes) = offsets(g);
                out[scales..][..LINE / 2].fill(0);
                out[codes..][..CODES].fill(0b0101_0101);
            }
        }
    }
}

/// Writes row `r` of `rows` into `lane` of a tile. `words`: room for `[in_features / 16]`.
fn put(rows: &TernaryRows, r: usize, words: &mut [u32], lane: usize, tile: &mut [u8]) {
    for (word, bytes) in words.iter_mut().zip(rows.row_codes(r).as_chunks::<4>().0) {
        *word = transpose(u32::from_le_bytes(*bytes));
    }
    let groups = words.as_chunks::<CHUNKS>().0.iter().zip(rows.row_scales(r));
    for (g, (words, scale)) in groups.enumerate() {
        let (scales, codes) = offsets(g);
        tile[scales + 2 * lane..][..2].copy_from_slice(&scale.to_bits().to_le_bytes());
        let codes = tile[codes..][..CODES].as_chunks_mut::<LINE>().0;
        for (chunk, word) in codes.iter_mut().zip(words) {
            chunk[4 * lane..][..4].copy_from_slice(&word.to_le_bytes());
        }
    }
}

/// Brings code `4j + t` of 16 to place `4t + j`: a 4 x 4 matrix of codes is transposed, first the low
/// bits of row and column are exchanged, then the high ones.
fn transpose(word: u32) -> u32 {
    let swap = |word: u32, distance: u32, mask: u32| {
        let differ = (word ^ (word >> distance)) & mask;
        word ^ differ ^ (differ << distance)
    };
    swap(swap(word, 6, 0x00CC_00CC), 12, 0x0000_F0F0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::weights::TernaryEncoding;
    use formats::{Source, pq2_0};
    use half::f16;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(16))]

        #[test]
        fn every_code_and_scale_lies_where_the_layout_says(
            n in 1usize..70, groups in 1usize..6, seed in any::<u32>(),
        ) {
            let cols = groups * GROUP;
            let random = |i: usize| (i as u32 ^ seed).wrapping_mul(2_654_435_761).rotate_left(15);
            let mut rows = TernaryRows::zeroed(n, cols);
            for r in 0..n {
                (0..cols).for_each(|k| rows.set_code(r, k, (random(r * cols + k) & 3) as u8));
                for g in 0..groups {
                    let bits = random(r * groups + g) as u16 & 0x3FFF;
                    rows.set_scale(r, g, f16::from_bits(bits));
                }
            }
            let mut bytes = vec![0; n * pq2_0::row_bytes(cols)];
            pq2_0::encode(&rows, &mut bytes);
            let source = Source::from_bytes("w", bytes);
            let view = source.view(0, source.len()).unwrap();
            let matrix = TernaryMatrix::new(view, TernaryEncoding::Pq2_0, n, cols, "w", "w");
            let mut packed = vec![0xEE; packed_bytes(n, cols)];
            pack(&matrix, 0..n, &mut packed).unwrap();

            for (at, tile) in packed.chunks_exact(tile_bytes(cols)).enumerate() {
                for g in 0..groups {
                    let (scales, codes) = Tile::new(tile).group(g);
                    for lane in 0..TILE {
                        let r = at * TILE + lane;
                        let scale = f16::from_le_bytes(scales[lane]);
                        prop_assert_eq!(scale, if r < n { rows.row_scales(r)[g] } else { f16::ZERO });
                        for k in 0..GROUP {
                            let (c, j, t) = (k / 16, k % 16 / 4, k % 4);
                            let code = (codes[c][4 * lane + t] >> (2 * j)) & 3;
                            let expected = if r < n { rows.code(r, g * GROUP + k) } else { 1 };
                            prop_assert_eq!(code, expected);
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn a_weight_takes_two_bits_and_its_share_of_the_scale() {
        assert_eq!(packed_bytes(17408, 5120), 17408 * 5120 / 128 * 34);
        assert_eq!(tile_bytes(3 * GROUP), PAIR + SINGLE);
        assert_eq!(packed_bytes(17, GROUP), 2 * SINGLE);
    }
}
