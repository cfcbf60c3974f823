//! Softmax attention of one query head over a range of positions.
//!
//! Two passes over the keys, not an online softmax: all scores, their exact maximum, exponentials,
//! their sum with the term of position `p` in lane `p mod 16`; then the weighted sum of the values,
//! ascending, and one division per output at the end. The bits depend on the query and the visible
//! positions only.

use std::ops::Range;

use crate::kv::KvCache;
use crate::math::{Sum16, dot16, exp};

/// Writes `softmax(q · K · scale) · V` over positions `visible` of one head of `cache`.
///
/// `q`, `out`: `[head_dim]`; the head's part of a row begins at `start`. A range without positions
/// gives zeros.
///
/// # Panics
/// If `cache` does not hold the positions.
pub fn attend(
    q: &[f32],
    cache: &KvCache,
    start: usize,
    visible: Range<usize>,
    scale: f32,
    out: &mut [f32],
) {
    out.fill(0.0);
    let mut row = vec![0.0; q.len()];
    let mut scores: Vec<f32> = visible
        .clone()
        .map(|p| {
            cache.key(p, start, &mut row);
            dot16(q, &row) * scale
        })
        .collect();
    let Some(max) = scores.iter().copied().reduce(f32::max) else {
        return;
    };
    let mut sum = Sum16::new();
    for (p, score) in visible.clone().zip(&mut scores) {
        *score = exp(*score - max);
        sum.add(p, *score);
    }
    for (p, weight) in visible.zip(&scores) {
        cache.value(p, start, &mut row);
        for (out, v) in out.iter_mut().zip(&row) {
            *out += weight * v;
        }
    }
    let sum = sum.total();
    out.iter_mut().for_each(|out| *out /= sum);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kv::KvType;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn close_to_attention_in_f64(
            n in 1usize..80,
            from in 0usize..40,
            data in prop::collection::vec(-3f32..3.0, 80 * 16 + 4),
        ) {
            let visible = from.min(n - 1)..n;
            let (q, rows) = data.split_at(4);
            let mut cache = KvCache::new(8, KvType::F32);
            for row in rows.chunks_exact(16).take(n) {
                cache.append(&row[..8], &row[8..]);
            }
            let mut out = [9.0; 4];
            attend(q, &cache, 4, visible.clone(), 0.5, &mut out);
            let wide = |x: &[f32]| x.iter().map(|x| f64::from(*x)).collect::<Vec<_>>();
            let weights: Vec<f64> = visible.clone().map(|p| {
                let key = wide(&rows[p * 16 + 4..p * 16 + 8]);
                let dot: f64 = wide(q).iter().zip(&key).map(|(q, k)| q * k).sum();
                (dot * 0.5).exp()
            }).collect();
            let total: f64 = weights.iter().sum();
            for (i, out) in out.iter().enumerate() {
                let terms = visible.clone().zip(&weights);
                let expected: f64 =
                    terms.map(|(p, w)| w * f64::from(rows[p * 16 + 12 + i]) / total).sum();
                prop_assert!((f64::from(*out) - expected).abs() < 1e-5);
            }
        }
    }

    #[test]
    fn nothing_visible_gives_zeros_and_large_scores_no_overflow() {
        let mut cache = KvCache::new(2, KvType::F32);
        cache.append(&[1e20, 0.0], &[1.0, 2.0]);
        cache.append(&[-1e20, 0.0], &[3.0, 4.0]);
        let mut out = [9.0; 2];
        attend(&[1.0, 0.0], &cache, 0, 1..1, 1.0, &mut out);
        assert_eq!(out, [0.0, 0.0]);
        attend(&[1.0, 0.0], &cache, 0, 0..2, 1.0, &mut out);
        assert_eq!(out, [1.0, 2.0]);
    }
}
