//! Drafters of seeded noise, laid out like the published checkpoint.
//!
//! The files have what the compiler's code depends on: the published names,
//! shapes, order and dtype, rows and columns of different size, outliers. They
//! draft nothing sensible. The bytes depend on shape, seed and dtype only, not
//! on the number of threads or the machine: each row of each tensor has its own
//! random stream, and the values come from basic arithmetic.

mod noise;

use std::fs::Permissions;
use std::io::Write as _;
use std::os::unix::fs::{FileExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, ensure};
use formats::dflash2::config::Config;
use formats::dflash2::names::{Codebooks, TensorSpec, specs};
use formats::safetensors::{Dtype, NewTensor, TensorInfo, layout};
use half::{bf16, f16};
use rayon::prelude::*;
use serde_json::{Value, json};
use tempfile::NamedTempFile;

use noise::Noise;

/// The seed of the committed fixture.
pub const SEED: u64 = 1;

/// The published configuration.
const PUBLISHED: &str = include_str!("../../tests/fixtures/published-drafter/config.json");

/// Bytes that a thread makes before it writes them.
const CHUNK_BYTES: u64 = 1 << 20;

/// Dimensions of a fixture.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Shape {
    /// Two layers of width 256: rotates in blocks of 256, 2.9 MB in bf16.
    Tiny,
    /// The published drafter's 81 tensors, 3.8 GB in bf16.
    Full,
}

/// Type of the stored weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Float {
    /// Upper half of an f32, as published.
    Bf16,
    /// IEEE half.
    F16,
    /// IEEE single.
    F32,
}

impl Float {
    fn dtype(self) -> Dtype {
        match self {
            Self::Bf16 => Dtype::BF16,
            Self::F16 => Dtype::F16,
            Self::F32 => Dtype::F32,
        }
    }

    /// The name in a `config.json`.
    fn config_name(self) -> &'static str {
        match self {
            Self::Bf16 => "bfloat16",
            Self::F16 => "float16",
            Self::F32 => "float32",
        }
    }

    /// Appends `values` as they are stored.
    fn encode(self, values: &[f32], out: &mut Vec<u8>) {
        match self {
            Self::Bf16 => out.extend(values.iter().flat_map(|v| bf16::from_f32(*v).to_le_bytes())),
            Self::F16 => out.extend(values.iter().flat_map(|v| f16::from_f32(*v).to_le_bytes())),
            Self::F32 => out.extend(values.iter().flat_map(|v| v.to_le_bytes())),
        }
    }

    /// Rounds `values` to what is stored.
    fn round(self, values: &mut [f32]) {
        match self {
            Self::Bf16 => values.iter_mut().for_each(|v| *v = bf16::from_f32(*v).to_f32()),
            Self::F16 => values.iter_mut().for_each(|v| *v = f16::from_f32(*v).to_f32()),
            Self::F32 => {}
        }
    }
}

/// What to write.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// Dimensions.
    pub shape: Shape,
    /// Seed of the noise.
    pub seed: u64,
    /// Type of the weights.
    pub dtype: Float,
    /// Whether to replace files that are there.
    pub force: bool,
}

impl Options {
    /// The committed fixture's options, with another shape if asked for.
    #[must_use]
    pub fn new(shape: Shape) -> Self {
        Self { shape, seed: SEED, dtype: Float::Bf16, force: false }
    }
}

/// What was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Written {
    /// The weights.
    pub model: PathBuf,
    /// The configuration.
    pub config: PathBuf,
    /// Number of tensors.
    pub n_tensors: usize,
    /// Bytes of all tensors.
    pub data_bytes: u64,
    /// Bytes of the weights' file.
    pub file_bytes: u64,
}

/// The configuration of a tiny drafter: every input width a multiple of 256,
/// every output width of 64, taps of a target with 8 layers.
#[must_use]
pub fn tiny_config() -> Value {
    json!({
        "architectures": ["DFlash2DraftModel"],
        "attention_bias": false,
        "attention_dropout": 0.0,
        "bos_token_id": null,
        "is_causal": false,
        "dflash_config": {
            "block_size": 8,
            "conv_group_size": 16,
            "conv_kernel_size": 2,
            "mask_token_id": 260,
            "selector_rank": 64,
            "selector_top_k": 15,
            "target_layer_ids": [2, 5]
        },
        "dtype": "bfloat16",
        "eos_token_id": 256,
        "head_dim": 64,
        "hidden_act": "silu",
        "hidden_size": 256,
        "initializer_range": 0.02,
        "intermediate_size": 512,
        "layer_types": ["sliding_attention", "sliding_attention"],
        "max_position_embeddings": 4096,
        "max_window_layers": 2,
        "model_type": "qwen3",
        "num_attention_heads": 4,
        "num_hidden_layers": 2,
        "num_key_value_heads": 2,
        "num_target_layers": 8,
        "pad_token_id": 256,
        "rms_norm_eps": 1e-6,
        "rope_parameters": { "rope_theta": 10_000_000, "rope_type": "default" },
        "sliding_window": 32,
        "tie_word_embeddings": false,
        "transformers_version": "5.15.0",
        "use_cache": true,
        "use_sliding_window": true,
        "vocab_size": 320
    })
}

/// The configuration of a shape, in bf16.
///
/// # Panics
/// If the published configuration, a constant, is no JSON.
#[must_use]
pub fn config(shape: Shape) -> Value {
    match shape {
        Shape::Tiny => tiny_config(),
        Shape::Full => serde_json::from_str(PUBLISHED).expect("the published config.json is JSON"),
    }
}

/// The bytes of the fixture's `config.json`.
fn config_bytes(options: &Options) -> Vec<u8> {
    let mut config = config(options.shape);
    config["dtype"] = options.dtype.config_name().into();
    format!("{config:#}\n").into_bytes()
}

/// Every tensor with its source of values; a tensor's place in the model's
/// order is part of its seed.
fn noises(options: &Options) -> anyhow::Result<Vec<(TensorSpec, Noise)>> {
    let config = Config::parse(Path::new("config.json"), &config_bytes(options))?;
    let specs = specs(&config, Codebooks::Bare).into_iter().enumerate();
    Ok(specs
        .map(|(i, spec)| {
            let noise = Noise::new(options.seed, i as u64, &spec);
            (spec, noise)
        })
        .collect())
}

/// The values of tensor `name`, row-major, as the file holds them.
///
/// # Errors
/// When there is no such tensor.
pub fn values(options: &Options, name: &str) -> anyhow::Result<Vec<f32>> {
    let noises = noises(options)?;
    let (spec, noise) = noises
        .iter()
        .find(|(spec, _)| spec.name == name)
        .with_context(|| format!("the fixture has no tensor `{name}`"))?;
    let mut values = vec![0.0; usize::try_from(spec.parameters())?];
    let width = usize::try_from(spec.inputs())?;
    for (row, out) in values.chunks_exact_mut(width).enumerate() {
        noise.row(row as u64, out, &mut Vec::new());
    }
    options.dtype.round(&mut values);
    Ok(values)
}

/// Writes `model.safetensors` and `config.json` to the folder `dir`.
///
/// # Errors
/// When a file is there and `force` is not set, or the system cannot write.
pub fn write(dir: &Path, options: &Options) -> anyhow::Result<Written> {
    let (model, config) = (dir.join("model.safetensors"), dir.join("config.json"));
    if !options.force {
        for path in [&model, &config] {
            ensure!(
                !path.try_exists()?,
                "`{}` is there already; --force replaces it",
                path.display()
            );
        }
    }
    std::fs::create_dir_all(dir)?;

    let noises = noises(options)?;
    let tensors = noises.iter().map(|(spec, _)| NewTensor {
        name: spec.name.clone(),
        dtype: options.dtype.dtype(),
        shape: spec.shape.clone(),
    });
    let plan = layout(tensors.collect(), &Default::default());
    let file = temporary(dir)?;
    file.as_file().set_len(plan.file_len)?;
    file.as_file().write_all_at(&plan.header, 0)?;
    let chunks = chunks(&plan.tensors, &noises)?;
    chunks.par_iter().try_for_each_init(
        Buffers::default,
        |buffers, chunk| -> std::io::Result<()> {
            chunk.encode(options.dtype, buffers);
            file.as_file().write_all_at(&buffers.bytes, chunk.offset)
        },
    )?;

    let mut config_file = temporary(dir)?;
    config_file.write_all(&config_bytes(options))?;
    for (file, path) in [(file, &model), (config_file, &config)] {
        file.as_file().sync_all()?;
        let renamed = if options.force { file.persist(path) } else { file.persist_noclobber(path) };
        renamed.with_context(|| format!("renaming to `{}`", path.display()))?;
    }
    Ok(Written {
        model,
        config,
        n_tensors: plan.tensors.len(),
        data_bytes: plan.tensors.iter().map(|t| t.len).sum(),
        file_bytes: plan.file_len,
    })
}

fn temporary(dir: &Path) -> std::io::Result<NamedTempFile> {
    tempfile::Builder::new()
        .prefix(".fixture")
        .suffix(".partial")
        .permissions(Permissions::from_mode(0o666))
        .tempfile_in(dir)
}

/// Some whole rows of one tensor.
struct Chunk<'a> {
    noise: &'a Noise,
    first_row: u64,
    n_rows: u64,
    width: usize,
    offset: u64,
}

/// What a thread keeps between chunks.
#[derive(Default)]
struct Buffers {
    random: Vec<u8>,
    row: Vec<f32>,
    bytes: Vec<u8>,
}

impl Chunk<'_> {
    fn encode(&self, dtype: Float, buffers: &mut Buffers) {
        let Buffers { random, row, bytes } = buffers;
        bytes.clear();
        row.resize(self.width, 0.0);
        for r in self.first_row..self.first_row + self.n_rows {
            self.noise.row(r, row, random);
            dtype.encode(row, bytes);
        }
    }
}

/// All rows of all tensors in runs of about [`CHUNK_BYTES`], in the file's order.
fn chunks<'a>(
    planned: &[TensorInfo],
    noises: &'a [(TensorSpec, Noise)],
) -> anyhow::Result<Vec<Chunk<'a>>> {
    let mut chunks = Vec::new();
    for tensor in planned {
        let (spec, noise) = noises
            .iter()
            .find(|(spec, _)| spec.name == tensor.name)
            .with_context(|| format!("no source for `{}`", tensor.name))?;
        let n_rows = spec.parameters() / spec.inputs();
        let row_bytes = tensor.len / n_rows;
        let step = (CHUNK_BYTES / row_bytes).max(1);
        let mut first_row = 0;
        while first_row < n_rows {
            chunks.push(Chunk {
                noise,
                first_row,
                n_rows: step.min(n_rows - first_row),
                width: usize::try_from(spec.inputs())?,
                offset: tensor.offset + first_row * row_bytes,
            });
            first_row += step;
        }
    }
    Ok(chunks)
}

#[cfg(test)]
mod tests;
