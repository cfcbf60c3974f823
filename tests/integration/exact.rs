//! The optimum, where it is known: drafters that are ternary already, Gaussian
//! weights, and search through everything.

use std::collections::BTreeMap;
use std::process::Command;

use formats::dflash2::names::TensorSpec;
use formats::safetensors::Dtype;
use formats::{GROUP, TernaryRows, scale};
use hadamard::Isa;
use half::f16;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng as _, SeedableRng as _};
use serde_json::json;

use compiler::ternary::{Rule, Stats, Ternarizer};

use crate::harness::{
    BLOCK, Case, Model, Run, decode, dims, exact, mini_config, program, rotate_back,
};

#[test]
fn an_exactly_ternary_drafter_comes_back_bit_for_bit() {
    let (model, expected) = exact(mini_config(), 3);
    let case = Case::new(&model);
    let formats = ["--format=q4nx", "--format=pq2_0", "--format=ptq1_0", "--json"];
    let report = case.ternarize(&["m.q4nx", "m.gguf", "t.gguf"], &formats).ok().json();
    for name in ["m.q4nx", "m.gguf", "t.gguf"] {
        assert!(decode(&case.out(name)) == expected, "{name}");
    }
    let error = report["total"]["relative_error"].as_f64().unwrap();
    assert!((0.0..1e-12).contains(&error), "{error:e}");
}

/// A standard normal number.
fn normal(rng: &mut ChaCha8Rng) -> f32 {
    let mut uniform = || (f64::from(rng.next_u32()) + 0.5) / 2f64.powi(32);
    let (u, v) = (uniform(), uniform());
    ((-2.0 * u.ln()).sqrt() * (std::f64::consts::TAU * v).cos()) as f32
}

#[test]
fn gaussian_weights_reach_the_theoretical_error() {
    // Orthogonal transforms leave them Gaussian: this is so in the rotated basis too.
    let mut config = mini_config();
    config["intermediate_size"] = json!(1024);
    let mut rng = ChaCha8Rng::seed_from_u64(11);
    let model = Model::new(config, Dtype::F32, |spec| {
        (0..spec.parameters()).map(|_| 0.02 * normal(&mut rng)).collect()
    });
    let case = Case::new(&model);
    let total = |rule: &str| {
        let report =
            case.ternarize(&["m.gguf"], &["--json", "--force", "--rule", rule]).ok().json();
        assert!(report["total"]["weights"].as_u64().unwrap() > 1_000_000);
        report["total"]["relative_error"].as_f64().unwrap()
    };
    let optimal = total("optimal");
    assert!(optimal <= 0.1873, "{optimal}");
    let absmean = total("absmean");
    assert!((absmean - 0.261).abs() <= 0.002, "{absmean}");
    let twn = total("twn");
    assert!(optimal < twn && twn < absmean, "{twn}");
}

/// Sum of squared errors of codes and a scale.
fn error(w: &[f32], s: f64, t: impl Fn(usize) -> f64) -> f64 {
    w.iter().enumerate().map(|(i, w)| (f64::from(*w) - s * t(i)).powi(2)).sum()
}

/// Groups with few weights that are not zero: on the others every code but the
/// value 0 adds to the error, so the supports to try are subsets of the few. And
/// the best signs are those of the weights.
#[test]
fn no_support_and_no_scale_does_better() {
    let grid: Vec<f64> =
        (0..0x7C00).map(f16::from_bits).filter(|s| scale::on_grid(*s)).map(f16::to_f64).collect();
    assert_eq!(grid.len(), 4352, "4351 and zero");
    let mut rng = ChaCha8Rng::seed_from_u64(17);
    for round in 0..48 {
        let n = 1 + round % 6;
        // Of one size, of sizes far apart, equal ones, subnormal ones.
        let factor = [1.0, 1e-3, 300.0, 2e-7][round / 6 % 4];
        let mut group = [0f32; GROUP];
        for i in 0..n {
            let value = normal(&mut rng);
            group[(i * 37 + round) % GROUP] = factor
                * match round / 24 {
                    0 => value,
                    _ if i % 2 == 0 => (value * 2.0).round() / 2.0,
                    _ => value * 10f32.powi(-(i as i32)),
                };
        }
        let few: Vec<f64> =
            group.iter().filter(|w| **w != 0.0).map(|w| f64::from(w.abs())).collect();
        let energy: f64 = few.iter().map(|w| w * w).sum();
        let mut best = energy;
        for support in 0..1usize << few.len() {
            let members = few.iter().enumerate().filter(|(i, _)| support >> i & 1 == 1);
            let (k, sum) = members.fold((0.0, 0.0), |(k, sum), (_, w)| (k + 1.0, sum + w));
            for s in &grid {
                best = best.min(energy - 2.0 * s * sum + k * s * s);
            }
        }
        for isa in Isa::available() {
            // Several groups, as a vector register has several lanes.
            let values: Vec<f32> = group.repeat(16);
            let mut codes = vec![0; values.len() / 4];
            let mut scales = vec![f16::ZERO; 16];
            Ternarizer::new(Rule::Optimal, isa)
                .groups(&values, &mut codes, &mut scales, &mut Stats::default())
                .unwrap();
            for (codes, s) in codes.chunks(GROUP / 4).zip(scales) {
                let code = |i: usize| f64::from(codes[i / 4] >> (2 * (i % 4)) & 3) - 1.0;
                let found = error(&group, s.to_f64(), code);
                assert!(found <= best + 1e-12 * energy, "{found:e}, {best:e} for {few:?}");
            }
        }
    }
}

#[test]
fn what_was_read_as_zero_is_written_as_zero() {
    // All weights zero: every format has the same codes and scales.
    let model = Model::new(mini_config(), Dtype::BF16, |spec: &TensorSpec| {
        vec![0.0; spec.parameters() as usize]
    });
    let case = Case::new(&model);
    let formats = ["--format=q4nx", "--format=pq2_0", "--format=ptq1_0", "--json"];
    let report = case.ternarize(&["m.q4nx", "m.gguf", "t.gguf"], &formats).ok().json();
    for name in ["m.q4nx", "m.gguf", "t.gguf"] {
        for rows in decode(&case.out(name)).into_values() {
            assert!(rows == TernaryRows::zeroed(rows.rows(), rows.cols()), "{name}");
        }
    }
    assert_eq!(report["total"]["relative_error"], 0.0);
    assert_eq!(report["total"]["zero_share"], 1.0);
}

/// Drafters as a tuner exports them: groups of zeros among others, scales that lie far apart.
fn tuned(spread: i32) -> (Model, BTreeMap<String, TernaryRows>) {
    let mut rng = ChaCha8Rng::seed_from_u64(23);
    let mut matrices = BTreeMap::new();
    let model = Model::new(mini_config(), Dtype::F32, |spec| {
        if !spec.role.is_matrix() {
            return vec![1.0; spec.parameters() as usize];
        }
        let [out, inputs] = dims(spec);
        let mut rows = TernaryRows::zeroed(out, inputs);
        let mut values = vec![0.0; out * inputs];
        for (r, row) in values.chunks_exact_mut(inputs).enumerate() {
            for g in 0..inputs / GROUP {
                // A scale of nothing but zeros says nothing: it is 0.
                if (r + g) % 5 == 0 {
                    continue;
                }
                let exponent = (rng.next_u32() % 256) as i32 * (spread + 1) / 256 - 8;
                let scale = (128 + rng.next_u32() % 128) as f32 / 128.0 * 2f32.powi(exponent);
                rows.set_scale(r, g, f16::from_f32(scale));
                for k in g * GROUP..(g + 1) * GROUP {
                    rows.set_code(r, k, (rng.next_u32() % 3) as u8);
                }
            }
            rows.dequantize_row(r, row);
            row.chunks_exact_mut(BLOCK).for_each(rotate_back);
        }
        matrices.insert(spec.name.clone(), rows);
        values
    });
    (model, matrices)
}

#[test]
fn what_a_tuner_exports_keeps_its_codes_and_scales() {
    for spread in [0, 6] {
        let (model, expected) = tuned(spread);
        let case = Case::new(&model);
        for rule in ["ternary", "optimal"] {
            let name = format!("{rule}.gguf");
            case.ternarize(&[&name], &["--rule", rule]).ok();
            assert!(decode(&case.out(&name)) == expected, "{rule}, {spread}");
        }
    }
}

#[test]
fn weights_that_are_not_ternary_yet_are_refused_by_the_rule_for_those_that_are() {
    let rule = ["--rule=ternary"];
    let case = Case::new(&Model::noise(mini_config(), Dtype::F32, 5));
    let parts = ["hidden_projection", "group 0:", "ternary in rotation blocks of 256", "--block"];
    case.ternarize(&["m.gguf"], &rule).refused(3, &parts);
    // Another rotation, or a single weight that moved.
    let (model, _) = tuned(0);
    let case = Case::new(&model);
    let mut other = Command::new(program());
    other.arg(case.weights()).args(["--rule=ternary", "--block=128", "-o"]).arg(case.out("m.gguf"));
    Run::of(other).refused(3, &["rotation blocks of 128"]);
    let moved = model.with("fc.weight", |t| t.edit(Dtype::F32, |values| values[300] += 1e-2));
    Case::new(&moved).ternarize(&["m.gguf"], &rule).refused(3, &["`fc.weight`", "group 2:"]);
    assert!(case.made().is_empty());
}

#[test]
fn the_rule_for_ternary_weights_takes_no_calibration() {
    let (model, _) = tuned(0);
    let case = Case::new(&model);
    let run = case.ternarize(&["m.gguf"], &["--rule=ternary", "--calib=prior"]);
    run.refused(2, &["--rule ternary", "--calib"]);
}
