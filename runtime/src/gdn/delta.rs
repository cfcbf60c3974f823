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
//! Sums run over `i` ascending, each a plain chain from +0. The update does not look at `q`, and of the
//! state only at what is in `d`: the accepted tokens of a round, taken in with the `d` that verifying
//! found, give the bits of plain decoding (`accepted.rs`).
//!
//! [`DeltaState::update`] and [`DeltaState::read`] are these lines. The columns `j` of a state do not
//! meet, so a state lies in strips of 32 of them (of all, where 32 does not divide them), and a fast
//! path takes one strip after the other through all tokens, in a copy that the nearest cache holds:
//! however many tokens, the state itself is read once, front to back, and written once if it is to
//! move on or has accepted tokens to take in. What a token does last to a row of a strip and what the
//! next one does first are one pass over the strip.

use hadamard::Isa;

use super::Heads;
use super::accepted::Accepted;
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

/// The corrections `d` of tokens that were computed from a state; see [`DeltaState::accept`].
#[derive(Debug, Clone, PartialEq)]
pub struct Corrections {
    n: usize,
    dim: usize,
    /// `[value_heads, n, dim]`.
    d: Vec<f32>,
}

impl Corrections {
    /// Of value head `head` and token `i`.
    pub(super) fn of(&self, head: usize, i: usize) -> &[f32] {
        &self.d[(head * self.n + i) * self.dim..][..self.dim]
    }
}

/// The state matrices of one layer.
#[derive(Debug, Clone)]
pub struct DeltaState {
    heads: Heads,
    /// `[value_heads, strip, key, value of the strip]`, before the accepted tokens.
    s: Vec<f32>,
    accepted: Accepted,
}

impl DeltaState {
    /// All zero.
    #[must_use]
    pub fn new(heads: Heads) -> Self {
        let s = vec![0.0; heads.value_heads * heads.dim * heads.dim];
        Self { heads, s, accepted: Accepted::default() }
    }

    /// The size of all states and of accepted tokens.
    #[must_use]
    pub fn bytes(&self) -> usize {
        size_of_val(&self.s[..]) + self.accepted.bytes()
    }

    /// The values of value head `head`, `[key, value]`.
    #[must_use]
    pub fn head(&self, head: usize) -> Vec<f32> {
        let dim = self.heads.dim;
        let (width, len) = (strip_width(dim), dim * dim);
        let mut s = self.s[head * len..(head + 1) * len].to_vec();
        for (at, strip) in s.chunks_exact_mut(dim * width).enumerate() {
            self.accepted.settle_plainly(self.heads, head, at * width, strip);
        }
        let strips = s.chunks_exact(dim * width);
        let row = |i: usize| strips.clone().flat_map(move |s| &s[i * width..(i + 1) * width]);
        (0..dim).flat_map(row).copied().collect()
    }

    /// Takes the first `n` of `tokens` in, whose corrections [`DeltaState::outputs`] gave. The next
    /// pass does the work.
    ///
    /// # Panics
    /// If there are fewer tokens.
    pub fn accept(&mut self, tokens: &Updates, corrections: &Corrections, n: usize) {
        self.accepted.extend(tokens, corrections, n);
    }

    /// Takes one token in.
    pub fn update(&mut self, token: &Update<'_>) {
        self.settle_plainly();
        self.update_with(token, &mut vec![0.0; self.heads.inner()]);
    }

    /// Takes the accepted tokens in.
    fn settle_plainly(&mut self) {
        let (heads, width) = (self.heads, strip_width(self.heads.dim));
        for (at, s) in self.s.chunks_exact_mut(heads.dim * width).enumerate() {
            let (head, first) = (at * width / heads.dim, at * width % heads.dim);
            self.accepted.settle_plainly(heads, head, first, s);
        }
        self.accepted.clear();
    }

    /// Takes one token in; writes its corrections, `[value_heads, dim]`.
    fn update_with(&mut self, token: &Update<'_>, d: &mut [f32]) {
        let heads = self.heads;
        let (dim, width) = (heads.dim, strip_width(heads.dim));
        d.fill(0.0);
        let strips = self.s.chunks_exact_mut(dim * width).zip(d.chunks_exact_mut(width));
        for (at, (s, d)) in strips.enumerate() {
            let t = at * width / dim;
            let k = &token.k[heads.key_head(t) * dim..][..dim];
            let v = &token.v[at * width..][..width];
            for (row, k) in s.chunks_exact_mut(width).zip(k) {
                for (s, m) in row.iter_mut().zip(&mut *d) {
                    *s *= token.decay[t];
                    *m += *s * k;
                }
            }
            for (d, v) in d.iter_mut().zip(v) {
                *d = (v - *d) * token.beta[t];
            }
            for (row, k) in s.chunks_exact_mut(width).zip(k) {
                for (s, d) in row.iter_mut().zip(&*d) {
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
    /// [`Error::FloatEnvironment`] when a worker thread has other modes. The state can no longer be
    /// used then.
    ///
    /// # Panics
    /// If there are no tokens.
    pub fn advance(&mut self, isa: Isa, tokens: &Updates) -> Result<Vec<f32>, Error> {
        Ok(self.pass(isa, tokens, true)?.0)
    }

    /// As [`DeltaState::advance`], but the tokens are not taken in; gives their corrections too, for
    /// [`DeltaState::accept`]. Tokens accepted before are taken in.
    ///
    /// # Errors
    /// As [`DeltaState::advance`].
    ///
    /// # Panics
    /// As [`DeltaState::advance`].
    pub fn outputs(
        &mut self,
        isa: Isa,
        tokens: &Updates,
    ) -> Result<(Vec<f32>, Corrections), Error> {
        self.pass(isa, tokens, false)
    }

    fn pass(
        &mut self,
        isa: Isa,
        tokens: &Updates,
        moves_on: bool,
    ) -> Result<(Vec<f32>, Corrections), Error> {
        let (n, heads) = (tokens.n(), self.heads);
        if !suits(isa, heads) {
            self.settle_plainly();
            let mut passing = (!moves_on).then(|| self.clone());
            return Ok(advance_plainly(passing.as_mut().unwrap_or(self), tokens));
        }
        let (mut out, mut d) = (vec![0.0; n * heads.inner()], vec![0.0; n * heads.inner()]);
        let (square, width) = (heads.dim * heads.dim, n * heads.dim);
        let parts = ((&mut self.s[..], square), (&mut out[..], width), (&mut d[..], width));
        spread::parts3(parts.0, parts.1, parts.2, cost(n, heads), |head, s, out, d| {
            let accepted = &self.accepted;
            simd::run(isa, Strips { head, tokens, accepted, s, moves_on, out, d });
            Ok(())
        })?;
        self.accepted.clear();
        Ok((out, Corrections { n, dim: heads.dim, d }))
    }
}

/// The definition: token by token.
fn advance_plainly(state: &mut DeltaState, tokens: &Updates) -> (Vec<f32>, Corrections) {
    let (n, Heads { value_heads, dim, .. }) = (tokens.n(), state.heads);
    let (mut out, mut d) = (vec![0.0; n * value_heads * dim], vec![0.0; n * value_heads * dim]);
    let (mut read, mut corrections) = (vec![0.0; value_heads * dim], vec![0.0; value_heads * dim]);
    for i in 0..n {
        let token = tokens.token(i);
        state.update_with(&token, &mut corrections);
        state.read(&token, &mut read);
        for (all, row) in [(&mut out, &read), (&mut d, &corrections)] {
            for (head, row) in row.chunks_exact(dim).enumerate() {
                all[(head * n + i) * dim..][..dim].copy_from_slice(row);
            }
        }
    }
    (out, Corrections { n, dim, d })
}

/// Vectors of a strip.
pub(super) const WIDE: usize = 2;

/// A row of a strip.
pub(super) type Strip = [[f32; LANES]; WIDE];

/// Columns of a strip, for heads of width `dim`.
pub(super) fn strip_width(dim: usize) -> usize {
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

/// One head and some tokens.
struct Strips<'a> {
    head: usize,
    tokens: &'a Updates,
    /// Taken in before them.
    accepted: &'a Accepted,
    /// The state of the head.
    s: &'a mut [f32],
    /// Whether it takes the tokens in.
    moves_on: bool,
    /// `[n, dim]`.
    out: &'a mut [f32],
    /// `[n, dim]`.
    d: &'a mut [f32],
}

impl Kernel for Strips<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Self { head, tokens, accepted, s, moves_on, out, d } = self;
        let (n, heads) = (tokens.n(), tokens.heads);
        let mut copy = vec![[[0.0; LANES]; WIDE]; heads.dim];
        let strips = s.chunks_exact_mut(heads.dim * WIDE * LANES);
        for (first, strip) in (0..heads.dim).step_by(WIDE * LANES).zip(strips) {
            let strip: &mut [Strip] = strip.as_chunks_mut().0.as_chunks_mut().0;
            if !accepted.is_empty() {
                accepted.settle(simd, heads, head, first, strip);
            }
            let token = |i: usize| Token::of(tokens, i, head, first);
            let mut now = token(0);
            let mut met = now.meet(simd, strip, &mut copy);
            for i in 0..n {
                let correction = now.correct(simd, met);
                let next = (i + 1 < n).then(|| token(i + 1));
                let read = match &next {
                    Some(next) => {
                        let (read, next_met) = now.pass_on(simd, correction, next, &mut copy);
                        met = next_met;
                        read
                    }
                    None if moves_on => {
                        now.leave(simd, correction, &copy, strip, |s, row| *s = row)
                    }
                    None => now.leave(simd, correction, &copy, strip, |_, _| ()),
                };
                let columns = i * heads.dim + first..i * heads.dim + first + WIDE * LANES;
                out[columns.clone()].copy_from_slice(read.as_flattened());
                d[columns].copy_from_slice(stored(simd, correction).as_flattened());
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
    fn leave<S: Simd>(
        &self,
        simd: S,
        d: [S::F32; WIDE],
        strip: &[Strip],
        state: &mut [Strip],
        leave: impl Fn(&mut Strip, Strip),
    ) -> Strip {
        let ahead = size_of_val(strip);
        let mut read = [simd.splat(0.0); WIDE];
        let rows = strip.iter().zip(state).zip(self.k.iter().zip(self.q));
        for ((row, state), (k, q)) in rows {
            let (k, q) = (simd.splat(*k), simd.splat(*q));
            simd.prefetch(&state[1], ahead);
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

        /// Strips give the bits of the plain lines, whether the tokens are taken in or not, and
        /// accepted tokens those of tokens taken in, whatever comes after them.
        #[test]
        fn strips_are_the_definition(
            seed in prop::collection::vec(-1f32..1.0, 97),
            (key_heads, rep) in (1usize..4, 1usize..4),
            dim in prop::sample::select(vec![4usize, 32, 64, 128]),
            n in 1usize..7,
            accepted in prop::collection::vec(0usize..7, 0..3),
            grouped in any::<bool>(),
        ) {
            let order = if grouped { HeadOrder::Grouped } else { HeadOrder::Tiled };
            let heads = Heads { key_heads, value_heads: key_heads * rep, dim, order };
            let mut before = DeltaState::new(heads);
            before.advance(Isa::scalar(), &updates(heads, 2, &seed[3..])).unwrap();
            let values = |state: &DeltaState| -> Vec<u32> {
                (0..heads.value_heads).flat_map(|head| bits(&state.head(head))).collect()
            };
            let tokens = updates(heads, n, &seed);
            for isa in Isa::available() {
                let (mut state, mut plain) = (before.clone(), before.clone());
                for (round, accepted) in accepted.iter().enumerate() {
                    let tokens = updates(heads, n, &seed[4 + round..]);
                    let (out, corrections) = state.outputs(isa, &tokens).unwrap();
                    prop_assert_eq!(values(&state), values(&plain));
                    let passing = plain.clone().advance(Isa::scalar(), &tokens).unwrap();
                    prop_assert_eq!(bits(&out), bits(&passing));
                    let accepted = n.min(*accepted);
                    state.accept(&tokens, &corrections, accepted);
                    (0..accepted).for_each(|i| plain.update(&tokens.token(i)));
                    prop_assert_eq!(values(&state), values(&plain));
                }
                let expected = bits(&plain.advance(Isa::scalar(), &tokens).unwrap());
                prop_assert_eq!(bits(&state.advance(isa, &tokens).unwrap()), expected);
                prop_assert!(state.accepted.is_empty());
                prop_assert_eq!(bits(&state.s), bits(&plain.s));
            }
        }

        /// Tokens accepted twice without a pass between them are taken in one after the other.
        #[test]
        fn accepted_tokens_add_up(seed in prop::collection::vec(-1f32..1.0, 97)) {
            let heads = Heads { dim: 32, ..SMALL };
            let (first, second) = (updates(heads, 3, &seed), updates(heads, 2, &seed[5..]));
            for isa in Isa::available() {
                let mut plain = DeltaState::new(heads);
                let (_, d) = plain.outputs(isa, &first).unwrap();
                let mut state = plain.clone();
                state.accept(&first, &d, 2);
                (0..2).for_each(|i| plain.update(&first.token(i)));
                let (_, d) = plain.clone().outputs(isa, &second).unwrap();
                state.accept(&second, &d, 2);
                plain.advance(Isa::scalar(), &second).unwrap();
                for state in [&mut state, &mut plain] {
                    state.advance(isa, &first).unwrap();
                }
                prop_assert_eq!(bits(&state.s), bits(&plain.s));
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
