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
        let sign = if (i & j).count_ones().is_multiple_of(2) { 1.0 } else { -1.0 };
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

/// Bounds of the relative loss, a little above what was measured for these seeds.
#[test]
fn losses_are_a_fraction_of_those_of_plain_rounding() {
    let n = 256;
    let w = weights(64, n, 1);
    for (inputs, bound) in [
        (Inputs::Ar1, 0.0958),
        (Inputs::PowerLaw, 0.0775),
        (Inputs::LogNormal, 0.1035),
        (Inputs::Mixed, 0.0255),
    ] {
        let h = moments(inputs, n, 2);
        let (plain, chosen) = losses(Isa::detect(), &h, &w, n, 0.1, Calibration::ROUNDS);
        assert!((0.17..0.21).contains(&plain), "{inputs:?} {plain}");
        assert!(chosen < bound, "{inputs:?} {chosen}");
    }
}

/// Codes and scales of all rows.
fn solved(isa: Isa, h: &Hessian, w: &[f32], band: usize, rounds: usize) -> (Vec<f32>, Vec<f64>) {
    let n = h.n();
    let mut solver = Solver::new(isa, rounds);
    let (mut codes, mut scales) = (Vec::new(), Vec::new());
    for band in w.chunks(band * n) {
        solver.solve(h, band).unwrap();
        for r in 0..band.len() / n {
            let (c, s) = solver.row(r, n);
            codes.extend_from_slice(c);
            scales.extend_from_slice(s);
        }
    }
    (codes, scales)
}

/// The optimum of the weights alone.
fn optimum(w: &[f32]) -> (Vec<f32>, Vec<f64>) {
    use crate::ternary::{Rule, Stats, Ternarizer};
    let mut bytes = vec![0; w.len() / 4];
    let mut scales = vec![half::f16::ZERO; w.len() / 128];
    Ternarizer::new(Rule::Optimal, Isa::scalar())
        .groups(w, &mut bytes, &mut scales, &mut Stats::default())
        .unwrap();
    let codes = bytes.iter().flat_map(|b| (0..4).map(move |j| f32::from((b >> (2 * j)) & 3) - 1.0));
    (codes.collect(), scales.iter().map(|s| s.to_f64()).collect())
}

#[test]
fn independent_equal_inputs_and_no_inputs_at_all_give_the_optimum() {
    let n = 256;
    let w = weights(40, n, 9);
    for size in [1.0, 3e-9, 7e8, 0.0] {
        let h: Vec<f64> = (0..n * n).map(|i| if i / n == i % n { size } else { 0.0 }).collect();
        for damping in [0.0, 0.1, 1.0] {
            let h = Hessian::new(Isa::detect(), n, &h, damping).unwrap();
            assert_eq!(solved(Isa::detect(), &h, &w, 32, 8), optimum(&w), "{size} {damping}");
        }
    }
}

#[test]
fn moments_of_few_samples_never_make_it_worse() {
    let n = 128;
    let w = weights(16, n, 4);
    let mut next = uniform(8);
    for samples in [1, 2, 100] {
        let x: Vec<f64> = (0..samples * n).map(|_| next()).collect();
        let h: Vec<f64> = (0..n * n)
            .map(|at| (0..samples).map(|s| x[s * n + at / n] * x[s * n + at % n]).sum())
            .collect();
        let (plain, chosen) = losses(Isa::detect(), &h, &w, n, damping(samples as u64, n), 8);
        assert!(chosen <= plain, "{samples}: {chosen} {plain}");
        // Without any damping the matrix is singular; the result is still one.
        let h = Hessian::new(Isa::detect(), n, &h, 0.0).unwrap();
        let (codes, scales) = solved(Isa::detect(), &h, &w, 32, 8);
        assert!(codes.iter().all(|code| [-1.0, 0.0, 1.0].contains(code)));
        assert!(scales.iter().all(|s| formats::scale::round_to_grid(*s).is_some()));
    }
}

#[test]
fn what_cannot_be_moments_is_refused() {
    let n = 128;
    let with = |at: usize, value: f64| {
        let mut h = vec![0.0; n * n];
        h[at] = value;
        Hessian::new(Isa::scalar(), n, &h, 0.1).map(|_| ())
    };
    assert_eq!(with(2 * n + 5, f64::NAN), Err(MomentFault::NotFinite(2, 5)));
    assert_eq!(with(0, f64::INFINITY), Err(MomentFault::NotFinite(0, 0)));
    assert_eq!(with(3 * n + 3, -1.0), Err(MomentFault::Negative(3)));
    assert_eq!(with(3 * n + 3, 1.0), Ok(()));
}

#[test]
fn bits_depend_on_neither_instructions_nor_bands() {
    let n = 256;
    let w = weights(37, n, 6);
    for inputs in [Inputs::Ar1, Inputs::Mixed] {
        let h = moments(inputs, n, 3);
        let at = |isa, band| {
            let h = Hessian::new(isa, n, &h, 0.1).unwrap();
            solved(isa, &h, &w, band, 3)
        };
        let reference = at(Isa::scalar(), 37);
        for isa in Isa::available() {
            for band in [1, 8, 32] {
                assert!(at(isa, band) == reference, "{:?} {band} {inputs:?}", isa.level());
            }
        }
    }
}

/// The damped loss of one row, in f64.
fn damped_loss(h: &Hessian, w: &[f32], codes: &[f32], scale: impl Fn(usize) -> f64) -> f64 {
    let n = h.n();
    let e: Vec<f64> =
        (0..n).map(|j| f64::from(w[j]) - scale(j / 128) * f64::from(codes[j])).collect();
    (0..n)
        .map(|i| {
            let row: f64 = (0..n).map(|j| f64::from(h.rows[i * n + j]) * e[j]).sum();
            e[i] * row
        })
        .sum()
}

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig::with_cases(12))]

    #[test]
    fn no_round_raises_the_damped_loss(
        seed in 0u64..1 << 40,
        power in -1.5f64..0.0,
        damping in 0.001f64..1.0,
    ) {
        let n = 128;
        let mut next = uniform(seed);
        let x = DMatrix::from_fn(n, n, |_, j| next() * ((j + 1) as f64).powf(power));
        let h = &x * x.transpose();
        let h: Vec<f64> = (0..n * n).map(|i| 0.5 * (h[(i / n, i % n)] + h[(i % n, i / n)])).collect();
        let h = Hessian::new(Isa::detect(), n, &h, damping).unwrap();
        let w = weights(4, n, seed);
        let mut before: Vec<f64> = vec![f64::INFINITY; 4];
        for rounds in 0..5 {
            let (codes, scales) = solved(Isa::detect(), &h, &w, 4, rounds);
            for r in 0..4 {
                let loss = damped_loss(&h, &w[r * n..], &codes[r * n..], |_| scales[r]);
                proptest::prop_assert!(loss <= before[r] * (1.0 + 1e-5), "{loss} {}", before[r]);
                before[r] = loss;
            }
        }
    }

    #[test]
    fn no_pass_over_codes_raises_the_damped_loss(seed in 0u64..1 << 40, size in 0.2f64..3.0) {
        let n = 128;
        let mut next = uniform(seed);
        let x = DMatrix::from_fn(n, 2 * n, |_, _| next());
        let h = &x * x.transpose();
        let h: Vec<f64> = (0..n * n).map(|i| 0.5 * (h[(i / n, i % n)] + h[(i % n, i / n)])).collect();
        let h = Hessian::new(Isa::detect(), n, &h, 0.01).unwrap();
        let w = weights(1, n, seed);
        let scale = f64::from((0.02 * size) as f32);
        let mut codes: Vec<f32> = (0..n).map(|_| (3.0 * next()).round().clamp(-1.0, 1.0) as f32).collect();
        let gradient_of = |codes: &[f32]| -> Vec<f32> {
            (0..n).map(|j| {
                let sum: f64 = (0..n)
                    .map(|i| {
                        f64::from(h.rows[i * n + j]) * (f64::from(w[i]) - scale * f64::from(codes[i]))
                    })
                    .sum();
                sum as f32
            }).collect()
        };
        let mut gradient = gradient_of(&codes);
        let mut product = vec![0.0; n];
        let mut before = damped_loss(&h, &w, &codes, |_| scale);
        let thresholds = super::descent::thresholds(&h.rows, n);
        for _ in 0..3 {
            let rows = super::descent::Rows {
                codes: &mut codes, gradient: &mut gradient, product: &mut product,
            };
            let moved =
                super::descent::group(Isa::detect(), &h.rows, &thresholds, 0..n, &[scale as f32], rows);
            let after = damped_loss(&h, &w, &codes, |_| scale);
            let is_sound = if moved > 0 { after < before } else { after == before };
            proptest::prop_assert!(is_sound, "{moved} moved: {before} {after}");
            before = after;
        }
        let fresh = gradient_of(&codes);
        let most = fresh.iter().fold(0.0f32, |most, g| most.max(g.abs()));
        proptest::prop_assert!(fresh.iter().zip(&gradient).all(|(a, b)| (a - b).abs() < 1e-3 * most.max(1e-3)));
    }
}
