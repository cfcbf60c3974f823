//! The drafter's `config.json`, validated.
//!
//! The fields of the DFlash 2 block stand in `dflash_config` or at the top
//! level, `rope_theta` at the top level or in `rope_parameters`: every place is
//! read, two places must agree, and a value that decides what the network
//! computes is never guessed. Checkpoints with guessed taps or a guessed theta
//! load cleanly and then draft noise.
//!
//! The text as it was read is kept, so that a rewritten file has every field its
//! author gave, in the author's order and spelling.

mod document;
mod fields;
mod rotation;
mod rules;
mod unique;

use std::path::Path;

use serde_json::{Map, Value};

use crate::{Error, Source, shown, without_bom};
use document::Document;
use fields::Fields;

pub use rotation::{HEAD_ROTATED, HEAD_UNROTATED, PrismHadamard};
pub(in crate::dflash2) use rules::check;

/// The one architecture that is read.
pub const ARCHITECTURE: &str = "DFlash2DraftModel";

/// The predecessor: the same backbone without convolutions and selector.
pub const DFLASH1_ARCHITECTURE: &str = "DFlashDraftModel";

/// A `config.json` larger than this is refused unread.
pub const MAX_CONFIG_BYTES: u64 = 1 << 20;

/// Which context positions a layer attends to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LayerType {
    /// The last `sliding_window` positions.
    Sliding,
    /// All positions.
    Full,
}

impl LayerType {
    /// The name in `layer_types`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Sliding => "sliding_attention",
            Self::Full => "full_attention",
        }
    }
}

/// Dimensions and constants of a drafter. Every value has passed the rules: no
/// zero, no dimension over 2^31, no product that overflows.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Width of the SwiGLU product.
    pub intermediate_size: usize,
    /// Decoder layers of the drafter.
    pub num_hidden_layers: usize,
    /// Query heads.
    pub num_attention_heads: usize,
    /// Key/value heads; divides the query heads.
    pub num_key_value_heads: usize,
    /// Width of one head.
    pub head_dim: usize,
    /// Rows of the target's embedding, and of the two codebooks.
    pub vocab_size: usize,
    /// Longest context.
    pub max_position_embeddings: usize,
    /// Layers of the target, where the file says it (GGUF does not).
    pub num_target_layers: Option<usize>,
    /// Added to the mean square in every RMSNorm.
    pub rms_norm_eps: f64,
    /// Base of the rotary angles.
    pub rope_theta: f64,
    /// Window of the sliding layers.
    pub sliding_window: Option<usize>,
    /// One entry per layer.
    pub layer_types: Vec<LayerType>,
    /// Whether rows of a block see only earlier rows; see [`Config::is_layer_causal`].
    pub is_causal: Option<bool>,
    /// Rows of a block: the pending token and the masks.
    pub block_size: usize,
    /// Channels that share one pair of convolution coefficients.
    pub conv_group_size: usize,
    /// Taps of the convolutions.
    pub conv_kernel_size: usize,
    /// The token that fills the rows to be drafted.
    pub mask_token_id: u32,
    /// Width of the codebook rows.
    pub selector_rank: usize,
    /// Candidates per row.
    pub selector_top_k: usize,
    /// 0-based target layers whose outputs are tapped, ascending.
    pub target_layer_ids: Vec<usize>,
    /// Factor on the borrowed embedding rows; 1 when absent.
    pub input_embedding_scale: Option<f64>,
    /// Factor on the logits; 1 when absent.
    pub output_multiplier: Option<f64>,
    /// Soft cap on the logits; none when absent or not positive.
    pub final_logit_softcapping: Option<f64>,
    /// Beginning-of-sequence token.
    pub bos_token_id: Option<u32>,
    /// End-of-sequence tokens, the first one first.
    pub eos_token_ids: Vec<u32>,
    /// Padding token.
    pub pad_token_id: Option<u32>,
    /// The mark of a rotated drafter.
    pub prism_hadamard: Option<PrismHadamard>,
    pub(in crate::dflash2) raw: Map<String, Value>,
    /// The text of `raw`; none when there was only a GGUF's keys.
    pub(in crate::dflash2) text: Option<Document>,
}

impl Config {
    /// Reads and validates the file at `path`.
    ///
    /// # Errors
    /// [`Error::Io`]; [`Error::Structure`] when the file is over
    /// [`MAX_CONFIG_BYTES`]; otherwise as [`Config::parse`].
    pub fn read(path: &Path) -> Result<Self, Error> {
        let source = Source::open(path)?;
        if source.len() > MAX_CONFIG_BYTES {
            return Err(Error::Structure {
                path: path.to_path_buf(),
                part: "the file".into(),
                expected: format!("a config.json of at most {MAX_CONFIG_BYTES} bytes"),
                found: format!("{} bytes", source.len()),
                hint: None,
            });
        }
        Self::parse(path, &source.read_vec(0, source.len())?)
    }

    /// Validates the bytes of a `config.json`; `path` is for messages.
    ///
    /// # Errors
    /// [`Error::Structure`] when the bytes are no JSON object, [`Error::Key`]
    /// when a field is absent, of the wrong type, or breaks a rule.
    pub fn parse(path: &Path, json: &[u8]) -> Result<Self, Error> {
        let json = without_bom(json);
        let not_an_object = |found: String| Error::Structure {
            path: path.to_path_buf(),
            part: "the contents".into(),
            expected: "a JSON object".into(),
            found,
            hint: None,
        };
        if let Err(e) = serde_json::from_slice::<unique::Keys>(json) {
            return Err(not_an_object(format!("a JSON error: {}", shown(&e.to_string()))));
        }
        let raw = match serde_json::from_slice(json) {
            Ok(Value::Object(map)) => map,
            Ok(other) => return Err(not_an_object(fields::describe(&other))),
            Err(e) => {
                return Err(not_an_object(format!("a JSON error: {}", shown(&e.to_string()))));
            }
        };
        let text = std::str::from_utf8(json).map_err(|e| not_an_object(e.to_string()))?;
        let config = Self { text: Some(Document::new(text)), ..Self::from_map(path, raw)? };
        let fields = Fields::new(path, &config.raw)?;
        check(&config).map_err(|v| v.at(path, fields.key(v.field)))?;
        if let Some(mark) = &config.prism_hadamard {
            mark.check(path, &config)?;
        }
        Ok(config)
    }

    fn from_map(path: &Path, raw: Map<String, Value>) -> Result<Self, Error> {
        let fields = Fields::new(path, &raw)?;
        fields.refuse_foreign_architectures()?;
        fields.refuse_unsupported_variants()?;
        let num_hidden_layers = fields.need_int("num_hidden_layers")?;
        let (sliding_window, layer_types) = fields.attention_window(num_hidden_layers)?;
        let config = Self {
            hidden_size: fields.need_int("hidden_size")?,
            intermediate_size: fields.need_int("intermediate_size")?,
            num_hidden_layers,
            num_attention_heads: fields.need_int("num_attention_heads")?,
            num_key_value_heads: fields.need_int("num_key_value_heads")?,
            head_dim: fields.need_int("head_dim")?,
            vocab_size: fields.need_int("vocab_size")?,
            max_position_embeddings: fields.need_int("max_position_embeddings")?,
            num_target_layers: fields.int("num_target_layers")?,
            rms_norm_eps: fields.need_number("rms_norm_eps")?,
            rope_theta: fields.need_number("rope_theta")?,
            sliding_window,
            layer_types,
            is_causal: fields.boolean("is_causal")?,
            block_size: fields.need_int("block_size")?,
            conv_group_size: fields.need_int("conv_group_size")?,
            conv_kernel_size: fields.need_int("conv_kernel_size")?,
            mask_token_id: fields.need_token("mask_token_id")?,
            selector_rank: fields.need_int("selector_rank")?,
            selector_top_k: fields.need_int("selector_top_k")?,
            target_layer_ids: fields.need_ints("target_layer_ids")?,
            input_embedding_scale: fields.number("input_embedding_scale")?,
            output_multiplier: fields.number("output_multiplier")?,
            // Zero and negative values mean "no cap" in the reference.
            final_logit_softcapping: fields
                .number("final_logit_softcapping")?
                .filter(|cap| *cap > 0.0),
            bos_token_id: fields.token("bos_token_id")?,
            eos_token_ids: fields.token_or_tokens("eos_token_id")?,
            pad_token_id: fields.token("pad_token_id")?,
            prism_hadamard: PrismHadamard::from_fields(&fields)?,
            raw: Map::new(),
            text: None,
        };
        Ok(Self { raw, ..config })
    }

    /// The object as it was read; made from the fields when the drafter came from a GGUF.
    #[must_use]
    pub fn raw(&self) -> &Map<String, Value> {
        &self.raw
    }

    /// The `config.json` of a rotated drafter: the fields that were read, in
    /// their order and spelling, and `mark` as `prism_hadamard`; indented, with a
    /// final newline.
    #[must_use]
    pub fn to_json_with_hadamard(&self, mark: &PrismHadamard) -> Vec<u8> {
        self.document().rewritten(rotation::KEY, Some(&mark.to_value())).into_bytes()
    }

    /// The `config.json` of a drafter in the primal basis: as
    /// [`Config::to_json_with_hadamard`], without the mark.
    #[must_use]
    pub fn to_json_without_hadamard(&self) -> Vec<u8> {
        self.document().rewritten(rotation::KEY, None).into_bytes()
    }

    /// What the drafter's author wrote, without the mark; none when the drafter
    /// came from a GGUF that did not carry it.
    #[must_use]
    pub fn authored(&self) -> Option<String> {
        Some(self.text.as_ref()?.rewritten(rotation::KEY, None))
    }

    fn document(&self) -> Document {
        let made = || Document::new(&Value::Object(self.raw.clone()).to_string());
        self.text.clone().unwrap_or_else(made)
    }

    /// Width of the queries, and of the attention output that `o_proj` reads.
    #[must_use]
    pub fn q_width(&self) -> usize {
        self.num_attention_heads * self.head_dim
    }

    /// Width of the keys, and of the values.
    #[must_use]
    pub fn kv_width(&self) -> usize {
        self.num_key_value_heads * self.head_dim
    }

    /// Input width of `fc`: the tapped streams side by side.
    #[must_use]
    pub fn fc_in(&self) -> usize {
        self.target_layer_ids.len() * self.hidden_size
    }

    /// Coefficients that a convolution's `kernel_projection` gives per row:
    /// side x tap x group.
    #[must_use]
    pub fn conv_out(&self) -> usize {
        2 * self.conv_kernel_size * self.hidden_size / self.conv_group_size
    }

    /// The distinct input widths of the ternary matrices, ascending.
    #[must_use]
    pub fn matrix_widths(&self) -> Vec<usize> {
        let mut widths =
            vec![self.hidden_size, self.q_width(), self.intermediate_size, self.fc_in()];
        widths.sort_unstable();
        widths.dedup();
        widths
    }

    /// Tokens that one block proposes. Row 0 holds the pending token, which is
    /// known already, so this is one less than the rows.
    #[must_use]
    pub fn drafts(&self) -> usize {
        self.block_size - 1
    }

    /// Whether rows of a block see only earlier rows in `layer`. Without
    /// `is_causal` the older rule holds: sliding layers are causal, full ones not.
    ///
    /// # Panics
    /// If there is no such layer.
    #[must_use]
    pub fn is_layer_causal(&self, layer: usize) -> bool {
        self.is_causal.unwrap_or(self.layer_types[layer] == LayerType::Sliding)
    }
}

#[cfg(test)]
mod tests;
