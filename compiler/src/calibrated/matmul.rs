//! Products with square matrices, in one order of additions.
//!
//! Every output is one ascending chain of f32 products and sums, each rounded once,
//! however rows and columns are tiled; so all instruction sets and all cuts into
//! pieces give the same bits.

use std::ops::Range;

use hadamard::{Isa, Level, per_isa};

/// Columns of a panel: the lanes of the widest vector.
pub(super) const LANES: usize = 16;

/// A square matrix cut into panels of 16 columns, so that a product reads it in one
/// stream: entry (k, j) is lane j mod 16 of row k of panel j / 16.
#[derive(Debug)]
pub(super) struct Panels {
    n: usize,
    rows: Vec<[f32; LANES]>,
}

impl Panels {
    /// `entry(k, j)` for k, j < `n`; `n` is a multiple of 16.
    pub(super) fn new(n: usize, entry: impl Fn(usize, usize) -> f32) -> Self {
        let rows = (0..n / LANES)
            .flat_map(|p| (0..n).map(move |k| (p, k)))
            .map(|(p, k)| std::array::from_fn(|lane| entry(k, p * LANES + lane)))
            .collect();
        Self { n, rows }
    }

    /// Rows `ks` of the columns `16 p ..`.
    #[inline(always)]
    pub(super) fn part(&self, p: usize, ks: Range<usize>) -> &[[f32; LANES]] {
        &self.rows[p * self.n + ks.start..p * self.n + ks.end]
    }
}

/// `out[r][j] += sum over k in ks of a[r][k] b[k][j]`, k ascending, for the columns
/// from `first` (a multiple of 16) on.
///
/// * `a`, `out`: `[rows, n]`
pub(super) fn add_product(
    isa: Isa,
    a: &[f32],
    b: &Panels,
    ks: Range<usize>,
    first: usize,
    out: &mut [f32],
) {
    // As many accumulators as there are registers for.
    if isa.level() >= Level::Avx512 {
        wide(isa, a, b, ks, first, out);
    } else {
        narrow(isa, a, b, ks, first, out);
    }
}

per_isa! {
    fn wide(a: &[f32], b: &Panels, ks: Range<usize>, first: usize, out: &mut [f32]) {
        tiled::<8>(a, b, ks, first, out);
    }

    fn narrow(a: &[f32], b: &Panels, ks: Range<usize>, first: usize, out: &mut [f32]) {
        tiled::<4>(a, b, ks, first, out);
    }
}

#[inline(always)]
fn tiled<const T: usize>(a: &[f32], b: &Panels, ks: Range<usize>, first: usize, out: &mut [f32]) {
    let n = b.n;
    let rows = out.len() / n;
    for p in first / LANES..n / LANES {
        let part = b.part(p, ks.clone());
        let mut r = 0;
        while r + T <= rows {
            tile::<T>(&a[r * n..], part, ks.clone(), n, &mut out[r * n..], p * LANES);
            r += T;
        }
        while r < rows {
            tile::<1>(&a[r * n..], part, ks.clone(), n, &mut out[r * n..], p * LANES);
            r += 1;
        }
    }
}

/// `T` rows of one panel.
#[inline(always)]
fn tile<const T: usize>(
    a: &[f32],
    part: &[[f32; LANES]],
    ks: Range<usize>,
    n: usize,
    out: &mut [f32],
    column: usize,
) {
    let a: [&[f32]; T] = std::array::from_fn(|t| &a[t * n + ks.start..][..part.len()]);
    let mut sums = [[0.0f32; LANES]; T];
    for (t, sum) in sums.iter_mut().enumerate() {
        sum.copy_from_slice(&out[t * n + column..][..LANES]);
    }
    for (k, b) in part.iter().enumerate() {
        for t in 0..T {
            let x = a[t][k];
            for lane in 0..LANES {
                sums[t][lane] += x * b[lane];
            }
        }
    }
    for (t, sum) in sums.iter().enumerate() {
        out[t * n + column..][..LANES].copy_from_slice(sum);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(20))]

        #[test]
        fn every_level_and_cut_gives_the_bits_of_the_plain_sum(
            rows in 1usize..20,
            panels in 1usize..6,
            seed in any::<u64>(),
        ) {
            let n = panels * LANES;
            let mut next = crate::testing::uniform(seed);
            let b: Vec<f32> = (0..n * n).map(|_| next() as f32).collect();
            let a: Vec<f32> = (0..rows * n).map(|_| next() as f32).collect();
            let mut plain = vec![0.0f32; rows * n];
            for r in 0..rows {
                for j in 0..n {
                    for k in 0..n {
                        plain[r * n + j] += a[r * n + k] * b[k * n + j];
                    }
                }
            }
            let packed = Panels::new(n, |k, j| b[k * n + j]);
            let cut = n / 3;
            for isa in Isa::available() {
                let mut out = vec![0.0; rows * n];
                add_product(isa, &a, &packed, 0..cut, 0, &mut out);
                add_product(isa, &a, &packed, cut..n, 0, &mut out);
                prop_assert!(out == plain, "{:?}", isa.level());
            }
        }
    }
}
