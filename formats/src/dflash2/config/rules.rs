//! What every drafter must satisfy, wherever its numbers were read from.

use std::fmt::Display;
use std::path::Path;

use super::{Config, LayerType};
use crate::{Error, shown_number};

/// No block is wider; the published ones have 8 and 16 rows.
const MAX_BLOCK_ROWS: usize = 64;
/// No drafter has more layers: they are meant to be far smaller than the target.
const MAX_LAYERS: usize = 512;
/// Largest width of a matrix.
const MAX_WIDTH: u64 = 1 << 31;
/// Largest number of parameters; keeps every byte count far inside 64 bits.
const MAX_PARAMETERS: u64 = 1 << 40;

/// A rule that a field breaks; the reader knows what its file calls the field.
#[derive(Debug)]
pub(in crate::dflash2) struct Violation {
    /// The field, by its name in `config.json`.
    pub(in crate::dflash2) field: &'static str,
    expected: String,
    found: String,
}

impl Violation {
    fn new(field: &'static str, expected: impl Into<String>, found: impl Display) -> Self {
        Self { field, expected: expected.into(), found: found.to_string() }
    }

    pub(in crate::dflash2) fn at(&self, path: &Path, key: String) -> Error {
        Error::Key {
            path: path.to_path_buf(),
            key,
            expected: self.expected.clone(),
            found: self.found.clone(),
            hint: None,
        }
    }
}

/// Checks the numbers of `c` against each other.
pub(in crate::dflash2) fn check(c: &Config) -> Result<(), Violation> {
    sizes(c)?;
    ratios(c)?;
    constants(c)?;
    taps(c)?;
    products(c)
}

fn sizes(c: &Config) -> Result<(), Violation> {
    for (field, value) in [
        ("hidden_size", c.hidden_size),
        ("intermediate_size", c.intermediate_size),
        ("num_hidden_layers", c.num_hidden_layers),
        ("num_attention_heads", c.num_attention_heads),
        ("num_key_value_heads", c.num_key_value_heads),
        ("head_dim", c.head_dim),
        ("vocab_size", c.vocab_size),
        ("max_position_embeddings", c.max_position_embeddings),
        ("num_target_layers", c.num_target_layers.unwrap_or(1)),
        ("sliding_window", c.sliding_window.unwrap_or(1)),
        ("conv_group_size", c.conv_group_size),
        ("conv_kernel_size", c.conv_kernel_size),
        ("selector_rank", c.selector_rank),
        ("selector_top_k", c.selector_top_k),
    ] {
        if value == 0 {
            return Err(Violation::new(field, "at least 1", 0));
        }
    }
    if c.num_hidden_layers > MAX_LAYERS {
        let expected = format!("at most {MAX_LAYERS}");
        return Err(Violation::new("num_hidden_layers", expected, c.num_hidden_layers));
    }
    if !(2..=MAX_BLOCK_ROWS).contains(&c.block_size) {
        let expected = format!("2 to {MAX_BLOCK_ROWS} rows");
        return Err(Violation::new("block_size", expected, c.block_size));
    }
    if c.conv_kernel_size > MAX_BLOCK_ROWS {
        let expected = format!("at most {MAX_BLOCK_ROWS} taps");
        return Err(Violation::new("conv_kernel_size", expected, c.conv_kernel_size));
    }
    if c.layer_types.len() != c.num_hidden_layers {
        let expected = format!("{} entries, one per layer", c.num_hidden_layers);
        return Err(Violation::new("layer_types", expected, c.layer_types.len()));
    }
    if c.sliding_window.is_none() && c.layer_types.contains(&LayerType::Sliding) {
        let expected = "a window, because `layer_types` has sliding layers";
        return Err(Violation::new("sliding_window", expected, "nothing"));
    }
    Ok(())
}

fn ratios(c: &Config) -> Result<(), Violation> {
    if !c.num_attention_heads.is_multiple_of(c.num_key_value_heads) {
        let expected = format!("a divisor of the {} attention heads", c.num_attention_heads);
        return Err(Violation::new("num_key_value_heads", expected, c.num_key_value_heads));
    }
    if !c.head_dim.is_multiple_of(2) {
        let expected = "an even number (RoPE turns pairs)";
        return Err(Violation::new("head_dim", expected, c.head_dim));
    }
    if !c.hidden_size.is_multiple_of(c.conv_group_size) {
        let expected = format!("a divisor of the hidden size {}", c.hidden_size);
        return Err(Violation::new("conv_group_size", expected, c.conv_group_size));
    }
    if c.selector_top_k > c.vocab_size {
        let expected = format!("at most the {} tokens of the vocabulary", c.vocab_size);
        return Err(Violation::new("selector_top_k", expected, c.selector_top_k));
    }
    if c.mask_token_id as usize >= c.vocab_size {
        let expected = format!("a token id below the vocabulary size {}", c.vocab_size);
        return Err(Violation::new("mask_token_id", expected, c.mask_token_id));
    }
    Ok(())
}

fn constants(c: &Config) -> Result<(), Violation> {
    // GGUF and the engines hold these as f32, so an f32 must be able to.
    let positive = |v: f64| (v as f32).is_finite() && (v as f32) > 0.0;
    if !positive(c.rms_norm_eps) || c.rms_norm_eps >= 1.0 {
        return Err(Violation::new(
            "rms_norm_eps",
            "a number between 0 and 1",
            shown_number(c.rms_norm_eps),
        ));
    }
    for (field, value) in [
        ("rope_theta", Some(c.rope_theta)),
        ("input_embedding_scale", c.input_embedding_scale),
        ("output_multiplier", c.output_multiplier),
        ("final_logit_softcapping", c.final_logit_softcapping),
    ] {
        if let Some(value) = value.filter(|v| !positive(*v)) {
            return Err(Violation::new(field, "a positive f32", shown_number(value)));
        }
    }
    Ok(())
}

fn taps(c: &Config) -> Result<(), Violation> {
    let ids = &c.target_layer_ids;
    if ids.is_empty() {
        return Err(Violation::new("target_layer_ids", "at least one target layer", "none"));
    }
    if let Some(pair) = ids.windows(2).find(|p| p[0] >= p[1]) {
        return Err(Violation::new(
            "target_layer_ids",
            "strictly ascending layer numbers",
            format!("{} before {}", pair[0], pair[1]),
        ));
    }
    if let Some(n) = c.num_target_layers
        && let Some(id) = ids.iter().find(|id| **id >= n)
    {
        let expected = format!("layer numbers below `num_target_layers` = {n}");
        return Err(Violation::new("target_layer_ids", expected, id));
    }
    Ok(())
}

/// The widths and the size of the whole model, by checked arithmetic.
fn products(c: &Config) -> Result<(), Violation> {
    let width = |field, parts: &[usize]| -> Result<u64, Violation> {
        parts
            .iter()
            .try_fold(1u64, |product, part| product.checked_mul(*part as u64))
            .filter(|product| *product <= MAX_WIDTH)
            .ok_or_else(|| {
                let parts: Vec<_> = parts.iter().map(ToString::to_string).collect();
                Violation::new(
                    field,
                    format!("a matrix width of at most {MAX_WIDTH}"),
                    parts.join(" x "),
                )
            })
    };
    let hidden = c.hidden_size as u64;
    let inter = c.intermediate_size as u64;
    let q = width("num_attention_heads", &[c.num_attention_heads, c.head_dim])?;
    let kv = width("num_key_value_heads", &[c.num_key_value_heads, c.head_dim])?;
    let fc_in = width("target_layer_ids", &[c.target_layer_ids.len(), c.hidden_size])?;
    let conv =
        width("conv_kernel_size", &[2, c.conv_kernel_size, c.hidden_size / c.conv_group_size])?;
    let base = width("conv_kernel_size", &[2, c.conv_kernel_size, c.hidden_size])?;
    let rank = c.selector_rank as u64;

    // Each operand is at most 2^32, so 128 bits hold all of it.
    let [hidden, inter, q, kv, fc_in, conv, base, rank] =
        [hidden, inter, q, kv, fc_in, conv, base, rank].map(u128::from);
    let layer =
        hidden * (2 * q + 2 * kv + 3 * inter + 2 * conv + 2) + 2 * base + 2 * c.head_dim as u128;
    let total = layer * c.num_hidden_layers as u128
        + hidden * (fc_in + rank + 2)
        + 2 * rank * c.vocab_size as u128;
    if total > u128::from(MAX_PARAMETERS) {
        let expected = format!("dimensions of at most {MAX_PARAMETERS} parameters in all");
        return Err(Violation::new("hidden_size", expected, format!("{total} parameters")));
    }
    Ok(())
}
