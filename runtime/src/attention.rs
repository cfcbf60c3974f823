//! Softmax attention over a range of positions.
//!
//! Two passes over the keys, not an online softmax: all scores, their exact maximum, exponentials,
//! their sum with the term of position `p` in lane `p mod 16`; then the weighted sum of the values,
//! ascending, and one division per output at the end. The bits depend on the query and the visible
//! positions only.
//!
//! [`attend`] is that for one query head. [`attend_rows`] gives the same bits for all heads of some
//! rows: the queries that read the same key head go over its keys and values together, a few rows at a
//! time, so the time is linear in the positions and memory is read once for several queries.

mod strips;

use std::ops::Range;

use hadamard::{Isa, Level};

use crate::kv::KvCache;
use crate::math::{Sum16, dot16, exp};
use crate::simd::LANES;
use crate::{Error, spread};
use strips::Strips;

/// Writes `softmax(q · K · scale) · V` over positions `visible` of key/value head `kv_head`.
///
/// `q`, `out`: `[dim]`. A range without positions gives zeros.
///
/// # Panics
/// If `cache` does not hold the positions.
pub fn attend(
    q: &[f32],
    cache: &KvCache,
    kv_head: usize,
    visible: Range<usize>,
    scale: f32,
    out: &mut [f32],
) {
    out.fill(0.0);
    let mut row = vec![0.0; q.len()];
    let mut scores: Vec<f32> = visible
        .clone()
        .map(|p| {
            cache.key(p, kv_head, &mut row);
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
        cache.value(p, kv_head, &mut row);
        for (out, v) in out.iter_mut().zip(&row) {
            *out += weight * v;
        }
    }
    let sum = sum.total();
    out.iter_mut().for_each(|out| *out /= sum);
}

/// Rows that go over keys and values together.
const TILE: usize = 8;

/// [`attend`] for every head of some rows.
///
/// `q`, `out`: `[n, heads, dim]`; `visible`: `[n]`. Query head `h` reads key/value head
/// `h / (heads / kv_heads)`.
///
/// # Errors
/// [`Error::FloatEnvironment`] when a worker thread has other modes.
///
/// # Panics
/// If the shapes differ, or `cache` does not hold the positions.
pub fn attend_rows(
    isa: Isa,
    q: &[f32],
    cache: &KvCache,
    visible: &[Range<usize>],
    scale: f32,
    out: &mut [f32],
) -> Result<(), Error> {
    let (n, dim, kv_heads) = (visible.len(), cache.dim(), cache.heads());
    assert_eq!(q.len(), out.len());
    let heads = q.len() / (n * dim);
    let group = heads / kv_heads;
    let longest = visible.iter().map(Range::len).max().unwrap_or(0);
    if isa.level() == Level::Scalar || !dim.is_multiple_of(LANES) {
        return spread::parts(out, dim, 4 * longest * dim, |at, out| {
            let (row, head) = (at / heads, at % heads);
            let q = &q[at * dim..][..dim];
            attend(q, cache, head / group, visible[row].clone(), scale, out);
            Ok(())
        });
    }
    // A task: a tile of rows, and query heads of one key head; all of them unless threads are many.
    let tiles = n.div_ceil(TILE);
    let shares = rayon::current_num_threads().div_ceil(tiles * kv_heads).min(group);
    let share = group.div_ceil(shares);
    let shares = group.div_ceil(share);
    let rows = TILE.min(n);
    let part = rows * share * dim;
    let mut by_task = vec![0.0; tiles * kv_heads * shares * part];
    let cost = rows * share * longest * dim / 8;
    let of_task = |task: usize| {
        let (tile, kv_head, at) =
            (task / shares / kv_heads, task / shares % kv_heads, task % shares);
        let rows = tile * TILE..n.min((tile + 1) * TILE);
        let first = kv_head * group;
        let heads = first + at * share..first + group.min((at + 1) * share);
        (rows, kv_head, heads)
    };
    spread::parts(&mut by_task, part, cost, |task, out| {
        let (rows, kv_head, of_group) = of_task(task);
        let queries = rows.flat_map(|row| {
            let at = move |head: usize| &q[(row * heads + head) * dim..][..dim];
            of_group.clone().map(move |head| (at(head), visible[row].clone()))
        });
        let queries = queries.collect();
        cache.on_head(kv_head, Strips { isa, queries, dim, scale, out });
        Ok(())
    })?;
    for (task, done) in by_task.chunks_exact(part).enumerate() {
        let (rows, _, of_group) = of_task(task);
        let places = rows.flat_map(|row| of_group.clone().map(move |head| row * heads + head));
        for (place, done) in places.zip(done.chunks_exact(dim)) {
            out[place * dim..][..dim].copy_from_slice(done);
        }
    }
    Ok(())
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
            let mut cache = KvCache::new(2, 4, KvType::F32);
            for row in rows.chunks_exact(16).take(n) {
                cache.append(&row[..8], &row[8..]);
            }
            let mut out = [9.0; 4];
            attend(q, &cache, 1, visible.clone(), 0.5, &mut out);
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

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(96))]

        /// Whatever the rows see, however heads share keys, as either type, on any instruction set.
        #[test]
        fn rows_are_single_heads(
            seed in prop::collection::vec(-3f32..3.0, 101),
            dim in prop::sample::select(vec![8usize, 16, 64, 128, 256]),
            (kv_heads, group) in (1usize..4, 1usize..8),
            (n, context) in (1usize..20, 1usize..150),
            ranges in prop::collection::vec((any::<u16>(), any::<u16>()), 20),
            causal in any::<bool>(),
            forgotten in 0usize..100,
            kv in prop::sample::select(vec![KvType::F16, KvType::F32]),
        ) {
            let mut next = seed.iter().copied().cycle();
            let mut take = |n: usize| next.by_ref().take(n).collect::<Vec<f32>>();
            let mut cache = KvCache::new(kv_heads, dim, kv);
            let end = n + context;
            for _ in 0..end + 5 {
                cache.append(&take(kv_heads * dim), &take(kv_heads * dim));
            }
            cache.truncate(end);
            cache.forget_before(forgotten.min(context));
            let visible: Vec<Range<usize>> = (0..n).map(|i| {
                let (a, b) = ranges[i];
                let of = |x: u16| cache.first() + usize::from(x) % (end - cache.first() + 1);
                if causal { cache.first()..context + i } else { of(a).min(of(b))..of(a).max(of(b)) }
            }).collect();
            let q = take(n * kv_heads * group * dim);
            let mut expected = vec![0.0; q.len()];
            for (at, out) in expected.chunks_exact_mut(dim).enumerate() {
                let (row, head) = (at / (kv_heads * group), at % (kv_heads * group));
                let q = &q[at * dim..][..dim];
                attend(q, &cache, head / group, visible[row].clone(), 0.3, out);
            }
            for isa in Isa::available() {
                for threads in [1, 3, 9] {
                    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
                    let mut out = vec![f32::NAN; q.len()];
                    let rows = || attend_rows(isa, &q, &cache, &visible, 0.3, &mut out);
                    pool.install(rows).unwrap();
                    let bits = |x: &[f32]| x.iter().map(|x| x.to_bits()).collect::<Vec<u32>>();
                    prop_assert_eq!(bits(&out), bits(&expected));
                }
            }
        }
    }

    #[test]
    fn nothing_visible_gives_zeros_and_large_scores_no_overflow() {
        let mut cache = KvCache::new(1, 2, KvType::F32);
        cache.append(&[1e20, 0.0], &[1.0, 2.0]);
        cache.append(&[-1e20, 0.0], &[3.0, 4.0]);
        let mut out = [9.0; 2];
        attend(&[1.0, 0.0], &cache, 0, 1..1, 1.0, &mut out);
        assert_eq!(out, [0.0, 0.0]);
        attend(&[1.0, 0.0], &cache, 0, 0..2, 1.0, &mut out);
        assert_eq!(out, [1.0, 2.0]);
    }
}
