//! One run of columns of some rows: start, then scales and codes in turn.

use formats::GROUP;
use hadamard::{Isa, per_isa};
use half::f16;

use super::descent::{self, Rows};
use super::hessian::Hessian;
use super::ldlq::Start;
use super::matmul::{LANES, add_product};
use super::scales;
use crate::ternary::{GroupFault, Rule, Stats, Ternarizer};

/// Losses of some rows: squared errors of the outputs, relative to nothing yet.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Losses {
    /// `w H w^T`: the energy of the outputs.
    pub(crate) energy: f64,
    /// With the weights' own optimum.
    pub(crate) optimal: f64,
    /// With the codes and scales chosen.
    pub(crate) chosen: f64,
}

impl Losses {
    /// Adds those of other rows or columns; call in ascending order.
    pub(crate) fn merge(&mut self, other: &Self) {
        self.energy += other.energy;
        self.optimal += other.optimal;
        self.chosen += other.chosen;
    }
}

/// Solves; keeps its working memory between calls.
#[derive(Debug)]
pub(crate) struct Solver {
    isa: Isa,
    /// Rounds of scales and codes at most; without any the start is the result.
    rounds: usize,
    start: Start,
    /// `[rows, n]` each: `w H`, errors, their gradient, codes.
    image: Vec<f32>,
    errors: Vec<f32>,
    gradient: Vec<f32>,
    codes: Vec<f32>,
    /// Codes of the weights' own optimum.
    plain: Vec<f32>,
    /// `[groups, rows, n]`: `t_g H`.
    products: Vec<f32>,
    /// `[rows, groups]`
    scales: Vec<f64>,
    plain_scales: Vec<f64>,
    column_scales: Vec<f32>,
    quadratic: Vec<f64>,
    linear: Vec<f64>,
    work: Vec<f64>,
    stored: Vec<f16>,
    bytes: Vec<u8>,
}

impl Solver {
    pub(crate) fn new(isa: Isa, rounds: usize) -> Self {
        Self {
            isa,
            rounds,
            start: Start::default(),
            image: Vec::new(),
            errors: Vec::new(),
            gradient: Vec::new(),
            codes: Vec::new(),
            plain: Vec::new(),
            products: Vec::new(),
            scales: Vec::new(),
            plain_scales: Vec::new(),
            column_scales: Vec::new(),
            quadratic: Vec::new(),
            linear: Vec::new(),
            work: Vec::new(),
            stored: Vec::new(),
            bytes: Vec::new(),
        }
    }

    /// Chooses codes and scales of `w`, `[rows, n]`; read them with [`Self::row`].
    ///
    /// # Errors
    /// The first group of the plain weights that has no ternary form.
    pub(crate) fn solve(&mut self, h: &Hessian, w: &[f32]) -> Result<Losses, GroupFault> {
        let n = h.n();
        let groups = n / GROUP;
        let rows = w.len() / n;
        self.round_plainly(w)?;
        self.image.clear();
        self.image.resize(w.len(), 0.0);
        add_product(self.isa, w, &h.panels, 0..n, 0, &mut self.image);

        let mut losses = Losses::default();
        let mut plain_losses = Vec::with_capacity(rows);
        errors_of(&mut self.errors, w, &self.plain, &self.plain_scales);
        self.gradient.clear();
        self.gradient.resize(w.len(), 0.0);
        add_product(self.isa, &self.errors, &h.panels, 0..n, 0, &mut self.gradient);
        for (r, w) in w.chunks_exact(n).enumerate() {
            let range = r * n..(r + 1) * n;
            losses.energy += h.undamped(dot(w, &self.image[range.clone()]), w);
            let e = &self.errors[range.clone()];
            let damped = dot(e, &self.gradient[range]);
            losses.optimal += h.undamped(damped, e);
            plain_losses.push(damped);
        }

        self.codes.resize(w.len(), 0.0);
        self.scales.clone_from(&self.plain_scales);
        let started = self.start.round(self.isa, h, w, &mut self.scales, &mut self.codes);
        if started.is_err() {
            self.codes.clone_from(&self.plain);
            self.scales.clone_from(&self.plain_scales);
        }
        self.form_products(h, rows);
        self.form_gradient(n, groups, rows);
        if self.rounds > 0 {
            self.alternate(h, rows, self.rounds);
        }

        errors_of(&mut self.errors, w, &self.codes, &self.scales);
        for (r, plain_loss) in plain_losses.into_iter().enumerate() {
            let range = r * n..(r + 1) * n;
            let e = &mut self.errors[range.clone()];
            let damped = dot(e, &self.gradient[range.clone()]);
            if damped < plain_loss {
                losses.chosen += h.undamped(damped, e);
                continue;
            }
            // Nothing was gained: the plain optimum stays.
            let of_groups = r * groups..(r + 1) * groups;
            self.codes[range.clone()].copy_from_slice(&self.plain[range.clone()]);
            self.scales[of_groups.clone()].copy_from_slice(&self.plain_scales[of_groups]);
            for (i, (e, w)) in e.iter_mut().zip(&w[range]).enumerate() {
                let scale = self.plain_scales[r * groups + i / GROUP] as f32;
                *e = w - scale * self.plain[r * n + i];
            }
            losses.chosen += h.undamped(plain_loss, e);
        }
        Ok(losses)
    }

    /// Codes (`[n]`, -1, 0, +1) and scales (`[n / 128]`, of the grid) of row `r`.
    pub(crate) fn row(&self, r: usize, n: usize) -> (&[f32], &[f64]) {
        let groups = n / GROUP;
        (&self.codes[r * n..(r + 1) * n], &self.scales[r * groups..(r + 1) * groups])
    }

    /// The optimum of the weights alone.
    fn round_plainly(&mut self, w: &[f32]) -> Result<(), GroupFault> {
        self.stored.resize(w.len() / GROUP, f16::ZERO);
        self.bytes.resize(w.len() / 4, 0);
        let optimum = Ternarizer::new(Rule::Optimal, self.isa);
        optimum.groups(w, &mut self.bytes, &mut self.stored, &mut Stats::default())?;
        self.plain_scales.clear();
        self.plain_scales.extend(self.stored.iter().map(|s| s.to_f64()));
        self.plain.clear();
        let codes = self.bytes.iter().flat_map(|b| (0..4).map(move |j| (b >> (2 * j)) & 3));
        self.plain.extend(codes.map(|code| f32::from(code) - 1.0));
        Ok(())
    }

    fn form_products(&mut self, h: &Hessian, rows: usize) {
        let n = h.n();
        self.products.clear();
        self.products.resize(n / GROUP * rows * n, 0.0);
        for (g, product) in self.products.chunks_exact_mut(rows * n).enumerate() {
            let columns = g * GROUP..(g + 1) * GROUP;
            add_product(self.isa, &self.codes, &h.panels, columns, 0, product);
        }
    }

    /// `g = w H - sum of s_g t_g H`, from the products.
    fn form_gradient(&mut self, n: usize, groups: usize, rows: usize) {
        self.gradient.clone_from(&self.image);
        for (g, product) in self.products.chunks_exact(rows * n).enumerate() {
            for r in 0..rows {
                let s = self.scales[r * groups + g] as f32;
                let range = r * n..(r + 1) * n;
                subtract(self.isa, s, &product[range.clone()], &mut self.gradient[range]);
            }
        }
    }

    fn alternate(&mut self, h: &Hessian, rows: usize, rounds: usize) {
        let n = h.n();
        let groups = n / GROUP;
        let thresholds = descent::thresholds(&h.rows, n);
        for _ in 0..rounds {
            self.refit(n, groups, rows);
            self.form_gradient(n, groups, rows);
            let mut moved = 0;
            for (g, product) in self.products.chunks_exact_mut(rows * n).enumerate() {
                self.column_scales.clear();
                let of_group = self.scales.iter().skip(g).step_by(groups);
                self.column_scales.extend(of_group.map(|s| *s as f32));
                moved += descent::group(
                    self.isa,
                    &h.rows,
                    &thresholds,
                    g * GROUP..(g + 1) * GROUP,
                    &self.column_scales,
                    Rows { codes: &mut self.codes, gradient: &mut self.gradient, product },
                );
            }
            if moved == 0 {
                return;
            }
        }
        self.refit(n, groups, rows);
        self.form_gradient(n, groups, rows);
    }

    /// The best scales of every row for its codes.
    fn refit(&mut self, n: usize, groups: usize, rows: usize) {
        self.quadratic.resize(groups * groups, 0.0);
        self.linear.resize(groups, 0.0);
        for r in 0..rows {
            let codes = &self.codes[r * n..(r + 1) * n];
            let image = &self.image[r * n..(r + 1) * n];
            for g in 0..groups {
                let columns = g * GROUP..(g + 1) * GROUP;
                let t = &codes[columns.clone()];
                self.linear[g] = group_dot(self.isa, t, &image[columns.clone()]);
                for k in g..groups {
                    let at = (k * rows + r) * n;
                    let product = &self.products[at..at + n][columns.clone()];
                    let value = group_dot(self.isa, t, product);
                    self.quadratic[g * groups + k] = value;
                    self.quadratic[k * groups + g] = value;
                }
            }
            let scales = &mut self.scales[r * groups..(r + 1) * groups];
            scales::refit(&self.quadratic, &self.linear, scales, &mut self.work);
        }
    }
}

impl Hessian {
    /// A loss by the moments as they came, from one by the damped ones of the row `e`.
    fn undamped(&self, damped: f64, e: &[f32]) -> f64 {
        let squares: f64 = e.iter().map(|e| f64::from(*e) * f64::from(*e)).sum();
        self.mean * (damped - self.damping * squares).max(0.0)
    }
}

/// `w - s t`.
fn errors_of(errors: &mut Vec<f32>, w: &[f32], codes: &[f32], scales: &[f64]) {
    errors.clear();
    for ((w, codes), scale) in w.chunks_exact(GROUP).zip(codes.chunks_exact(GROUP)).zip(scales) {
        let scale = *scale as f32;
        errors.extend(w.iter().zip(codes).map(|(w, t)| w - scale * t));
    }
}

fn dot(a: &[f32], b: &[f32]) -> f64 {
    a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum()
}

per_isa! {
    fn subtract(s: f32, product: &[f32], gradient: &mut [f32]) {
        for (gradient, product) in gradient.iter_mut().zip(product) {
            *gradient -= s * product;
        }
    }

    /// Sum of `t x` over a group: 16 lanes in f32, then these in f64, ascending.
    fn group_dot(t: &[f32], x: &[f32]) -> f64 {
        let mut lanes = [0.0f32; LANES];
        for (t, x) in t.as_chunks::<LANES>().0.iter().zip(x.as_chunks::<LANES>().0) {
            for lane in 0..LANES {
                lanes[lane] += t[lane] * x[lane];
            }
        }
        let mut sum = 0.0;
        for lane in lanes {
            sum += f64::from(lane);
        }
        sum
    }
}
