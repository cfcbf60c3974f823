//! Drafters of seeded noise for the targets of this module, in every container.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use formats::dflash2::config::{Config, HEAD_UNROTATED, PrismHadamard};
use formats::dflash2::gguf_keys::{self, Hadamard, Lineage};
use formats::dflash2::names::{Codebooks, TensorSpec, specs};
use formats::gguf::GgmlType;
use formats::safetensors::{Dtype, NewTensor};
use formats::{GROUP, TernaryRows, q4nx, safetensors};
use hadamard::{BlockHadamard, Isa, Signs};
use half::f16;
use rand::{Rng, RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde_json::{Value, json};

use super::{Builder, Shape, encode};

/// The kind of file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Float safetensors, un-rotated.
    Float,
    Q4nx,
    Gguf(GgmlType),
}

/// The configuration of a two-layer drafter for a target of `shape`.
pub(crate) fn config(shape: &Shape) -> Value {
    json!({
        "architectures": ["DFlash2DraftModel"], "model_type": "qwen3", "hidden_act": "silu",
        "hidden_size": shape.hidden, "intermediate_size": shape.feed_forward,
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
        "head_dim": shape.hidden / 4, "vocab_size": shape.vocab, "max_position_embeddings": 4096,
        "num_target_layers": shape.mask.len(), "rms_norm_eps": 1e-6, "is_causal": false,
        "rope_parameters": {"rope_theta": 1e7, "rope_type": "default"},
        "sliding_window": 12, "use_sliding_window": true,
        "layer_types": ["sliding_attention", "sliding_attention"],
        "tie_word_embeddings": false, "attention_bias": false,
        "dflash_config": {
            "block_size": 8, "conv_group_size": 16, "conv_kernel_size": 2,
            "mask_token_id": shape.vocab - 1, "selector_rank": 32, "selector_top_k": 8,
            "target_layer_ids": if shape.mask.len() > 4 { vec![1, 3, 4] } else { vec![0, 1] },
        },
    })
}

/// The values of one tensor: ternary rows of a matrix, or floats.
enum Values {
    Ternary(TernaryRows),
    Floats(Vec<f32>),
}

fn values(spec: &TensorSpec, seed: u64) -> Values {
    let stream = spec.name.bytes().fold(seed, |h, b| h.wrapping_mul(31).wrapping_add(b.into()));
    let mut rng = ChaCha8Rng::seed_from_u64(stream);
    if spec.role.is_matrix() {
        let (out, inputs) = (spec.shape[0] as usize, spec.shape[1] as usize);
        let mut rows = TernaryRows::zeroed(out, inputs);
        // Exact in bf16, so that every container can hold it.
        let scale = f16::from_f32(half::bf16::from_f32(1.5 / (inputs as f32).sqrt()).to_f32());
        for r in 0..out {
            (0..inputs).for_each(|k| rows.set_code(r, k, (rng.next_u32() % 3) as u8));
            (0..inputs / GROUP).for_each(|g| rows.set_scale(r, g, scale));
        }
        return Values::Ternary(rows);
    }
    let mut value = || {
        let x: f32 = rng.random_range(-1.0..1.0);
        let x = if spec.role.is_norm() { 1.0 + 0.2 * x } else { 0.4 * x };
        half::bf16::from_f32(x).to_f32()
    };
    Values::Floats((0..spec.parameters()).map(|_| value()).collect())
}

/// Writes the drafter of `seed` into `dir` and gives the path to open.
pub(crate) fn write(
    dir: &Path,
    config_json: &Value,
    kind: Kind,
    block: usize,
    seed: u64,
) -> PathBuf {
    let bytes = serde_json::to_vec(config_json).unwrap();
    let config = Config::parse(Path::new("config.json"), &bytes).unwrap();
    let specs = specs(&config, Codebooks::Bare);
    if let Kind::Gguf(ty) = kind {
        return write_gguf(dir, &config, &specs, ty, block, seed);
    }
    let hadamard = BlockHadamard::new(block, Isa::scalar()).unwrap();
    let (mut tensors, mut data) = (Vec::new(), BTreeMap::new());
    for spec in &specs {
        let (dtype, shape, bytes) = match values(spec, seed) {
            Values::Ternary(rows) if kind == Kind::Q4nx => {
                let shape = q4nx::chunk_shape(rows.rows(), rows.cols()).to_vec();
                let mut bytes = vec![0; shape.iter().product::<u64>() as usize];
                q4nx::encode(&rows, &mut bytes).unwrap();
                (Dtype::I8, shape, bytes)
            }
            Values::Ternary(rows) => {
                let mut bytes = Vec::new();
                let mut row = vec![0.0; rows.cols()];
                for r in 0..rows.rows() {
                    rows.dequantize_row(r, &mut row);
                    hadamard.inverse(&mut row, &Signs::plus(rows.cols())).unwrap();
                    encode(&row, GgmlType::F32, &mut bytes);
                }
                (Dtype::F32, spec.shape.clone(), bytes)
            }
            Values::Floats(values) => {
                let mut bytes = Vec::new();
                encode(&values, GgmlType::BF16, &mut bytes);
                (Dtype::BF16, spec.shape.clone(), bytes)
            }
        };
        tensors.push(NewTensor { name: spec.name.clone(), dtype, shape });
        data.insert(spec.name.clone(), bytes);
    }
    let plan = safetensors::layout(tensors, &BTreeMap::new());
    let mut file = vec![0; plan.file_len as usize];
    file[..plan.header.len()].copy_from_slice(&plan.header);
    for tensor in &plan.tensors {
        let bytes = &data[&tensor.name];
        file[tensor.offset as usize..][..bytes.len()].copy_from_slice(bytes);
    }
    let (name, json) = match kind {
        Kind::Q4nx => {
            let matrices = specs.iter().filter(|spec| spec.role.is_matrix());
            let mark = PrismHadamard {
                block_size: block,
                og_signs: vec![1; config.q_width()],
                folded: matrices.map(|spec| spec.name.clone()).collect(),
                lm_head: HEAD_UNROTATED.into(),
                embedding: HEAD_UNROTATED.into(),
            };
            ("model.q4nx", config.to_json_with_hadamard(&mark))
        }
        _ => ("model.safetensors", bytes),
    };
    let path = dir.join(name);
    std::fs::write(&path, file).unwrap();
    std::fs::write(formats::dflash2::drafter::config_candidates(&path)[0].clone(), json).unwrap();
    path
}

fn write_gguf(
    dir: &Path,
    config: &Config,
    specs: &[TensorSpec],
    ty: GgmlType,
    block: usize,
    seed: u64,
) -> PathBuf {
    let hadamard = Hadamard::unsigned(config, block);
    let lineage = Lineage { version: "0".into(), input_sha256: String::new(), rule: None };
    let keys = gguf_keys::Drafter {
        config,
        name: None,
        encoding: ty,
        hadamard: &hadamard,
        lineage: &lineage,
        tokenizer: Vec::new(),
    };
    let mut builder = Builder { keys: keys.keys().unwrap(), tensors: Vec::new() };
    for spec in specs {
        let mut bytes = Vec::new();
        let ty = match values(spec, seed) {
            Values::Ternary(rows) => {
                bytes = super::ternary_bytes(&rows, ty);
                ty
            }
            Values::Floats(values) if spec.role.is_codebook() => {
                encode(&values, GgmlType::BF16, &mut bytes);
                GgmlType::BF16
            }
            Values::Floats(values) => {
                encode(&values, GgmlType::F32, &mut bytes);
                GgmlType::F32
            }
        };
        let dims = spec.shape.iter().rev().copied().collect();
        let name = spec.gguf_name.clone();
        builder.tensors.push((formats::gguf::NewTensor { name, dims, ty }, bytes));
    }
    let path = dir.join(format!("{ty}.gguf"));
    let source = builder.source();
    std::fs::write(&path, source.read_vec(0, source.len()).unwrap()).unwrap();
    path
}
