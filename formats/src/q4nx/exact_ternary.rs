//! Ternary matrices in q4_1 chunks, exactly: code = code, `d` = s, `m` = -s.
//!
//! ```text
//!  byte 0      512     1024                3072                5120
//!      [ d      ][ m      ][ rows 0..16       ][ rows 16..32      ]
//!       bf16(s)   -bf16(s)   8 bytes per column, row r of the half
//!       index 32*g + r       in nibble r, low nibble first
//! ```
//!
//! A scale serves 128 columns, so `d` stands four times. The engines make their
//! 2-bit tiles from such chunks while loading, and first test every chunk: per
//! row and half, four equal `d`; every `m` is `d` with the sign bit flipped;
//! every code at most 2. A scale of +0 hence has `m` = -0 (0x8000). With +0
//! there, the engines would take a tensor whose first chunk is all zero for
//! signed q4_0. A scale of -0 is written as +0 for the same reason.

use half::{bf16, f16};

use super::tile::{self, Rows8, splat};
use super::{CHUNK_BYTES, COL_BLOCK, GROUPS, ROW_BLOCK};
use crate::pq2_0::{check_len, refuse_code_3};
use crate::{Fault, GROUP, TernaryRows, scale};

/// Scales of a row of a tile.
const HALVES: usize = COL_BLOCK / GROUP;
/// Bytes of `d` (and of `m`) that one scale of all rows fills: four groups.
const PLANE_BYTES: usize = 2 * GROUPS;
const SIGN: u16 = 0x8000;

/// Writes `rows` as chunks in raster order. Any multiple of 32 rows will do: a
/// stripe of a matrix gives the chunks of that stripe.
///
/// # Errors
/// A [`Fault`], and `out` with undefined contents: rows that are no multiple of
/// 32 or columns that are no multiple of 256; the first group with a code 3, or
/// with a scale that is not exact in bf16.
///
/// # Panics
/// If `out` is not 5120 bytes per chunk long.
pub fn encode(rows: &TernaryRows, out: &mut [u8]) -> Result<(), Fault> {
    check_shape(rows)?;
    assert_eq!(out.len(), chunk_count(rows) * CHUNK_BYTES);
    refuse_code_3(rows)?;
    let n_col_blocks = rows.cols() / COL_BLOCK;
    for (f, chunk) in out.chunks_exact_mut(CHUNK_BYTES).enumerate() {
        let (row0, col_block) = (f / n_col_blocks * ROW_BLOCK, f % n_col_blocks);
        let (planes, nibbles) = chunk.split_at_mut(2 * PLANE_BYTES);
        encode_scales(rows, row0, col_block, planes)?;
        for (half, out) in nibbles.chunks_exact_mut(16 * COL_BLOCK / 2).enumerate() {
            encode_codes(rows, row0 + 16 * half, col_block, out);
        }
    }
    Ok(())
}

fn encode_scales(
    rows: &TernaryRows,
    row0: usize,
    col_block: usize,
    planes: &mut [u8],
) -> Result<(), Fault> {
    let scales = tile_scales(rows, row0, col_block)?;
    let (d, m) = planes.split_at_mut(PLANE_BYTES);
    for (flip, plane) in [(0, d), (SIGN, m)] {
        // 32 rows of one 32-column group are 64 bytes.
        for (g, group) in plane.chunks_exact_mut(2 * ROW_BLOCK).enumerate() {
            for (bytes, scale) in group.as_chunks_mut::<2>().0.iter_mut().zip(&scales[g / 4]) {
                *bytes = (scale ^ flip).to_le_bytes();
            }
        }
    }
    Ok(())
}

/// The bf16 bits of a tile's scales, by half and row, -0 as +0.
pub(crate) fn tile_scales(
    rows: &TernaryRows,
    row0: usize,
    col_block: usize,
) -> Result<[[u16; ROW_BLOCK]; HALVES], Fault> {
    let mut out = [[0; ROW_BLOCK]; HALVES];
    for r in 0..ROW_BLOCK {
        for (half, out) in out.iter_mut().enumerate() {
            let group = col_block * HALVES + half;
            let s = rows.row_scales(row0 + r)[group];
            let Some(exact) = scale::to_bf16_exact(s) else {
                return Err(Fault {
                    unit: "group",
                    index: ((row0 + r) * rows.groups_per_row() + group) as u64,
                    expected: "a finite scale that bf16 holds exactly".into(),
                    found: format!("fp16 bits 0x{:04X} ({s})", s.to_bits()),
                });
            };
            out[r] = if exact == bf16::ZERO { 0 } else { exact.to_bits() };
        }
    }
    Ok(out)
}

/// 16 rows of a tile: 8 bytes for each column.
fn encode_codes(rows: &TernaryRows, row0: usize, col_block: usize, out: &mut [u8]) {
    let mut even: Rows8 = [[0; 8]; 8];
    let mut odd: Rows8 = [[0; 8]; 8];
    for pair in 0..8 {
        tile::load(&mut even[pair], tile_codes(rows, row0 + 2 * pair, col_block));
        tile::load(&mut odd[pair], tile_codes(rows, row0 + 2 * pair + 1, col_block));
    }
    tile::transpose(&mut even);
    tile::transpose(&mut odd);
    // A word of `even` and one of `odd` are four columns; the fields of the
    // even row go to the low nibbles.
    for (block, out) in out.as_chunks_mut::<256>().0.iter_mut().enumerate() {
        for (i, out) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
            let (x, y) = (even[i][block], odd[i][block]);
            let low = (x & splat(0x0F)) | ((y & splat(0x0F)) << 4);
            let high = ((x >> 4) & splat(0x0F)) | (y & splat(0xF0));
            let columns = [low, low >> 2, high, high >> 2];
            for (out, column) in out.as_chunks_mut::<8>().0.iter_mut().zip(columns) {
                *out = (column & splat(0x33)).to_le_bytes();
            }
        }
    }
}

/// The 64 code bytes of one row of a tile.
#[inline]
pub(crate) fn tile_codes(rows: &TernaryRows, row: usize, col_block: usize) -> &[u8] {
    &rows.row_codes(row)[col_block * COL_BLOCK / 4..(col_block + 1) * COL_BLOCK / 4]
}

/// Reads chunks in raster order into `rows`, by the engines' acceptance test.
/// Negative scales are kept.
///
/// Whether the engines take the whole tensor for q4_0 is not asked here: that
/// depends on the tensor's first chunk ([`super::ChunkKind::of_tensor`]).
///
/// # Errors
/// A [`Fault`] at the first chunk that is not exact ternary, or has a scale that
/// fp16 does not hold exactly (infinities and NaN among them); when `rows` is
/// not whole chunks, or `bytes` not as long as they.
pub fn decode(bytes: &[u8], rows: &mut TernaryRows) -> Result<(), Fault> {
    check_shape(rows)?;
    check_len(bytes, chunk_count(rows) * CHUNK_BYTES)?;
    let n_col_blocks = rows.cols() / COL_BLOCK;
    for (f, chunk) in bytes.chunks_exact(CHUNK_BYTES).enumerate() {
        let (row0, col_block) = (f / n_col_blocks * ROW_BLOCK, f % n_col_blocks);
        let at_chunk =
            |(expected, found)| Fault { unit: "chunk", index: f as u64, expected, found };
        if !accepts(chunk) {
            return Err(at_chunk(why_not(chunk)));
        }
        put_scales(rows, row0, col_block, |half, r| plane(chunk, 0, 4 * half, r))
            .map_err(at_chunk)?;
        for (half, nibbles) in chunk[2 * PLANE_BYTES..].chunks_exact(2048).enumerate() {
            decode_codes(nibbles, rows, row0 + 16 * half, col_block);
        }
    }
    Ok(())
}

/// Sets the scales of a tile from bf16 bits; the error is (expected, found).
pub(crate) fn put_scales(
    rows: &mut TernaryRows,
    row0: usize,
    col_block: usize,
    bits: impl Fn(usize, usize) -> u16,
) -> Result<(), (String, String)> {
    for r in 0..ROW_BLOCK {
        for half in 0..HALVES {
            let s = bf16::from_bits(bits(half, r));
            let Some(exact) = scale::from_bf16_exact(s) else {
                return Err((
                    "finite scales that fp16 holds exactly".into(),
                    format!(
                        "bf16 bits 0x{:04X} ({s}) at row {r}, columns {}..",
                        s.to_bits(),
                        half * GROUP
                    ),
                ));
            };
            let exact: f16 = exact;
            rows.set_scale(row0 + r, col_block * HALVES + half, exact);
        }
    }
    Ok(())
}

fn decode_codes(nibbles: &[u8], rows: &mut TernaryRows, row0: usize, col_block: usize) {
    let mut even: Rows8 = [[0; 8]; 8];
    let mut odd: Rows8 = [[0; 8]; 8];
    for (block, bytes) in nibbles.as_chunks::<256>().0.iter().enumerate() {
        for (i, bytes) in bytes.as_chunks::<32>().0.iter().enumerate() {
            let mut columns = [0; 4];
            for (column, bytes) in columns.iter_mut().zip(bytes.as_chunks::<8>().0) {
                *column = u64::from_le_bytes(*bytes);
            }
            let low = columns[0] | (columns[1] << 2);
            let high = columns[2] | (columns[3] << 2);
            even[i][block] = (low & splat(0x0F)) | ((high & splat(0x0F)) << 4);
            odd[i][block] = ((low >> 4) & splat(0x0F)) | (high & splat(0xF0));
        }
    }
    tile::transpose(&mut even);
    tile::transpose(&mut odd);
    for pair in 0..8 {
        tile::store(&even[pair], tile_codes_mut(rows, row0 + 2 * pair, col_block));
        tile::store(&odd[pair], tile_codes_mut(rows, row0 + 2 * pair + 1, col_block));
    }
}

/// The 64 code bytes of one row of a tile, to be filled.
#[inline]
pub(crate) fn tile_codes_mut(rows: &mut TernaryRows, row: usize, col_block: usize) -> &mut [u8] {
    let start = row * rows.cols() / 4 + col_block * COL_BLOCK / 4;
    &mut rows.parts_mut().0[start..start + COL_BLOCK / 4]
}

/// The engines' test of a 5120-byte chunk.
pub(super) fn accepts(chunk: &[u8]) -> bool {
    let (d, rest) = chunk.split_at(PLANE_BYTES);
    let (m, nibbles) = rest.split_at(PLANE_BYTES);
    let mut wrong = 0;
    for (d, m) in d.as_chunks::<2>().0.iter().zip(m.as_chunks::<2>().0) {
        wrong |= u16::from_le_bytes(*d) ^ u16::from_le_bytes(*m) ^ SIGN;
    }
    for half in d.chunks_exact(PLANE_BYTES / HALVES) {
        let (first, others) = half.split_at(2 * ROW_BLOCK);
        for other in others.chunks_exact(2 * ROW_BLOCK) {
            wrong |= u16::from(first != other);
        }
    }
    let codes = nibbles
        .as_chunks::<8>()
        .0
        .iter()
        .map(|bytes| u64::from_le_bytes(*bytes))
        // Nibbles above 3 keep a high bit, a 3 leaves its low one.
        .fold(0, |wrong, c| wrong | (c & splat(0xCC)) | (c & (c >> 1) & splat(0x11)));
    wrong == 0 && codes == 0
}

/// What the first violation of the test is: (expected, found).
fn why_not(chunk: &[u8]) -> (String, String) {
    for g in 0..8 {
        for r in 0..ROW_BLOCK {
            let (first, d, m) =
                (plane(chunk, 0, g & 4, r), plane(chunk, 0, g, r), plane(chunk, PLANE_BYTES, g, r));
            let at = format!("at row {r}, columns {}..", 32 * g);
            if d != first {
                return (
                    "one scale for each row's 128 columns (exact ternary)".into(),
                    format!("scale bits 0x{d:04X} after 0x{first:04X} {at}"),
                );
            }
            if m != d ^ SIGN {
                return (
                    "minima that are the negated scales (exact ternary)".into(),
                    format!("scale bits 0x{d:04X} with minimum bits 0x{m:04X} {at}"),
                );
            }
        }
    }
    for r in 0..ROW_BLOCK {
        for k in 0..COL_BLOCK {
            let c = super::code_index(r, k);
            let code = (chunk[2 * PLANE_BYTES + c / 2] >> (4 * (c % 2))) & 15;
            if code > 2 {
                return (
                    "ternary codes (0, 1, 2)".into(),
                    format!("code {code} at row {r}, column {k}"),
                );
            }
        }
    }
    ("an exact ternary chunk".into(), "another".into())
}

/// The 16 bits of row `r`, group `g` in the plane that starts at `base`.
fn plane(chunk: &[u8], base: usize, g: usize, r: usize) -> u16 {
    let at = base + 2 * (ROW_BLOCK * g + r);
    u16::from_le_bytes([chunk[at], chunk[at + 1]])
}

/// Whole chunks only: the engines have no ternary tile with padding.
pub(crate) fn check_shape(rows: &TernaryRows) -> Result<(), Fault> {
    for (unit, found, multiple) in
        [("row", rows.rows(), ROW_BLOCK), ("column", rows.cols(), COL_BLOCK)]
    {
        if found % multiple != 0 {
            return Err(Fault {
                unit,
                index: (found - found % multiple) as u64,
                expected: format!("a multiple of {multiple} {unit}s"),
                found: found.to_string(),
            });
        }
    }
    Ok(())
}

/// How many chunks `rows` fills.
pub(crate) fn chunk_count(rows: &TernaryRows) -> usize {
    rows.rows() / ROW_BLOCK * (rows.cols() / COL_BLOCK)
}

#[cfg(test)]
mod tests {
    use super::super::{Content, classify};
    use super::*;

    fn chunk_of(rows: &TernaryRows) -> Vec<u8> {
        let mut chunk = vec![0; CHUNK_BYTES];
        encode(rows, &mut chunk).unwrap();
        chunk
    }

    /// One tile, all codes 1, scales 1.0.
    fn ones() -> TernaryRows {
        let mut rows = TernaryRows::zeroed(ROW_BLOCK, COL_BLOCK);
        rows.parts_mut().1.fill(f16::ONE);
        rows
    }

    #[test]
    fn one_code_lands_where_the_reference_packer_puts_it() {
        for ((r, k), byte, value) in [
            ((0, 0), 1024, 0x02),
            ((1, 0), 1024, 0x20),
            ((16, 0), 3072, 0x02),
            ((0, 1), 1032, 0x02),
            ((15, 255), 3071, 0x20),
            ((31, 255), 5119, 0x20),
            ((3, 37), 1321, 0x20),
        ] {
            let mut rows = TernaryRows::zeroed(ROW_BLOCK, COL_BLOCK);
            rows.parts_mut().0.fill(0);
            rows.set_code(r, k, 2);
            let chunk = chunk_of(&rows);
            for (at, found) in chunk.iter().enumerate().skip(1024) {
                assert_eq!(*found, if at == byte { value } else { 0 }, "({r}, {k}) byte {at}");
            }
        }
    }

    #[test]
    fn a_zero_tile_is_not_taken_for_signed_q4_0() {
        let mut rows = TernaryRows::zeroed(ROW_BLOCK, COL_BLOCK);
        for zero in [f16::ZERO, f16::NEG_ZERO] {
            rows.parts_mut().1.fill(zero);
            let chunk = chunk_of(&rows);
            assert_eq!(chunk[..512], [0; 512]);
            assert!(chunk[512..1024].as_chunks().0.iter().all(|m| *m == [0x00, 0x80]));
            assert_eq!(classify(&chunk), Content::ExactTernary);
            let mut trap = chunk.clone();
            trap[512..1024].fill(0);
            assert_eq!(classify(&trap), Content::Q4_0);
            assert!(decode(&trap, &mut rows).is_err());
        }
    }

    #[test]
    fn what_the_engines_refuse_is_refused_and_named() {
        let good = chunk_of(&ones());
        let mut rows = ones();
        for (at, byte, expected, found) in [
            // d of row 3, group 5: not that of group 4.
            (2 * (5 * 32 + 3), 1, "one scale", "at row 3, columns 160.."),
            // m of row 0, group 0.
            (512, 1, "negated", "scale bits 0x3F80 with minimum bits 0xBF81 at row 0"),
            // Nibbles of rows 0 and 1, column 1; of rows 30 and 31, column 255.
            (1032, 0x13, "ternary codes", "code 3 at row 0, column 1"),
            (5119, 0x41, "ternary codes", "code 4 at row 31, column 255"),
        ] {
            let mut chunk = good.clone();
            chunk[at] = if at < 1024 { chunk[at] ^ byte } else { byte };
            assert_eq!(classify(&chunk), Content::Q4_1);
            let fault = decode(&[good.clone(), chunk].concat(), &mut {
                let mut two = TernaryRows::zeroed(2 * ROW_BLOCK, COL_BLOCK);
                two.parts_mut().1.fill(f16::ONE);
                two
            })
            .unwrap_err();
            assert_eq!((fault.unit, fault.index), ("chunk", 1));
            let message = fault.to_string();
            assert!(message.contains(expected) && message.contains(found), "{message}");
        }
        assert_eq!(decode(&good, &mut rows), Ok(()));
        assert_eq!(rows, ones());
    }

    #[test]
    fn scales_that_fp16_does_not_hold_are_refused() {
        // 2^-24 and 65280 are the ends of the grid; 2^-25 and 65536 lie past it.
        for (bits, good) in [
            (0x3380u16, true),
            (0x3300, false),
            (0x477F, true),
            (0x4780, false),
            (0xC77F, true),
            (0x7C00, false),
            (0xFC00, false),
            (0x7E00, false),
            (0x7F80, false),
            (0xFF80, false),
            (0x7FC0, false),
        ] {
            let mut chunk = chunk_of(&ones());
            for i in 0..256 {
                chunk[2 * i..2 * i + 2].copy_from_slice(&bits.to_le_bytes());
                chunk[512 + 2 * i..][..2].copy_from_slice(&(bits ^ SIGN).to_le_bytes());
            }
            let mut rows = ones();
            let result = decode(&chunk, &mut rows);
            assert_eq!(result.is_ok(), good, "0x{bits:04X}: {result:?}");
            if good {
                assert_eq!(rows.scales()[0].to_f64(), bf16::from_bits(bits).to_f64());
                assert_eq!(chunk_of(&rows), chunk);
            }
        }
    }

    #[test]
    fn what_cannot_be_written_is_refused() {
        let mut rows = TernaryRows::zeroed(64, 512);
        let mut out = vec![0; 4 * CHUNK_BYTES];
        rows.set_scale(33, 2, f16::from_bits(0x3C01));
        let fault = encode(&rows, &mut out).unwrap_err();
        assert_eq!((fault.unit, fault.index), ("group", 33 * 4 + 2));
        rows.set_scale(33, 2, f16::INFINITY);
        assert!(encode(&rows, &mut out).is_err());
        rows.set_scale(33, 2, f16::ONE);
        assert_eq!(encode(&rows, &mut out), Ok(()));
        rows.set_code(1, 0, 3);
        assert_eq!(encode(&rows, &mut out).unwrap_err().index, 4);
        for (n_rows, cols, what) in [(31, 256, "32 rows"), (32, 384, "256 columns")] {
            let rows = TernaryRows::zeroed(n_rows, cols);
            let fault = encode(&rows, &mut []).unwrap_err().to_string();
            assert!(fault.contains(what), "{fault}");
        }
    }
}
