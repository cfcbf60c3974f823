//! The convolution around each sublayer: over the rows of a block, with coefficients that depend on
//! the row.
//!
//! ```text
//! out[i, c] = Σ_t (base[t, c] + δ[i, t, c / group]) · z[i - t, c]      t < taps, t <= i
//! ```
//!
//! Tap 0 is the row itself. The sum runs over `t` ascending, a plain chain from +0; nothing before
//! the block is seen.

use hadamard::Isa;

use crate::rows::{Primal, Rows};
use crate::{Error, simd, spread};

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
    ///
    /// # Errors
    /// [`Error::FloatEnvironment`] when a worker thread has other modes.
    pub(super) fn apply(
        &self,
        isa: Isa,
        z: &Rows<Primal>,
        delta: &Rows<Primal>,
        side: Side,
    ) -> Result<Rows<Primal>, Error> {
        let channels = z.width();
        let groups = channels / self.group;
        let mut out = Rows::zeroed(z.n(), channels);
        spread::parts(out.data_mut(), channels, self.taps * channels / 4, |i, out| {
            for t in 0..self.taps.min(i + 1) {
                let at = side as usize * self.taps + t;
                let base = &self.base[at * channels..][..channels];
                let delta = &delta.row(i)[at * groups..][..groups];
                add_tap(isa, self.group, base, delta, z.row(i - t), out);
            }
            Ok(())
        })?;
        Ok(out)
    }
}

simd::per_isa! {
    /// A group of channels shares its `delta`.
    fn add_tap(group: usize, base: &[f32], delta: &[f32], z: &[f32], out: &mut [f32]) {
        let groups = out.chunks_exact_mut(group).zip(base.chunks_exact(group));
        for (((out, base), z), delta) in groups.zip(z.chunks_exact(group)).zip(delta) {
            for (out, (base, z)) in out.iter_mut().zip(base.iter().zip(z)) {
                *out += (base + delta) * z;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]

        #[test]
        fn instructions_and_threads_change_no_bit(
            seed in prop::collection::vec(-3f32..3.0, 101),
            (taps, n, groups) in (1usize..5, 1usize..10, 1usize..40),
            group in prop::sample::select(vec![1usize, 3, 16, 64]),
        ) {
            let channels = group * groups;
            let mut next = seed.iter().copied().cycle();
            let mut take = |n: usize| next.by_ref().take(n).collect::<Vec<f32>>();
            let conv = BlockConv::new(taps, group, take(2 * taps * channels));
            let z = Rows::from_vec(channels, take(n * channels));
            let delta = Rows::from_vec(2 * taps * groups, take(n * 2 * taps * groups));
            for side in [Side::Input, Side::Output] {
                let mut expected = Vec::new();
                for (i, c) in (0..n).flat_map(|i| (0..channels).map(move |c| (i, c))) {
                    let mut sum = 0f32;
                    for t in 0..taps.min(i + 1) {
                        let at = side as usize * taps + t;
                        let delta = delta.row(i)[at * groups + c / group];
                        sum += (conv.base[at * channels + c] + delta) * z.row(i - t)[c];
                    }
                    expected.push(sum.to_bits());
                }
                for isa in Isa::available() {
                    let found = conv.apply(isa, &z, &delta, side).unwrap();
                    let found: Vec<u32> = found.data().iter().map(|x| x.to_bits()).collect();
                    prop_assert_eq!(&found, &expected);
                }
            }
        }
    }

    #[test]
    fn by_hand() {
        // Two channels in one group, two taps; the output side has other numbers.
        let conv = BlockConv::new(2, 2, vec![1.0, 2.0, 10.0, 20.0, 0.0, 0.0, 1.0, 1.0]);
        let z = Rows::from_vec(2, vec![1.0, 1.0, 2.0, 3.0]);
        // Per row: input taps 0 and 1, output taps 0 and 1.
        let delta = Rows::from_vec(4, vec![0.5, 99.0, 1.0, 99.0, 0.0, -10.0, 0.0, 2.0]);
        let input = conv.apply(Isa::detect(), &z, &delta, Side::Input).unwrap();
        assert_eq!(input.data(), [1.5, 2.5, 2.0, 16.0]);
        let output = conv.apply(Isa::detect(), &z, &delta, Side::Output).unwrap();
        assert_eq!(output.data(), [1.0, 1.0, 3.0, 3.0]);
    }
}
