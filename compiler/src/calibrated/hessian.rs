//! The moments of one run of columns, made ready for all rows of a matrix.

use hadamard::Isa;

use super::factor::Factor;
use super::matmul::Panels;

/// A pivot below this share of the mean diagonal is rounding.
const FLOOR: f64 = 1e-7;

/// By how much less the pivots must sum to for another order than that of the columns:
/// only that one may choose each group's scale on the way.
const ORDER_PAYS: f64 = 0.95;

/// Why moments are none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum MomentFault {
    /// A moment is NaN or infinite.
    #[error("the moment of columns {0} and {1} is not finite")]
    NotFinite(usize, usize),
    /// A mean square is negative.
    #[error("the mean square of column {0} is negative")]
    Negative(usize),
}

/// `H` of one run of columns: the damped moments, scaled to a mean square of 1 before
/// the damping, and their factors.
#[derive(Debug)]
pub(crate) struct Hessian {
    n: usize,
    /// `[n, n]`
    pub(super) rows: Vec<f32>,
    /// The same, for products.
    pub(super) panels: Panels,
    /// The order in which columns are rounded, where it is not their own.
    pub(super) order: Option<Vec<u32>>,
    /// Factors of `H` in that order.
    pub(super) u: Panels,
    /// What was added to the diagonal.
    pub(super) damping: f64,
    /// Mean square of the inputs; what all else is relative to.
    pub(super) mean: f64,
}

impl Hessian {
    /// Prepares the moments `h`, `[n, n]` symmetric, of `n` columns (a multiple of
    /// 128). Inputs that were always zero say nothing: then all columns count alike.
    ///
    /// # Errors
    /// When `h` cannot be moments.
    pub(crate) fn new(isa: Isa, n: usize, h: &[f64], damping: f64) -> Result<Self, MomentFault> {
        if let Some(at) = h.iter().position(|v| !v.is_finite()) {
            return Err(MomentFault::NotFinite(at / n, at % n));
        }
        let diagonal = || (0..n).map(|i| h[i * n + i]);
        if let Some(at) = diagonal().position(|v| v < 0.0) {
            return Err(MomentFault::Negative(at));
        }
        let mean = diagonal().sum::<f64>() / n as f64;
        let is_zero = mean < f64::MIN_POSITIVE;
        let damped = |i: usize, j: usize| {
            let value = match is_zero {
                true => f64::from(u8::from(i == j)),
                false => h[i * n + j] / mean,
            };
            if i == j { value + damping } else { value }
        };
        let natural = Factor::new(isa, n, FLOOR, damped);
        let order = descending(n, |i| damped(i, i));
        let sorted = order.as_ref().map(|order| {
            let at = |i: usize| order[i] as usize;
            Factor::new(isa, n, FLOOR, |i, j| damped(at(i), at(j)))
        });
        let (u, order) = match sorted {
            Some(sorted) if sorted.pivots < ORDER_PAYS * natural.pivots => (sorted.u, order),
            _ => (natural.u, None),
        };
        let mut rows = vec![0.0; n * n];
        for (i, row) in rows.chunks_exact_mut(n).enumerate() {
            for (j, value) in row.iter_mut().enumerate() {
                *value = damped(i, j) as f32;
            }
        }
        let panels = Panels::new(n, |k, j| rows[k * n + j]);
        Ok(Self { n, rows, panels, order, u, damping, mean })
    }

    /// Columns.
    pub(crate) fn n(&self) -> usize {
        self.n
    }
}

/// Columns by falling mean square, equal ones in their own order; none if that is
/// their own already.
fn descending(n: usize, square: impl Fn(usize) -> f64) -> Option<Vec<u32>> {
    let mut order: Vec<u32> = (0..n as u32).collect();
    order.sort_by(|&a, &b| square(b as usize).total_cmp(&square(a as usize)));
    (!order.is_sorted()).then_some(order)
}
