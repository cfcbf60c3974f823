//! Targets of seeded noise, written as GGUF files in memory.
//!
//! The weights are exact ternary in the rotated basis (or floats, un-rotated from the same ones), so
//! one seed gives the same model in several representations.

#![allow(dead_code, reason = "each test program uses a part")]
#![allow(clippy::unwrap_used, reason = "tests, which clippy does not see in helpers")]

pub(crate) mod drafter;
pub(crate) mod pack;

use std::collections::BTreeMap;

use formats::gguf::{Array, GgmlType, NewTensor, Value, layout};
use formats::{GROUP, Source, TernaryRows, pq2_0, ptq1_0};
use hadamard::{BlockHadamard, Isa, Signs};
use half::f16;
use rand::{Rng, RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// Dimensions of a target; layers attend where `mask` is false.
#[derive(Debug, Clone)]
pub(crate) struct Shape {
    pub(crate) hidden: usize,
    pub(crate) feed_forward: usize,
    /// Per layer: whether it is a delta net.
    pub(crate) mask: Vec<bool>,
    pub(crate) heads: usize,
    pub(crate) kv_heads: usize,
    pub(crate) head_dim: usize,
    pub(crate) rope_dims: usize,
    pub(crate) key_heads: usize,
    pub(crate) value_heads: usize,
    pub(crate) gdn_dim: usize,
    pub(crate) conv: usize,
    pub(crate) vocab: usize,
    pub(crate) context: usize,
    pub(crate) block: usize,
}

impl Shape {
    /// The dimensions of the fixture that is to be trained.
    pub(crate) fn tiny() -> Self {
        Shape {
            hidden: 256,
            feed_forward: 512,
            mask: vec![true, true, true, false, true, true],
            heads: 4,
            kv_heads: 2,
            head_dim: 64,
            rope_dims: 16,
            key_heads: 4,
            value_heads: 8,
            gdn_dim: 32,
            conv: 4,
            vocab: 1536,
            context: 4096,
            block: 256,
        }
    }

    /// Small enough for thousands of passes.
    pub(crate) fn mini() -> Self {
        Shape {
            hidden: 128,
            feed_forward: 256,
            mask: vec![true, false, true],
            heads: 2,
            kv_heads: 1,
            head_dim: 64,
            rope_dims: 16,
            key_heads: 4,
            value_heads: 8,
            gdn_dim: 16,
            conv: 4,
            vocab: 64,
            context: 256,
            block: 128,
        }
    }
}

impl Shape {
    /// Rotation blocks of 1024, as in the published models.
    pub(crate) fn wide() -> Self {
        Shape {
            hidden: 1024,
            feed_forward: 2048,
            mask: vec![true, false],
            heads: 4,
            kv_heads: 2,
            head_dim: 256,
            rope_dims: 64,
            key_heads: 4,
            value_heads: 8,
            gdn_dim: 128,
            conv: 4,
            vocab: 256,
            context: 4096,
            block: 1024,
        }
    }
}

/// How the matrices are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Storage {
    Pq2_0,
    Ptq1_0,
    /// The same matrices in the primal basis.
    Plain(GgmlType),
}

/// A GGUF to be: keys and tensors, which a test may change.
pub(crate) struct Builder {
    pub(crate) keys: Vec<(String, Value)>,
    pub(crate) tensors: Vec<(NewTensor, Vec<u8>)>,
}

impl Builder {
    pub(crate) fn source(&self) -> Source {
        let tensors = self.tensors.iter().map(|(tensor, _)| tensor.clone()).collect();
        let plan = layout(&self.keys, tensors).unwrap();
        let mut bytes = vec![0; plan.file_len as usize];
        bytes[..plan.header.len()].copy_from_slice(&plan.header);
        for (info, (_, data)) in plan.tensors.iter().zip(&self.tensors) {
            bytes[info.offset as usize..][..data.len()].copy_from_slice(data);
        }
        Source::from_bytes("noise.gguf", bytes)
    }

    pub(crate) fn set(&mut self, key: &str, value: Value) {
        self.remove(key);
        self.keys.push((key.into(), value));
    }

    pub(crate) fn remove(&mut self, key: &str) {
        self.keys.retain(|(k, _)| k != key);
    }

    pub(crate) fn tensor(&mut self, name: &str) -> &mut (NewTensor, Vec<u8>) {
        self.tensors.iter_mut().find(|(t, _)| t.name == name).unwrap()
    }
}

/// A uniform number in -1..1.
fn unit(rng: &mut ChaCha8Rng) -> f32 {
    rng.random_range(-1.0..1.0)
}

struct Noise<'a> {
    shape: &'a Shape,
    storage: Storage,
    rng: ChaCha8Rng,
    hadamard: BlockHadamard,
    signs: BTreeMap<usize, Vec<i8>>,
    tensors: Vec<(NewTensor, Vec<u8>)>,
    folded: Vec<String>,
}

impl Noise<'_> {
    fn push(&mut self, name: &str, dims: &[usize], ty: GgmlType, data: Vec<u8>) {
        let dims = dims.iter().map(|d| *d as u64).collect();
        self.tensors.push((NewTensor { name: name.into(), dims, ty }, data));
    }

    fn floats(&mut self, name: &str, dims: &[usize], value: impl Fn(f32) -> f32) {
        let n = dims.iter().product();
        let values: Vec<f32> = (0..n).map(|_| value(unit(&mut self.rng))).collect();
        let data = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        self.push(name, dims, GgmlType::F32, data);
    }

    /// A matrix of `[out, inputs]`, exact ternary in the rotated basis. `grouped`: the number of key
    /// heads if the stored columns are in grouped order.
    fn matrix(&mut self, name: &str, out: usize, inputs: usize, gain: f32, grouped: Option<usize>) {
        let scale = f16::from_f32(gain / (inputs as f32).sqrt());
        let mut rows = TernaryRows::zeroed(out, inputs);
        for r in 0..out {
            for k in 0..inputs {
                rows.set_code(r, k, (self.rng.next_u32() % 3) as u8);
            }
            (0..inputs / GROUP).for_each(|g| rows.set_scale(r, g, scale));
        }
        match self.storage {
            Storage::Pq2_0 => {
                let data = ternary_bytes(&rows, GgmlType::PQ2_0);
                self.push(name, &[inputs, out], GgmlType::PQ2_0, data);
            }
            Storage::Ptq1_0 => {
                let data = ternary_bytes(&rows, GgmlType::PTQ1_0);
                self.push(name, &[inputs, out], GgmlType::PTQ1_0, data);
            }
            Storage::Plain(ty) => {
                let signs = Signs::new(self.signs[&inputs].clone()).unwrap();
                let mut data = Vec::new();
                let mut row = vec![0.0; inputs];
                for r in 0..out {
                    rows.dequantize_row(r, &mut row);
                    self.hadamard.inverse(&mut row, &signs).unwrap();
                    if let Some(nk) = grouped {
                        row = grouped_to_tiled(&row, nk, self.shape.gdn_dim);
                    }
                    encode(&row, ty, &mut data);
                }
                self.push(name, &[inputs, out], ty, data);
            }
        }
        if name != "token_embd.weight" {
            self.folded.push(name.into());
        }
    }
}

/// The blocks of a ternary matrix.
fn ternary_bytes(rows: &TernaryRows, ty: GgmlType) -> Vec<u8> {
    if ty == GgmlType::PQ2_0 {
        let mut data = vec![0; rows.rows() * pq2_0::row_bytes(rows.cols())];
        pq2_0::encode(rows, &mut data);
        return data;
    }
    let mut data = vec![0; rows.rows() * ptq1_0::row_bytes(rows.cols())];
    ptq1_0::encode(rows, &mut data).unwrap();
    data
}

fn grouped_to_tiled(grouped: &[f32], nk: usize, dim: usize) -> Vec<f32> {
    let rep = grouped.len() / nk / dim;
    let mut tiled = vec![0.0; grouped.len()];
    for kh in 0..nk {
        for r in 0..rep {
            let (t, g) = ((r * nk + kh) * dim, (kh * rep + r) * dim);
            tiled[t..t + dim].copy_from_slice(&grouped[g..g + dim]);
        }
    }
    tiled
}

pub(crate) fn encode(row: &[f32], ty: GgmlType, data: &mut Vec<u8>) {
    match ty {
        GgmlType::F32 => row.iter().for_each(|v| data.extend(v.to_le_bytes())),
        GgmlType::F16 => row.iter().for_each(|v| data.extend(f16::from_f32(*v).to_le_bytes())),
        GgmlType::BF16 => {
            row.iter().for_each(|v| data.extend(half::bf16::from_f32(*v).to_le_bytes()));
        }
        GgmlType::Q8_0 => {
            for block in row.chunks_exact(32) {
                let max = block.iter().fold(0.0f32, |m, v| m.max(v.abs()));
                let d = f16::from_f32(max / 127.0);
                data.extend(d.to_le_bytes());
                let step = d.to_f32().max(1e-8);
                data.extend(
                    block.iter().map(|v| (v / step).round().clamp(-127.0, 127.0) as i8 as u8),
                );
            }
        }
        other => unreachable!("{other} is no plain type"),
    }
}

/// The target of `seed` with this shape and storage.
pub(crate) fn noise(shape: &Shape, storage: Storage, seed: u64) -> Builder {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let gdn_inner = shape.value_heads * shape.gdn_dim;
    let widths = [shape.hidden, shape.heads * shape.head_dim, gdn_inner, shape.feed_forward];
    let mut signs = BTreeMap::new();
    for width in widths {
        let sign = |rng: &mut ChaCha8Rng| if rng.next_u32() & 1 == 0 { 1 } else { -1 };
        signs.entry(width).or_insert_with(|| (0..width).map(|_| sign(&mut rng)).collect());
    }
    let mut noise = Noise {
        shape,
        storage,
        rng,
        hadamard: BlockHadamard::new(shape.block, Isa::scalar()).unwrap(),
        signs,
        tensors: Vec::new(),
        folded: Vec::new(),
    };
    let (hidden, ff) = (shape.hidden, shape.feed_forward);
    noise.matrix("token_embd.weight", shape.vocab, hidden, 4.0, None);
    noise.matrix("output.weight", shape.vocab, hidden, 1.5, None);
    noise.floats("output_norm.weight", &[hidden], |x| 1.0 + 0.2 * x);
    for (n, gdn) in shape.mask.iter().enumerate() {
        let name = |suffix: &str| format!("blk.{n}.{suffix}");
        noise.floats(&name("attn_norm.weight"), &[hidden], |x| 1.0 + 0.2 * x);
        if *gdn {
            let key = shape.key_heads * shape.gdn_dim;
            let (nv, channels) = (shape.value_heads, 2 * key + gdn_inner);
            noise.matrix(&name("attn_qkv.weight"), channels, hidden, 1.5, None);
            noise.matrix(&name("attn_gate.weight"), gdn_inner, hidden, 1.5, None);
            for gate in ["ssm_alpha.weight", "ssm_beta.weight"] {
                let values: Vec<f32> =
                    (0..nv * hidden).map(|_| 0.2 * unit(&mut noise.rng)).collect();
                let mut data = Vec::new();
                encode(&values, GgmlType::BF16, &mut data);
                noise.push(&name(gate), &[hidden, nv], GgmlType::BF16, data);
            }
            noise.floats(&name("ssm_conv1d.weight"), &[shape.conv, channels], |x| 0.7 * x);
            noise.floats(&name("ssm_a"), &[nv], |x| -0.3 - 0.25 * x);
            noise.floats(&name("ssm_dt.bias"), &[nv], |x| x - 1.0);
            noise.floats(&name("ssm_norm.weight"), &[shape.gdn_dim], |x| 1.0 + 0.2 * x);
            noise.matrix(&name("ssm_out.weight"), hidden, gdn_inner, 1.5, Some(shape.key_heads));
        } else {
            let (q, kv) = (shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim);
            noise.matrix(&name("attn_q.weight"), 2 * q, hidden, 1.5, None);
            noise.matrix(&name("attn_k.weight"), kv, hidden, 1.5, None);
            noise.matrix(&name("attn_v.weight"), kv, hidden, 1.5, None);
            noise.floats(&name("attn_q_norm.weight"), &[shape.head_dim], |x| 1.5 + 0.2 * x);
            noise.floats(&name("attn_k_norm.weight"), &[shape.head_dim], |x| 1.5 + 0.2 * x);
            noise.matrix(&name("attn_output.weight"), hidden, q, 1.5, None);
        }
        noise.floats(&name("post_attention_norm.weight"), &[hidden], |x| 1.0 + 0.2 * x);
        noise.matrix(&name("ffn_gate.weight"), ff, hidden, 1.5, None);
        noise.matrix(&name("ffn_up.weight"), ff, hidden, 1.5, None);
        noise.matrix(&name("ffn_down.weight"), hidden, ff, 1.5, None);
    }
    let mut builder = Builder { keys: keys(shape), tensors: noise.tensors };
    if !matches!(storage, Storage::Plain(_)) {
        builder.keys.extend(hadamard_keys(shape, &noise.signs, noise.folded));
    }
    builder
}

fn keys(shape: &Shape) -> Vec<(String, Value)> {
    let u32s = [
        ("block_count", shape.mask.len()),
        ("context_length", shape.context),
        ("embedding_length", shape.hidden),
        ("feed_forward_length", shape.feed_forward),
        ("attention.head_count", shape.heads),
        ("attention.head_count_kv", shape.kv_heads),
        ("attention.key_length", shape.head_dim),
        ("attention.value_length", shape.head_dim),
        ("rope.dimension_count", shape.rope_dims),
        ("ssm.conv_kernel", shape.conv),
        ("ssm.state_size", shape.gdn_dim),
        ("ssm.group_count", shape.key_heads),
        ("ssm.time_step_rank", shape.value_heads),
        ("ssm.inner_size", shape.value_heads * shape.gdn_dim),
    ];
    let mut keys = vec![("general.architecture".into(), Value::String("qwen35".into()))];
    keys.extend(u32s.map(|(key, value)| (format!("qwen35.{key}"), Value::U32(value as u32))));
    keys.push(("qwen35.rope.freq_base".into(), Value::F32(1e7)));
    let sections = vec![3, 3, 2, 0];
    keys.push(("qwen35.rope.dimension_sections".into(), Value::Array(Array::I32(sections))));
    keys.push(("qwen35.attention.layer_norm_rms_epsilon".into(), Value::F32(1e-6)));
    keys.push((
        "qwen35.attention.recurrent_layers".into(),
        Value::Array(Array::Bool(shape.mask.clone())),
    ));
    keys
}

fn hadamard_keys(
    shape: &Shape,
    signs: &BTreeMap<usize, Vec<i8>>,
    folded: Vec<String>,
) -> Vec<(String, Value)> {
    let string = |text: &str| Value::String(text.into());
    let values = signs.values().flatten().map(|sign| i32::from(*sign)).collect();
    [
        ("version", Value::U32(1)),
        ("block_size", Value::U32(shape.block as u32)),
        ("transform", string("normalized-sylvester-walsh-hadamard")),
        ("axis", string("input-last-dimension")),
        ("sign_mode", string("explicit")),
        ("sign_widths", Value::Array(Array::I32(signs.keys().map(|w| *w as i32).collect()))),
        ("sign_values", Value::Array(Array::I32(values))),
        ("weight_names", Value::Array(Array::String(folded))),
        ("inverse_weight_names", Value::Array(Array::String(vec!["token_embd.weight".into()]))),
        ("gdn_v_grouped", Value::Bool(true)),
    ]
    .map(|(suffix, value)| (format!("prism.hadamard.{suffix}"), value))
    .into()
}
