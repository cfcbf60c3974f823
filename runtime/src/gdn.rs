//! Gated delta net: the recurrent mixer, one token at a time.
//!
//! Per value head, with a state `S` of `[key, value]` (key index outermost), decay `e^g`, strength `β`,
//! key `k`, query `q` and value `v` of one token:
//!
//! ```text
//! S   = S · e^g
//! d_j = (v_j - Σ_i S[i][j] k_i) · β
//! S  += k ⊗ d                          S[i][j] + d_j · k_i
//! o_j = Σ_i S[i][j] q_i                after the update
//! ```
//!
//! Sums run over `i` ascending, each a plain chain from +0. The update does not look at `q`, so a
//! replay of the accepted tokens of a round from the state before it gives the bits of plain
//! decoding.

//!
//! How many value heads share a key head is a matter of their order alone ([`HeadOrder`]); each head
//! is computed by itself, so both orders give the same bits per head.

use crate::math::silu;

/// How the value heads of a file are ordered: where value head `r` of the `rep` heads of key head `kh`
/// stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum HeadOrder {
    /// `r · key_heads + kh`: what the GGUF converter makes.
    Tiled,
    /// `kh · rep + r`: the model's definition, and an MLX pack.
    Grouped,
}

impl HeadOrder {
    /// The key head of value head `head`.
    #[must_use]
    pub fn key_head(self, head: usize, key_heads: usize, value_heads: usize) -> usize {
        match self {
            Self::Tiled => head % key_heads,
            Self::Grouped => head / (value_heads / key_heads),
        }
    }

    /// Where the value head lies that is number `tiled` in the tiled order.
    #[must_use]
    pub fn place(self, tiled: usize, key_heads: usize, value_heads: usize) -> usize {
        match self {
            Self::Tiled => tiled,
            Self::Grouped => tiled % key_heads * (value_heads / key_heads) + tiled / key_heads,
        }
    }
}

/// What one token adds to the state of one layer.
#[derive(Debug, Clone, PartialEq)]
pub struct Update {
    /// `[key_heads, dim]`, normalised.
    pub k: Vec<f32>,
    /// `[value_heads, dim]`.
    pub v: Vec<f32>,
    /// `[value_heads]`: `e^g`.
    pub decay: Vec<f32>,
    /// `[value_heads]`.
    pub beta: Vec<f32>,
}

/// The state matrices of one layer: `[value_heads, dim, dim]`, per head `[key, value]`.
#[derive(Debug, Clone, PartialEq)]
pub struct DeltaState {
    dim: usize,
    order: HeadOrder,
    s: Vec<f32>,
}

impl DeltaState {
    /// All zero.
    #[must_use]
    pub fn new(value_heads: usize, dim: usize, order: HeadOrder) -> Self {
        Self { dim, order, s: vec![0.0; value_heads * dim * dim] }
    }

    /// All values, head after head.
    #[must_use]
    pub fn values(&self) -> &[f32] {
        &self.s
    }

    /// The values of value head `head`, `[key, value]`.
    #[must_use]
    pub fn head(&self, head: usize) -> &[f32] {
        let len = self.dim * self.dim;
        &self.s[head * len..(head + 1) * len]
    }

    /// Takes one token in.
    pub fn update(&mut self, token: &Update) {
        let (dim, order) = (self.dim, self.order);
        let (key_heads, value_heads) = (token.k.len() / dim, token.beta.len());
        let mut d = vec![0.0; dim];
        for (t, s) in self.s.chunks_exact_mut(dim * dim).enumerate() {
            let k = &token.k[order.key_head(t, key_heads, value_heads) * dim..][..dim];
            let v = &token.v[t * dim..][..dim];
            d.fill(0.0);
            for (row, k) in s.chunks_exact_mut(dim).zip(k) {
                for (s, m) in row.iter_mut().zip(&mut d) {
                    *s *= token.decay[t];
                    *m += *s * k;
                }
            }
            for (d, v) in d.iter_mut().zip(v) {
                *d = (v - *d) * token.beta[t];
            }
            for (row, k) in s.chunks_exact_mut(dim).zip(k) {
                for (s, d) in row.iter_mut().zip(&d) {
                    *s += d * k;
                }
            }
        }
    }

    /// Reads with `q`: `[key_heads, dim]`; writes `[value_heads, dim]`.
    pub fn read(&self, q: &[f32], out: &mut [f32]) {
        let (dim, order) = (self.dim, self.order);
        let (key_heads, value_heads) = (q.len() / dim, out.len() / dim);
        out.fill(0.0);
        let heads = self.s.chunks_exact(dim * dim).zip(out.chunks_exact_mut(dim));
        for (t, (s, out)) in heads.enumerate() {
            let q = &q[order.key_head(t, key_heads, value_heads) * dim..][..dim];
            for (row, q) in s.chunks_exact(dim).zip(q) {
                for (out, s) in out.iter_mut().zip(row) {
                    *out += s * q;
                }
            }
        }
    }
}

/// The causal depthwise convolution before the recurrence, and its SiLU.
#[derive(Debug, Clone)]
pub struct CausalConv {
    channels: usize,
    /// `[channels, taps]`, the last tap for the current token.
    weight: Vec<f32>,
}

impl CausalConv {
    /// `weight`: `[channels, taps]`, at least one tap.
    ///
    /// # Panics
    /// If the weight is not whole channels.
    #[must_use]
    pub fn new(channels: usize, weight: Vec<f32>) -> Self {
        assert!(channels > 0 && !weight.is_empty() && weight.len().is_multiple_of(channels));
        Self { channels, weight }
    }

    /// Values of the history: the inputs of the tokens before, oldest first.
    #[must_use]
    pub fn history_len(&self) -> usize {
        self.weight.len() - self.channels
    }

    /// `silu(Σ_i w_i u_i)` per channel, taps ascending from the oldest token to `u`, from +0.
    #[must_use]
    pub fn apply(&self, history: &[f32], u: &[f32]) -> Vec<f32> {
        let taps = self.weight.len() / self.channels;
        let channel = |(c, w): (usize, &[f32])| {
            let past = history[c..].iter().step_by(self.channels);
            let inputs = past.chain(std::iter::once(&u[c]));
            silu(w.iter().zip(inputs).fold(0.0, |sum, (w, u)| sum + w * u))
        };
        self.weight.chunks_exact(taps).enumerate().map(channel).collect()
    }
}

/// Moves the input `u` of a token into the history of the convolution.
pub fn shift(history: &mut [f32], u: &[f32]) {
    if !history.is_empty() {
        history.copy_within(u.len().., 0);
        let last = history.len() - u.len();
        history[last..].copy_from_slice(u);
    }
}

/// `tiled[r · nk + kh]` to `grouped[kh · rep + r]`: value heads of `dim` values in the order of the
/// converter, brought into the order of the model's definition. `nk`: key heads.
#[must_use]
pub fn tiled_to_grouped(tiled: &[f32], nk: usize, dim: usize) -> Vec<f32> {
    let rep = tiled.len() / (nk * dim);
    let head = |g: usize| {
        let t = g % rep * nk + g / rep;
        &tiled[t * dim..(t + 1) * dim]
    };
    (0..nk * rep).flat_map(head).copied().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn token(key_heads: usize, value_heads: usize, dim: usize, seed: &[f32]) -> Update {
        let mut next = seed.iter().copied().cycle();
        let mut take = |n: usize| next.by_ref().take(n).collect::<Vec<f32>>();
        Update {
            k: take(key_heads * dim),
            v: take(value_heads * dim),
            decay: take(value_heads).iter().map(|x| 0.5 + x * 0.2).collect(),
            beta: take(value_heads).iter().map(|x| 0.5 + x * 0.2).collect(),
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]

        /// The formulas with matrices in f64, value index outermost as they are usually written.
        #[test]
        fn close_to_the_formulas_in_f64(seed in prop::collection::vec(-1f32..1.0, 61)) {
            let (nk, nv, dim) = (2, 6, 4);
            let mut state = DeltaState::new(nv, dim, HeadOrder::Tiled);
            let mut wide = vec![0.0f64; nv * dim * dim];
            for step in 0..5 {
                let token = token(nk, nv, dim, &seed[step..]);
                state.update(&token);
                let q = &seed[20..20 + nk * dim];
                let mut out = vec![0.0; nv * dim];
                state.read(q, &mut out);
                for t in 0..nv {
                    let k = |i: usize| f64::from(token.k[t % nk * dim + i]);
                    for j in 0..dim {
                        let s = &mut wide[(t * dim + j) * dim..][..dim];
                        s.iter_mut().for_each(|s| *s *= f64::from(token.decay[t]));
                        let m: f64 = (0..dim).map(|i| s[i] * k(i)).sum();
                        let d = (f64::from(token.v[t * dim + j]) - m) * f64::from(token.beta[t]);
                        (0..dim).for_each(|i| s[i] += d * k(i));
                        let o: f64 = (0..dim).map(|i| s[i] * f64::from(q[t % nk * dim + i])).sum();
                        prop_assert!((o - f64::from(out[t * dim + j])).abs() < 1e-4);
                    }
                }
            }
        }

        #[test]
        fn replay_gives_the_same_bits(seed in prop::collection::vec(-1f32..1.0, 61)) {
            let mut plain = DeltaState::new(6, 4, HeadOrder::Tiled);
            plain.update(&token(2, 6, 4, &seed));
            let before = plain.clone();
            let mut speculative = before.clone();
            (1..6).for_each(|i| speculative.update(&token(2, 6, 4, &seed[i..])));
            let mut replayed = before;
            (1..4).for_each(|i| replayed.update(&token(2, 6, 4, &seed[i..])));
            (1..4).for_each(|i| plain.update(&token(2, 6, 4, &seed[i..])));
            prop_assert_eq!(replayed, plain);
        }
    }

    /// The same token with its value heads in either order: the same heads, elsewhere.
    #[test]
    fn orders_differ_in_places_only() {
        let (nk, nv, dim) = (4, 8, 4);
        let seed: Vec<f32> = (0..97).map(|i| ((i * i % 31) as f32 - 15.0) / 16.0).collect();
        let mut tiled = DeltaState::new(nv, dim, HeadOrder::Tiled);
        let mut grouped = DeltaState::new(nv, dim, HeadOrder::Grouped);
        let (mut out_tiled, mut out_grouped) = (vec![0.0; nv * dim], vec![0.0; nv * dim]);
        for step in 0..4 {
            let token = token(nk, nv, dim, &seed[step..]);
            tiled.update(&token);
            tiled.read(&seed[..nk * dim], &mut out_tiled);
            grouped.update(&Update {
                k: token.k.clone(),
                v: tiled_to_grouped(&token.v, nk, dim),
                decay: tiled_to_grouped(&token.decay, nk, 1),
                beta: tiled_to_grouped(&token.beta, nk, 1),
            });
            grouped.read(&seed[..nk * dim], &mut out_grouped);
        }
        assert_eq!(tiled_to_grouped(&out_tiled, nk, dim), out_grouped);
        assert_ne!(out_tiled, out_grouped);
        for t in 0..nv {
            let place = HeadOrder::Grouped.place(t, nk, nv);
            assert_eq!(tiled.head(t), grouped.head(place));
            assert_eq!(HeadOrder::Grouped.key_head(place, nk, nv), t % nk);
        }
    }

    #[test]
    fn the_convolution_sees_three_tokens_back() {
        let conv = CausalConv::new(2, vec![1.0, 10.0, 100.0, 1000.0, 0.0, 0.0, 0.0, 1.0]);
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
        let one_tap = CausalConv::new(1, vec![2.0]);
        shift(&mut [], &[1.0]);
        assert_eq!(one_tap.apply(&[], &[1.0]), [silu(2.0)]);
    }

    #[test]
    fn heads_are_permuted_as_the_converter_did() {
        // 4 key heads of 2 value heads: an order that is not its own inverse.
        let grouped: Vec<f32> = (0..8).map(|g| g as f32).collect();
        let mut tiled = vec![0.0; 8];
        for kh in 0..4 {
            for r in 0..2 {
                tiled[r * 4 + kh] = grouped[kh * 2 + r];
            }
        }
        assert_eq!(tiled_to_grouped(&tiled, 4, 1), grouped);
        assert_ne!(tiled_to_grouped(&grouped, 4, 1), tiled);
        let wide: Vec<f32> = tiled.iter().flat_map(|t| [*t, t + 0.5]).collect();
        assert_eq!(tiled_to_grouped(&wide, 4, 2)[..4], [0.0, 0.5, 1.0, 1.5]);
    }
}
