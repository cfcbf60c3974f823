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
//! meet, so a state lies in strips of 32 of them (of all, where 32 does not divide them), and a fast
//! path takes one strip after the other through all tokens, in a copy that the nearest cache holds:
//! however many tokens, the state itself is read once, front to back, and written once if it is to
//! move on. A verified block of tokens only reads it. What a token does last to a row of a strip and
//! what the next one does first are one pass over the strip.

use std::borrow::Borrow;

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

/// The state matrices of one layer.
#[derive(Debug, Clone, PartialEq)]
pub struct DeltaState {
    heads: Heads,
    /// `[value_heads, strip, key, value of the strip]`.
    s: Vec<f32>,
}

impl DeltaState {
    /// All zero.
    #[must_use]
    pub fn new(heads: Heads) -> Self {
        Self { heads, s: vec![0.0; heads.value_heads * heads.dim * heads.dim] }
    }

    /// The size of all states.
    #[must_use]
    pub fn bytes(&self) -> usize {
        size_of_val(&self.s[..])
    }

    /// The values of value head `head`, `[key, value]`.
    #[must_use]
    pub fn head(&self, head: usize) -> Vec<f32> {
        let dim = self.heads.dim;
        let (width, len) = (strip_width(dim), dim * dim);
        let strips = self.s[head * len..(head + 1) * len].chunks_exact(dim * width);
        let row = |i: usize| strips.clone().flat_map(move |s| &s[i * width..(i + 1) * width]);
        (0..dim).flat_map(row).copied().collect()
    }

    /// Takes one token in.
    pub fn update(&mut self, token: &Update<'_>) {
        let heads = self.heads;
        let (dim, width) = (heads.dim, strip_width(heads.dim));
        let mut d = vec![0.0; width];
        for (at, s) in self.s.chunks_exact_mut(dim * width).enumerate() {
            let t = at * width / dim;
            let k = &token.k[heads.key_head(t) * dim..][..dim];
            let v = &token.v[at * width..][..width];
            d.fill(0.0);
            for (row, k) in s.chunks_exact_mut(width).zip(k) {
                for (s, m) in row.iter_mut().zip(&mut d) {
                    *s *= token.decay[t];
                    *m += *s * k;
                }
            }
            for (d, v) in d.iter_mut().zip(v) {
                *d = (v - *d) * token.beta[t];
            }
            for (row, k) in s.chunks_exact_mut(width).zip(k) {
                for (s, d) in row.iter_mut().zip(&d) {
                    *s += d * k;
                }
            }
        }
    }

    /// Reads with the token's `q`; writes `[value_heads, dim]`.
    pub fn read(&self, token: &Update<'_>, out: &mut [f32]) {
        let heads = self.heads;
        let (dim, width) = (heads.dim, strip_width(heads.dim));
        out.fill(0.0);
        let strips = self.s.chunks_exact(dim * width).zip(out.chunks_exact_mut(width));
        for (at, (s, out)) in strips.enumerate() {
            let q = &token.q[heads.key_head(at * width / dim) * dim..][..dim];
            for (row, q) in s.chunks_exact(width).zip(q) {
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
        let square = heads.dim * heads.dim;
        spread::parts(&mut out, n * heads.dim, cost(n, heads), |head, out| {
            let state = State::Stays(&self.s[head * square..(head + 1) * square]);
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

/// Columns of a strip, for heads of width `dim`.
fn strip_width(dim: usize) -> usize {
    if dim.is_multiple_of(WIDE * LANES) { WIDE * LANES } else { dim }
}

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
        if n == 0 {
            return;
        }
        let dim = tokens.heads.dim;
        let mut copy = vec![[[0.0; LANES]; WIDE]; dim];
        for first in (0..dim).step_by(WIDE * LANES) {
            let token = |i: usize| Token::of(tokens, i, head, first);
            let strip = first * dim..(first + WIDE * LANES) * dim;
            let source = match &state {
                State::MovesOn(s) => &s[strip.clone()],
                State::Stays(s) => &s[strip.clone()],
            };
            let mut now = token(0);
            let mut met = now.meet(simd, source.as_chunks().0.as_chunks().0, &mut copy);
            for i in 0..n {
                let d = now.correct(simd, met);
                let next = (i + 1 < n).then(|| token(i + 1));
                let read = match (&next, &mut state) {
                    (Some(next), _) => {
                        let (read, next_met) = now.pass_on(simd, d, next, &mut copy);
                        met = next_met;
                        read
                    }
                    (None, State::MovesOn(s)) => {
                        let target = s[strip.clone()].as_chunks_mut().0.as_chunks_mut().0;
                        now.leave(simd, d, &copy, target, |target, row| *target = row)
                    }
                    (None, State::Stays(s)) => {
                        let source = s[strip.clone()].as_chunks().0.as_chunks().0;
                        now.leave(simd, d, &copy, source, |_, _| ())
                    }
                };
                if let Some(out) = &mut out {
                    let out = &mut out[i * dim + first..][..WIDE * LANES];
                    out.copy_from_slice(read.as_flattened());
                }
                if let Some(next) = next {
                    now = next;
                }
            }
        }
    }
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

impl<'a> Token<'a> {
    /// Token `i` for the columns of `head` from `first` on.
    #[inline(always)]
    fn of(tokens: &'a Updates, i: usize, head: usize, first: usize) -> Self {
        let (heads, token) = (tokens.heads, tokens.token(i));
        let (dim, key) = (heads.dim, heads.key_head(head) * heads.dim);
        let mut v = [[0.0; LANES]; WIDE];
        v.as_flattened_mut().copy_from_slice(&token.v[head * dim + first..][..WIDE * LANES]);
        let (decay, beta) = (token.decay[head], token.beta[head]);
        Self { q: &token.q[key..key + dim], k: &token.k[key..key + dim], v, decay, beta }
    }

    /// Decays `from`, a strip of the state, into `to`; gives `Σ_i S[i][j] k_i`. Asks for half of the
    /// strip after it.
    #[inline(always)]
    fn meet<S: Simd>(&self, simd: S, from: &[Strip], to: &mut [Strip]) -> [S::F32; WIDE] {
        let ahead = size_of_val(from);
        let decay = simd.splat(self.decay);
        let mut met = [simd.splat(0.0); WIDE];
        for ((from, to), k) in from.iter().zip(to).zip(self.k) {
            let k = simd.splat(*k);
            simd.prefetch(&from[0], ahead);
            for ((from, to), met) in from.iter().zip(to).zip(&mut met) {
                let decayed = simd.mul(simd.load(from), decay);
                simd.store(decayed, to);
                *met = simd.add(*met, simd.mul(decayed, k));
            }
        }
        met
    }

    /// `d` of the formulas.
    #[inline(always)]
    fn correct<S: Simd>(&self, simd: S, met: [S::F32; WIDE]) -> [S::F32; WIDE] {
        let beta = simd.splat(self.beta);
        let mut d = met;
        for (d, v) in d.iter_mut().zip(&self.v) {
            *d = simd.mul(simd.sub(simd.load(v), *d), beta);
        }
        d
    }

    /// Adds `k ⊗ d` and reads, and at once [`Token::meet`]s the strip with the next token; gives what
    /// was read, and that.
    #[inline(always)]
    fn pass_on<S: Simd>(
        &self,
        simd: S,
        d: [S::F32; WIDE],
        next: &Self,
        strip: &mut [Strip],
    ) -> (Strip, [S::F32; WIDE]) {
        let decay = simd.splat(next.decay);
        let mut read = [simd.splat(0.0); WIDE];
        let mut met = [simd.splat(0.0); WIDE];
        let coefficients = self.k.iter().zip(self.q).zip(next.k);
        for (row, ((k, q), next_k)) in strip.iter_mut().zip(coefficients) {
            let (k, q, next_k) = (simd.splat(*k), simd.splat(*q), simd.splat(*next_k));
            for (w, s) in row.iter_mut().enumerate() {
                let updated = simd.add(simd.load(s), simd.mul(d[w], k));
                read[w] = simd.add(read[w], simd.mul(updated, q));
                let decayed = simd.mul(updated, decay);
                simd.store(decayed, s);
                met[w] = simd.add(met[w], simd.mul(decayed, next_k));
            }
        }
        (stored(simd, read), met)
    }

    /// Adds `k ⊗ d` to the rows of `strip` and gives each to `leave` with its row of `state`; gives
    /// what was read. Asks for the other half of the strip after that of `state`.
    #[inline(always)]
    fn leave<S: Simd, R: Borrow<Strip>>(
        &self,
        simd: S,
        d: [S::F32; WIDE],
        strip: &[Strip],
        state: impl IntoIterator<Item = R>,
        mut leave: impl FnMut(R, Strip),
    ) -> Strip {
        let ahead = size_of_val(strip);
        let mut read = [simd.splat(0.0); WIDE];
        let rows = strip.iter().zip(state).zip(self.k.iter().zip(self.q));
        for ((row, state), (k, q)) in rows {
            let (k, q) = (simd.splat(*k), simd.splat(*q));
            simd.prefetch(&state.borrow()[1], ahead);
            let mut updated = d;
            for (w, s) in row.iter().enumerate() {
                updated[w] = simd.add(simd.load(s), simd.mul(d[w], k));
                read[w] = simd.add(read[w], simd.mul(updated[w], q));
            }
            leave(state, stored(simd, updated));
        }
        stored(simd, read)
    }
}

#[inline(always)]
fn stored<S: Simd>(simd: S, vectors: [S::F32; WIDE]) -> Strip {
    let mut strip = [[0.0; LANES]; WIDE];
    strip.iter_mut().zip(vectors).for_each(|(out, x)| simd.store(x, out));
    strip
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
