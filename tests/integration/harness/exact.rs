//! Drafters that are ternary in the rotated basis to begin with.

use std::collections::BTreeMap;

use formats::safetensors::Dtype;
use formats::{GROUP, TernaryRows};
use half::f16;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng as _, SeedableRng as _};
use serde_json::Value;

use super::{Model, dims};

/// Inputs per rotation block of these drafters.
pub(crate) const BLOCK: usize = 256;

/// An f32 drafter, and its matrices in the rotated basis. Scales have 8 bits
/// within one power of two, so a block's values are sums of 256 terms of 8 bits:
/// both rotations are exact in f32.
pub(crate) fn exact(config: Value, seed: u64) -> (Model, BTreeMap<String, TernaryRows>) {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let mut matrices = BTreeMap::new();
    let model = Model::new(config, Dtype::F32, |spec| {
        if !spec.role.is_matrix() {
            let halves = (0..spec.parameters()).map(|_| (rng.next_u32() % 256) as f32 / 64.0);
            return halves.collect();
        }
        let [out, inputs] = dims(spec);
        let mut rows = TernaryRows::zeroed(out, inputs);
        let mut values = vec![0.0; out * inputs];
        for (r, row) in values.chunks_exact_mut(inputs).enumerate() {
            for g in 0..inputs / GROUP {
                let scale = (128 + rng.next_u32() % 128) as f32 / 16384.0;
                rows.set_scale(r, g, f16::from_f32(scale));
            }
            for k in 0..inputs {
                rows.set_code(r, k, (rng.next_u32() % 3) as u8);
            }
            rows.dequantize_row(r, row);
            row.chunks_exact_mut(BLOCK).for_each(rotate_back);
        }
        matrices.insert(spec.name.clone(), rows);
        values
    });
    (model, matrices)
}

/// The rotation is its own inverse. In f64, by the definition's butterflies.
pub(crate) fn rotate_back(block: &mut [f32]) {
    let mut x: Vec<f64> = block.iter().map(|v| f64::from(*v)).collect();
    let mut half = 1;
    while half < BLOCK {
        for i in (0..BLOCK).filter(|i| i & half == 0) {
            (x[i], x[i + half]) = (x[i] + x[i + half], x[i] - x[i + half]);
        }
        half *= 2;
    }
    for (out, x) in block.iter_mut().zip(x) {
        let exact = x / 16.0;
        *out = exact as f32;
        assert_eq!(f64::from(*out), exact);
    }
}
