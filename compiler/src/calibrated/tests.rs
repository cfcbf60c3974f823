//! The solver against moments of known structure.

use hadamard::{BlockHadamard, Isa};
use nalgebra::DMatrix;

use super::hessian::Hessian;
use super::*;
use crate::testing::uniform;

/// Structures of inputs, as moments in the primal basis.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Inputs {
    /// Neighbouring inputs correlate with 0.9.
    Ar1,
    /// Eigenvalues 1 / i in a random basis.
    PowerLaw,
    /// Independent inputs, log-normal with deviation 0.5.
    LogNormal,
    /// Eigenvalues i^-0.8 in a random basis, then channels scaled log-normally, four
    /// of them by 10.
    Mixed,
}

/// Of 1024 channels.
const OUTLIERS: [usize; 4] = [68, 300, 612, 904];

fn gaussian(next: &mut impl FnMut() -> f64) -> f64 {
    let (u, v) = (next() + 0.5, next());
    (-2.0 * (u + 1e-12).min(1.0).ln()).sqrt() * (std::f64::consts::TAU * v).cos()
}

/// Moments in the rotated basis, row-major.
fn moments(inputs: Inputs, n: usize, seed: u64) -> Vec<f64> {
    let mut next = uniform(seed);
    let mut random_basis = |power: f64| {
        let q = DMatrix::from_fn(n, n, |_, _| gaussian(&mut next)).qr().q();
        let d =
            DMatrix::from_fn(n, n, |i, j| if i == j { ((i + 1) as f64).powf(power) } else { 0.0 });
        &q * d * q.transpose()
    };
    let mut h = match inputs {
        Inputs::Ar1 => DMatrix::from_fn(n, n, |i, j| 0.9f64.powi(i.abs_diff(j) as i32)),
        Inputs::PowerLaw => random_basis(-1.0),
        Inputs::LogNormal => DMatrix::identity(n, n),
        Inputs::Mixed => random_basis(-0.8),
    };
    if matches!(inputs, Inputs::LogNormal | Inputs::Mixed) {
        let scale: Vec<f64> = (0..n)
            .map(|i| {
                let outlier = inputs == Inputs::Mixed && OUTLIERS.contains(&(i * 1024 / n));
                (0.5 * gaussian(&mut next)).exp() * if outlier { 10.0 } else { 1.0 }
            })
            .collect();
        h = DMatrix::from_fn(n, n, |i, j| h[(i, j)] * scale[i] * scale[j]);
    }
    let walsh = DMatrix::from_fn(n, n, |i, j| {
        let sign = if (i & j).count_ones() % 2 == 0 { 1.0 } else { -1.0 };
        sign / (n as f64).sqrt()
    });
    let h = &walsh * h * &walsh;
    (0..n * n).map(|i| 0.5 * (h[(i / n, i % n)] + h[(i % n, i / n)])).collect()
}

fn weights(rows: usize, n: usize, seed: u64) -> Vec<f32> {
    let mut next = uniform(seed);
    let mut w: Vec<f32> = (0..rows * n).map(|_| 0.02 * gaussian(&mut next) as f32).collect();
    BlockHadamard::new(n.next_power_of_two(), Isa::detect()).unwrap().transform(&mut w).unwrap();
    w
}

/// Relative losses of the plain optimum and of the solver, recomputed in f64.
fn losses(isa: Isa, h: &[f64], w: &[f32], n: usize, damping: f64, rounds: usize) -> (f64, f64) {
    let hessian = Hessian::new(isa, n, h, damping).unwrap();
    let mut solver = Solver::new(isa, rounds);
    let (mut energy, mut error, mut sum) = (0.0, 0.0, Losses::default());
    let h = DMatrix::from_row_slice(n, n, h);
    for band in w.chunks(32 * n) {
        sum.merge(&solver.solve(&hessian, band).unwrap());
        let rows = band.len() / n;
        let w = DMatrix::from_fn(rows, n, |r, j| f64::from(band[r * n + j]));
        let e = DMatrix::from_fn(rows, n, |r, j| {
            let (codes, scales) = solver.row(r, n);
            w[(r, j)] - f64::from(codes[j]) * scales[j / 128]
        });
        energy += (&w * &h).dot(&w);
        error += (&e * &h).dot(&e);
    }
    assert!((sum.energy - energy).abs() < 1e-4 * energy);
    assert!((sum.chosen - error).abs() < 1e-3 * energy, "{} {error} {energy}", sum.chosen);
    (sum.optimal / energy, error / energy)
}

/// The full-size table: `cargo test --release -p compiler table -- --ignored --nocapture`.
#[test]
#[ignore = "a measurement; takes a minute"]
fn table() {
    let n = 1024;
    let w = weights(256, n, 1);
    for inputs in [Inputs::Ar1, Inputs::PowerLaw, Inputs::LogNormal, Inputs::Mixed] {
        let h = moments(inputs, n, 2);
        for damping in [0.01, 0.03, 0.1] {
            print!("{inputs:?} {damping}:");
            for rounds in [0, 1, 2, 3, 6, Calibration::ROUNDS, 12] {
                let begin = std::time::Instant::now();
                let (plain, chosen) = losses(Isa::detect(), &h, &w, n, damping, rounds);
                print!(" {plain:.4} {chosen:.4} ({:.1}s)", begin.elapsed().as_secs_f64());
            }
            println!();
        }
    }
}
