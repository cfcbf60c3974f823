//! The fast path: queries of one key head, vectors of 16 positions or 16 values.
//!
//! Scores: a vector holds one dimension of 16 keys, and each of the 16 lanes of `dot16` is such a
//! vector, so the final tree is a tree of vectors. Values: a vector holds 16 values of one position,
//! and each output is its own chain over positions.

use std::ops::Range;

use hadamard::Isa;

use crate::kv::{Element, Head, OnHead};
use crate::math::exp;
use crate::simd::{self, Kernel, LANES, Simd};

/// Positions whose values are used by all queries before the next ones are read.
const BLOCK: usize = 16;

/// Bytes of a cache line.
const LINE: usize = 64;

/// Asks for as many lines as `part` has, `ahead` bytes after it: a block is read in strides, which
/// the hardware does not foresee.
#[inline(always)]
fn prefetch<S: Simd, T>(simd: S, part: &[T], ahead: usize) {
    part.iter().step_by(LINE / size_of::<T>()).for_each(|x| simd.prefetch(x, ahead));
}

/// Some queries of one key head.
pub(super) struct Strips<'a> {
    pub(super) isa: Isa,
    /// `[dim]` each, and what they see.
    pub(super) queries: Vec<(&'a [f32], Range<usize>)>,
    /// A multiple of 16.
    pub(super) dim: usize,
    pub(super) scale: f32,
    /// `[queries, dim]`, perhaps longer.
    pub(super) out: &'a mut [f32],
}

impl OnHead for Strips<'_> {
    type Output = ();

    fn run<T: Element>(self, head: &Head<T>) {
        let Self { isa, queries, dim, scale, out } = self;
        let seen = queries.iter().map(|(_, visible)| visible).filter(|visible| !visible.is_empty());
        let Some(first) = seen.clone().map(|visible| visible.start).min() else {
            return out.fill(0.0);
        };
        let end = seen.map(|visible| visible.end).max().unwrap_or(first);
        // Position `first + j` is in lane `j mod 16`.
        let first = first / LANES * LANES;
        let len = (end - first).next_multiple_of(LANES);
        let mut scores = vec![0.0; queries.len() * len];
        let packed = packed(&queries, dim);
        simd::run(isa, Scores { head, queries: &packed, dim, scale, first, len, out: &mut scores });

        let visible: Vec<_> = queries.into_iter().map(|(_, visible)| visible).collect();
        let mut sums = Vec::with_capacity(visible.len());
        for (scores, visible) in scores.chunks_exact_mut(len).zip(&visible) {
            let seen = visible.start.max(first) - first..visible.end.max(first) - first;
            sums.push(softmax(isa, scores, seen));
        }
        out.fill(0.0);
        let weights = &scores[..];
        simd::run(
            isa,
            Weighted { head, weights, visible: &visible, dim, first, len, out: &mut *out },
        );
        for (out, sum) in out.chunks_exact_mut(dim).zip(&sums).filter(|(_, sum)| **sum != 0.0) {
            out.iter_mut().for_each(|out| *out /= sum);
        }
    }
}

/// How many of `left` queries go over the keys together.
#[inline(always)]
fn together(left: usize) -> usize {
    match left {
        6.. => 6,
        4.. => 4,
        2.. => 2,
        left => left,
    }
}

/// Queries that go [`together`] side by side, `[dim, together]`, with the dimensions in the order of
/// [`Scores::block`]: lane by lane.
fn packed(queries: &[(&[f32], Range<usize>)], dim: usize) -> Vec<f32> {
    let mut packed = Vec::with_capacity(queries.len() * dim);
    let mut left = queries;
    while !left.is_empty() {
        let (group, rest) = left.split_at(together(left.len()));
        for d in (0..LANES).flat_map(|lane| (lane..dim).step_by(LANES)) {
            packed.extend(group.iter().map(|(q, _)| q[d]));
        }
        left = rest;
    }
    packed
}

/// Scores of positions `first..first + len` by every query: `[queries, len]`.
struct Scores<'a, T> {
    head: &'a Head<T>,
    /// See [`packed`].
    queries: &'a [f32],
    dim: usize,
    scale: f32,
    first: usize,
    len: usize,
    out: &'a mut [f32],
}

impl<T: Element> Kernel for Scores<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(mut self, simd: S) {
        let n = self.queries.len() / self.dim;
        for block in (0..self.len).step_by(LANES) {
            let mut query = 0;
            while query < n {
                query += match together(n - query) {
                    6 => self.block::<S, 6>(simd, block, query),
                    4 => self.block::<S, 4>(simd, block, query),
                    2 => self.block::<S, 2>(simd, block, query),
                    _ => self.block::<S, 1>(simd, block, query),
                };
            }
        }
    }
}

impl<T: Element> Scores<'_, T> {
    /// 16 positions by `Q` queries.
    #[inline(always)]
    fn block<S: Simd, const Q: usize>(&mut self, simd: S, block: usize, query: usize) -> usize {
        let keys = self.head.key_block(self.first + block, self.dim);
        let queries = self.queries[query * self.dim..][..Q * self.dim].as_chunks::<Q>().0;
        let chunks = self.dim / LANES;
        let mut lanes = [[simd.splat(0.0); Q]; LANES];
        for (l, (lane, queries)) in lanes.iter_mut().zip(queries.chunks_exact(chunks)).enumerate() {
            if query == 0 {
                let part = &keys[l * chunks..(l + 1) * chunks];
                prefetch(simd, part.as_flattened(), size_of_val(keys));
            }
            let mut sums = [simd.splat(0.0); Q];
            let keys = keys.as_chunks::<LANES>().0.iter().map(|keys| &keys[l]);
            for (key, queries) in keys.zip(queries) {
                let key = T::load(simd, key);
                for (sum, q) in sums.iter_mut().zip(queries) {
                    *sum = simd.add(*sum, simd.mul(simd.splat(*q), key));
                }
            }
            *lane = sums;
        }
        for apart in [8, 4, 2, 1] {
            let (low, high) = lanes.split_at_mut(apart);
            for (low, high) in low.iter_mut().zip(high) {
                low.iter_mut().zip(high).for_each(|(low, high)| *low = simd.add(*low, *high));
            }
        }
        let scale = simd.splat(self.scale);
        for (q, dot) in lanes[0].into_iter().enumerate() {
            let at = (query + q) * self.len + block;
            let out = &mut self.out[at..at + LANES].as_chunks_mut().0[0];
            simd.store(simd.mul(dot, scale), out);
        }
        Q
    }
}

simd::per_isa! {
    /// Makes scores into weights, those outside of `seen` into 0; gives the sum, 0 if nothing is seen.
    fn softmax(scores: &mut [f32], seen: Range<usize>) -> f32 {
        if seen.is_empty() {
            scores.fill(0.0);
            return 0.0;
        }
        scores[..seen.start].fill(f32::NEG_INFINITY);
        scores[seen.end..].fill(f32::NEG_INFINITY);
        let mut most = [f32::NEG_INFINITY; LANES];
        for scores in scores.as_chunks::<LANES>().0 {
            for (most, score) in most.iter_mut().zip(scores) {
                *most = if *score > *most { *score } else { *most };
            }
        }
        let most = most.into_iter().fold(f32::NEG_INFINITY, f32::max);
        scores.iter_mut().for_each(|score| *score = exp(*score - most));
        // They would be no numbers if the maximum is none.
        scores[..seen.start].fill(0.0);
        scores[seen.end..].fill(0.0);
        let mut lanes = [0.0; LANES];
        for weights in scores.as_chunks::<LANES>().0 {
            for (lane, weight) in lanes.iter_mut().zip(weights) {
                *lane += weight;
            }
        }
        for apart in [8, 4, 2, 1] {
            for i in 0..apart {
                lanes[i] += lanes[i + apart];
            }
        }
        lanes[0]
    }
}

/// Adds the weighted values to `out`, `[queries, dim]`.
struct Weighted<'a, T> {
    head: &'a Head<T>,
    /// `[queries, len]`.
    weights: &'a [f32],
    visible: &'a [Range<usize>],
    dim: usize,
    first: usize,
    len: usize,
    out: &'a mut [f32],
}

impl<T: Element> Kernel for Weighted<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(mut self, simd: S) {
        let end = self.visible.iter().map(|visible| visible.end).max().unwrap_or(0);
        for first in (self.first..end).step_by(BLOCK) {
            let block = first..end.min(first + BLOCK);
            let mut query = 0;
            while query < self.visible.len() {
                query += match together(self.visible.len() - query) {
                    6 => self.together::<S, 6>(simd, &block, query),
                    4 => self.together::<S, 4>(simd, &block, query),
                    2 => self.together::<S, 2>(simd, &block, query),
                    _ => self.together::<S, 1>(simd, &block, query),
                };
            }
        }
    }
}

impl<T: Element> Weighted<'_, T> {
    /// `Q` queries: what all of them see together, what is before and after it alone.
    #[inline(always)]
    fn together<S: Simd, const Q: usize>(
        &mut self,
        simd: S,
        block: &Range<usize>,
        query: usize,
    ) -> usize {
        let clipped: [Range<usize>; Q] = std::array::from_fn(|i| {
            let visible = &self.visible[query + i];
            let start = visible.start.clamp(block.start, block.end);
            start..visible.end.clamp(start, block.end)
        });
        let start = clipped.iter().map(|seen| seen.start).max().unwrap_or(block.end);
        let end = clipped.iter().map(|seen| seen.end).min().unwrap_or(start).max(start);
        for (i, seen) in clipped.iter().enumerate() {
            self.add::<S, 1>(simd, seen.start..seen.end.min(start), query + i);
        }
        self.add::<S, Q>(simd, start..end, query);
        for (i, seen) in clipped.iter().enumerate() {
            self.add::<S, 1>(simd, seen.start.max(end)..seen.end, query + i);
        }
        Q
    }

    /// Adds the values at `positions` to the outputs of `Q` queries.
    #[inline(always)]
    fn add<S: Simd, const Q: usize>(&mut self, simd: S, positions: Range<usize>, query: usize) {
        if positions.is_empty() {
            return;
        }
        let dim = self.dim;
        let at = positions.start - self.first;
        let values = self.head.values(positions.clone(), dim);
        // Those of a position side by side.
        let mut weights = [[0.0; Q]; BLOCK];
        for i in 0..Q {
            let of_query = &self.weights[(query + i) * self.len + at..][..positions.len()];
            weights.iter_mut().zip(of_query).for_each(|(weights, w)| weights[i] = *w);
        }
        let outs = &mut self.out[query * dim..(query + Q) * dim];
        for d in 0..dim / LANES {
            if query == 0 && values.len() == BLOCK * dim {
                prefetch(simd, &values[d * BLOCK * LANES..][..BLOCK * LANES], size_of_val(values));
            }
            let mut sums = [simd.splat(0.0); Q];
            for (i, sum) in sums.iter_mut().enumerate() {
                *sum = simd.load(&outs[i * dim..].as_chunks().0[d]);
            }
            for (values, weights) in values.chunks_exact(dim).zip(&weights) {
                let value = T::load(simd, &values.as_chunks().0[d]);
                for (sum, weight) in sums.iter_mut().zip(weights) {
                    *sum = simd.add(*sum, simd.mul(simd.splat(*weight), value));
                }
            }
            for (i, sum) in sums.into_iter().enumerate() {
                simd.store(sum, &mut outs[i * dim..].as_chunks_mut().0[d]);
            }
        }
    }
}
