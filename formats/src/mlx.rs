//! MLX 2-bit packs: a packed module is three tensors of a safetensors file.
//!
//! ```text
//!  <path>.weight  U32 [R, K/16]   code of column k: word k/16, bits 2*(k%16)
//!  <path>.scales      [R, K/128]  F16 or BF16
//!  <path>.biases      [R, K/128]  F16 or BF16        w = scale * code + bias
//! ```
//!
//! In a ternary pack the bias is the negated scale and codes are 0, 1, 2, so
//! the words are byte for byte the code bytes of a PQ2_0 block. A pack that MLX
//! quantised itself uses four levels and is not ternary; it is still read to
//! f32 ([`dequantize_row`]).
//!
//! The folder's `config.json` says which modules are packed and in which
//! Hadamard block their input is rotated ([`PackConfig`]).

mod config;

use half::{bf16, f16};

pub use config::{PackConfig, PackModule};

use crate::pq2_0::{check_finite, check_len, refuse_code_3};
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
/// have a zero bias of either sign.
///
/// # Errors
/// A [`Fault`] at the first group that is not exact ternary: a code 3, a scale
/// that is not finite or not exact in fp16, a bias that is not the negated
/// scale; or at the end of a part whose size is not that of `rows`' shape.
pub fn decode(pack: Rows<'_>, rows: &mut TernaryRows) -> Result<(), Fault> {
    pack.check(rows.rows() * rows.cols())?;
    let (codes, scales) = rows.parts_mut();
    codes.copy_from_slice(pack.weight);
    let pairs = pack
        .scales
        .as_chunks::<2>()
        .0
        .iter()
        .zip(pack.biases.as_chunks::<2>().0);
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
                format!(
                    "scale bits 0x{:04X} with bias bits 0x{bias:04X}",
                    negated ^ 0x8000
                ),
            ));
        }
    }
    check_finite(scales)?;
    refuse_code_3(rows)
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
    let pairs = pack
        .scales
        .as_chunks::<2>()
        .0
        .iter()
        .zip(pack.biases.as_chunks::<2>().0);
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
