//! The same targets as folders of MLX 2-bit packs.

use std::collections::BTreeMap;
use std::path::Path;

use formats::gguf::{Array, GgmlType, NewTensor, Value as Key};
use formats::pq2_0::BLOCK_BYTES;
use formats::safetensors::{Dtype, NewTensor as PackTensor, layout};
use half::{bf16, f16};
use serde_json::{Value, json};

use super::{Builder, Shape};

/// A pack to be: its two JSON files and its tensors, which a test may change.
pub(crate) struct Pack {
    pub(crate) config: Value,
    pub(crate) rotation: Value,
    pub(crate) tensors: BTreeMap<String, (Dtype, Vec<u64>, Vec<u8>)>,
}

const PREFIX: &str = "language_model.";

/// Name of a tensor without `blk.N.`, in the pack without `model.layers.N.`, and whether its rows
/// belong to value heads: all of them, or all after the queries and keys.
const LAYER: [(&str, &str, Rows); 20] = [
    ("attn_norm.weight", "input_layernorm.weight", Rows::Kept),
    ("post_attention_norm.weight", "post_attention_layernorm.weight", Rows::Kept),
    ("ffn_gate.weight", "mlp.gate_proj.weight", Rows::Kept),
    ("ffn_up.weight", "mlp.up_proj.weight", Rows::Kept),
    ("ffn_down.weight", "mlp.down_proj.weight", Rows::Kept),
    ("attn_q.weight", "self_attn.q_proj.weight", Rows::Kept),
    ("attn_k.weight", "self_attn.k_proj.weight", Rows::Kept),
    ("attn_v.weight", "self_attn.v_proj.weight", Rows::Kept),
    ("attn_output.weight", "self_attn.o_proj.weight", Rows::Kept),
    ("attn_q_norm.weight", "self_attn.q_norm.weight", Rows::Kept),
    ("attn_k_norm.weight", "self_attn.k_norm.weight", Rows::Kept),
    ("attn_qkv.weight", "linear_attn.in_proj_qkv.weight", Rows::AfterKeys),
    ("attn_gate.weight", "linear_attn.in_proj_z.weight", Rows::Values),
    ("ssm_alpha.weight", "linear_attn.in_proj_a.weight", Rows::Heads),
    ("ssm_beta.weight", "linear_attn.in_proj_b.weight", Rows::Heads),
    ("ssm_out.weight", "linear_attn.out_proj.weight", Rows::Kept),
    ("ssm_conv1d.weight", "linear_attn.conv1d.weight", Rows::AfterKeys),
    ("ssm_a", "linear_attn.A_log", Rows::Heads),
    ("ssm_dt.bias", "linear_attn.dt_bias", Rows::Heads),
    ("ssm_norm.weight", "linear_attn.norm.weight", Rows::Kept),
];

/// What happens to the rows of a tensor on its way from tiled to grouped order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Rows {
    Kept,
    /// One row per value head.
    Heads,
    /// The rows of all value heads.
    Values,
    /// Those of queries and keys, then those of all value heads.
    AfterKeys,
}

fn names(gguf: &str) -> (String, Rows) {
    match gguf {
        "token_embd.weight" => return ("model.embed_tokens.weight".into(), Rows::Kept),
        "output.weight" => return ("lm_head.weight".into(), Rows::Kept),
        "output_norm.weight" => return ("model.norm.weight".into(), Rows::Kept),
        _ => {}
    }
    let (n, suffix) = gguf.strip_prefix("blk.").unwrap().split_once('.').unwrap();
    let (_, name, rows) = LAYER.iter().find(|(gguf, ..)| *gguf == suffix).unwrap();
    (format!("model.layers.{n}.{name}"), *rows)
}

/// The bytes of rows in grouped order.
fn grouped(shape: &Shape, rows: Rows, bytes: &[u8], n_rows: usize) -> Vec<u8> {
    let row_bytes = bytes.len() / n_rows;
    let (nk, rep) = (shape.key_heads, shape.value_heads / shape.key_heads);
    let (kept, per_head) = match rows {
        Rows::Kept => return bytes.to_vec(),
        Rows::Heads => (0, 1),
        Rows::Values => (0, shape.gdn_dim),
        Rows::AfterKeys => (2 * nk * shape.gdn_dim, shape.gdn_dim),
    };
    let (qk, v) = bytes.split_at(kept * row_bytes);
    let head_bytes = per_head * row_bytes;
    let mut out = qk.to_vec();
    for kh in 0..nk {
        for r in 0..rep {
            out.extend(&v[(r * nk + kh) * head_bytes..][..head_bytes]);
        }
    }
    assert_eq!(out.len(), bytes.len());
    out
}

/// The pack of a PQ2_0 target. The decay of `builder` is changed to one that has a logarithm in f32.
pub(crate) fn pack(shape: &Shape, builder: &mut Builder) -> Pack {
    let mut tensors = BTreeMap::new();
    let mut modules = Vec::new();
    let mut names_of = [Vec::new(), Vec::new()];
    let signs = signs(builder);
    for (NewTensor { name: gguf, dims, ty }, bytes) in &mut builder.tensors {
        let (name, rows) = names(gguf);
        let name = format!("{PREFIX}{name}");
        let n_rows = *dims.last().unwrap() as usize;
        let mut f32s = |values: &mut dyn Iterator<Item = f32>| {
            let bytes: Vec<u8> = values.flat_map(f32::to_le_bytes).collect();
            let bytes = grouped(shape, rows, &bytes, n_rows);
            let mut shape: Vec<u64> = dims.iter().rev().copied().collect();
            if gguf.ends_with("ssm_conv1d.weight") {
                shape.push(1);
            }
            tensors.insert(name.clone(), (Dtype::F32, shape, bytes));
        };
        match *ty {
            GgmlType::F32 if gguf.ends_with("ssm_a") => {
                let logs: Vec<f32> =
                    bytes.as_chunks().0.iter().map(|b| (-f32::from_le_bytes(*b)).ln()).collect();
                *bytes =
                    logs.iter().flat_map(|log| (-runtime::math::exp(*log)).to_le_bytes()).collect();
                f32s(&mut logs.into_iter());
            }
            GgmlType::F32 => f32s(&mut bytes.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b))),
            GgmlType::BF16 => {
                f32s(&mut bytes.as_chunks().0.iter().map(|b| bf16::from_le_bytes(*b).to_f32()));
            }
            _ => {
                let cols = dims[0];
                let bytes = grouped(shape, rows, bytes, n_rows);
                let blocks = bytes.as_chunks::<BLOCK_BYTES>().0;
                let codes = blocks.iter().flat_map(|b| b[2..].to_vec()).collect();
                let scales: Vec<u8> = blocks.iter().flat_map(|b| [b[0], b[1]]).collect();
                let biases = scales.as_chunks().0.iter();
                let biases = biases.flat_map(|s| (-f16::from_le_bytes(*s)).to_le_bytes()).collect();
                let path = name.strip_suffix(".weight").unwrap().to_owned();
                let rows = n_rows as u64;
                let signs: Vec<u8> = signs[&(cols as usize)]
                    .iter()
                    .flat_map(|s| (*s as f32).to_le_bytes())
                    .collect();
                let mut push = |part: &str, dtype, shape: Vec<u64>, bytes| {
                    tensors.insert(format!("{path}.{part}"), (dtype, shape, bytes));
                };
                push("weight", Dtype::U32, vec![rows, cols / 16], codes);
                push("scales", Dtype::F16, vec![rows, cols / 128], scales);
                push("biases", Dtype::F16, vec![rows, cols / 128], biases);
                push("signs", Dtype::F32, vec![cols], signs);
                let embedding = gguf == "token_embd.weight";
                modules.push(json!({
                    "path": path.strip_prefix(PREFIX).unwrap(),
                    "dtype": "float16",
                    "block": shape.block,
                    "embedding": embedding,
                }));
                names_of[usize::from(embedding)].push(name);
            }
        }
    }
    tensors.insert("vision_tower.x".into(), (Dtype::F16, vec![1], vec![0, 0]));
    let [weight_names, inverse] = names_of;
    let values: Vec<i32> = signs.values().flatten().copied().collect();
    let rotation = json!({
        "prism.hadamard.version": 1,
        "prism.hadamard.block_size": shape.block,
        "prism.hadamard.transform": "normalized-sylvester-walsh-hadamard",
        "prism.hadamard.axis": "input-last-dimension",
        "prism.hadamard.sign_mode": "explicit",
        "prism.hadamard.sign_widths": signs.keys().collect::<Vec<_>>(),
        "prism.hadamard.sign_values": values,
        "prism.hadamard.weight_names": weight_names,
        "prism.hadamard.inverse_weight_names": inverse,
        "prism.hadamard.gdn_v_grouped": true,
    });
    Pack { config: config(shape, &modules), rotation, tensors }
}

/// The signs of each width, as the GGUF has them.
fn signs(builder: &Builder) -> BTreeMap<usize, Vec<i32>> {
    let list = |suffix: &str| {
        let key = format!("prism.hadamard.{suffix}");
        match &builder.keys.iter().find(|(k, _)| *k == key).unwrap().1 {
            Key::Array(Array::I32(list)) => list.clone(),
            other => unreachable!("{other:?}"),
        }
    };
    let values = list("sign_values");
    let mut rest = values.as_slice();
    let mut signs = BTreeMap::new();
    for width in list("sign_widths") {
        let (of_width, more) = rest.split_at(width as usize);
        signs.insert(width as usize, of_width.to_vec());
        rest = more;
    }
    signs
}

fn config(shape: &Shape, modules: &[Value]) -> Value {
    let kind = |gdn: &bool| if *gdn { "linear_attention" } else { "full_attention" };
    let kinds: Vec<&str> = shape.mask.iter().map(kind).collect();
    json!({
        "schema_version": 2,
        "model_type": "prism_hadamard_qwen35",
        "base_model_type": "qwen3_5",
        "quantization": {"bits": 2, "group_size": 128, "mode": "affine"},
        "hadamard_config": "hadamard.json",
        "gdn_activation_layout": "grouped",
        "components": {"text": true, "vision": true, "mtp": false},
        "modules": modules,
        "text_config": {
            "model_type": "qwen3_5_text",
            "hidden_size": shape.hidden,
            "intermediate_size": shape.feed_forward,
            "num_hidden_layers": shape.mask.len(),
            "layer_types": kinds,
            "num_attention_heads": shape.heads,
            "num_key_value_heads": shape.kv_heads,
            "head_dim": shape.head_dim,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 1e7,
                "partial_rotary_factor": shape.rope_dims as f64 / shape.head_dim as f64,
            },
            "rms_norm_eps": 1e-6,
            "max_position_embeddings": shape.context,
            "vocab_size": shape.vocab,
            "linear_num_key_heads": shape.key_heads,
            "linear_num_value_heads": shape.value_heads,
            "linear_key_head_dim": shape.gdn_dim,
            "linear_value_head_dim": shape.gdn_dim,
            "linear_conv_kernel_dim": shape.conv,
            "tie_word_embeddings": false,
        },
    })
}

impl Pack {
    pub(crate) fn write(&self, dir: &Path) {
        std::fs::write(dir.join("config.json"), self.config.to_string()).unwrap();
        std::fs::write(dir.join("hadamard.json"), self.rotation.to_string()).unwrap();
        let new = |(name, (dtype, shape, _)): (&String, &(Dtype, Vec<u64>, Vec<u8>))| PackTensor {
            name: name.clone(),
            dtype: *dtype,
            shape: shape.clone(),
        };
        let plan = layout(self.tensors.iter().map(new).collect(), &BTreeMap::new());
        let mut bytes = plan.header.clone();
        bytes.resize(plan.file_len as usize, 0);
        for info in &plan.tensors {
            let (.., data) = &self.tensors[&info.name];
            bytes[info.offset as usize..][..data.len()].copy_from_slice(data);
        }
        std::fs::write(dir.join("model.safetensors"), bytes).unwrap();
    }

    /// The tensor that is called `name` in the model.
    pub(crate) fn tensor(&mut self, name: &str) -> &mut (Dtype, Vec<u64>, Vec<u8>) {
        self.tensors.get_mut(&format!("{PREFIX}{name}")).unwrap()
    }
}
