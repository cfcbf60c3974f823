//! The kernel without special instructions.

use half::f16;

use super::layout::{Lanes, TILE, Tile};
use crate::quant::{Block, Planes};

/// Multiplies a tile with all rows of `block`; `out`: one value per row and output.
pub(super) fn multiply(tile: Tile<'_>, block: Block<'_>, out: &mut [Lanes]) {
    let (n, planes) = (block.rows, block.planes.count());
    out.fill([0.0; TILE]);
    for g in 0..block.d.len() / n {
        let (scales, codes) = tile.group(g);
        // Weights as integers, `[word, output, byte]`.
        let mut t = [[[0i16; 4]; TILE]; 32];
        for (c, chunk) in codes.iter().enumerate() {
            for (lane, bytes) in chunk.as_chunks::<4>().0.iter().enumerate() {
                for j in 0..4 {
                    t[4 * c + j][lane] = bytes.map(|byte| i16::from((byte >> (2 * j)) & 3) - 1);
                }
            }
        }
        let words = &block.words[g * n * planes..][..n * planes];
        for (r, out) in out.iter_mut().enumerate() {
            let mut isum = [0i32; TILE];
            for (w, t) in t.iter().enumerate() {
                let q = words[r][w].to_le_bytes();
                let q = match block.planes {
                    Planes::One => q.map(|q| i32::from(q as i8)),
                    Planes::Two => {
                        let lower = words[n + r][w].to_le_bytes();
                        std::array::from_fn(|k| i32::from(i16::from_be_bytes([q[k], lower[k]])))
                    }
                };
                for (isum, t) in isum.iter_mut().zip(t) {
                    *isum += (0..4).map(|k| i32::from(t[k]) * q[k]).sum::<i32>();
                }
            }
            let d = block.d[g * n + r];
            for ((out, isum), scale) in out.iter_mut().zip(isum).zip(scales) {
                *out += isum as f32 * (f16::from_le_bytes(*scale).to_f32() * d);
            }
        }
    }
}
