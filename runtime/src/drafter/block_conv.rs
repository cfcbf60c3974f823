//! The convolution around each sublayer: over the rows of a block, with coefficients that depend on
//! the row.
//!
//! ```text
//! out[i, c] = Σ_t (base[t, c] + δ[i, t, c / group]) · z[i - t, c]      t < taps, t <= i
//! ```
//!
//! Tap 0 is the row itself. The sum runs over `t` ascending, a plain chain from +0; nothing before
//! the block is seen.

use crate::rows::{Primal, Rows};

/// Which side of a sublayer.
#[derive(Debug, Clone, Copy)]
pub(super) enum Side {
    Input = 0,
    Output = 1,
}

/// The constant part of the coefficients of one sublayer.
#[derive(Debug)]
pub(super) struct BlockConv {
    taps: usize,
    group: usize,
    /// `[side, tap, channel]`.
    base: Vec<f32>,
}

impl BlockConv {
    pub(super) fn new(taps: usize, group: usize, base: Vec<f32>) -> Self {
        Self { taps, group, base }
    }

    /// `z`: `[n, channels]`; `delta`: `[n, side · tap · channels / group]`, of the sublayer's input.
    pub(super) fn apply(&self, z: &Rows<Primal>, delta: &Rows<Primal>, side: Side) -> Rows<Primal> {
        let channels = z.width();
        let groups = channels / self.group;
        let mut out = Rows::zeroed(z.n(), channels);
        for (i, out) in out.iter_mut().enumerate() {
            for t in 0..self.taps.min(i + 1) {
                let at = side as usize * self.taps + t;
                let base = &self.base[at * channels..][..channels];
                let delta = &delta.row(i)[at * groups..][..groups];
                for (c, (out, z)) in out.iter_mut().zip(z.row(i - t)).enumerate() {
                    *out += (base[c] + delta[c / self.group]) * z;
                }
            }
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn by_hand() {
        // Two channels in one group, two taps; the output side has other numbers.
        let conv = BlockConv::new(2, 2, vec![1.0, 2.0, 10.0, 20.0, 0.0, 0.0, 1.0, 1.0]);
        let z = Rows::from_vec(2, vec![1.0, 1.0, 2.0, 3.0]);
        // Per row: input taps 0 and 1, output taps 0 and 1.
        let delta = Rows::from_vec(4, vec![0.5, 99.0, 1.0, 99.0, 0.0, -10.0, 0.0, 2.0]);
        let input = conv.apply(&z, &delta, Side::Input);
        assert_eq!(input.data(), [1.5, 2.5, 2.0, 16.0]);
        let output = conv.apply(&z, &delta, Side::Output);
        assert_eq!(output.data(), [1.0, 1.0, 3.0, 3.0]);
    }
}
