//! Sums of outer products of a few rows, tile by tile, in integers.

use formats::calib::to_units;

use crate::Error;
use crate::simd::per_isa;

/// Rows of a tile that are computed together, and lanes.
const STRIP: usize = 4;
const LANES: usize = 8;

/// Smallest tile.
pub(super) const MIN_BLOCK: usize = LANES;

/// The rows of one block of columns, `[n, block]`, in f64.
pub(super) struct Columns {
    block: usize,
    plain: Vec<f64>,
    /// Times the weight of each row: exact, because a weight has 17 bits and a value 24.
    weighted: Vec<f64>,
}

impl Columns {
    /// Columns `first..first + block` of rows of `width`.
    pub(super) fn new(
        rows: &[f32],
        width: usize,
        weights: &[f64],
        first: usize,
        block: usize,
    ) -> Self {
        let mut columns =
            Self { block, plain: Vec::new(), weighted: Vec::with_capacity(weights.len() * block) };
        columns.plain.reserve_exact(weights.len() * block);
        for (row, weight) in rows.chunks_exact(width).zip(weights) {
            let row = &row[first..first + block];
            columns.plain.extend(row.iter().map(|x| f64::from(*x)));
            columns.weighted.extend(row.iter().map(|x| f64::from(*x) * weight));
        }
        columns
    }
}

/// Adds `Σ w a bᵀ` to the tile `out`: whole rows of it, or with `upper` from the diagonal on. Each
/// element is summed in f64 over the rows in their order, then rounded to units of `2^exponent` and added.
///
/// # Errors
/// [`Error::Moments`] when a sum does not fit.
pub(super) fn add(
    isa: hadamard::Isa,
    a: &Columns,
    b: &Columns,
    upper: bool,
    exponent: i32,
    out: &mut [i64],
    input: formats::calib::Input,
) -> Result<(), Error> {
    let block = a.block;
    let mut sums = vec![0.0; STRIP * block];
    let mut rest = out;
    for first in (0..block).step_by(STRIP) {
        // The strip begins at a whole vector.
        let from = if upper { first / LANES * LANES } else { 0 };
        strip(isa, &a.weighted[first..], &b.plain, block, from, &mut sums);
        for r in 0..STRIP {
            let begin = if upper { first + r } else { 0 };
            let (row, later) = rest.split_at_mut(block - begin);
            rest = later;
            for (out, sum) in row.iter_mut().zip(&sums[r * block + begin..(r + 1) * block]) {
                let total = to_units(*sum, exponent).and_then(|units| out.checked_add(units));
                *out = total.ok_or_else(|| Error::Moments { input: input.to_string() })?;
            }
        }
    }
    Ok(())
}

per_isa! {
    /// `out[r][c] = Σ_k a[k][r] b[k][c]` for four `r` and all `c` from `from` on; rows of `a` and `b` lie
    /// `block` apart.
    fn strip(a: &[f64], b: &[f64], block: usize, from: usize, out: &mut [f64]) {
        for c in (from..block).step_by(LANES) {
            let mut sums = [[0.0f64; LANES]; STRIP];
            for (a, b) in a.chunks(block).zip(b.chunks_exact(block)) {
                let (Some(a), Some(b)) = (a.first_chunk::<STRIP>(), b[c..].first_chunk::<LANES>())
                else {
                    continue;
                };
                for (sums, a) in sums.iter_mut().zip(a) {
                    for (sum, b) in sums.iter_mut().zip(b) {
                        *sum += a * b;
                    }
                }
            }
            for (r, sums) in sums.iter().enumerate() {
                out[r * block + c..r * block + c + LANES].copy_from_slice(sums);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use formats::calib::Input;
    use hadamard::Isa;

    use super::*;

    #[test]
    fn every_instruction_set_gives_the_plain_sum() {
        let (n, width, block) = (13, 48, 16);
        let value = |i: usize| ((i * 2_654_435_761) % 1000) as f32 / 333.0 - 1.5;
        let rows: Vec<f32> = (0..n * width).map(value).collect();
        let weights: Vec<f64> = (0..n).map(|i| (65536 - 1000 * i) as f64 / 65536.0).collect();
        for (i, j) in [(0, 0), (1, 1), (0, 2)] {
            let upper = i == j;
            let mut expected = Vec::new();
            for r in 0..block {
                for c in if upper { r } else { 0 }..block {
                    let mut sum = 0.0;
                    for (row, weight) in rows.chunks_exact(width).zip(&weights) {
                        let (a, b) = (row[i * block + r], row[j * block + c]);
                        sum += f64::from(a) * weight * f64::from(b);
                    }
                    expected.push((sum * 1024.0).round_ties_even() as i64 + 5);
                }
            }
            for isa in [Isa::scalar(), Isa::detect()] {
                let columns = |at| Columns::new(&rows, width, &weights, at * block, block);
                let mut out = vec![5; expected.len()];
                add(isa, &columns(i), &columns(j), upper, -10, &mut out, Input::Fc).unwrap();
                assert_eq!(out, expected, "tile {i}, {j}");
            }
        }
    }

    #[test]
    fn sums_that_do_not_fit_are_errors() {
        let columns = |x| Columns::new(&[x; 8], 8, &[1.0], 0, 8);
        for (x, before) in [(f32::NAN, 0), (f32::INFINITY, 0), (1e20, 0), (1.0, i64::MAX)] {
            let mut out = [before; 36];
            let (a, b) = (columns(x), columns(x));
            let error = add(Isa::detect(), &a, &b, true, 0, &mut out, Input::Context).unwrap_err();
            assert!(error.to_string().contains("context"), "{error}");
        }
    }
}
