//! The state and its recurrence.
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
//! [`DeltaState::update`] and [`DeltaState::read`] are these lines. The columns `j` of a state do not
//! meet, so a fast path takes a strip of 32 of them through all tokens at once, in a copy that the
//! nearest cache holds: however many tokens, the state itself is read once, and written once if it is
//! to move on. A verified block of tokens only reads it.

use hadamard::Isa;

use super::Heads;
use crate::simd::{self, Kernel, LANES, Simd};
use crate::{Error, spread};

/// What tokens do to the state of one layer, and what they read from it.
#[derive(Debug, Clone, PartialEq)]
pub struct Updates {
    /// The heads of the layer.
    pub heads: Heads,
    /// `[n, channels]`: query, key, value; queries and keys normalised, queries scaled.
    pub qkv: Vec<f32>,
    /// `[n, value_heads]`: `e^g`.
    pub decay: Vec<f32>,
    /// `[n, value_heads]`.
    pub beta: Vec<f32>,
}

/// What one token does.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Update<'a> {
    /// `[key_heads, dim]`.
    pub q: &'a [f32],
    /// `[key_heads, dim]`.
    pub k: &'a [f32],
    /// `[value_heads, dim]`.
    pub v: &'a [f32],
    /// `[value_heads]`.
    pub decay: &'a [f32],
    /// `[value_heads]`.
    pub beta: &'a [f32],
}

impl Updates {
    /// The number of tokens.
    #[must_use]
    pub fn n(&self) -> usize {
        self.beta.len() / self.heads.value_heads
    }

    /// Token `i`.
    ///
    /// # Panics
    /// If there is no such token.
    #[must_use]
    #[inline(always)]
    pub fn token(&self, i: usize) -> Update<'_> {
        let Heads { value_heads, .. } = self.heads;
        let (channels, key_width) = (self.heads.channels(), self.heads.key_width());
        let (q, kv) = self.qkv[i * channels..(i + 1) * channels].split_at(key_width);
        let (k, v) = kv.split_at(key_width);
        let of_heads = i * value_heads..(i + 1) * value_heads;
        Update { q, k, v, decay: &self.decay[of_heads.clone()], beta: &self.beta[of_heads] }
    }
}

/// The state matrices of one layer: `[value_heads, dim, dim]`, per head `[key, value]`.
#[derive(Debug, Clone, PartialEq)]
pub struct DeltaState {
    heads: Heads,
    s: Vec<f32>,
}

impl DeltaState {
    /// All zero.
    #[must_use]
    pub fn new(heads: Heads) -> Self {
        Self { heads, s: vec![0.0; heads.value_heads * heads.dim * heads.dim] }
    }

    /// All values, head after head.
    #[must_use]
    pub fn values(&self) -> &[f32] {
        &self.s
    }

    /// The values of value head `head`, `[key, value]`.
    #[must_use]
    pub fn head(&self, head: usize) -> &[f32] {
        let len = self.heads.dim * self.heads.dim;
        &self.s[head * len..(head + 1) * len]
    }

    /// Takes one token in.
    pub fn update(&mut self, token: &Update<'_>) {
        let heads = self.heads;
        let dim = heads.dim;
        let mut d = vec![0.0; dim];
        for (t, s) in self.s.chunks_exact_mut(dim * dim).enumerate() {
            let k = &token.k[heads.key_head(t) * dim..][..dim];
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

    /// Reads with the token's `q`; writes `[value_heads, dim]`.
    pub fn read(&self, token: &Update<'_>, out: &mut [f32]) {
        let heads = self.heads;
        let dim = heads.dim;
        out.fill(0.0);
        let states = self.s.chunks_exact(dim * dim).zip(out.chunks_exact_mut(dim));
        for (t, (s, out)) in states.enumerate() {
            let q = &token.q[heads.key_head(t) * dim..][..dim];
            for (row, q) in s.chunks_exact(dim).zip(q) {
                for (out, s) in out.iter_mut().zip(row) {
                    *out += s * q;
                }
            }
        }
    }

    /// Takes all tokens in, one after the other; gives what each reads after its update, by value
    /// head: `[value_heads, n, dim]`.
    ///
    /// # Errors
    /// [`Error::FloatEnvironment`] when a worker thread has other modes.
    pub fn advance(&mut self, isa: Isa, tokens: &Updates) -> Result<Vec<f32>, Error> {
        let (n, heads) = (tokens.n(), self.heads);
        if !suits(isa, heads) {
            return Ok(advance_plainly(self, tokens));
        }
        let mut out = vec![0.0; n * heads.inner()];
        let square = heads.dim * heads.dim;
        let parts = ((&mut self.s[..], square), (&mut out[..], n * heads.dim));
        spread::parts2(parts.0, parts.1, cost(n, heads), |head, s, out| {
            simd::run(isa, Strips { head, n, tokens, state: State::MovesOn(s), out: Some(out) });
            Ok(())
        })?;
        Ok(out)
    }

    /// As [`DeltaState::advance`], but the state stays.
    ///
    /// # Errors
    /// As [`DeltaState::advance`].
    pub fn outputs(&self, isa: Isa, tokens: &Updates) -> Result<Vec<f32>, Error> {
        let (n, heads) = (tokens.n(), self.heads);
        if !suits(isa, heads) {
            return Ok(advance_plainly(&mut self.clone(), tokens));
        }
        let mut out = vec![0.0; n * heads.inner()];
        spread::parts(&mut out, n * heads.dim, cost(n, heads), |head, out| {
            let state = State::Stays(self.head(head));
            simd::run(isa, Strips { head, n, tokens, state, out: Some(out) });
            Ok(())
        })?;
        Ok(out)
    }

    /// Takes the first `n` tokens in, and reads nothing.
    ///
    /// # Errors
    /// As [`DeltaState::advance`].
    ///
    /// # Panics
    /// If there are fewer tokens.
    pub fn replay(&mut self, isa: Isa, tokens: &Updates, n: usize) -> Result<(), Error> {
        let heads = self.heads;
        if !suits(isa, heads) {
            (0..n).for_each(|i| self.update(&tokens.token(i)));
            return Ok(());
        }
        spread::parts(&mut self.s, heads.dim * heads.dim, cost(n, heads), |head, s| {
            simd::run(isa, Strips { head, n, tokens, state: State::MovesOn(s), out: None });
            Ok(())
        })
    }
}

/// The definition: token by token.
fn advance_plainly(state: &mut DeltaState, tokens: &Updates) -> Vec<f32> {
    let (n, Heads { value_heads, dim, .. }) = (tokens.n(), state.heads);
    let mut out = vec![0.0; n * value_heads * dim];
    let mut row = vec![0.0; value_heads * dim];
    for i in 0..n {
        let token = tokens.token(i);
        state.update(&token);
        state.read(&token, &mut row);
        for (head, row) in row.chunks_exact(dim).enumerate() {
            out[(head * n + i) * dim..][..dim].copy_from_slice(row);
        }
    }
    out
}

/// Vectors of a strip.
const WIDE: usize = 2;

/// A row of a strip.
type Strip = [[f32; LANES]; WIDE];

/// Whether a fast path is there for heads of this width.
fn suits(isa: Isa, heads: Heads) -> bool {
    isa.level() != hadamard::Level::Scalar && heads.dim.is_multiple_of(WIDE * LANES)
}

/// Of one head; see [`spread`].
fn cost(n: usize, heads: Heads) -> usize {
    (n + 1) * heads.dim * heads.dim / 16
}

/// What becomes of the state of a head.
enum State<'a> {
    MovesOn(&'a mut [f32]),
    Stays(&'a [f32]),
}

/// One head and `n` tokens.
struct Strips<'a> {
    head: usize,
    n: usize,
    tokens: &'a Updates,
    state: State<'a>,
    /// `[n, dim]`.
    out: Option<&'a mut [f32]>,
}

impl Kernel for Strips<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Self { head, n, tokens, mut state, mut out } = self;
        let heads = tokens.heads;
        let dim = heads.dim;
        let key = heads.key_head(head) * dim;
        let mut strip = vec![[[0.0; LANES]; WIDE]; dim];
        for first in (0..dim).step_by(WIDE * LANES) {
            let columns = first..first + WIDE * LANES;
            let s = match &state {
                State::MovesOn(s) => &**s,
                State::Stays(s) => s,
            };
            for (row, s) in strip.iter_mut().zip(s.chunks_exact(dim)) {
                row.as_flattened_mut().copy_from_slice(&s[columns.clone()]);
            }
            for i in 0..n {
                let token = tokens.token(i);
                let one = Token {
                    q: &token.q[key..key + dim],
                    k: &token.k[key..key + dim],
                    v: strip_of(&token.v[head * dim..][columns.clone()]),
                    decay: token.decay[head],
                    beta: token.beta[head],
                };
                match &mut out {
                    None => {
                        one.take_in::<S, false>(simd, &mut strip);
                    }
                    Some(out) => {
                        let read = one.take_in::<S, true>(simd, &mut strip);
                        out[i * dim..][columns.clone()].copy_from_slice(read.as_flattened());
                    }
                }
            }
            if let State::MovesOn(s) = &mut state {
                for (row, s) in strip.iter().zip(s.chunks_exact_mut(dim)) {
                    s[columns.clone()].copy_from_slice(row.as_flattened());
                }
            }
        }
    }
}

#[inline(always)]
fn strip_of(values: &[f32]) -> Strip {
    let mut strip = [[0.0; LANES]; WIDE];
    strip.as_flattened_mut().copy_from_slice(values);
    strip
}

/// What one token does to a strip.
struct Token<'a> {
    /// `[dim]`.
    q: &'a [f32],
    /// `[dim]`.
    k: &'a [f32],
    /// Of the strip's columns.
    v: Strip,
    decay: f32,
    beta: f32,
}

impl Token<'_> {
    /// The formulas of the module; gives what is read, zeros unless `READ`.
    #[inline(always)]
    fn take_in<S: Simd, const READ: bool>(self, simd: S, strip: &mut [Strip]) -> Strip {
        let (decay, beta) = (simd.splat(self.decay), simd.splat(self.beta));
        let mut d = [simd.splat(0.0); WIDE];
        for (row, k) in strip.iter_mut().zip(self.k) {
            let k = simd.splat(*k);
            for (s, d) in row.iter_mut().zip(&mut d) {
                let decayed = simd.mul(simd.load(s), decay);
                simd.store(decayed, s);
                *d = simd.add(*d, simd.mul(decayed, k));
            }
        }
        for (d, v) in d.iter_mut().zip(&self.v) {
            *d = simd.mul(simd.sub(simd.load(v), *d), beta);
        }
        let mut read = [simd.splat(0.0); WIDE];
        for ((row, k), q) in strip.iter_mut().zip(self.k).zip(self.q) {
            let (k, q) = (simd.splat(*k), simd.splat(*q));
            for ((s, d), read) in row.iter_mut().zip(&d).zip(&mut read) {
                let updated = simd.add(simd.load(s), simd.mul(*d, k));
                simd.store(updated, s);
                if READ {
                    *read = simd.add(*read, simd.mul(updated, q));
                }
            }
        }
        let mut out = [[0.0; LANES]; WIDE];
        for (read, out) in read.into_iter().zip(&mut out) {
            simd.store(read, out);
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gdn::{HeadOrder, tiled_to_grouped};
    use proptest::prelude::*;

    const SMALL: Heads = Heads { key_heads: 2, value_heads: 6, dim: 4, order: HeadOrder::Tiled };

    fn updates(heads: Heads, n: usize, seed: &[f32]) -> Updates {
        let mut next = seed.iter().copied().cycle();
        let mut take = |n: usize| next.by_ref().take(n).collect::<Vec<f32>>();
        let gates = n * heads.value_heads;
        Updates {
            heads,
            qkv: take(n * heads.channels()),
            decay: take(gates).iter().map(|x| 0.5 + x * 0.2).collect(),
            beta: take(gates).iter().map(|x| 0.5 + x * 0.2).collect(),
        }
    }

    fn bits(x: &[f32]) -> Vec<u32> {
        x.iter().map(|x| x.to_bits()).collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]

        /// The formulas with matrices in f64, value index outermost as they are usually written.
        #[test]
        fn close_to_the_formulas_in_f64(seed in prop::collection::vec(-1f32..1.0, 61)) {
            let Heads { key_heads: nk, value_heads: nv, dim, .. } = SMALL;
            let mut state = DeltaState::new(SMALL);
            let mut wide = vec![0.0f64; nv * dim * dim];
            let tokens = updates(SMALL, 5, &seed);
            for step in 0..5 {
                let token = tokens.token(step);
                state.update(&token);
                let mut out = vec![0.0; nv * dim];
                state.read(&token, &mut out);
                for t in 0..nv {
                    let k = |i: usize| f64::from(token.k[t % nk * dim + i]);
                    let q = |i: usize| f64::from(token.q[t % nk * dim + i]);
                    for j in 0..dim {
                        let s = &mut wide[(t * dim + j) * dim..][..dim];
                        s.iter_mut().for_each(|s| *s *= f64::from(token.decay[t]));
                        let m: f64 = (0..dim).map(|i| s[i] * k(i)).sum();
                        let d = (f64::from(token.v[t * dim + j]) - m) * f64::from(token.beta[t]);
                        (0..dim).for_each(|i| s[i] += d * k(i));
                        let o: f64 = (0..dim).map(|i| s[i] * q(i)).sum();
                        prop_assert!((o - f64::from(out[t * dim + j])).abs() < 1e-4);
                    }
                }
            }
        }

        /// Strips give the bits of the plain lines, whether the state moves on or stays, however
        /// tokens are grouped, and a replay gives the state.
        #[test]
        fn strips_are_the_definition(
            seed in prop::collection::vec(-1f32..1.0, 97),
            (key_heads, rep) in (1usize..4, 1usize..4),
            dim in prop::sample::select(vec![4usize, 32, 64, 128]),
            n in 1usize..7,
            first in 0usize..7,
            grouped in any::<bool>(),
        ) {
            let order = if grouped { HeadOrder::Grouped } else { HeadOrder::Tiled };
            let heads = Heads { key_heads, value_heads: key_heads * rep, dim, order };
            let mut before = DeltaState::new(heads);
            advance_plainly(&mut before, &updates(heads, 2, &seed[3..]));
            let tokens = updates(heads, n, &seed);
            let mut expected = before.clone();
            let expected_out = bits(&advance_plainly(&mut expected, &tokens));
            for isa in Isa::available() {
                let mut state = before.clone();
                prop_assert_eq!(bits(&state.outputs(isa, &tokens).unwrap()), &expected_out[..]);
                prop_assert_eq!(&state, &before);
                prop_assert_eq!(bits(&state.advance(isa, &tokens).unwrap()), &expected_out[..]);
                prop_assert_eq!(bits(&state.s), bits(&expected.s));
                let first = first.min(n);
                let (mut replayed, mut plain) = (before.clone(), before.clone());
                replayed.replay(isa, &tokens, first).unwrap();
                (0..first).for_each(|i| plain.update(&tokens.token(i)));
                prop_assert_eq!(bits(&replayed.s), bits(&plain.s));
            }
        }
    }

    /// The same token with its value heads in either order: the same heads, elsewhere.
    #[test]
    fn orders_differ_in_places_only() {
        let heads = Heads { key_heads: 4, value_heads: 8, dim: 4, order: HeadOrder::Tiled };
        let other = Heads { order: HeadOrder::Grouped, ..heads };
        let (nk, nv, dim) = (4, 8, 4);
        let seed: Vec<f32> = (0..97).map(|i| ((i * i % 31) as f32 - 15.0) / 16.0).collect();
        let (mut tiled, mut grouped) = (DeltaState::new(heads), DeltaState::new(other));
        let (mut out_tiled, mut out_grouped) = (vec![0.0; nv * dim], vec![0.0; nv * dim]);
        let tokens = updates(heads, 4, &seed);
        for step in 0..4 {
            let token = tokens.token(step);
            tiled.update(&token);
            tiled.read(&token, &mut out_tiled);
            let token = Update {
                v: &tiled_to_grouped(token.v, nk, dim),
                decay: &tiled_to_grouped(token.decay, nk, 1),
                beta: &tiled_to_grouped(token.beta, nk, 1),
                ..token
            };
            grouped.update(&token);
            grouped.read(&token, &mut out_grouped);
        }
        assert_eq!(tiled_to_grouped(&out_tiled, nk, dim), out_grouped);
        assert_ne!(out_tiled, out_grouped);
        for t in 0..nv {
            let place = HeadOrder::Grouped.place(t, nk, nv);
            assert_eq!(tiled.head(t), grouped.head(place));
            assert_eq!(HeadOrder::Grouped.key_head(place, nk, nv), t % nk);
            assert_eq!(heads.tiled(place), t);
        }
    }
}
