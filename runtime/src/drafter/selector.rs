//! The choice of a chain of tokens: candidates of each row by the head, and a bilinear score between
//! neighbours.

use std::cmp::Reverse;

use hadamard::Isa;

use crate::math::dot16;
use crate::rows::{Primal, Rows};
use crate::weights::FloatMatrix;
use crate::{Error, simd, spread};

/// Ids of the `k` largest values, by value descending, then id ascending.
#[must_use]
pub fn top_k(values: &[f32], k: usize) -> Vec<u32> {
    let mut ids: Vec<u32> = (0..values.len() as u32).collect();
    let order =
        |a: &u32, b: &u32| values[*b as usize].total_cmp(&values[*a as usize]).then(a.cmp(b));
    if k < ids.len() && k > 0 {
        ids.select_nth_unstable_by(k - 1, order);
    }
    ids.truncate(k);
    ids.sort_unstable_by(order);
    ids
}

/// A number that is ordered as `x` is by [`f32::total_cmp`].
#[inline(always)]
fn rank(x: f32) -> i32 {
    let bits = x.to_bits() as i32;
    bits ^ ((bits >> 31) as u32 >> 1) as i32
}

/// Values that are compared with the least candidate together.
const RUN: usize = 64;

simd::per_isa! {
    /// [`top_k`] in one pass: few values are larger than the `k` largest before them.
    fn top_k_in_runs(values: &[f32], k: usize) -> Vec<u32> {
        let mut found: Vec<(Reverse<i32>, u32)> = Vec::with_capacity(2 * k + RUN);
        // Of equal values the earlier is ahead, so a later one must be larger.
        let mut least = None;
        for (run, values) in values.chunks(RUN).enumerate() {
            let most = values.iter().fold(i32::MIN, |most, x| most.max(rank(*x)));
            if least.is_some_and(|least| most <= least) {
                continue;
            }
            for (at, x) in values.iter().enumerate() {
                if least.is_none_or(|least| rank(*x) > least) {
                    found.push((Reverse(rank(*x)), (run * RUN + at) as u32));
                }
            }
            if found.len() >= 2 * k {
                found.select_nth_unstable(k - 1);
                found.truncate(k);
                least = Some(found[k - 1].0.0);
            }
        }
        found.sort_unstable();
        found.truncate(k);
        found.into_iter().map(|(_, id)| id).collect()
    }
}

/// The two codebooks `[vocab, rank]`.
#[derive(Debug)]
pub(super) struct Selector {
    pub(super) predecessor: FloatMatrix,
    pub(super) successor: FloatMatrix,
    pub(super) top_k: usize,
}

impl Selector {
    /// The candidates of each row of logits, with their logits, by id ascending.
    ///
    /// # Errors
    /// [`Error::FloatEnvironment`] when a worker thread has other modes.
    pub(super) fn candidates(
        &self,
        isa: Isa,
        logits: &Rows<Primal>,
    ) -> Result<Vec<Vec<(u32, f32)>>, Error> {
        let mut all = vec![Vec::new(); logits.n()];
        let cost = logits.width() / 4;
        spread::parts(&mut all, 1, cost, |row, all| {
            let logits = logits.row(row);
            let mut ids = top_k_in_runs(isa, logits, self.top_k);
            ids.sort_unstable();
            all[0] = ids.into_iter().map(|id| (id, logits[id as usize])).collect();
            Ok(())
        })?;
        Ok(all)
    }

    /// Scores of `candidates` for the token after `previous`:
    /// `logit(b) + Σ_r (P[previous, r] · z_r) · Q[b, r]`.
    pub(super) fn scores(
        &self,
        previous: u32,
        candidates: &[(u32, f32)],
        z: &[f32],
    ) -> Vec<(u32, f32)> {
        let mut p = vec![0.0; z.len()];
        let mut q = vec![0.0; z.len()];
        self.predecessor.dequantize_row(previous as usize, &mut p);
        p.iter_mut().zip(z).for_each(|(p, z)| *p *= z);
        let score = |(id, logit): &(u32, f32)| {
            self.successor.dequantize_row(*id as usize, &mut q);
            (*id, logit + dot16(&p, &q))
        };
        candidates.iter().map(score).collect()
    }
}

/// The candidate with the largest score, the lowest id among equals; `scores` are by id ascending.
///
/// # Panics
/// If there are no candidates.
#[must_use]
pub fn likeliest(scores: &[(u32, f32)]) -> u32 {
    let mut best = (scores[0].0, f32::NEG_INFINITY);
    for (id, score) in scores {
        if *score > best.1 {
            best = (*id, *score);
        }
    }
    best.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::weights::FloatEncoding;
    use formats::Source;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn top_k_is_the_head_of_a_stable_sort(
            values in prop::collection::vec(-3i8..3, 1..60), k in 0usize..70
        ) {
            let values: Vec<f32> = values.iter().map(|v| f32::from(*v)).collect();
            let mut ids: Vec<u32> = (0..values.len() as u32).collect();
            ids.sort_by(|a, b| {
                values[*b as usize].partial_cmp(&values[*a as usize]).unwrap()
            });
            ids.truncate(k);
            prop_assert_eq!(top_k(&values, k), ids);
        }

        #[test]
        fn runs_give_the_same(
            seed in prop::collection::vec(any::<f32>(), 1..60),
            few in any::<bool>(), len in 1usize..3000, k in 1usize..40,
        ) {
            let value = |(i, x): (usize, &f32)| match few {
                true => (x * 4.0).round() / 4.0 + (i % 7) as f32,
                false => x * (1.0 + i as f32),
            };
            let values: Vec<f32> = seed.iter().cycle().take(len).enumerate().map(value).collect();
            for isa in Isa::available() {
                let found = top_k_in_runs(isa, &values, k);
                prop_assert_eq!(found, top_k(&values, k));
            }
        }
    }

    fn codebook(rows: &[[f32; 2]]) -> FloatMatrix {
        let bytes: Vec<u8> = rows.iter().flatten().flat_map(|v| v.to_le_bytes()).collect();
        let view = Source::from_bytes("c", bytes.clone()).view(0, bytes.len() as u64).unwrap();
        FloatMatrix::new(view, FloatEncoding::F32, rows.len(), 2)
    }

    #[test]
    fn the_score_of_the_pair_decides() {
        let selector = Selector {
            predecessor: codebook(&[[1.0, 0.0], [0.0, 1.0], [0.0, 0.0], [1.0, 1.0]]),
            successor: codebook(&[[0.0, 0.0], [5.0, 0.0], [0.0, 5.0], [9.0, 9.0]]),
            top_k: 3,
        };
        let logits = [3.0, 2.0, 2.0, 1.0];
        let rows = Rows::from_vec(4, logits.to_vec());
        let candidates = selector.candidates(Isa::detect(), &rows).unwrap();
        assert_eq!(candidates, [[(0, 3.0), (1, 2.0), (2, 2.0)]]);
        let next =
            |previous, z: [f32; 2]| likeliest(&selector.scores(previous, &candidates[0], &z));
        // Token 3 would win every pair, but is no candidate.
        assert_eq!(next(0, [1.0, 1.0]), 1);
        assert_eq!(next(1, [1.0, 1.0]), 2);
        assert_eq!(next(2, [1.0, 1.0]), 0);
        assert_eq!(next(0, [-1.0, 1.0]), 0);
        // Equal scores: the lowest id.
        assert_eq!(next(3, [1.0, 1.0]), 1);
        assert_eq!(next(0, [0.2, 0.0]), 0);
    }
}
