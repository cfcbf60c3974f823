//! Targets of seeded noise in the shape of Ternary Bonsai 2 27B.
//!
//! The file has the published tensors, types, keys and sizes (7.2 GB at full shape), so loading,
//! memory and speed can be measured without the model. It says nothing sensible. The tokenizer knows
//! bytes only. The bytes depend on shape and seed, not on the number of threads or the machine.

use std::collections::BTreeMap;
use std::fs::Permissions;
use std::io::Write as _;
use std::os::unix::fs::{FileExt as _, PermissionsExt as _};
use std::path::Path;

use anyhow::{Context as _, ensure};
use formats::gguf::{Array, GgmlType, NewTensor, Value, layout};
use formats::{GROUP, pq2_0};
use half::{bf16, f16};
use rand::{Rng, RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rayon::prelude::*;
use tempfile::NamedTempFile;

/// Rows that a thread makes before it writes them.
const ROWS: usize = 256;

/// Dimensions of a target.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Shape {
    /// Four layers of width 1024, 20 MB.
    Small,
    /// Eight layers of the 27 B model and its head, 1.6 GB.
    Medium,
    /// The 851 tensors of the 27 B model, 7.2 GB.
    Full,
}

/// The numbers of a shape.
#[derive(Debug, Clone, Copy)]
struct Dims {
    hidden: usize,
    feed_forward: usize,
    layers: usize,
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
    key_heads: usize,
    value_heads: usize,
    gdn_dim: usize,
    vocab: usize,
    /// Ids from here on are special or padding.
    first_special: usize,
    context: u32,
}

impl Shape {
    fn dims(self) -> Dims {
        match self {
            Self::Small => Dims {
                hidden: 1024,
                feed_forward: 2048,
                layers: 4,
                heads: 4,
                kv_heads: 2,
                head_dim: 256,
                key_heads: 4,
                value_heads: 8,
                gdn_dim: 128,
                vocab: 1024,
                first_special: 512,
                context: 4096,
            },
            Self::Medium => Dims { layers: 8, ..Self::Full.dims() },
            Self::Full => Dims {
                hidden: 5120,
                feed_forward: 17408,
                layers: 64,
                heads: 24,
                kv_heads: 4,
                head_dim: 256,
                key_heads: 16,
                value_heads: 48,
                gdn_dim: 128,
                vocab: 248_320,
                first_special: 248_044,
                context: 262_144,
            },
        }
    }
}

/// What a tensor holds.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Fill {
    /// Exact ternary, with a scale that keeps a product about as large as its input.
    Ternary { gain: f32 },
    /// Uniform in `mid ± spread`.
    Floats { mid: f32, spread: f32 },
}

struct Tensor {
    name: String,
    /// Fastest first.
    dims: Vec<usize>,
    ty: GgmlType,
    fill: Fill,
}

impl Tensor {
    fn row_bytes(&self) -> usize {
        match self.ty {
            GgmlType::PQ2_0 => pq2_0::row_bytes(self.dims[0]),
            GgmlType::BF16 => self.dims[0] * 2,
            _ => self.dims[0] * 4,
        }
    }

    /// The bytes of row `r`.
    fn write_row(&self, seed: u64, r: usize, out: &mut Vec<u8>) {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        rng.set_stream(r as u64);
        match self.fill {
            Fill::Ternary { gain } => {
                // Two thirds of the codes are not 0.
                let scale = f16::from_f32(gain * (1.5 / self.dims[0] as f32).sqrt());
                let mut codes = [0; GROUP / 4];
                for _ in 0..self.dims[0] / GROUP {
                    rng.fill_bytes(&mut codes);
                    out.extend(scale.to_le_bytes());
                    out.extend(codes.map(|byte| FOUR_CODES[byte as usize]));
                }
            }
            Fill::Floats { mid, spread } => {
                for _ in 0..self.dims[0] {
                    let value = mid + spread * rng.random_range(-1.0f32..1.0);
                    match self.ty {
                        GgmlType::BF16 => out.extend(bf16::from_f32(value).to_le_bytes()),
                        _ => out.extend(value.to_le_bytes()),
                    }
                }
            }
        }
    }
}

/// Four codes of 0 to 2 for every byte, nearly evenly.
const FOUR_CODES: [u8; 256] = {
    let mut table = [0; 256];
    let mut i = 0;
    while i < 256 {
        let n = i % 81;
        let (a, b, c, d) = (n % 3, n / 3 % 3, n / 9 % 3, n / 27);
        table[i] = (a | b << 2 | c << 4 | d << 6) as u8;
        i += 1;
    }
    table
};

fn tensors(d: &Dims) -> Vec<Tensor> {
    let ternary = |name: String, inputs: usize, out: usize| {
        let gain = if name == "token_embd.weight" { (inputs as f32 / 1.5).sqrt() } else { 1.0 };
        let (dims, fill) = (vec![inputs, out], Fill::Ternary { gain });
        Tensor { name, dims, ty: GgmlType::PQ2_0, fill }
    };
    let floats = |name: String, dims: Vec<usize>, mid: f32, spread: f32| {
        let fill = Fill::Floats { mid, spread };
        Tensor { name, dims, ty: GgmlType::F32, fill }
    };
    let (key, inner) = (d.key_heads * d.gdn_dim, d.value_heads * d.gdn_dim);
    let mut all = vec![
        ternary("token_embd.weight".into(), d.hidden, d.vocab),
        ternary("output.weight".into(), d.hidden, d.vocab),
        floats("output_norm.weight".into(), vec![d.hidden], 1.0, 0.2),
    ];
    for l in 0..d.layers {
        let name = |suffix: &str| format!("blk.{l}.{suffix}");
        all.push(floats(name("attn_norm.weight"), vec![d.hidden], 1.0, 0.2));
        if (l + 1) % 4 == 0 {
            let (q, kv) = (d.heads * d.head_dim, d.kv_heads * d.head_dim);
            all.push(ternary(name("attn_q.weight"), d.hidden, 2 * q));
            all.push(ternary(name("attn_k.weight"), d.hidden, kv));
            all.push(ternary(name("attn_v.weight"), d.hidden, kv));
            all.push(ternary(name("attn_output.weight"), q, d.hidden));
            all.push(floats(name("attn_q_norm.weight"), vec![d.head_dim], 1.0, 0.2));
            all.push(floats(name("attn_k_norm.weight"), vec![d.head_dim], 1.0, 0.2));
        } else {
            all.push(ternary(name("attn_qkv.weight"), d.hidden, 2 * key + inner));
            all.push(ternary(name("attn_gate.weight"), d.hidden, inner));
            all.push(ternary(name("ssm_out.weight"), inner, d.hidden));
            for gate in ["ssm_alpha.weight", "ssm_beta.weight"] {
                let fill = Fill::Floats { mid: 0.0, spread: 1.0 / (d.hidden as f32).sqrt() };
                let dims = vec![d.hidden, d.value_heads];
                all.push(Tensor { name: name(gate), dims, ty: GgmlType::BF16, fill });
            }
            all.push(floats(name("ssm_conv1d.weight"), vec![4, 2 * key + inner], 0.0, 0.7));
            all.push(floats(name("ssm_a"), vec![d.value_heads], -0.3, 0.25));
            all.push(floats(name("ssm_dt.bias"), vec![d.value_heads], -1.0, 1.0));
            all.push(floats(name("ssm_norm.weight"), vec![d.gdn_dim], 1.0, 0.2));
        }
        all.push(floats(name("post_attention_norm.weight"), vec![d.hidden], 1.0, 0.2));
        all.push(ternary(name("ffn_gate.weight"), d.hidden, d.feed_forward));
        all.push(ternary(name("ffn_up.weight"), d.hidden, d.feed_forward));
        all.push(ternary(name("ffn_down.weight"), d.feed_forward, d.hidden));
    }
    all
}

fn keys(d: &Dims, tensors: &[Tensor], seed: u64) -> Vec<(String, Value)> {
    let inner = d.value_heads * d.gdn_dim;
    let mut keys: Vec<(String, Value)> = Vec::new();
    let mut set = |key: &str, value: Value| keys.push((key.into(), value));
    set("general.architecture", Value::String("qwen35".into()));
    set("general.name", Value::String("synthetic noise".into()));
    set("general.file_type", Value::U32(141));
    set("general.quantization_version", Value::U32(2));
    for (key, value) in [
        ("block_count", d.layers),
        ("embedding_length", d.hidden),
        ("feed_forward_length", d.feed_forward),
        ("attention.head_count", d.heads),
        ("attention.head_count_kv", d.kv_heads),
        ("attention.key_length", d.head_dim),
        ("attention.value_length", d.head_dim),
        ("rope.dimension_count", d.head_dim / 4),
        ("full_attention_interval", 4),
        ("ssm.conv_kernel", 4),
        ("ssm.state_size", d.gdn_dim),
        ("ssm.group_count", d.key_heads),
        ("ssm.time_step_rank", d.value_heads),
        ("ssm.inner_size", inner),
    ] {
        set(&format!("qwen35.{key}"), Value::U32(value as u32));
    }
    set("qwen35.context_length", Value::U32(d.context));
    set("qwen35.attention.layer_norm_rms_epsilon", Value::F32(1e-6));
    set("qwen35.rope.freq_base", Value::F32(1e7));
    set("qwen35.rope.dimension_sections", Value::Array(Array::I32(vec![11, 11, 10, 0])));

    let widths: BTreeMap<usize, ()> =
        [d.hidden, d.heads * d.head_dim, inner, d.feed_forward].map(|w| (w, ())).into();
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let mut signs = Vec::new();
    for width in widths.keys() {
        signs.extend((0..*width).map(|_| if rng.next_u32() & 1 == 0 { 1 } else { -1 }));
    }
    let is_folded = |t: &&Tensor| t.ty == GgmlType::PQ2_0 && t.name != "token_embd.weight";
    let folded = tensors.iter().filter(is_folded).map(|t| t.name.clone()).collect();
    let mut set = |key: &str, value: Value| keys.push((format!("prism.hadamard.{key}"), value));
    set("version", Value::U32(1));
    set("block_size", Value::U32(1024));
    set("transform", Value::String("normalized-sylvester-walsh-hadamard".into()));
    set("axis", Value::String("input-last-dimension".into()));
    set("sign_mode", Value::String("explicit".into()));
    let sign_widths = widths.keys().map(|w| *w as i32).collect();
    set("sign_widths", Value::Array(Array::I32(sign_widths)));
    set("sign_values", Value::Array(Array::I32(signs)));
    set("weight_names", Value::Array(Array::String(folded)));
    let inverse = vec!["token_embd.weight".to_owned()];
    set("inverse_weight_names", Value::Array(Array::String(inverse)));
    set("gdn_v_grouped", Value::Bool(true));

    let mut set = |key: &str, value: Value| keys.push((format!("tokenizer.{key}"), value));
    let (tokens, types) = tokens(d);
    set("ggml.model", Value::String("gpt2".into()));
    set("ggml.pre", Value::String("qwen35".into()));
    set("ggml.tokens", Value::Array(Array::String(tokens)));
    set("ggml.token_type", Value::Array(Array::I32(types)));
    set("ggml.merges", Value::Array(Array::String(Vec::new())));
    set("ggml.eos_token_id", Value::U32(d.first_special as u32 + 2));
    set("ggml.padding_token_id", Value::U32(d.first_special as u32));
    keys
}

/// The 256 byte tokens, unused ids, and the special ones where the published model has them.
fn tokens(d: &Dims) -> (Vec<String>, Vec<i32>) {
    const SPECIAL: [&str; 3] = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"];
    let token = |id: usize| match id {
        0..256 => (byte_token(id as u8), 1),
        _ => match id.checked_sub(d.first_special).and_then(|i| SPECIAL.get(i)) {
            Some(special) => ((*special).to_owned(), 3),
            None => (format!("[PAD{id}]"), 5),
        },
    };
    (0..d.vocab).map(token).unzip()
}

/// A byte as byte-level BPE spells it: printable characters stand for themselves, the others are
/// moved past 255.
fn byte_token(byte: u8) -> String {
    let printable = |b: u8| matches!(b, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF);
    let code = if printable(byte) {
        u32::from(byte)
    } else {
        256 + (0..byte).filter(|b| !printable(*b)).count() as u32
    };
    char::from_u32(code).map_or_else(String::new, String::from)
}

/// Writes the target to `path`; gives the size of the file.
///
/// # Errors
/// When the file is there already and `force` is not set, or cannot be written.
pub fn write(path: &Path, shape: Shape, seed: u64, force: bool) -> anyhow::Result<u64> {
    ensure!(force || !path.exists(), "`{}` exists; --force replaces it", path.display());
    let dims = shape.dims();
    let tensors = tensors(&dims);
    let new = tensors.iter().map(|t| NewTensor {
        name: t.name.clone(),
        dims: t.dims.iter().map(|d| *d as u64).collect(),
        ty: t.ty,
    });
    let plan = layout(&keys(&dims, &tensors, seed), new.collect())?;

    let folder = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut file = NamedTempFile::new_in(folder)
        .with_context(|| format!("creating a file in `{}`", folder.display()))?;
    file.as_file().set_len(plan.file_len)?;
    file.write_all(&plan.header)?;
    let out = file.as_file();
    for (i, (tensor, info)) in tensors.iter().zip(&plan.tensors).enumerate() {
        let n_rows: usize = tensor.dims[1..].iter().product();
        let seed = seed.wrapping_mul(1 << 20).wrapping_add(i as u64 + 1);
        (0..n_rows.div_ceil(ROWS)).into_par_iter().try_for_each(|part| {
            let rows = part * ROWS..n_rows.min((part + 1) * ROWS);
            let mut bytes = Vec::with_capacity(rows.len() * tensor.row_bytes());
            let at = info.offset + (rows.start * tensor.row_bytes()) as u64;
            rows.for_each(|r| tensor.write_row(seed, r, &mut bytes));
            out.write_all_at(&bytes, at)
        })?;
    }
    out.set_permissions(Permissions::from_mode(0o644))?;
    file.persist(path).map_err(|e| e.error)?;
    Ok(plan.file_len)
}

#[cfg(test)]
mod tests {
    use super::*;
    use formats::Source;
    use formats::gguf::File;

    #[test]
    fn the_full_shape_is_the_published_one() {
        let dims = Shape::Full.dims();
        let all = tensors(&dims);
        let count = |ty| all.iter().filter(|t| t.ty == ty).count();
        assert_eq!(all.len(), 851);
        assert_eq!(count(GgmlType::PQ2_0), 402);
        assert_eq!(count(GgmlType::BF16), 96);
        let bytes = |ty| {
            let of = all.iter().filter(|t| t.ty == ty);
            of.map(|t| t.row_bytes() * t.dims[1..].iter().product::<usize>()).sum::<usize>()
        };
        assert_eq!(bytes(GgmlType::PQ2_0), 7_137_280_000);
        assert_eq!(bytes(GgmlType::BF16), 47_185_920);
        assert_eq!(bytes(GgmlType::F32), 10_582_016);
        let (tokens, types) = tokens(&dims);
        assert_eq!((tokens.len(), tokens[248_046].as_str()), (248_320, "<|im_end|>"));
        assert_eq!((tokens[10].as_str(), tokens[32].as_str(), types[248_046]), ("Ċ", "Ġ", 3));
    }

    #[test]
    fn a_small_one_is_read_back() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("t.gguf");
        let len = write(&path, Shape::Small, 1, false).unwrap();
        let file = File::open(Source::open(&path).unwrap()).unwrap();
        assert_eq!(file.source().len(), len);
        assert!(write(&path, Shape::Small, 1, false).is_err());
    }
}
