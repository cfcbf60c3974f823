//! The 4736-byte chunk (Q4_K): two levels of scales.
//!
//! ```text
//!  byte 0       256      512                            4608     4672   4736
//!      [ scales  ][ mins  ][ codes: byte k*16 + r/2,      ][ S     ][ M   ]
//!      u8 x256     u8 x256   row r even in the low nibble  bf16 x32 bf16 x32
//! ```
//!
//! value = `S[r] * scale * code + M[r] * min`; `M` is stored negated, so the
//! sum has a plus.

use super::{COL_BLOCK, GROUPS, ROW_BLOCK, finite_bf16};
use crate::Fault;

pub(super) const CHUNK_BYTES: usize = 4736;

const CODES: usize = 2 * GROUPS;
const ROW_SCALES: usize = CODES + ROW_BLOCK * COL_BLOCK / 2;
const ROW_MINS: usize = ROW_SCALES + 2 * ROW_BLOCK;

pub(super) fn dequantize(chunk: &[u8], out: &mut [f32]) -> Result<(), Fault> {
    let (scales, mins) = (&chunk[..GROUPS], &chunk[GROUPS..CODES]);
    let row_scales: [f32; ROW_BLOCK] = finite_bf16(&chunk[ROW_SCALES..ROW_MINS], "row scale")?;
    let row_mins: [f32; ROW_BLOCK] = finite_bf16(&chunk[ROW_MINS..], "row minimum")?;
    for (r, row) in out.chunks_exact_mut(COL_BLOCK).enumerate() {
        for (k, out) in row.iter_mut().enumerate() {
            let i = k / 32 * ROW_BLOCK + r;
            let code = (chunk[CODES + k * 16 + r / 2] >> (4 * (r % 2))) & 15;
            let scale = row_scales[r] * f32::from(scales[i]);
            *out = scale * f32::from(code) + row_mins[r] * f32::from(mins[i]);
        }
    }
    Ok(())
}
