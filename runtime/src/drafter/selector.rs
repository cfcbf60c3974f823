//! The choice of a chain of tokens: candidates of each row by the head, and a bilinear score between
//! neighbours.

use crate::math::Sum16;
use crate::weights::FloatMatrix;

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

/// The two codebooks `[vocab, rank]`.
#[derive(Debug)]
pub(super) struct Selector {
    pub(super) predecessor: FloatMatrix,
    pub(super) successor: FloatMatrix,
    pub(super) top_k: usize,
}

impl Selector {
    /// The candidates for the token after `previous` and their scores
    /// `logit(b) + Σ_r (P[previous, r] · z_r) · Q[b, r]`, by id ascending.
    pub(super) fn scores(&self, previous: u32, logits: &[f32], z: &[f32]) -> Vec<(u32, f32)> {
        let mut p = vec![0.0; z.len()];
        let mut q = vec![0.0; z.len()];
        self.predecessor.dequantize_row(previous as usize, &mut p);
        p.iter_mut().zip(z).for_each(|(p, z)| *p *= z);
        let mut candidates = top_k(logits, self.top_k);
        candidates.sort_unstable();
        let score = |id: u32| {
            self.successor.dequantize_row(id as usize, &mut q);
            let mut sum = Sum16::new();
            for (r, (p, q)) in p.iter().zip(&q).enumerate() {
                sum.add(r, p * q);
            }
            (id, logits[id as usize] + sum.total())
        };
        candidates.into_iter().map(score).collect()
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
        let next = |previous, z: [f32; 2]| likeliest(&selector.scores(previous, &logits, &z));
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
