//! The numbers of a target, and how the metadata of a GGUF gives them.

use formats::gguf::File;
use formats::{Error, GROUP};

use crate::gdn::{HeadOrder, Heads};
use crate::kv::KvType;

/// `general.architecture` of the models that are read.
pub(super) const ARCHITECTURE: &str = "qwen35";

/// No model has more layers, and no dimension is larger; keeps products far inside 64 bits.
const MAX_LAYERS: u32 = 4096;
const MAX_DIM: u32 = 1 << 24;

/// What mixes tokens in a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LayerKind {
    /// Softmax attention over all positions, gated.
    Attention,
    /// Gated delta net.
    Gdn,
}

/// Dimensions of the gated-delta-net layers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Gdn {
    /// Key (and query) heads.
    pub key_heads: usize,
    /// Value heads, a multiple of the key heads.
    pub value_heads: usize,
    /// Width of a head, of keys and of values.
    pub head_dim: usize,
    /// Taps of the convolution.
    pub conv_kernel: usize,
    /// Order of the value heads in the file.
    pub order: HeadOrder,
}

impl Gdn {
    /// The heads.
    #[must_use]
    pub fn heads(&self) -> Heads {
        let Self { key_heads, value_heads, head_dim: dim, order, .. } = *self;
        Heads { key_heads, value_heads, dim, order }
    }

    /// Width of all keys.
    #[must_use]
    pub fn key_width(&self) -> usize {
        self.heads().key_width()
    }

    /// Width of all values.
    #[must_use]
    pub fn inner(&self) -> usize {
        self.heads().inner()
    }

    /// Channels of the convolution: queries, keys, values.
    #[must_use]
    pub fn channels(&self) -> usize {
        self.heads().channels()
    }
}

/// Dimensions and constants of a target.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// Width of the residual stream.
    pub hidden: usize,
    /// Width of the SwiGLU product.
    pub feed_forward: usize,
    /// One entry per layer.
    pub layers: Vec<LayerKind>,
    /// Query heads.
    pub heads: usize,
    /// Key/value heads; divides the query heads.
    pub kv_heads: usize,
    /// Width of an attention head.
    pub head_dim: usize,
    /// Values of a head that are turned.
    pub rope_dims: usize,
    /// Base of the rotary angles.
    pub rope_theta: f64,
    /// Added to the mean square in every RMSNorm; the floor of the L2 norms.
    pub eps: f64,
    /// Longest context the model was made for.
    pub context_length: usize,
    /// The gated-delta-net layers.
    pub gdn: Gdn,
}

impl Config {
    pub(super) fn from_gguf(file: &File) -> Result<Self, Error> {
        let architecture = file.require_str("general.architecture")?;
        if architecture != ARCHITECTURE {
            let found = format!("`{}`", architecture.escape_debug());
            return Err(fault(file, "general.architecture", format!("`{ARCHITECTURE}`"), found));
        }
        let dim = |suffix: &str| dimension(file, suffix, MAX_DIM);
        let n_blocks = dimension(file, "block_count", MAX_LAYERS)?;
        let nextn = file.opt_u32(&key("nextn_predict_layers"))?.unwrap_or(0) as usize;
        let Some(n_layers) = n_blocks.checked_sub(nextn).filter(|n| *n > 0) else {
            let expected = format!("fewer than the {n_blocks} blocks");
            return Err(fault(file, &key("nextn_predict_layers"), expected, nextn));
        };
        let head_dim = dim("attention.key_length")?;
        let value_dim = dim("attention.value_length")?;
        if value_dim != head_dim {
            let expected = format!("{head_dim}, the width of a key");
            return Err(fault(file, &key("attention.value_length"), expected, value_dim));
        }
        let gdn = Gdn {
            key_heads: dim("ssm.group_count")?,
            value_heads: dim("ssm.time_step_rank")?,
            head_dim: dim("ssm.state_size")?,
            conv_kernel: dim("ssm.conv_kernel")?,
            order: HeadOrder::Tiled,
        };
        let config = Self {
            hidden: dim("embedding_length")?,
            feed_forward: dim("feed_forward_length")?,
            layers: layer_kinds(file, n_blocks, n_layers)?,
            heads: dim("attention.head_count")?,
            kv_heads: dim("attention.head_count_kv")?,
            head_dim,
            rope_dims: dim("rope.dimension_count")?,
            rope_theta: file.require_f32(&key("rope.freq_base"))?.into(),
            eps: file.require_f32(&key("attention.layer_norm_rms_epsilon"))?.into(),
            context_length: dim("context_length")?,
            gdn,
        };
        config.check(file)?;
        Ok(config)
    }

    /// Bytes of the keys and values of one position, all layers together.
    #[must_use]
    pub fn kv_bytes(&self, kv: KvType) -> usize {
        let layers = self.layers.iter().filter(|kind| **kind == LayerKind::Attention).count();
        layers * 2 * self.kv_width() * kv.bytes()
    }

    /// Bytes of the recurrent states, which do not grow.
    #[must_use]
    pub fn recurrent_bytes(&self) -> usize {
        let layers = self.layers.iter().filter(|kind| **kind == LayerKind::Gdn).count();
        let gdn = &self.gdn;
        let delta = gdn.value_heads * gdn.head_dim * gdn.head_dim;
        layers * (delta + (gdn.conv_kernel - 1) * gdn.channels()) * size_of::<f32>()
    }

    fn check(&self, file: &File) -> Result<(), Error> {
        let Self { gdn, .. } = self;
        let rules = [
            (
                "attention.head_count_kv",
                self.heads.is_multiple_of(self.kv_heads),
                self.kv_heads,
                format!("a divisor of the {} heads", self.heads),
            ),
            (
                "rope.dimension_count",
                self.rope_dims.is_multiple_of(2) && self.rope_dims <= self.head_dim,
                self.rope_dims,
                format!("an even number of at most the {} values of a head", self.head_dim),
            ),
            (
                "ssm.group_count",
                gdn.value_heads.is_multiple_of(gdn.key_heads),
                gdn.key_heads,
                format!("a divisor of the {} value heads", gdn.value_heads),
            ),
        ];
        for (suffix, holds, found, expected) in rules {
            if !holds {
                return Err(fault(file, &key(suffix), expected, found));
            }
        }
        let inner = dimension(file, "ssm.inner_size", MAX_DIM)?;
        if gdn.value_heads.checked_mul(gdn.head_dim) != Some(inner) {
            let expected = format!("{} x {}, the value heads", gdn.value_heads, gdn.head_dim);
            return Err(fault(file, &key("ssm.inner_size"), expected, inner));
        }
        for (suffix, value) in
            [("rope.freq_base", self.rope_theta), ("attention.layer_norm_rms_epsilon", self.eps)]
        {
            if !(value.is_finite() && value > 0.0) {
                return Err(fault(file, &key(suffix), "a positive number", value));
            }
        }
        // Sections say which of three positions turns which pair; in text all three are equal.
        if let Some(sections) = file.opt_u64s(&key("rope.dimension_sections"))?
            && !(3..=4).contains(&sections.len())
        {
            let expected = "3 or 4 sections";
            return Err(fault(file, &key("rope.dimension_sections"), expected, sections.len()));
        }
        Ok(())
    }

    /// Width of the queries, and of the gated attention output.
    #[must_use]
    pub fn q_width(&self) -> usize {
        self.heads * self.head_dim
    }

    /// Width of the keys, and of the values.
    #[must_use]
    pub fn kv_width(&self) -> usize {
        self.kv_heads * self.head_dim
    }

    /// Widths that enter a matrix that may be rotated.
    pub(super) fn is_ternary_width(width: u64) -> bool {
        width.is_multiple_of(GROUP as u64)
    }
}

/// The whole key.
pub(super) fn key(suffix: &str) -> String {
    format!("{ARCHITECTURE}.{suffix}")
}

#[expect(clippy::needless_pass_by_value, reason = "numbers and texts alike, at many places")]
pub(super) fn fault(
    file: &File,
    key: &str,
    expected: impl Into<String>,
    found: impl ToString,
) -> Error {
    Error::key(file.source().path(), key, expected, found.to_string())
}

fn dimension(file: &File, suffix: &str, max: u32) -> Result<usize, Error> {
    let key = key(suffix);
    let value = file.require_u32(&key)?;
    if !(1..=max).contains(&value) {
        return Err(fault(file, &key, format!("1 to {max}"), value));
    }
    Ok(value as usize)
}

/// By the mask of newer converters if it is there, otherwise by the interval: every fourth layer
/// attends, the last of each four.
fn layer_kinds(file: &File, n_blocks: usize, n_layers: usize) -> Result<Vec<LayerKind>, Error> {
    let kind = |gdn: bool| if gdn { LayerKind::Gdn } else { LayerKind::Attention };
    let mask_key = key("attention.recurrent_layers");
    if let Some(mask) = file.opt_bools(&mask_key)? {
        if mask.len() != n_blocks && mask.len() != n_layers {
            let expected = format!("{n_blocks} entries, one per block");
            return Err(fault(file, &mask_key, expected, mask.len()));
        }
        return Ok(mask[..n_layers].iter().map(|gdn| kind(*gdn)).collect());
    }
    let interval_key = key("full_attention_interval");
    let interval = file.opt_u32(&interval_key)?.unwrap_or(4) as usize;
    if interval == 0 {
        return Err(fault(file, &interval_key, "at least 1", interval));
    }
    Ok((0..n_layers).map(|i| kind((i + 1) % interval != 0)).collect())
}
