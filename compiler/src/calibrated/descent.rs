//! Code after code becomes the best one, given all others.
//!
//! With the errors `e` of a row and its gradient `g = e H`, moving the code of column j
//! by d changes the loss `e H e^T` by `s d (s d H_jj - 2 g_j)`. That is below zero for a
//! step up when `g_j > s H_jj / 2`, for two at once the better choice when `g_j > 3 s
//! H_jj / 2`; steps down likewise. A move changes the whole gradient, by a row of `H`,
//! and that is all the work: codes that stay cost next to nothing.

use std::ops::Range;

use formats::GROUP;
use hadamard::{Isa, per_isa};

use super::matmul::LANES;

/// A move must gain this much more than nothing, relative to the threshold, so that
/// rounding cannot keep codes moving forever.
const MARGIN: f32 = 1.0 + 1.0 / 1024.0;

/// The diagonal of `H`, halved, with the margin: what `g_j / s` must exceed.
pub(super) fn thresholds(h: &[f32], n: usize) -> Vec<f32> {
    (0..n).map(|j| 0.5 * MARGIN * h[j * n + j]).collect()
}

/// Rows under descent; `[rows, n]` each.
#[derive(Debug)]
pub(super) struct Rows<'a> {
    /// Codes, -1, 0 and +1.
    pub(super) codes: &'a mut [f32],
    /// `g` of the module documentation.
    pub(super) gradient: &'a mut [f32],
    /// `t_g H` for the codes `t_g` of the group at hand.
    pub(super) product: &'a mut [f32],
}

/// Visits the codes of one group of all rows in ascending order; returns how many
/// moved.
///
/// * `h`: `[n, n]`; `thresholds`: of it
/// * `columns`: those of the group
/// * `scales`: of the group, `[rows]`
pub(super) fn group(
    isa: Isa,
    h: &[f32],
    thresholds: &[f32],
    columns: Range<usize>,
    scales: &[f32],
    rows: Rows<'_>,
) -> u64 {
    visit(isa, h, thresholds, columns.start, scales, rows)
}

per_isa! {
    fn visit(
        h: &[f32],
        thresholds: &[f32],
        first: usize,
        scales: &[f32],
        rows: Rows<'_>,
    ) -> u64 {
        let Rows { codes, gradient, product } = rows;
        let n = thresholds.len();
        let mut moved = 0;
        for (r, s) in scales.iter().copied().enumerate() {
            if s <= 0.0 {
                continue;
            }
            let codes = &mut codes[r * n..(r + 1) * n];
            let gradient = &mut gradient[r * n..(r + 1) * n];
            let product = &mut product[r * n..(r + 1) * n];
            for start in (first..first + GROUP).step_by(LANES) {
                let mut from = 0;
                while let Some(lane) = next(
                    s,
                    &thresholds[start..start + LANES],
                    &codes[start..start + LANES],
                    &gradient[start..start + LANES],
                    from,
                ) {
                    let j = start + lane;
                    let wish = if gradient[j].abs() > 3.0 * s * thresholds[j] { 2.0 } else { 1.0 };
                    let step = (codes[j] + wish * 1.0f32.copysign(gradient[j])).clamp(-1.0, 1.0)
                        - codes[j];
                    codes[j] += step;
                    let by = -s * step;
                    let row = &h[j * n..(j + 1) * n];
                    for i in 0..n {
                        gradient[i] += by * row[i];
                        product[i] += step * row[i];
                    }
                    moved += 1;
                    from = lane + 1;
                }
            }
        }
        moved
    }
}

/// The first of 16 codes, from `from` on, that gains by a step.
#[inline(always)]
fn next(s: f32, thresholds: &[f32], codes: &[f32], gradient: &[f32], from: usize) -> Option<usize> {
    let mut wants = [false; LANES];
    let mut any = false;
    for lane in 0..LANES {
        let threshold = s * thresholds[lane];
        let up = (gradient[lane] > threshold) & (codes[lane] < 1.0);
        let down = (-gradient[lane] > threshold) & (codes[lane] > -1.0);
        wants[lane] = up | down;
        any |= up | down;
    }
    if !any {
        return None;
    }
    (from..LANES).find(|lane| wants[*lane])
}
