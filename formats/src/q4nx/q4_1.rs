//! The 5120-byte chunk: 4-bit codes with a scale and a minimum per 32 weights.
//!
//! ```text
//!  byte 0      512     1024                                          5120
//!      [ d      ][ m      ][ codes: 8192 nibbles, code c in byte c/2 ]
//!      bf16 x256 bf16 x256   low nibble when c is even
//! ```
//!
//! value = `d * code + m`. The signed form (q4_0) has the same layout, all `m`
//! +0, and two's-complement nibbles: value = `d * code`.

use super::{COL_BLOCK, GROUPS, ROW_BLOCK, code_index, finite_bf16};
use crate::Fault;

pub(super) fn dequantize(chunk: &[u8], out: &mut [f32]) -> Result<(), Fault> {
    let mins: [f32; GROUPS] = finite_bf16(&chunk[2 * GROUPS..4 * GROUPS], "minimum")?;
    each(chunk, out, |d, code, i| d * f32::from(code) + mins[i])
}

pub(super) fn dequantize_signed(chunk: &[u8], out: &mut [f32]) -> Result<(), Fault> {
    each(chunk, out, |d, code, _| d * f32::from((code << 4) as i8 >> 4))
}

#[inline]
fn each(chunk: &[u8], out: &mut [f32], value: impl Fn(f32, u8, usize) -> f32) -> Result<(), Fault> {
    let scales: [f32; GROUPS] = finite_bf16(&chunk[..2 * GROUPS], "scale")?;
    let codes = &chunk[4 * GROUPS..];
    for (r, row) in out.chunks_exact_mut(COL_BLOCK).enumerate() {
        for (k, out) in row.iter_mut().enumerate() {
            let c = code_index(r, k);
            let code = (codes[c / 2] >> (4 * (c % 2))) & 15;
            let i = k / 32 * ROW_BLOCK + r;
            *out = value(scales[i], code, i);
        }
    }
    Ok(())
}
