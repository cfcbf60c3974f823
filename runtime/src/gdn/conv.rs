//! The causal depthwise convolution before the recurrence, its SiLU, and the norms after it.

use hadamard::Isa;

use super::Heads;
use crate::math::silu;
use crate::norm::l2_norm;
use crate::rows::{Primal, Rows};
use crate::{Error, simd, spread};

/// `silu(Σ_i w_i u_i)` per channel, taps ascending from the oldest token, from +0.
#[derive(Debug, Clone)]
pub struct CausalConv {
    channels: usize,
    /// `[taps, channels]`, the last tap for the current token.
    weight: Vec<f32>,
}

impl CausalConv {
    /// `weight`: `[channels, taps]`, at least one tap, the last for the current token.
    ///
    /// # Panics
    /// If the weight is not whole channels.
    #[must_use]
    pub fn new(channels: usize, weight: &[f32]) -> Self {
        assert!(channels > 0 && !weight.is_empty() && weight.len().is_multiple_of(channels));
        let taps = weight.len() / channels;
        let by_tap = (0..taps).flat_map(|tap| weight.iter().skip(tap).step_by(taps)).copied();
        Self { channels, weight: by_tap.collect() }
    }

    /// Values of the history: the inputs of the tokens before, oldest first.
    #[must_use]
    pub fn history_len(&self) -> usize {
        self.weight.len() - self.channels
    }

    /// The convolution of one token with input `u`.
    #[must_use]
    pub fn apply(&self, history: &[f32], u: &[f32]) -> Vec<f32> {
        let channel = |c: usize| {
            let past = history.iter().skip(c).step_by(self.channels);
            let inputs = past.chain(std::iter::once(&u[c]));
            let weights = self.weight[c..].iter().step_by(self.channels);
            silu(weights.zip(inputs).fold(0.0, |sum, (w, u)| sum + w * u))
        };
        (0..self.channels).map(channel).collect()
    }

    /// Queries, keys and values of all tokens with inputs `u`, `[n, channels]`: convolved; queries
    /// and keys normalised ([`l2_norm`] with `eps`), queries then multiplied by `scale`.
    ///
    /// # Errors
    /// [`Error::FloatEnvironment`] when a worker thread has other modes.
    ///
    /// # Panics
    /// If the channels are not those of `heads`, or the history is not that of the convolution.
    pub fn queries_keys_values(
        &self,
        isa: Isa,
        history: &[f32],
        u: &Rows<Primal>,
        heads: Heads,
        (eps, scale): (f64, f32),
    ) -> Result<Vec<f32>, Error> {
        let channels = self.channels;
        assert_eq!((u.width(), heads.channels()), (channels, channels));
        assert_eq!(history.len(), self.history_len());
        // Parts of whole heads, each of queries, keys or values only.
        let heads_of_part = [8, 4, 2].into_iter().find(|n| heads.key_heads.is_multiple_of(*n));
        let part = heads_of_part.unwrap_or(1) * heads.dim;
        let mut out = vec![0.0; u.n() * channels];
        spread::parts(&mut out, part, part * 3 / 2, |i, out| {
            let (row, first) = (i * part / channels, i * part % channels);
            self.part(isa, history, u, (row, first), out);
            if first < 2 * heads.key_width() {
                let scale = (first < heads.key_width()).then_some(scale);
                normalise(isa, out, heads.dim, eps, scale);
            }
            Ok(())
        })?;
        Ok(out)
    }

    /// Channels from `first` on of token `row`.
    fn part(
        &self,
        isa: Isa,
        history: &[f32],
        u: &Rows<Primal>,
        (row, first): (usize, usize),
        out: &mut [f32],
    ) {
        let channels = self.channels;
        let past = history.len() / channels;
        for (tap, weight) in self.weight.chunks_exact(channels).enumerate() {
            let at = row + tap;
            let input = match at.checked_sub(past) {
                None => &history[at * channels..],
                Some(at) => u.row(at),
            };
            add_tap(isa, &weight[first..], &input[first..], out);
        }
        silu_each(isa, out);
    }
}

simd::per_isa! {
    fn add_tap(weight: &[f32], input: &[f32], out: &mut [f32]) {
        for (out, (w, u)) in out.iter_mut().zip(weight.iter().zip(input)) {
            *out += w * u;
        }
    }
}

simd::per_isa! {
    fn silu_each(x: &mut [f32]) {
        x.iter_mut().for_each(|x| *x = silu(*x));
    }
}

simd::per_isa! {
    fn normalise(x: &mut [f32], dim: usize, eps: f64, scale: Option<f32>) {
        for head in x.chunks_exact_mut(dim) {
            l2_norm(head, eps);
            if let Some(scale) = scale {
                head.iter_mut().for_each(|x| *x *= scale);
            }
        }
    }
}

/// Moves the inputs `u` of some tokens into the history of the convolution, oldest first.
pub fn shift(history: &mut [f32], u: &[f32]) {
    match history.len().checked_sub(u.len()) {
        None => history.copy_from_slice(&u[u.len() - history.len()..]),
        Some(kept) => {
            history.copy_within(u.len().., 0);
            history[kept..].copy_from_slice(u);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gdn::HeadOrder;
    use proptest::prelude::*;

    #[test]
    fn the_convolution_sees_three_tokens_back() {
        let conv = CausalConv::new(2, &[1.0, 10.0, 100.0, 1000.0, 0.0, 0.0, 0.0, 1.0]);
        let mut history = vec![0.0; conv.history_len()];
        for n in 1..6 {
            let u = [n as f32, -1.0];
            let out = conv.apply(&history, &u);
            let past = |back: i32| f32::max(0.0, (n - back) as f32);
            let sum = past(3) + 10.0 * past(2) + 100.0 * past(1) + 1000.0 * past(0);
            assert_eq!(out, [silu(sum), silu(-1.0)]);
            shift(&mut history, &u);
        }
        assert_eq!(history, [3.0, -1.0, 4.0, -1.0, 5.0, -1.0]);
        shift(&mut history, &[6.0, 0.0, 7.0, 0.0]);
        assert_eq!(history, [5.0, -1.0, 6.0, 0.0, 7.0, 0.0]);
        shift(&mut history, &[8.0; 10]);
        assert_eq!(history, [8.0; 6]);
        let one_tap = CausalConv::new(1, &[2.0]);
        shift(&mut [], &[1.0]);
        assert_eq!(one_tap.apply(&[], &[1.0]), [silu(2.0)]);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]

        #[test]
        fn many_tokens_are_single_ones(
            seed in prop::collection::vec(-3f32..3.0, 89),
            (key_heads, rep) in (1usize..9, 1usize..4),
            dim in prop::sample::select(vec![4usize, 20, 128]),
            (n, taps) in (1usize..9, 1usize..5),
        ) {
            let order = HeadOrder::Tiled;
            let heads = Heads { key_heads, value_heads: key_heads * rep, dim, order };
            let channels = heads.channels();
            let mut next = seed.iter().copied().cycle();
            let mut take = |n: usize| next.by_ref().take(n).collect::<Vec<f32>>();
            let conv = CausalConv::new(channels, &take(channels * taps));
            let (history, u) = (take(conv.history_len()), take(n * channels));
            let mut expected = Vec::new();
            let mut past = history.clone();
            for u in u.chunks_exact(channels) {
                let mut qkv = conv.apply(&past, u);
                let (q, kv) = qkv.split_at_mut(heads.key_width());
                let k = &mut kv[..heads.key_width()];
                q.chunks_exact_mut(dim).chain(k.chunks_exact_mut(dim))
                    .for_each(|x| l2_norm(x, 1e-6));
                q.iter_mut().for_each(|q| *q *= 0.3);
                expected.extend(qkv.iter().map(|x| x.to_bits()));
                shift(&mut past, u);
            }
            let u = Rows::from_vec(channels, u);
            for isa in Isa::available() {
                let found =
                    conv.queries_keys_values(isa, &history, &u, heads, (1e-6, 0.3)).unwrap();
                let found: Vec<u32> = found.iter().map(|x| x.to_bits()).collect();
                prop_assert_eq!(&found, &expected);
            }
        }
    }
}
