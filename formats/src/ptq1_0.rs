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
use zerocopy::little_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::pq2_0::{WHOLE_BLOCKS, check_finite, check_len, refuse_code_3};
use crate::{Fault, GROUP, TernaryRows};

/// Bytes of one block.
pub const BLOCK_BYTES: usize = 28;

/// One block as it lies in a file.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Block {
    digits: [u8; 26],
    /// fp16 bits.
    scale: U16,
}

const _: () = assert!(size_of::<Block>() == BLOCK_BYTES);

/// `DIGITS[byte]`: how many digits the encoder may have put into `byte`: 0 (none,
/// it never writes it), 5, or 4 (also a possible byte of five digits).
const DIGITS: [u8; 256] = {
    let mut table = [0; 256];
    let mut v = 0;
    while v < 243 {
        table[byte_of(v) as usize] = if v % 3 == 0 { 4 } else { 5 };
        v += 1;
    }
    table
};

/// `SPREAD[byte]`: the digits of a byte, digit `n` in byte `n` of the word.
const SPREAD: [u64; 256] = {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let (mut rest, mut n) = (byte as u64, 0);
        while n < 5 {
            table[byte] |= ((3 * rest) >> 8) << (8 * n);
            rest = 3 * rest % 256;
            n += 1;
        }
        byte += 1;
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
    let blocks = <[Block]>::mut_from_bytes(out).expect(WHOLE_BLOCKS);
    for ((block, codes), scale) in blocks.iter_mut().zip(groups).zip(rows.scales()) {
        let byte = |at: usize| u32::from(codes[at]);
        let mut numbers = [0; 28];
        put_numbers(
            [0, 4, 8, 12, 16].map(|at| {
                u32::from_le_bytes([codes[at], codes[at + 1], codes[at + 2], codes[at + 3]])
            }),
            &mut numbers[..16],
        );
        put_numbers(
            [20, 22, 24, 26, 28].map(|at| byte(at) | (byte(at + 1) << 8)),
            &mut numbers[16..24],
        );
        let [a, b] = [byte(30), byte(31)];
        put_numbers([a & 15, a >> 4, b & 15, b >> 4, 0], &mut numbers[24..]);
        for (out, v) in block.digits.iter_mut().zip(numbers) {
            *out = byte_of(v);
        }
        block.scale = U16::new(scale.to_bits());
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
    let blocks = <[Block]>::ref_from_bytes(bytes).expect(WHOLE_BLOCKS);
    for (Block { digits: stored, scale: bits }, (codes, scale)) in
        blocks.iter().zip(groups.iter_mut().zip(scales.iter_mut()))
    {
        for (q, bytes) in stored[..16].as_chunks::<4>().0.iter().enumerate() {
            for (n, byte) in digits(*bytes).into_iter().enumerate() {
                codes[4 * n + q] = byte;
            }
        }
        for (q, bytes) in stored[16..24].as_chunks::<4>().0.iter().enumerate() {
            for (n, byte) in digits(*bytes).into_iter().enumerate() {
                codes[20 + 2 * n + q] = byte;
            }
        }
        let [a, b, c, d, _] = digits([stored[24], stored[25], 0, 0]);
        codes[30] = a | (b << 4);
        codes[31] = c | (d << 4);
        *scale = f16::from_bits(bits.get());
    }
    check_finite(scales)
}

/// Four weights side by side in a code byte are the same digit of four bytes
/// side by side: here digit `n` of the four is the code byte `[n]`.
#[inline]
fn digits(bytes: [u8; 4]) -> [u8; 5] {
    let [a, b, c, d] = bytes.map(|byte| SPREAD[usize::from(byte)]);
    let [x, y, z, u, v, ..] = (a | (b << 2) | (c << 4) | (d << 6)).to_le_bytes();
    [x, y, z, u, v]
}

/// The reverse of [`digits`], for up to four times four bytes at once: byte `q`
/// of `columns[n]` is the code byte with digit `n` of the numbers `4 q ..`.
#[inline]
fn put_numbers(columns: [u32; 5], out: &mut [u8]) {
    let numbers = [0, 2, 4, 6].map(|shift| {
        let digit = |column: u32| (column >> shift) & 0x0303_0303;
        // At most 242 in each byte.
        let sum = columns.iter().fold(0, |v: u32, column| 3 * v + digit(*column));
        sum.to_le_bytes()
    });
    for (q, out) in out.as_chunks_mut::<4>().0.iter_mut().enumerate() {
        *out = numbers.map(|n| n[q]);
    }
}

/// The byte of the five-digit base-3 number `v`: `v / 243` rounded up to 1/256.
const fn byte_of(v: u8) -> u8 {
    // 256 v = 243 v + 13 v stays within 16 bits.
    v + (13 * v as u16).div_ceil(243) as u8
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

#[cfg(test)]
mod tests {
    use super::*;

    /// The weight that digit `n` of byte `i` is, and the digit's code, as the
    /// format's description has it: written apart from the codec.
    fn weight_and_code(block: &[u8], i: usize, n: usize) -> (usize, u8) {
        let weight = match i {
            0..=15 => i + 16 * n,
            16..=23 => 80 + (i - 16) + 8 * n,
            _ => 120 + (i - 24) + 2 * n,
        };
        let q = u32::from(block[i]) * 3u32.pow(n as u32) % 256;
        (weight, (3 * q / 256) as u8)
    }

    #[test]
    fn every_quintet_and_quartet() {
        for v in 0..243usize {
            let trits: [u8; 5] = [81, 27, 9, 3, 1].map(|p| (v / p % 3) as u8);
            let mut rows = TernaryRows::zeroed(1, GROUP);
            for i in 0..26 {
                for (n, trit) in trits.iter().enumerate().take(if i < 24 { 5 } else { 4 }) {
                    let (weight, _) = weight_and_code(&[0; 28], i, n);
                    rows.set_code(0, weight, *trit);
                }
            }
            rows.set_scale(0, 0, f16::from_f32(1.5));
            let mut block = [0; BLOCK_BYTES];
            encode(&rows, &mut block).unwrap();
            let byte_of = |v: usize| ((256.0 * v as f64 + 242.0) / 243.0).floor() as u8;
            let (five, four) = (byte_of(v), byte_of(v - v % 3));
            assert_eq!(block[..24], [five; 24], "v = {v}");
            assert_eq!(block[24..26], [four; 2], "v = {v}");
            assert_eq!(block[26..], [0x00, 0x3E]);
            assert_eq!(first_noncanonical(&block), None);
            let mut back = TernaryRows::zeroed(1, GROUP);
            decode(&block, &mut back).unwrap();
            assert_eq!(back, rows);
        }
    }

    #[test]
    fn all_bytes_decode_by_the_rule() {
        for byte in 0..=255u8 {
            let mut block = [byte; BLOCK_BYTES];
            block[26..].copy_from_slice(&[0, 0]);
            let mut rows = TernaryRows::zeroed(1, GROUP);
            decode(&block, &mut rows).unwrap();
            for i in 0..26 {
                for n in 0..if i < 24 { 5 } else { 4 } {
                    let (weight, code) = weight_and_code(&block, i, n);
                    assert_eq!(rows.code(0, weight), code, "byte {byte}, digit {n}");
                }
            }
            // Canonical is what the encoder gives back.
            let mut again = [0; BLOCK_BYTES];
            encode(&rows, &mut again).unwrap();
            assert_eq!(first_noncanonical(&block).is_none(), again == block, "byte {byte}");
        }
    }

    #[test]
    fn the_block_of_a_byte_no_encoder_writes() {
        let rows = TernaryRows::zeroed(1, 3 * GROUP);
        let mut bytes = [0; 3 * BLOCK_BYTES];
        encode(&rows, &mut bytes).unwrap();
        // 2 is the image of v = 1, whose fifth digit is not 0; 1 is no image.
        bytes[2 * BLOCK_BYTES + 25] = 2;
        assert_eq!(first_noncanonical(&bytes), Some(2));
        bytes[BLOCK_BYTES] = 1;
        assert_eq!(first_noncanonical(&bytes), Some(1));
    }

    #[test]
    fn code_3_is_refused() {
        let mut rows = TernaryRows::zeroed(2, GROUP);
        rows.set_code(1, 5, 3);
        let fault = encode(&rows, &mut [0; 2 * BLOCK_BYTES]).unwrap_err();
        assert_eq!((fault.unit, fault.index), ("group", 1));
    }
}
