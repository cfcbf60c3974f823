//! The start: columns rounded one after another, each making up for the errors of
//! those before it (see [`super::factor`]).
//!
//! In the order of the columns a group's scale is the optimum for its weights as they
//! are when it begins. In another order its columns come at different times, and the
//! scale is that of the plain weights.

use formats::GROUP;
use hadamard::{Isa, per_isa};
use half::f16;

use super::hessian::Hessian;
use super::matmul::{LANES, Panels, add_product};
use crate::ternary::{GroupFault, Rule, Stats, Ternarizer};

/// Working memory.
#[derive(Debug, Default)]
pub(super) struct Start {
    /// Weights in the order of rounding.
    weights: Vec<f32>,
    /// The same, with what errors so far ask of them.
    wanted: Vec<f32>,
    errors: Vec<f32>,
    codes: Vec<f32>,
    /// One group of all rows, and the scale of each of its weights.
    group: Vec<f32>,
    scale: Vec<f32>,
    stored: Vec<f16>,
    bytes: Vec<u8>,
}

impl Start {
    /// Rounds rows.
    ///
    /// * `w`: `[rows, n]`
    /// * `scales`: `[rows, n / 128]`; those of the plain weights, replaced by those used
    /// * `codes`: `[rows, n]`, set to -1, 0 and +1
    ///
    /// # Errors
    /// A group whose weights grow until no scale holds them.
    pub(super) fn round(
        &mut self,
        isa: Isa,
        h: &Hessian,
        w: &[f32],
        scales: &mut [f64],
        codes: &mut [f32],
    ) -> Result<(), GroupFault> {
        let n = h.n();
        let rows = w.len() / n;
        let groups = n / GROUP;
        let column = |at: usize| h.order.as_ref().map_or(at, |order| order[at] as usize);
        self.weights.clear();
        for row in w.chunks_exact(n) {
            self.weights.extend((0..n).map(|at| row[column(at)]));
        }
        self.wanted.clone_from(&self.weights);
        for buffer in [&mut self.errors, &mut self.codes] {
            buffer.resize(rows * n, 0.0);
        }
        for buffer in [&mut self.group, &mut self.scale] {
            buffer.resize(rows * GROUP, 0.0);
        }
        self.stored.resize(rows, f16::ZERO);
        self.bytes.resize(rows * GROUP / 4, 0);

        for first in (0..n).step_by(GROUP) {
            if h.order.is_none() {
                self.choose_scales(isa, n, first)?;
                for (r, stored) in self.stored.iter().enumerate() {
                    scales[r * groups + first / GROUP] = stored.to_f64();
                }
            }
            for (r, scale) in self.scale.chunks_exact_mut(GROUP).enumerate() {
                for (i, scale) in scale.iter_mut().enumerate() {
                    *scale = scales[r * groups + column(first + i) / GROUP] as f32;
                }
            }
            let Self { weights, wanted, errors, codes, scale, .. } = self;
            round_group(isa, first, &h.u, Rows { n, weights, scale, wanted, errors, codes });
            add_product(isa, errors, &h.u, first..first + GROUP, first + GROUP, wanted);
        }
        for (from, to) in self.codes.chunks_exact(n).zip(codes.chunks_exact_mut(n)) {
            for (at, code) in from.iter().enumerate() {
                to[column(at)] = *code;
            }
        }
        Ok(())
    }

    /// The optimum for one group of all rows, as their weights are wanted now.
    fn choose_scales(&mut self, isa: Isa, n: usize, first: usize) -> Result<(), GroupFault> {
        for (row, group) in self.wanted.chunks_exact(n).zip(self.group.chunks_exact_mut(GROUP)) {
            group.copy_from_slice(&row[first..first + GROUP]);
        }
        let optimum = Ternarizer::new(Rule::Optimal, isa);
        optimum.groups(&self.group, &mut self.bytes, &mut self.stored, &mut Stats::default())
    }
}

/// What [`round_group`] works on: `[rows, n]` each, but for `scale`, `[rows, 128]`.
struct Rows<'a> {
    n: usize,
    weights: &'a [f32],
    scale: &'a [f32],
    wanted: &'a mut [f32],
    errors: &'a mut [f32],
    codes: &'a mut [f32],
}

per_isa! {
    /// Rounds the columns `first .. first + 128` in turn and passes their errors on to
    /// those after them in the group.
    fn round_group(
        first: usize,
        u: &Panels,
        rows: Rows<'_>,
    ) {
        let Rows { n, weights, scale, wanted, errors, codes } = rows;
        for column in first..first + GROUP {
            for (r, scale) in scale.chunks_exact(GROUP).enumerate() {
                let at = r * n + column;
                let (x, s) = (wanted[at], scale[column - first]);
                let code = if s > 0.0 && 2.0 * x.abs() > s { 1.0f32.copysign(x) } else { 0.0 };
                let error = weights[at] - s * code;
                codes[at] = code;
                errors[at] = error;
                let row = &mut wanted[r * n..(r + 1) * n];
                for p in column / LANES..(first + GROUP) / LANES {
                    // Zero up to `column` itself.
                    let u = &u.part(p, column..column + 1)[0];
                    let wanted = &mut row[p * LANES..(p + 1) * LANES];
                    for lane in 0..LANES {
                        wanted[lane] += error * u[lane];
                    }
                }
            }
        }
    }
}
