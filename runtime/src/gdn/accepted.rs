//! Tokens that a state has accepted and not taken in yet.
//!
//! What a token does to a state depends on the state through its correction `d` alone (see
//! [`DeltaState`](super::DeltaState)), and verifying has found that already. So accepted tokens are not
//! computed again: the next pass brings each row of the state up to date while it has it in hand,
//!
//! ```text
//! S[i][j] = S[i][j] · e^g + d_j · k_i      token by token, the operations of the update itself
//! ```

use super::Heads;
use super::delta::{Corrections, Strip, Updates, WIDE, strip_width};
use crate::simd::{LANES, Simd};

/// Tokens in the order in which they are taken in.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Accepted {
    /// `[n, key_heads, dim]`.
    k: Vec<f32>,
    /// `[n, value_heads, dim]`.
    d: Vec<f32>,
    /// `[n, value_heads]`: `e^g`.
    decay: Vec<f32>,
}

impl Accepted {
    pub(super) fn is_empty(&self) -> bool {
        self.decay.is_empty()
    }

    pub(super) fn bytes(&self) -> usize {
        [&self.k, &self.d, &self.decay].map(|values| size_of_val(&values[..])).iter().sum()
    }

    /// Adds the first `n` of `tokens`.
    pub(super) fn extend(&mut self, tokens: &Updates, corrections: &Corrections, n: usize) {
        for i in 0..n {
            let token = tokens.token(i);
            self.k.extend(token.k);
            self.decay.extend(token.decay);
            (0..tokens.heads.value_heads).for_each(|head| self.d.extend(corrections.of(head, i)));
        }
    }

    pub(super) fn clear(&mut self) {
        [&mut self.k, &mut self.d, &mut self.decay].into_iter().for_each(Vec::clear);
    }

    /// What the tokens do to the columns from `first` on of value head `head`.
    fn columns(
        &self,
        heads: Heads,
        head: usize,
        first: usize,
    ) -> impl Iterator<Item = (f32, &[f32], &[f32])> {
        let (dim, key) = (heads.dim, heads.key_head(head) * heads.dim);
        let keys = self.k.chunks_exact(heads.key_width());
        let corrections = self.d.chunks_exact(heads.inner());
        let decays = self.decay.chunks_exact(heads.value_heads);
        decays.zip(keys).zip(corrections).map(move |((decay, k), d)| {
            (decay[head], &k[key..key + dim], &d[head * dim + first..(head + 1) * dim])
        })
    }

    /// Brings a strip up to date, `[dim, columns of a strip]`: that of `head` which begins with column
    /// `first`.
    pub(super) fn settle_plainly(&self, heads: Heads, head: usize, first: usize, s: &mut [f32]) {
        for (decay, k, d) in self.columns(heads, head, first) {
            for (row, k) in s.chunks_exact_mut(strip_width(heads.dim)).zip(k) {
                for (s, d) in row.iter_mut().zip(d) {
                    *s *= decay;
                    *s += d * k;
                }
            }
        }
    }

    /// As [`Accepted::settle_plainly`]. Asks for the strip after it.
    #[inline(always)]
    pub(super) fn settle<S: Simd>(
        &self,
        simd: S,
        heads: Heads,
        head: usize,
        first: usize,
        strip: &mut [Strip],
    ) {
        let tokens: Vec<_> = self
            .columns(heads, head, first)
            .map(|(decay, k, d)| (decay, k, d[..WIDE * LANES].as_chunks::<LANES>().0))
            .collect();
        let ahead = size_of_val(strip);
        for (i, row) in strip.iter_mut().enumerate() {
            row.iter().for_each(|s| simd.prefetch(s, ahead));
            let mut now = [simd.splat(0.0); WIDE];
            now.iter_mut().zip(&*row).for_each(|(now, s)| *now = simd.load(s));
            for (decay, k, d) in &tokens {
                let (decay, k) = (simd.splat(*decay), simd.splat(k[i]));
                for (now, d) in now.iter_mut().zip(*d) {
                    *now = simd.add(simd.mul(*now, decay), simd.mul(simd.load(d), k));
                }
            }
            row.iter_mut().zip(now).for_each(|(s, now)| simd.store(now, s));
        }
    }
}
