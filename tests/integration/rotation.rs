//! The compiled drafter computes what the float one does: `W' (R x) = W x`, with
//! `R` as a dense matrix in f64 from its definition, `(-1)^popcount(i & j) / 16`.

use std::collections::BTreeMap;

use formats::TernaryRows;
use formats::safetensors::Dtype;
use nalgebra::{DMatrix, DVector};
use proptest::prelude::*;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng as _;

use crate::harness::{BLOCK, Case, Model, Stored, decode, exact, mini_config, read, run};

/// `R x`, block by block.
fn rotate(hadamard: &DMatrix<f64>, x: &DVector<f64>) -> DVector<f64> {
    let blocks = x
        .as_slice()
        .chunks(BLOCK)
        .flat_map(|block| (hadamard * DVector::from_column_slice(block)).as_slice().to_vec());
    DVector::from_iterator(x.len(), blocks)
}

fn hadamard() -> DMatrix<f64> {
    DMatrix::from_fn(BLOCK, BLOCK, |i, j| {
        let sign = if (i & j).count_ones() % 2 == 0 { 1.0 } else { -1.0 };
        sign / (BLOCK as f64).sqrt()
    })
}

fn dense(rows: &TernaryRows) -> DMatrix<f64> {
    let mut values = vec![0.0; rows.rows() * rows.cols()];
    for (r, row) in values.chunks_exact_mut(rows.cols()).enumerate() {
        rows.dequantize_row(r, row);
    }
    float(&values, rows.rows(), rows.cols())
}

fn float(values: &[f32], rows: usize, cols: usize) -> DMatrix<f64> {
    DMatrix::from_row_iterator(rows, cols, values.iter().map(|v| f64::from(*v)))
}

/// Demands `W' (R x) = W x` of every matrix, to `tolerance` times the size of `W x`.
fn same_products(
    ternary: &BTreeMap<String, TernaryRows>,
    primal: &BTreeMap<String, Stored>,
    x: &[f64],
    tolerance: f64,
) -> Result<(), TestCaseError> {
    let hadamard = hadamard();
    for (name, rows) in ternary {
        let x = DVector::from_iterator(rows.cols(), x.iter().copied().cycle().take(rows.cols()));
        let rotated = dense(rows) * rotate(&hadamard, &x);
        let direct = float(&primal[name].values(), rows.rows(), rows.cols()) * &x;
        let error = (&rotated - &direct).amax();
        prop_assert!(
            error <= tolerance * direct.amax(),
            "{name}: {error:e} of {:e}",
            direct.amax()
        );
    }
    Ok(())
}

/// 512 numbers in [-1, 1).
fn vector(seed: u64) -> Vec<f64> {
    let mut rng = ChaCha8Rng::seed_from_u64(!seed);
    (0..512).map(|_| f64::from(rng.next_u32().cast_signed()) / 2f64.powi(31)).collect()
}

/// A drafter with two blocks per row in `fc` and `down_proj`.
fn config() -> serde_json::Value {
    let mut config = mini_config();
    config["intermediate_size"] = 512.into();
    config["dflash_config"]["target_layer_ids"] = serde_json::json!([1, 6]);
    config
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(4) })]

    #[test]
    fn an_exactly_ternary_drafter_computes_the_same(seed: u64) {
        let (model, _) = exact(config(), seed);
        let case = Case::new(&model);
        case.ternarize(&["m.q4nx", "m.gguf"], &[]).ok();
        let q4nx = decode(&case.out("m.q4nx"));
        prop_assert!(q4nx == decode(&case.out("m.gguf")));
        same_products(&q4nx, &model.tensors, &vector(seed), 1e-12)?;
    }

    #[test]
    fn a_float_export_computes_the_same(seed: u64) {
        let case = Case::new(&Model::noise(config(), Dtype::BF16, seed));
        case.ternarize(&["m.q4nx", "m.gguf"], &[]).ok();
        let ternary = decode(&case.out("m.q4nx"));
        prop_assert!(ternary == decode(&case.out("m.gguf")));
        for (from, format, tolerance) in
            [("m.q4nx", "f32", 1e-5), ("m.gguf", "f32", 1e-5), ("m.q4nx", "bf16", 2e-2)]
        {
            // Each has a config.json of its own.
            let name = format!("{format}-{from}/float.safetensors");
            std::fs::create_dir(case.out(&name).parent().unwrap()).unwrap();
            case.convert(from, &name, &[&format!("--format={format}")]).ok();
            let float = read(&case.out(&name));
            same_products(&ternary, &float, &vector(seed), tolerance)?;
        }
    }
}

#[test]
fn a_float_export_ternarizes_to_the_same_file() {
    let case = Case::new(&Model::noise(config(), Dtype::BF16, 23));
    let q4nx = case.q4nx(&[]);
    // Its configuration is not rotated, and does not take the place of the input's.
    case.convert("m.q4nx", "back.safetensors", &["--format=f32"]).ok();
    assert!(case.out("back.config.json").exists());
    run(&[
        &case.out("back.safetensors"),
        &"--block=256",
        &"-o",
        &case.out("again.q4nx"),
        &"--force",
    ])
    .ok();
    assert!(std::fs::read(case.out("again.q4nx")).unwrap() == q4nx);
}
