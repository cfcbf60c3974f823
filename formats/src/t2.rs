//! t2: the NPU's own ternary tile, 32 rows by 256 columns in 2176 bytes.
//!
//! ```text
//!  byte 0        64       128                                       2176
//!      [ half 0   ][ half 1 ][ codes: 8 bytes per column k, at 128 + 8k ]
//!      bf16 x32    bf16 x32    byte p holds rows p, 8+p, 16+p, 24+p,
//!      scale of row r          two bits each, low bits first
//! ```
//!
//! value = `s * code - s`, codes 0 to 2. The tile is never on disk in a q4nx
//! file: the engines make it from exact-ternary chunks while loading, and keep
//! the tiles of a matrix in another order ([`pool_order`]). An early engine
//! version padded each tile to 2560 bytes ([`Stride::Padded`]).

use crate::pq2_0::{check_len, refuse_code_3};
use crate::q4nx::exact_ternary::{
    check_shape, chunk_count, put_scales, tile_codes, tile_codes_mut, tile_scales,
};
use crate::q4nx::tile::{self, Rows8, splat};
use crate::q4nx::{COL_BLOCK, ROW_BLOCK};
use crate::{Fault, TernaryRows};

/// Bytes of one tile.
pub const PAYLOAD_BYTES: usize = 2176;

const SCALE_BYTES: usize = 128;

/// How far tiles are apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Stride {
    /// Back to back: 2176 bytes.
    #[default]
    Packed,
    /// Followed by zeros up to 2560 bytes, five units of 512.
    Padded,
}

impl Stride {
    /// Bytes from one tile to the next.
    #[must_use]
    pub const fn bytes(self) -> usize {
        match self {
            Self::Packed => PAYLOAD_BYTES,
            Self::Padded => 2560,
        }
    }
}

/// Writes `rows` as tiles in raster order (that of q4nx: row block after row
/// block). Any multiple of 32 rows will do.
///
/// # Errors
/// A [`Fault`], and `out` with undefined contents: rows that are no multiple of
/// 32 or columns that are no multiple of 256; the first group with a code 3, or
/// with a scale that is not exact in bf16.
///
/// # Panics
/// If `out` is not one stride per tile long.
pub fn pack(rows: &TernaryRows, stride: Stride, out: &mut [u8]) -> Result<(), Fault> {
    check_shape(rows)?;
    assert_eq!(out.len(), chunk_count(rows) * stride.bytes());
    refuse_code_3(rows)?;
    let n_col_blocks = rows.cols() / COL_BLOCK;
    for (f, chunk) in out.chunks_exact_mut(stride.bytes()).enumerate() {
        let (row0, col_block) = (f / n_col_blocks * ROW_BLOCK, f % n_col_blocks);
        let (payload, padding) = chunk.split_at_mut(PAYLOAD_BYTES);
        let (scales, codes) = payload.split_at_mut(SCALE_BYTES);
        let values = tile_scales(rows, row0, col_block)?;
        for (out, bits) in scales.as_chunks_mut::<2>().0.iter_mut().zip(values.as_flattened()) {
            *out = bits.to_le_bytes();
        }
        pack_codes(rows, row0, col_block, codes);
        padding.fill(0);
    }
    Ok(())
}

fn pack_codes(rows: &TernaryRows, row0: usize, col_block: usize, out: &mut [u8]) {
    let mut quarters: [Rows8; 4] = [[[0; 8]; 8]; 4];
    for (r, row) in quarters.as_flattened_mut().iter_mut().enumerate() {
        tile::load(row, tile_codes(rows, row0 + r, col_block));
    }
    for quarter in &mut quarters {
        tile::transpose(quarter);
    }
    for (block, out) in out.as_chunks_mut::<256>().0.iter_mut().enumerate() {
        for (i, out) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
            let columns = turn_fields([0, 1, 2, 3].map(|j| quarters[j][i][block]));
            for (out, column) in out.as_chunks_mut::<8>().0.iter_mut().zip(columns) {
                *out = column.to_le_bytes();
            }
        }
    }
}

/// In every byte, the 4 x 4 matrix of 2-bit fields (word, field) transposed.
#[inline]
fn turn_fields([a, b, c, d]: [u64; 4]) -> [u64; 4] {
    const LOW: u64 = splat(0x33);
    let (a, b) = ((a & LOW) | ((b & LOW) << 2), ((a >> 2) & LOW) | (b & !LOW));
    let (c, d) = ((c & LOW) | ((d & LOW) << 2), ((c >> 2) & LOW) | (d & !LOW));
    const NIBBLE: u64 = splat(0x0F);
    [
        (a & NIBBLE) | ((c & NIBBLE) << 4),
        (b & NIBBLE) | ((d & NIBBLE) << 4),
        ((a >> 4) & NIBBLE) | (c & !NIBBLE),
        ((b >> 4) & NIBBLE) | (d & !NIBBLE),
    ]
}

/// Reads tiles in raster order into `rows`. Padding is not looked at.
///
/// # Errors
/// A [`Fault`] at the first tile with a code 3 or a scale that fp16 does not
/// hold exactly (infinities and NaN among them); when `rows` is not whole tiles,
/// or `bytes` not as long as they.
pub fn unpack(bytes: &[u8], stride: Stride, rows: &mut TernaryRows) -> Result<(), Fault> {
    check_shape(rows)?;
    check_len(bytes, chunk_count(rows) * stride.bytes())?;
    let n_col_blocks = rows.cols() / COL_BLOCK;
    for (f, chunk) in bytes.chunks_exact(stride.bytes()).enumerate() {
        let (row0, col_block) = (f / n_col_blocks * ROW_BLOCK, f % n_col_blocks);
        let (scales, codes) = chunk[..PAYLOAD_BYTES].split_at(SCALE_BYTES);
        let at_chunk =
            |(expected, found)| Fault { unit: "chunk", index: f as u64, expected, found };
        if codes.iter().fold(0, |found, b| found | (b & (b >> 1) & 0x55)) != 0 {
            let what = ("ternary codes (0, 1, 2)".into(), "code 3".into());
            return Err(at_chunk(what));
        }
        put_scales(rows, row0, col_block, |half, r| {
            let at = 2 * (ROW_BLOCK * half + r);
            u16::from_le_bytes([scales[at], scales[at + 1]])
        })
        .map_err(at_chunk)?;
        unpack_codes(codes, rows, row0, col_block);
    }
    Ok(())
}

fn unpack_codes(codes: &[u8], rows: &mut TernaryRows, row0: usize, col_block: usize) {
    let mut quarters: [Rows8; 4] = [[[0; 8]; 8]; 4];
    for (block, bytes) in codes.as_chunks::<256>().0.iter().enumerate() {
        for (i, bytes) in bytes.as_chunks::<32>().0.iter().enumerate() {
            let mut columns = [0; 4];
            for (column, bytes) in columns.iter_mut().zip(bytes.as_chunks::<8>().0) {
                *column = u64::from_le_bytes(*bytes);
            }
            for (quarter, word) in quarters.iter_mut().zip(turn_fields(columns)) {
                quarter[i][block] = word;
            }
        }
    }
    for quarter in &mut quarters {
        tile::transpose(quarter);
    }
    for (r, row) in quarters.as_flattened().iter().enumerate() {
        tile::store(row, tile_codes_mut(rows, row0 + r, col_block));
    }
}

/// The raster index of each tile in the engines' order, for a matrix of `rows`
/// by `cols`: bands of 64 rows, in a band column block after column block, the
/// upper tile before the lower one.
///
/// # Errors
/// A [`Fault`] when the rows are no multiple of 64 or the columns none of 256.
pub fn pool_order(
    rows: usize,
    cols: usize,
) -> Result<impl ExactSizeIterator<Item = usize> + use<>, Fault> {
    for (unit, found, multiple) in [("row", rows, 2 * ROW_BLOCK), ("column", cols, COL_BLOCK)] {
        if found % multiple != 0 {
            return Err(Fault {
                unit,
                index: (found - found % multiple) as u64,
                expected: format!("a multiple of {multiple} {unit}s"),
                found: found.to_string(),
            });
        }
    }
    let n_col_blocks = cols / COL_BLOCK;
    let per_band = 2 * n_col_blocks;
    Ok((0..rows / ROW_BLOCK * n_col_blocks)
        .map(move |c| (2 * (c / per_band) + c % 2) * n_col_blocks + c % per_band / 2))
}

#[cfg(test)]
mod tests {
    use half::f16;

    use super::*;

    #[test]
    fn one_code_lands_where_the_reference_packer_puts_it() {
        for ((r, k), byte, value) in [
            ((0, 0), 128, 0x02),
            ((1, 0), 129, 0x02),
            ((16, 0), 128, 0x20),
            ((0, 1), 136, 0x02),
            ((15, 255), 2175, 0x08),
            ((31, 255), 2175, 0x80),
            ((3, 37), 427, 0x02),
        ] {
            let mut rows = TernaryRows::zeroed(ROW_BLOCK, COL_BLOCK);
            rows.parts_mut().0.fill(0);
            rows.set_code(r, k, 2);
            let mut expected = [0; PAYLOAD_BYTES];
            expected[byte] = value;
            let mut tile = [0xFF; PAYLOAD_BYTES];
            pack(&rows, Stride::Packed, &mut tile).unwrap();
            assert_eq!(tile, expected, "({r}, {k})");
        }
    }

    #[test]
    fn scales_stand_by_half_and_row() {
        let mut rows = TernaryRows::zeroed(ROW_BLOCK, COL_BLOCK);
        rows.set_scale(5, 1, f16::from_f32(-1.5));
        rows.set_scale(6, 0, f16::NEG_ZERO);
        let mut tile = [0; PAYLOAD_BYTES];
        pack(&rows, Stride::Packed, &mut tile).unwrap();
        let mut expected = [0; SCALE_BYTES];
        expected[2 * (32 + 5)..][..2].copy_from_slice(&[0xC0, 0xBF]);
        assert_eq!(tile[..SCALE_BYTES], expected);
    }

    #[test]
    fn the_engines_order_of_tiles() {
        let order: Vec<_> = pool_order(64, 1024).unwrap().collect();
        assert_eq!(order, [0, 4, 1, 5, 2, 6, 3, 7]);
        let order: Vec<_> = pool_order(128, 512).unwrap().collect();
        assert_eq!(order, [0, 2, 1, 3, 4, 6, 5, 7]);
        let mut order: Vec<_> = pool_order(1024, 5120).unwrap().collect();
        order.sort_unstable();
        assert!(order.into_iter().eq(0..640));
        assert!(pool_order(96, 1024).is_err() && pool_order(64, 1152).is_err());
    }

    #[test]
    fn damaged_tiles_are_refused_and_named() {
        let mut rows = TernaryRows::zeroed(ROW_BLOCK, 512);
        for (stride, at, byte) in [
            (Stride::Packed, 2175, 0xC0),
            (Stride::Padded, 128, 0x03),
            // The high byte of a scale: 0x7F00 is past fp16, 0xFF00 too.
            (Stride::Padded, 1, 0x7F),
            (Stride::Packed, 127, 0xFF),
        ] {
            let mut bytes = vec![0; 2 * stride.bytes()];
            assert_eq!(unpack(&bytes, stride, &mut rows), Ok(()));
            bytes[stride.bytes() + at] = byte;
            let fault = unpack(&bytes, stride, &mut rows).unwrap_err();
            assert_eq!((fault.unit, fault.index), ("chunk", 1));
        }
    }
}
