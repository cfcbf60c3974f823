//! Bytes that the kernels, the DMAs and the host share. `kernels/layout.h` holds the same numbers for
//! the compiler of the cores.
//!
//! ```text
//! activation slice, 9792 bytes: 512 columns of 8 rows
//!   0     integers   int16 [128 quads][8 rows][4], or int8 [64 octets][8 rows][8] in the first half
//!   8192  -sum(q)    int32 [4 groups][8 rows][8 equal]
//!   9216  exponents  bf16  [4 groups][8 rows][8 equal]
//!   9728  header     int32 [16]: strips, first, last, mode, live rows
//! ```

use crate::arithmetic::{Activations, Mode};

/// Rows of every job; unused ones are zeros.
pub const ROWS: usize = 8;
/// Columns of an activation slice.
pub const SLICE_K: usize = 512;
/// Columns that share a scale.
pub const GROUP: usize = 128;
/// Groups of a slice.
pub const GROUPS: usize = SLICE_K / GROUP;
/// Where the sums of a slice begin.
pub const SUMS_AT: usize = 8192;
/// Where the block exponents of a slice begin.
pub const EXPONENTS_AT: usize = 9216;
/// Where the header of a slice begins.
pub const HEADER_AT: usize = 9728;
/// Bytes of an activation slice.
pub const SLICE_BYTES: usize = 9792;
/// Bytes of a t2 chunk: 32 rows by 256 columns.
pub const CHUNK_BYTES: usize = 2176;
/// Where the codes of a chunk begin.
pub const CODES_AT: usize = 128;
/// Outputs of a strip.
pub const STRIP_ROWS: usize = 32;
/// Bytes of the weights of one strip and slice: two chunks.
pub const STRIP_BYTES: usize = 2 * CHUNK_BYTES;
/// Values of one strip of results, `[4 fields][8 rows][8]`.
pub const STRIP_FLOATS: usize = 256;

/// Header word: strips of each core in the row group.
pub const STRIPS: usize = 0;
/// Header word: 1 on the first slice of K.
pub const FIRST: usize = 1;
/// Header word: 1 on the last slice of K.
pub const LAST: usize = 2;
/// Header word: 0 for int16, 1 for int8.
pub const MODE: usize = 3;
/// Header word: rows that carry data.
pub const LIVE_ROWS: usize = 4;

/// The slices of `x` for one row group of `strips` strips per core. Columns beyond the last are zeros.
#[must_use]
pub fn slices(x: &Activations, strips: u32) -> Vec<u8> {
    let n_slices = x.k().div_ceil(SLICE_K);
    let mut out = vec![0; n_slices * SLICE_BYTES];
    for (i, slice) in out.chunks_exact_mut(SLICE_BYTES).enumerate() {
        for row in 0..x.live_rows() {
            put_row(x, i, row, slice);
        }
        let first = u32::from(i == 0);
        let last = u32::from(i + 1 == n_slices);
        let mode = match x.mode() {
            Mode::N16 => 0,
            Mode::N8 => 1,
        };
        // At most 8.
        let header = [strips, first, last, mode, x.live_rows() as u32];
        put_words(&mut slice[HEADER_AT..], &header);
    }
    out
}

fn put_words(out: &mut [u8], words: &[u32]) {
    for (out, word) in out.as_chunks_mut::<4>().0.iter_mut().zip(words) {
        *out = word.to_le_bytes();
    }
}

fn put_row(x: &Activations, slice_idx: usize, row: usize, out: &mut [u8]) {
    for g in 0..GROUPS {
        let Some((q, d)) = x.group(row, slice_idx * GROUPS + g) else { return };
        for (n, &q) in q.iter().enumerate() {
            let k = g * GROUP + n;
            match x.mode() {
                Mode::N16 => {
                    let at = 2 * ((k / 4) * 32 + row * 4 + k % 4);
                    out[at..at + 2].copy_from_slice(&q.to_le_bytes());
                }
                // The integers of n8 fit a byte.
                Mode::N8 => out[(k / 8) * 64 + row * 8 + k % 8] = q as u8,
            }
        }
        let sum: i32 = q.iter().map(|&q| i32::from(q)).sum();
        // A power of two is exact in the upper half of its bits.
        let exponent = (d.to_bits() >> 16) as u16;
        for lane in 0..8 {
            let at = g * 64 + row * 8 + lane;
            out[SUMS_AT + 4 * at..][..4].copy_from_slice(&(-sum).to_le_bytes());
            out[EXPONENTS_AT + 2 * at..][..2].copy_from_slice(&exponent.to_le_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_numbers_of_the_kernels_header() {
        let text = include_str!("../kernels/layout.h");
        let expected = [
            ("kRows", ROWS),
            ("kSliceK", SLICE_K),
            ("kGroup", GROUP),
            ("kSumsAt", SUMS_AT),
            ("kExponentsAt", EXPONENTS_AT),
            ("kHeaderAt", HEADER_AT),
            ("kSliceBytes", SLICE_BYTES),
            ("kStrips", STRIPS),
            ("kFirst", FIRST),
            ("kLast", LAST),
            ("kMode", MODE),
            ("kLiveRows", LIVE_ROWS),
            ("kChunkBytes", CHUNK_BYTES),
            ("kCodesAt", CODES_AT),
            ("kStripFloats", STRIP_FLOATS),
        ];
        for (name, value) in expected {
            let line = format!("constexpr unsigned {name} = {value};");
            assert!(text.contains(&line), "layout.h has no `{line}`");
        }
    }
}
