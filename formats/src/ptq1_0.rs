//! PTQ1_0, ggml type 143: 128 weights in 28 bytes, 1.75 bits per weight.
//!
//! ```text
//!  byte 0         15 16      23 24  25 26    27
//!      [ 16 x 5 trits ][ 8 x 5   ][ 2 x 4 ][ scale ]
//!  weights 0..80        80..120    120..128  fp16 LE
//! ```
//!
//! Digit `n` (0 = most significant) of byte `i` of a run of `m` bytes is weight
//! `start + i + m * n`. A byte holds the base-3 number `v` of its digits as the
//! fraction `v / 243` rounded up to 1/256: `byte = (256 v + 242) / 243`. Four
//! digits are five with a zero last one. Digit `n` comes back as
//! `3 * (byte * 3^n mod 256) >> 8`. Codes are 0, 1, 2; there is no code 3.
//!
//! Only 243 of 256 bytes (81 where there are four digits) are images of a `v`.
//! The others decode by the same rule, but no encoder writes them.

use half::f16;

use crate::pq2_0::{check_finite, check_len, refuse_code_3};
use crate::{Fault, GROUP, TernaryRows};

/// Bytes of one block.
pub const BLOCK_BYTES: usize = 28;

/// The runs of bytes: first byte, bytes, first weight, digits per byte.
const RUNS: [(usize, usize, usize, usize); 3] = [(0, 16, 0, 5), (16, 8, 80, 5), (24, 2, 120, 4)];

/// `BYTE_OF[v]`: the byte of the five-digit base-3 number `v`.
const BYTE_OF: [u8; 243] = {
    let mut table = [0; 243];
    let mut v = 0;
    while v < 243 {
        table[v] = (256 * v).div_ceil(243) as u8;
        v += 1;
    }
    table
};

/// `DIGITS[byte]`: how many digits the encoder may have put into `byte`: 0 (none,
/// it never writes it), 5, or 4 (also a possible byte of five digits).
const DIGITS: [u8; 256] = {
    let mut table = [0; 256];
    let mut v = 0;
    while v < 243 {
        table[BYTE_OF[v] as usize] = if v % 3 == 0 { 4 } else { 5 };
        v += 1;
    }
    table
};

/// Bytes of a row of `cols` weights.
#[must_use]
pub fn row_bytes(cols: usize) -> usize {
    cols / GROUP * BLOCK_BYTES
}

/// Writes `rows` as blocks, row after row.
///
/// # Errors
/// A [`Fault`] at the first group with a code 3; `out` is then unchanged.
///
/// # Panics
/// If `out` is not `rows.rows() *` [`row_bytes`]`(rows.cols())` long.
pub fn encode(rows: &TernaryRows, out: &mut [u8]) -> Result<(), Fault> {
    assert_eq!(out.len(), rows.rows() * row_bytes(rows.cols()));
    refuse_code_3(rows)?;
    let (groups, _) = rows.codes().as_chunks::<{ GROUP / 4 }>();
    let (blocks, _) = out.as_chunks_mut::<BLOCK_BYTES>();
    for ((block, codes), scale) in blocks.iter_mut().zip(groups).zip(rows.scales()) {
        let mut digits = [0; GROUP];
        for (four, byte) in digits.as_chunks_mut::<4>().0.iter_mut().zip(codes) {
            *four = [byte & 3, (byte >> 2) & 3, (byte >> 4) & 3, byte >> 6];
        }
        for (byte0, n_bytes, weight0, n_digits) in RUNS {
            for i in 0..n_bytes {
                let mut v = 0;
                for n in 0..5 {
                    let digit = if n < n_digits {
                        digits[weight0 + i + n_bytes * n]
                    } else {
                        0
                    };
                    v = 3 * v + usize::from(digit);
                }
                block[byte0 + i] = BYTE_OF[v];
            }
        }
        block[26..].copy_from_slice(&scale.to_le_bytes());
    }
    Ok(())
}

/// Reads blocks into `rows`, by the rule also where bytes are not canonical;
/// see [`first_noncanonical`].
///
/// # Errors
/// A [`Fault`] at the first group whose scale is infinite or NaN, or at the end
/// of `bytes` when they are not those of `rows`' shape.
pub fn decode(bytes: &[u8], rows: &mut TernaryRows) -> Result<(), Fault> {
    check_len(bytes, rows.rows() * row_bytes(rows.cols()))?;
    let (codes, scales) = rows.parts_mut();
    let (groups, _) = codes.as_chunks_mut::<{ GROUP / 4 }>();
    let (blocks, _) = bytes.as_chunks::<BLOCK_BYTES>();
    for (block, (codes, scale)) in blocks.iter().zip(groups.iter_mut().zip(scales.iter_mut())) {
        let mut digits = [0; GROUP];
        for (byte0, n_bytes, weight0, n_digits) in RUNS {
            for (n, power) in [1, 3, 9, 27, 81].into_iter().enumerate().take(n_digits) {
                for i in 0..n_bytes {
                    digits[weight0 + n_bytes * n + i] = digit(block[byte0 + i], power);
                }
            }
        }
        for (byte, four) in codes.iter_mut().zip(digits.as_chunks::<4>().0) {
            *byte = four[0] | (four[1] << 2) | (four[2] << 4) | (four[3] << 6);
        }
        *scale = f16::from_le_bytes([block[26], block[27]]);
    }
    check_finite(scales)
}

#[inline]
fn digit(byte: u8, power: u8) -> u8 {
    ((u16::from(byte.wrapping_mul(power)) * 3) >> 8) as u8
}

/// The first block with a byte that no encoder writes. Bytes after the last
/// whole block are not looked at.
#[must_use]
pub fn first_noncanonical(bytes: &[u8]) -> Option<u64> {
    let (blocks, _) = bytes.as_chunks::<BLOCK_BYTES>();
    blocks
        .iter()
        .position(|block| {
            block[..24].iter().any(|b| DIGITS[usize::from(*b)] == 0)
                || block[24..26].iter().any(|b| DIGITS[usize::from(*b)] != 4)
        })
        .map(|block| block as u64)
}
