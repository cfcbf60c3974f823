//! PQ2_0, ggml type 142: 128 weights in 34 bytes, 2.125 bits per weight.
//!
//! ```text
//!  byte 0   1   2                                                33
//!      [ scale ][ code bytes: weight j in byte 2 + j/4, bits 2*(j%4) ]
//!       fp16 LE   codes 0, 1, 2 = -s, 0, +s; code 3 = +2s by the decode rule
//! ```
//!
//! A row is `cols / 128` blocks without padding. The code bytes are those of
//! [`TernaryRows`], so coding is an interleave of scales and codes.

use half::f16;
use zerocopy::little_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::{Fault, GROUP, TernaryRows};

/// Bytes of one block.
pub const BLOCK_BYTES: usize = 34;

const CODE_BYTES: usize = GROUP / 4;

/// One block as it lies in a file.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Block {
    /// fp16 bits.
    scale: U16,
    codes: [u8; CODE_BYTES],
}

const _: () = assert!(size_of::<Block>() == BLOCK_BYTES);

/// Why the views of whole blocks below cannot fail.
pub(crate) const WHOLE_BLOCKS: &str = "the length was checked and blocks need no alignment";

/// Bytes of a row of `cols` weights.
#[must_use]
pub fn row_bytes(cols: usize) -> usize {
    cols / GROUP * BLOCK_BYTES
}

/// Writes `rows` as blocks, row after row.
///
/// # Panics
/// If `out` is not `rows.rows() *` [`row_bytes`]`(rows.cols())` long.
pub fn encode(rows: &TernaryRows, out: &mut [u8]) {
    assert_eq!(out.len(), rows.rows() * row_bytes(rows.cols()));
    let (codes, _) = rows.codes().as_chunks::<CODE_BYTES>();
    let blocks = <[Block]>::mut_from_bytes(out).expect(WHOLE_BLOCKS);
    for ((block, codes), scale) in blocks.iter_mut().zip(codes).zip(rows.scales()) {
        *block = Block { scale: U16::new(scale.to_bits()), codes: *codes };
    }
}

/// Reads blocks into `rows`. Code 3 passes; see [`first_code_3`].
///
/// # Errors
/// A [`Fault`] at the first group whose scale is infinite or NaN, or at the end
/// of `bytes` when they are not those of `rows`' shape.
pub fn decode(bytes: &[u8], rows: &mut TernaryRows) -> Result<(), Fault> {
    check_len(bytes, rows.rows() * row_bytes(rows.cols()))?;
    let (codes, scales) = rows.parts_mut();
    let (codes, _) = codes.as_chunks_mut::<CODE_BYTES>();
    let blocks = <[Block]>::ref_from_bytes(bytes).expect(WHOLE_BLOCKS);
    for (block, (codes, scale)) in blocks.iter().zip(codes.iter_mut().zip(scales.iter_mut())) {
        *scale = f16::from_bits(block.scale.get());
        *codes = block.codes;
    }
    check_finite(scales)
}

/// The first group, row-major, that holds a code 3 (+2 scales). PQ2_0 can say
/// it; the other ternary formats cannot.
#[must_use]
pub fn first_code_3(rows: &TernaryRows) -> Option<u64> {
    let (groups, _) = rows.codes().as_chunks::<CODE_BYTES>();
    groups
        .iter()
        .position(|codes| {
            codes.iter().fold(0, |found, byte| found | (byte & (byte >> 1) & 0x55)) != 0
        })
        .map(|group| group as u64)
}

/// The refusal of code 3, shared by the formats that have no such value.
pub(crate) fn refuse_code_3(rows: &TernaryRows) -> Result<(), Fault> {
    match first_code_3(rows) {
        None => Ok(()),
        Some(index) => Err(Fault {
            unit: "group",
            index,
            expected: "ternary codes (0, 1, 2)".into(),
            found: "code 3, the value +2 scales".into(),
        }),
    }
}

/// The refusal of infinite and NaN scales: a file that has one is damaged.
pub(crate) fn check_finite(scales: &[f16]) -> Result<(), Fault> {
    match scales.iter().position(|scale| !scale.is_finite()) {
        None => Ok(()),
        Some(index) => Err(Fault {
            unit: "group",
            index: index as u64,
            expected: "a finite scale".into(),
            found: format!("fp16 bits 0x{:04X} ({})", scales[index].to_bits(), scales[index]),
        }),
    }
}

/// The refusal of bytes that are not those of the shape.
pub(crate) fn check_len(bytes: &[u8], expected: usize) -> Result<(), Fault> {
    if bytes.len() == expected {
        return Ok(());
    }
    Err(Fault {
        unit: "byte",
        index: bytes.len().min(expected) as u64,
        expected: format!("{expected} bytes in all"),
        found: format!("{}", bytes.len()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 1.5 in fp16 is 0x3E00; codes 0, 1, 2, 3 repeated are byte 0b11_10_01_00.
    fn golden() -> Vec<u8> {
        let mut block = vec![0x00, 0x3E];
        block.extend([0xE4; 31]);
        block.push(0b01_01_01_10);
        block
    }

    #[test]
    fn a_block_by_hand() {
        let mut rows = TernaryRows::zeroed(1, GROUP);
        decode(&golden(), &mut rows).unwrap();
        assert_eq!(rows.row_scales(0), [f16::from_f32(1.5)]);
        let mut values = [0.0; GROUP];
        rows.dequantize_row(0, &mut values);
        assert_eq!(values[..4], [-1.5, 0.0, 1.5, 3.0]);
        assert_eq!(values[124..], [1.5, 0.0, 0.0, 0.0]);
        let mut bytes = vec![0; BLOCK_BYTES];
        encode(&rows, &mut bytes);
        assert_eq!(bytes, golden());
    }

    #[test]
    fn code_3_is_found_in_its_group() {
        let mut rows = TernaryRows::zeroed(2, 256);
        assert_eq!(first_code_3(&rows), None);
        rows.set_code(1, 130, 3);
        assert_eq!(first_code_3(&rows), Some(3));
        rows.set_code(1, 127, 3);
        assert_eq!(first_code_3(&rows), Some(2));
    }

    #[test]
    fn bytes_of_another_size_are_refused() {
        let mut rows = TernaryRows::zeroed(2, GROUP);
        for len in [0, 33, 67, 69] {
            let fault = decode(&vec![0; len], &mut rows).unwrap_err();
            assert!(fault.to_string().contains("68 bytes in all"), "{fault}");
        }
    }
}
