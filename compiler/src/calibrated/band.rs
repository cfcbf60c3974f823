//! A band of rows of a matrix, run of columns after run of columns.

use std::sync::Arc;

use formats::{GROUP, TernaryRows, scale};
use half::f16;

use super::hessian::Hessian;
use super::solve::{Losses, Solver};
use crate::Error;
use crate::ternary::{Choice, GroupFault, Stats};

/// What calibrated rounding did to a band.
#[derive(Debug, Clone, Default)]
pub(crate) struct Rounded {
    pub(crate) stats: Stats,
    pub(crate) losses: Losses,
}

/// A group of the band without a ternary form, by the flat index of its first weight in
/// the band, or moments that are none.
#[derive(Debug)]
pub(crate) enum BandFault {
    Group(usize, GroupFault),
    Moments(Error),
}

/// Rounds rows of rotated weights.
///
/// * `w`: `[rows, cols]`
/// * `n`: columns of a run; `hessian(i)` are the moments of run i
/// * `first`: the run to begin with, so that workers do not all prepare the same; the
///   result does not depend on it
///
/// # Errors
/// The first group, in the order of the weights, that has no ternary form.
pub(crate) fn round(
    solver: &mut Solver,
    w: &[f32],
    n: usize,
    first: usize,
    hessian: impl Fn(usize) -> Result<Arc<Hessian>, Error>,
    out: &mut TernaryRows,
    run: &mut Vec<f32>,
) -> Result<Rounded, BandFault> {
    let (rows, cols) = (out.rows(), out.cols());
    let units = cols / n;
    let mut parts = vec![Rounded::default(); units];
    let mut fault: Option<(usize, GroupFault)> = None;
    for unit in (0..units).map(|i| (first + i) % units) {
        let h = hessian(unit).map_err(BandFault::Moments)?;
        run.clear();
        for row in w.chunks_exact(cols) {
            run.extend_from_slice(&row[unit * n..(unit + 1) * n]);
        }
        match solver.solve(&h, run) {
            Ok(losses) => parts[unit].losses = losses,
            Err(found) => {
                let (GroupFault::NotFinite { group }
                | GroupFault::Overflow { group, .. }
                | GroupFault::NotTernary { group, .. }) = found;
                let per_row = n / GROUP;
                let at = group / per_row * cols + unit * n + group % per_row * GROUP;
                if fault.is_none_or(|(first, _)| at < first) {
                    fault = Some((at, found));
                }
                continue;
            }
        }
        for r in 0..rows {
            let (codes, scales) = solver.row(r, n);
            let w = &run[r * n..(r + 1) * n];
            for (g, scale) in scales.iter().enumerate() {
                let columns = g * GROUP..(g + 1) * GROUP;
                let group = unit * n / GROUP + g;
                let (w, codes) = (&w[columns.clone()], &codes[columns]);
                store(w, codes, *scale, r, group, out, &mut parts[unit].stats);
            }
        }
    }
    if let Some((at, fault)) = fault {
        return Err(BandFault::Group(at, fault));
    }
    let mut whole = Rounded::default();
    for part in &parts {
        whole.stats.merge(&part.stats);
        whole.losses.merge(&part.losses);
    }
    Ok(whole)
}

/// Writes one group of row `r` and counts it. Codes without a scale are zeros, and a
/// group of zeros has no scale.
fn store(
    w: &[f32],
    codes: &[f32],
    scale: f64,
    r: usize,
    group: usize,
    out: &mut TernaryRows,
    stats: &mut Stats,
) {
    let stored = scale::round_to_grid(scale).unwrap_or(f16::ZERO);
    let is_off = stored == f16::ZERO || codes.iter().all(|code| *code == 0.0);
    let (mut energy, mut sum, mut support) = (0.0, 0.0, 0);
    for (i, (w, code)) in w.iter().zip(codes).enumerate() {
        let code = if is_off { 0.0 } else { *code };
        let w = f64::from(*w);
        energy += w * w;
        sum += w * f64::from(code);
        support += usize::from(code != 0.0);
        out.set_code(r, group * GROUP + i, (code + 1.0) as u8);
    }
    let stored = if is_off { f16::ZERO } else { stored };
    out.set_scale(r, group, stored);
    stats.add(Choice { scale: stored.to_f64(), support, sum, energy }, stored);
}
