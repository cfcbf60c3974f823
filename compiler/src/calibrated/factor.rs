//! The factorization that says how later weights can make up for earlier errors.
//!
//! `H = U D U^T` with `U` unit upper triangular gives, for a row of errors `e`,
//! `e H e^T = sum over j of D_j (e U)_j^2`, and `(e U)_j` has the errors up to j only.
//! Rounding column after column to the value nearest to `w_j + sum over i < j of
//! e_i U_ij` therefore keeps every term near its smallest. The pivots `D` say how well
//! that goes: their sum is what remains of the trace of `H`, and depends on the order
//! of the columns.
//!
//! `U D U^T` is the Cholesky factorization of `H` read backwards. It is done in f64,
//! in panels of 64 rows, every entry in one order of operations.

use hadamard::{Isa, per_isa};

use super::matmul::Panels;

/// Rows that are eliminated together.
const PANEL: usize = 64;
/// Columns of a tile, f64 lanes of two widest vectors.
const WIDTH: usize = 16;
/// Rows of a tile.
const HEIGHT: usize = 4;

/// `U` and `D` of one matrix.
#[derive(Debug)]
pub(super) struct Factor {
    /// Strictly upper part of `U`, zeros elsewhere.
    pub(super) u: Panels,
    /// Sum of the pivots `D`.
    pub(super) pivots: f64,
}

impl Factor {
    /// Factors the matrix with `entry(i, j)`, symmetric with `n` rows (a multiple of
    /// 64). A pivot below `floor`, which only rounding leaves in a positive matrix, is
    /// raised to it.
    pub(super) fn new(isa: Isa, n: usize, floor: f64, entry: impl Fn(usize, usize) -> f64) -> Self {
        let mut a = vec![0.0; n * n];
        for (i, row) in a.chunks_exact_mut(n).enumerate() {
            for (j, value) in row.iter_mut().enumerate().skip(i) {
                *value = entry(n - 1 - i, n - 1 - j);
            }
        }
        upper_cholesky(isa, &mut a, n, floor);
        let inverse: Vec<f64> = (0..n).map(|k| 1.0 / a[k * n + k]).collect();
        let u = Panels::new(n, |i, j| {
            let (k, m) = (n - 1 - j, n - 1 - i);
            if i < j { (a[k * n + m] * inverse[k]) as f32 } else { 0.0 }
        });
        let pivots = (0..n).map(|k| a[k * n + k] * a[k * n + k]).sum();
        Self { u, pivots }
    }
}

/// Replaces the upper triangle of `a` by `R` with `R^T R = a`; what is below is not
/// read and may change.
fn upper_cholesky(isa: Isa, a: &mut [f64], n: usize, floor: f64) {
    let mut transposed = vec![[0.0; PANEL]; n];
    let mut packed = vec![[0.0; WIDTH]; PANEL];
    for first in (0..n).step_by(PANEL) {
        let (done, rest) = a.split_at_mut((first + PANEL) * n);
        let panel = &mut done[first * n..];
        eliminate(isa, panel, n, first, floor);
        for (k, row) in panel.chunks_exact(n).enumerate() {
            for (column, value) in transposed.iter_mut().zip(row) {
                column[k] = *value;
            }
        }
        subtract(isa, panel, &transposed, &mut packed, rest, n, first + PANEL);
    }
}

per_isa! {
    /// Cholesky of the first columns of a panel, applied to all of its columns.
    fn eliminate(panel: &mut [f64], n: usize, first: usize, floor: f64) {
        for k in 0..PANEL {
            let (head, tail) = panel.split_at_mut((k + 1) * n);
            let row = &mut head[k * n..];
            let column = first + k;
            let root = row[column].max(floor).sqrt();
            let inverse = 1.0 / root;
            row[column] = root;
            for value in &mut row[column + 1..] {
                *value *= inverse;
            }
            for (i, below) in tail.chunks_exact_mut(n).enumerate() {
                let from = column + 1 + i;
                let factor = row[from];
                for (value, above) in below[from..].iter_mut().zip(&row[from..]) {
                    *value -= factor * above;
                }
            }
        }
    }

    /// Takes what the panel accounts for out of the rows below it, from `start` on.
    fn subtract(
        panel: &[f64],
        transposed: &[[f64; PANEL]],
        packed: &mut [[f64; WIDTH]],
        rest: &mut [f64],
        n: usize,
        start: usize,
    ) {
        for column in (start..n).step_by(WIDTH) {
            for (packed, row) in packed.iter_mut().zip(panel.chunks_exact(n)) {
                packed.copy_from_slice(&row[column..column + WIDTH]);
            }
            // Tiles on the diagonal reach below it, where nobody reads.
            for row in (start..column + WIDTH).step_by(HEIGHT) {
                let at = (row - start) * n + column;
                let mut sums = [[0.0; WIDTH]; HEIGHT];
                for t in 0..HEIGHT {
                    sums[t].copy_from_slice(&rest[at + t * n..][..WIDTH]);
                }
                for k in 0..PANEL {
                    for t in 0..HEIGHT {
                        let factor = transposed[row + t][k];
                        for lane in 0..WIDTH {
                            sums[t][lane] -= factor * packed[k][lane];
                        }
                    }
                }
                for t in 0..HEIGHT {
                    rest[at + t * n..][..WIDTH].copy_from_slice(&sums[t]);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_factors_give_the_matrix_back() {
        let n = 192;
        let mut next = crate::testing::uniform(3);
        let x = nalgebra::DMatrix::from_fn(n, 2 * n, |_, _| next());
        let h = &x * x.transpose();
        let factor = Factor::new(Isa::detect(), n, 0.0, |i, j| h[(i, j)]);
        let u = nalgebra::DMatrix::from_fn(n, n, |i, j| {
            let stored = factor.u.part(j / 16, i..i + 1)[0][j % 16];
            if i == j { 1.0 } else { f64::from(stored) }
        });
        let inverse = u.clone().try_inverse().unwrap();
        let d = &inverse * &h * inverse.transpose();
        for i in 0..n {
            for j in 0..n {
                let expected = if i == j { d[(i, i)] } else { 0.0 };
                assert!((d[(i, j)] - expected).abs() < 1e-3 * h[(i, i)], "{i} {j}");
            }
        }
        assert!((d.trace() - factor.pivots).abs() < 1e-3 * factor.pivots);
        let u = |isa| {
            let factor = Factor::new(isa, n, 0.0, |i, j| h[(i, j)]);
            (0..n / 16).flat_map(|p| factor.u.part(p, 0..n).to_vec()).collect::<Vec<_>>()
        };
        for isa in Isa::available() {
            assert!(u(isa) == u(Isa::scalar()), "{:?}", isa.level());
        }
    }
}
