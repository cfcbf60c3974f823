//! The metadata of a drafter GGUF: architecture `dflash`, as llama.cpp reads it.
//!
//! Two values differ from `config.json`. The taps are counted from 1 (a GGUF
//! names the layers whose *input* is tapped), and the vocabulary size has no key
//! of its own: it is the number of rows of a codebook.
//!
//! The rotation is described by the `prism.hadamard.*` keys of PrismML's
//! targets, see [`Hadamard`]; where the file came from, by `ternarize.*`. One of
//! these is the drafter's `config.json`, for the fields that have no key: the
//! number of the target's layers, the drafter's own special tokens, and whatever
//! else its author wrote.

mod hadamard;
mod read;

use crate::Error;
use crate::dflash2::config::{Config, LayerType};
use crate::gguf::{Array, GgmlType, Value};

pub use hadamard::Hadamard;

/// `general.architecture` of every DFlash drafter, first and second generation.
pub const ARCHITECTURE: &str = "dflash";

const MASK_TOKEN: &str = "tokenizer.ggml.mask_token_id";
const EOS_TOKEN: &str = "tokenizer.ggml.eos_token_id";
const BOS_TOKEN: &str = "tokenizer.ggml.bos_token_id";
const PADDING_TOKEN: &str = "tokenizer.ggml.padding_token_id";

/// The author's `config.json`, as text.
pub const CONFIG: &str = "ternarize.config";

/// Fields of `config.json` that a GGUF calls otherwise; its keys without `dflash.`.
const KEYS: [(&str, &str); 15] = [
    ("num_hidden_layers", "block_count"),
    ("max_position_embeddings", "context_length"),
    ("hidden_size", "embedding_length"),
    ("intermediate_size", "feed_forward_length"),
    ("num_attention_heads", "attention.head_count"),
    ("num_key_value_heads", "attention.head_count_kv"),
    ("head_dim", "attention.key_length"),
    ("rms_norm_eps", "attention.layer_norm_rms_epsilon"),
    ("sliding_window", "attention.sliding_window"),
    ("layer_types", "attention.sliding_window_pattern"),
    ("is_causal", "attention.causal"),
    ("rope_theta", "rope.freq_base"),
    ("target_layer_ids", "target_layers"),
    ("output_multiplier", "logit_scale"),
    ("input_embedding_scale", "embedding_scale"),
];

/// The whole GGUF key of a field of `config.json`.
fn key(field: &str) -> String {
    match KEYS.iter().find(|(name, _)| *name == field) {
        Some((_, suffix)) => format!("{ARCHITECTURE}.{suffix}"),
        None if field == "mask_token_id" => MASK_TOKEN.into(),
        None => format!("{ARCHITECTURE}.{field}"),
    }
}

/// Where a compiled drafter came from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lineage {
    /// Version of the compiler.
    pub version: String,
    /// SHA-256 of the input, hexadecimal.
    pub input_sha256: String,
    /// Rule that made the weights ternary; none when the input was ternary already.
    pub rule: Option<String>,
}

/// Everything that the metadata of a compiled drafter says.
#[derive(Debug)]
pub struct Drafter<'a> {
    /// The network.
    pub config: &'a Config,
    /// `general.name`.
    pub name: Option<&'a str>,
    /// Encoding of the matrices: PQ2_0 or PTQ1_0.
    pub encoding: GgmlType,
    /// The rotation.
    pub hadamard: &'a Hadamard,
    /// The origin.
    pub lineage: &'a Lineage,
    /// The keys of [`crate::tokenizer::gguf_keys`], or none.
    pub tokenizer: Vec<(String, Value)>,
}

impl Drafter<'_> {
    /// The keys in the order they are written: general, network, tokenizer,
    /// rotation, lineage.
    ///
    /// # Errors
    /// [`Error::Key`] when a value has no place in a GGUF: causality that differs
    /// by layer.
    pub fn keys(self) -> Result<Vec<(String, Value)>, Error> {
        let mut keys = vec![("general.architecture".into(), string(ARCHITECTURE))];
        if let Some(name) = self.name {
            keys.push(("general.name".into(), string(name)));
        }
        // The numbers that the fork's quantizer gives to such files.
        let file_type = match self.encoding {
            GgmlType::PQ2_0 => Some(141),
            GgmlType::PTQ1_0 => Some(143),
            _ => None,
        };
        keys.extend(file_type.map(|id| ("general.file_type".into(), Value::U32(id))));
        keys.push(("general.quantization_version".into(), Value::U32(2)));
        keys.extend(network(self.config)?);
        keys.extend(self.tokenizer.into_iter().filter(|(k, _)| k != MASK_TOKEN));
        // Without it the masked rows get the id -1, and nothing is ever accepted.
        keys.push((MASK_TOKEN.into(), Value::U32(self.config.mask_token_id)));
        keys.extend(self.hadamard.keys());
        for (suffix, text) in [
            ("version", Some(&self.lineage.version)),
            ("input_sha256", Some(&self.lineage.input_sha256)),
            ("rule", self.lineage.rule.as_ref()),
        ] {
            keys.extend(text.map(|text| (format!("ternarize.{suffix}"), string(text))));
        }
        keys.extend(self.config.authored().map(|json| (CONFIG.into(), string(&json))));
        Ok(keys)
    }
}

fn string(text: &str) -> Value {
    Value::String(text.into())
}

/// The `dflash.*` keys.
fn network(c: &Config) -> Result<Vec<(String, Value)>, Error> {
    // The configuration's rules keep every dimension below 2^31.
    let int = |field, value: usize| (key(field), Value::U32(value as u32));
    let float = |field, value: f64| (key(field), Value::F32(value as f32));
    let mut keys = vec![
        int("num_hidden_layers", c.num_hidden_layers),
        int("max_position_embeddings", c.max_position_embeddings),
        int("hidden_size", c.hidden_size),
        int("intermediate_size", c.intermediate_size),
        int("num_attention_heads", c.num_attention_heads),
        int("num_key_value_heads", c.num_key_value_heads),
        int("head_dim", c.head_dim),
        (VALUE_LENGTH.into(), Value::U32(c.head_dim as u32)),
        float("rms_norm_eps", c.rms_norm_eps),
    ];
    if let Some(window) = c.sliding_window {
        let sliding = c.layer_types.iter().map(|t| *t == LayerType::Sliding);
        keys.push(int("sliding_window", window));
        keys.push((key("layer_types"), Value::Array(Array::Bool(sliding.collect()))));
    }
    keys.push((key("is_causal"), Value::Bool(causal(c)?)));
    keys.push(float("rope_theta", c.rope_theta));
    keys.push(int("block_size", c.block_size));
    keys.push(int("conv_kernel_size", c.conv_kernel_size));
    keys.push(int("conv_group_size", c.conv_group_size));
    keys.push(int("selector_rank", c.selector_rank));
    keys.push(int("selector_top_k", c.selector_top_k));
    let taps = c.target_layer_ids.iter().map(|id| *id as u32 + 1).collect();
    keys.push((key("target_layer_ids"), Value::Array(Array::U32(taps))));
    for (field, value) in [
        ("output_multiplier", c.output_multiplier),
        ("final_logit_softcapping", c.final_logit_softcapping),
        ("input_embedding_scale", c.input_embedding_scale),
    ] {
        keys.extend(value.map(|value| float(field, value)));
    }
    Ok(keys)
}

const VALUE_LENGTH: &str = "dflash.attention.value_length";

/// A GGUF has one flag for all layers.
fn causal(c: &Config) -> Result<bool, Error> {
    let mut layers = (0..c.num_hidden_layers).map(|layer| c.is_layer_causal(layer));
    let first = layers.next().unwrap_or(false);
    if layers.all(|causal| causal == first) {
        return Ok(first);
    }
    Err(Error::Key {
        path: "new GGUF file".into(),
        key: key("is_causal"),
        expected: "one causality for all layers".into(),
        found: "causal sliding layers beside full layers that are not".into(),
        hint: Some("state `is_causal` in the drafter's config.json".into()),
    })
}

#[cfg(test)]
mod tests;
