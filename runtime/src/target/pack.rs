//! A target in the folder of an MLX 2-bit pack: the names and numbers of a GGUF, found there.
//!
//! Rows that belong to value heads are in grouped order there, which the delta nets follow; nothing is
//! re-ordered. The columns of `out_proj` are grouped in both containers.

use std::collections::BTreeSet;

use formats::mlx::{Pack, TextConfig, floats};
use formats::safetensors::{Dtype, TensorInfo};
use formats::{Error, Source};

use super::config::{Config, Gdn, LayerKind};
use super::hadamard_keys::Hadamard;
use super::tensors::{EMBEDDING, HEAD, Stored, Tensors};
use crate::gdn::HeadOrder;
use crate::math::exp;
use crate::weights::{FloatEncoding, FloatMatrix, TernaryMatrix};

/// GGUF names and those of the pack.
const GLOBAL: [(&str, &str); 3] = [
    (EMBEDDING, "model.embed_tokens.weight"),
    (HEAD, "lm_head.weight"),
    ("output_norm.weight", "model.norm.weight"),
];

/// The same after `blk.N.` and `model.layers.N.`.
const LAYER: [(&str, &str); 20] = [
    ("attn_norm.weight", "input_layernorm.weight"),
    ("post_attention_norm.weight", "post_attention_layernorm.weight"),
    ("ffn_gate.weight", "mlp.gate_proj.weight"),
    ("ffn_up.weight", "mlp.up_proj.weight"),
    ("ffn_down.weight", "mlp.down_proj.weight"),
    ("attn_q.weight", "self_attn.q_proj.weight"),
    ("attn_k.weight", "self_attn.k_proj.weight"),
    ("attn_v.weight", "self_attn.v_proj.weight"),
    ("attn_output.weight", "self_attn.o_proj.weight"),
    ("attn_q_norm.weight", "self_attn.q_norm.weight"),
    ("attn_k_norm.weight", "self_attn.k_norm.weight"),
    ("attn_qkv.weight", "linear_attn.in_proj_qkv.weight"),
    ("attn_gate.weight", "linear_attn.in_proj_z.weight"),
    ("ssm_alpha.weight", "linear_attn.in_proj_a.weight"),
    ("ssm_beta.weight", "linear_attn.in_proj_b.weight"),
    ("ssm_out.weight", "linear_attn.out_proj.weight"),
    (CONV, "linear_attn.conv1d.weight"),
    (DECAY, "linear_attn.A_log"),
    ("ssm_dt.bias", "linear_attn.dt_bias"),
    ("ssm_norm.weight", "linear_attn.norm.weight"),
];

/// `[channels, taps, 1]` in a pack.
const CONV: &str = "ssm_conv1d.weight";
/// `-exp(A_log)`.
const DECAY: &str = "ssm_a";

/// What a pack calls the tensor.
fn pack_name(gguf: &str) -> String {
    let find = |table: &[(&str, &'static str)], name: &str| {
        table.iter().find(|(gguf, _)| *gguf == name).map(|(_, pack)| *pack)
    };
    let layer = gguf.strip_prefix("blk.").and_then(|rest| rest.split_once('.'));
    let in_layer = layer.and_then(|(n, suffix)| Some((n, find(&LAYER, suffix)?)));
    match in_layer {
        Some((n, name)) => format!("model.layers.{n}.{name}"),
        None => find(&GLOBAL, gguf).unwrap_or(gguf).to_owned(),
    }
}

/// The dimensions; every rule among them is kept by the reader.
pub(super) fn config_of(text: &TextConfig) -> Config {
    let kind = |linear: &bool| if *linear { LayerKind::Gdn } else { LayerKind::Attention };
    Config {
        hidden: text.hidden_size,
        feed_forward: text.intermediate_size,
        layers: text.linear_layers.iter().map(kind).collect(),
        heads: text.num_attention_heads,
        kv_heads: text.num_key_value_heads,
        head_dim: text.head_dim,
        rope_dims: text.rotary_dims,
        // A GGUF has them in f32, and both files are to give the same bits.
        rope_theta: f64::from(text.rope_theta as f32),
        eps: f64::from(text.rms_norm_eps as f32),
        context_length: text.max_position_embeddings,
        gdn: Gdn {
            key_heads: text.linear_num_key_heads,
            value_heads: text.linear_num_value_heads,
            head_dim: text.linear_head_dim,
            conv_kernel: text.linear_conv_kernel_dim,
            order: HeadOrder::Grouped,
        },
    }
}

/// The rotation of all packed modules; float matrices of a pack are not rotated.
pub(super) fn hadamard_of(pack: &Pack) -> Hadamard {
    Hadamard {
        block: pack.block(),
        signs: pack.signs().clone(),
        forward: BTreeSet::new(),
        embedding: pack.module("model.embed_tokens").is_some(),
        v_grouped: true,
    }
}

pub(super) struct PackTensors<'a> {
    pub(super) pack: &'a Pack,
}

impl Tensors for PackTensors<'_> {
    fn matrix(&self, name: &str, out: usize, inputs: usize) -> Result<Stored, Error> {
        let name = pack_name(name);
        let module = name.strip_suffix(".weight").and_then(|path| self.pack.module(path));
        if let Some(module) = module {
            if (module.rows, module.cols) != (out, inputs) {
                return Err(Error::Tensor {
                    path: module.path.clone(),
                    tensor: module.name.clone(),
                    expected: format!("the codes of [{out}, {inputs}]"),
                    found: format!("those of [{}, {}]", module.rows, module.cols),
                    hint: None,
                });
            }
            return Ok(Stored::Ternary(TernaryMatrix::packed(module)));
        }
        let (source, info) = self.pack.require(&name)?;
        let encoding = match info.dtype {
            Dtype::F32 => FloatEncoding::F32,
            Dtype::F16 => FloatEncoding::F16,
            Dtype::BF16 => FloatEncoding::Bf16,
            _ => return Err(fault(source, info, &format!("{FLOAT}, or a packed module"))),
        };
        if info.shape != [out as u64, inputs as u64] {
            return Err(fault(source, info, &format!("[{out}, {inputs}]")));
        }
        let view = source.view(info.offset, info.len)?;
        Ok(Stored::Float(FloatMatrix::new(view, encoding, out, inputs)))
    }

    fn values(&self, name: &str, dims: &[usize]) -> Result<Vec<f32>, Error> {
        let suffix = name.split_once('.').and_then(|(_, rest)| rest.split_once('.'));
        let suffix = suffix.map_or(name, |(_, suffix)| suffix);
        let (source, info) = self.pack.require(&pack_name(name))?;
        let mut shape: Vec<u64> = dims.iter().rev().map(|d| *d as u64).collect();
        if suffix == CONV {
            shape.push(1);
        }
        if info.shape != shape {
            return Err(fault(source, info, &format!("{shape:?}")));
        }
        let Some(mut values) = floats(source, info)? else {
            return Err(fault(source, info, FLOAT));
        };
        if suffix == DECAY {
            values.iter_mut().for_each(|x| *x = -exp(*x));
        }
        Ok(values)
    }

    fn vocab(&self) -> usize {
        self.pack.text().vocab_size
    }

    fn tied(&self) -> bool {
        // The reader refuses a configuration that says so.
        false
    }
}

const FLOAT: &str = "F32, F16 or BF16";

fn fault(source: &Source, info: &TensorInfo, expected: &str) -> Error {
    Error::Tensor {
        path: source.path().to_path_buf(),
        tensor: info.name.clone(),
        expected: expected.into(),
        found: format!("{:?} {:?}", info.dtype, info.shape),
        hint: None,
    }
}
