//! MLX 2-bit packs: a packed module is three tensors of a safetensors file.
//!
//! ```text
//!  <path>.weight  U32 [R, K/16]   code of column k: word k/16, bits 2*(k%16)
//!  <path>.scales      [R, K/128]  F16 or BF16
//!  <path>.biases      [R, K/128]  F16 or BF16        w = scale * code + bias
//! ```
//!
//! In a ternary pack the bias is the negated scale and codes are 0, 1, 2 (3 is
//! +2 scales, as in PQ2_0), so the words are byte for byte the code bytes of a
//! PQ2_0 block. A pack that MLX
//! quantised itself uses four levels and is not ternary; it is still read to
//! f32 ([`dequantize_row`]).
//!
//! The folder's `config.json` says which modules are packed and in which
//! Hadamard block their input is rotated ([`PackConfig`]), its `hadamard.json`
//! with which signs ([`PackRotation`]); [`Pack`] is all of it with the weights.

mod config;
mod object;
mod pack;
mod rotation;
mod text;

use half::{bf16, f16};

pub use config::{MODEL_TYPE, PackConfig, PackModule};
pub use pack::{Pack, Packed, floats};
pub use rotation::PackRotation;
pub use text::TextConfig;

use crate::pq2_0::{check_finite, check_len};
use crate::{Fault, GROUP, TernaryRows, scale};

/// How scales and biases are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ScaleType {
    /// fp16.
    F16,
    /// bf16.
    Bf16,
}

impl ScaleType {
    fn read(self, bytes: [u8; 2]) -> f32 {
        match self {
            Self::F16 => f16::from_le_bytes(bytes).to_f32(),
            Self::Bf16 => bf16::from_le_bytes(bytes).to_f32(),
        }
    }
}

/// The bytes of one or more rows of a packed module.
#[derive(Debug, Clone, Copy)]
pub struct Rows<'a> {
    /// `[rows, K/16]` little-endian U32 words.
    pub weight: &'a [u8],
    /// `[rows, K/128]`.
    pub scales: &'a [u8],
    /// `[rows, K/128]`.
    pub biases: &'a [u8],
    /// The type of scales and biases.
    pub scale_type: ScaleType,
}

impl Rows<'_> {
    fn check(&self, weights: usize) -> Result<(), Fault> {
        check_len(self.weight, weights / 4)?;
        check_len(self.scales, weights / GROUP * 2)?;
        check_len(self.biases, weights / GROUP * 2)
    }
}

/// Reads rows of a ternary pack. Negative scales are kept; a scale of zero may
/// have a zero bias of either sign. Code 3 passes, as in PQ2_0; see
/// [`first_code_3`](crate::pq2_0::first_code_3).
///
/// # Errors
/// A [`Fault`] at the first group that is not of a ternary pack: a scale that
/// is not finite or not exact in fp16, a bias that is not the negated
/// scale; or at the end of a part whose size is not that of `rows`' shape.
pub fn decode(pack: Rows<'_>, rows: &mut TernaryRows) -> Result<(), Fault> {
    pack.check(rows.rows() * rows.cols())?;
    let (codes, scales) = rows.parts_mut();
    codes.copy_from_slice(pack.weight);
    let pairs = pack.scales.as_chunks::<2>().0.iter().zip(pack.biases.as_chunks::<2>().0);
    for (group, (out, (s, bias))) in scales.iter_mut().zip(pairs).enumerate() {
        let fault = |expected: &str, found: String| Fault {
            unit: "group",
            index: group as u64,
            expected: expected.into(),
            found,
        };
        *out = match pack.scale_type {
            ScaleType::F16 => f16::from_le_bytes(*s),
            ScaleType::Bf16 => {
                let s = bf16::from_le_bytes(*s);
                scale::from_bf16_exact(s).ok_or_else(|| {
                    fault(
                        "a finite scale that fp16 holds exactly",
                        format!("bf16 bits 0x{:04X} ({s})", s.to_bits()),
                    )
                })?
            }
        };
        let negated = u16::from_le_bytes(*s) ^ 0x8000;
        let bias = u16::from_le_bytes(*bias);
        if bias != negated && (bias | negated) & 0x7FFF != 0 {
            return Err(fault(
                "a bias that is the negated scale (ternary)",
                format!("scale bits 0x{:04X} with bias bits 0x{bias:04X}", negated ^ 0x8000),
            ));
        }
    }
    check_finite(scales)
}

/// Reads one row of any 2-bit pack, `scale * code + bias`: `out` is `[K]` f32.
///
/// # Errors
/// A [`Fault`] at the first group whose scale or bias is not finite, or at the
/// end of a part whose size is not that of `out`.
///
/// # Panics
/// If `out` is not whole groups of 128.
pub fn dequantize_row(pack: Rows<'_>, out: &mut [f32]) -> Result<(), Fault> {
    assert_eq!(out.len() % GROUP, 0);
    pack.check(out.len())?;
    let pairs = pack.scales.as_chunks::<2>().0.iter().zip(pack.biases.as_chunks::<2>().0);
    let groups = pack.weight.as_chunks::<{ GROUP / 4 }>().0.iter().zip(pairs);
    for (g, (out, (codes, (s, bias)))) in out.chunks_exact_mut(GROUP).zip(groups).enumerate() {
        let (s, bias) = (pack.scale_type.read(*s), pack.scale_type.read(*bias));
        if !(s.is_finite() && bias.is_finite()) {
            return Err(Fault {
                unit: "group",
                index: g as u64,
                expected: "a finite scale and bias".into(),
                found: format!("scale {s}, bias {bias}"),
            });
        }
        for (byte, out) in codes.iter().zip(out.as_chunks_mut::<4>().0) {
            for (j, out) in out.iter_mut().enumerate() {
                *out = s * f32::from((byte >> (2 * j)) & 3) + bias;
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One row of one group: codes 0, 1, 2, 0 repeated, with these 16 bits.
    fn row<'a>(codes: &'a [u8], s: &'a [u8; 2], bias: &'a [u8; 2], t: ScaleType) -> Rows<'a> {
        Rows { weight: codes, scales: s, biases: bias, scale_type: t }
    }

    const CODES: [u8; 32] = [0b00_10_01_00; 32];

    #[test]
    fn ternary_rows_in_both_scale_types() {
        for s in [1.5f32, -0.25] {
            let (h, n) = (f16::from_f32(s).to_le_bytes(), f16::from_f32(-s).to_le_bytes());
            let (b, m) = (bf16::from_f32(s).to_le_bytes(), bf16::from_f32(-s).to_le_bytes());
            for pack in [row(&CODES, &h, &n, ScaleType::F16), row(&CODES, &b, &m, ScaleType::Bf16)]
            {
                let mut rows = TernaryRows::zeroed(1, GROUP);
                decode(pack, &mut rows).unwrap();
                let (mut exact, mut affine) = ([0.0; GROUP], [0.0; GROUP]);
                rows.dequantize_row(0, &mut exact);
                assert_eq!(exact[..4], [-s, 0.0, s, -s]);
                dequantize_row(pack, &mut affine).unwrap();
                assert_eq!(affine, exact);
            }
        }
    }

    #[test]
    fn zero_scales_have_a_bias_of_either_sign() {
        for (s, bias) in [(0, 0), (0, 0x80), (0x80, 0), (0x80, 0x80)] {
            let (s, bias) = ([0, s], [0, bias]);
            let mut rows = TernaryRows::zeroed(1, GROUP);
            assert_eq!(decode(row(&CODES, &s, &bias, ScaleType::F16), &mut rows), Ok(()));
        }
    }

    #[test]
    fn what_is_not_ternary_is_refused_but_readable() {
        // What MLX itself makes of a ternary group of scale 1: -0.5 and 1.
        let (s, bias) = (f16::from_f32(-0.5).to_le_bytes(), f16::ONE.to_le_bytes());
        let pack = row(&[0b11_10_01_00; 32], &s, &bias, ScaleType::F16);
        let mut rows = TernaryRows::zeroed(1, GROUP);
        let fault = decode(pack, &mut rows).unwrap_err();
        assert!(fault.to_string().contains("negated scale"), "{fault}");
        let mut out = [0.0; GROUP];
        dequantize_row(pack, &mut out).unwrap();
        assert_eq!(out[..4], [1.0, 0.5, 0.0, -0.5]);

        // Code 3 is no matter of the rule: +2 scales by both readers.
        let (s, bias) = (f16::ONE.to_le_bytes(), f16::NEG_ONE.to_le_bytes());
        let pack = row(&[0xC0; 32], &s, &bias, ScaleType::F16);
        decode(pack, &mut rows).unwrap();
        let mut exact = [0.0; GROUP];
        rows.dequantize_row(0, &mut exact);
        dequantize_row(pack, &mut out).unwrap();
        assert_eq!((exact[3], out), (2.0, exact));
    }

    #[test]
    fn scales_that_are_no_numbers_or_not_fp16_are_refused() {
        let mut rows = TernaryRows::zeroed(1, GROUP);
        for (bits, scale_type) in [
            (0x7C00u16, ScaleType::F16),
            (0xFC00, ScaleType::F16),
            (0x7E00, ScaleType::F16),
            (0x7F80, ScaleType::Bf16),
            (0x7FC0, ScaleType::Bf16),
            (0x4780, ScaleType::Bf16),
        ] {
            let (s, bias) = (bits.to_le_bytes(), (bits ^ 0x8000).to_le_bytes());
            let pack = row(&CODES, &s, &bias, scale_type);
            assert!(decode(pack, &mut rows).is_err(), "0x{bits:04X}");
            let finite = bits == 0x4780;
            assert_eq!(dequantize_row(pack, &mut [0.0; GROUP]).is_ok(), finite, "0x{bits:04X}");
        }
    }

    #[test]
    fn parts_of_another_size_are_refused() {
        let mut rows = TernaryRows::zeroed(1, GROUP);
        let two = [0; 2];
        for (weight, scales, biases) in [
            (&CODES[..31], &two[..], &two[..]),
            (&CODES[..], &two[..1], &two[..]),
            (&CODES[..], &two[..], &[0; 4][..]),
        ] {
            let pack = Rows { weight, scales, biases, scale_type: ScaleType::F16 };
            assert!(decode(pack, &mut rows).is_err());
            assert!(dequantize_row(pack, &mut [0.0; GROUP]).is_err());
        }
    }
}
