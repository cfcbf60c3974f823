//! The 8704-byte chunk: 8-bit codes with a scale per 32 weights.
//!
//! ```text
//!  byte 0       512                                      8704
//!      [ scale   ][ codes: 8192 signed bytes, interleaved ]
//!      bf16 x256    as the nibbles of q4_1
//! ```
//!
//! value = `scale * code`.

use super::{COL_BLOCK, GROUPS, ROW_BLOCK, code_index, finite_bf16};
use crate::Fault;

pub(super) const CHUNK_BYTES: usize = 8704;

pub(super) fn dequantize(chunk: &[u8], out: &mut [f32]) -> Result<(), Fault> {
    let scales: [f32; GROUPS] = finite_bf16(&chunk[..2 * GROUPS], "scale")?;
    let codes = &chunk[2 * GROUPS..];
    for (r, row) in out.chunks_exact_mut(COL_BLOCK).enumerate() {
        for (k, out) in row.iter_mut().enumerate() {
            *out = scales[k / 32 * ROW_BLOCK + r] * f32::from(codes[code_index(r, k)] as i8);
        }
    }
    Ok(())
}
