//! `text_config` of a pack: the dimensions of the model, as Hugging Face's `qwen3_5_text` names them.
//!
//! A value that decides what the network computes is never guessed: `rope_theta` and
//! `partial_rotary_factor` stand in `rope_parameters` or beside it, and where they stand in both, both
//! must agree.

use std::path::Path;

use serde_json::{Value, json};

use super::object::{self, Object};
use crate::Error;

const MODEL_TYPE: &str = "qwen3_5_text";
/// No model has more layers, and no dimension is larger; keeps products far inside 64 bits.
const MAX_LAYERS: u64 = 4096;
const MAX_DIM: u64 = 1 << 24;
const LINEAR: &str = "linear_attention";
const FULL: &str = "full_attention";

/// Dimensions and constants of a pack's text model. Every value has passed the rules.
#[derive(Debug, Clone, PartialEq)]
pub struct TextConfig {
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Width of the SwiGLU product.
    pub intermediate_size: usize,
    /// Per layer: whether it is a gated delta net, not full attention.
    pub linear_layers: Vec<bool>,
    /// Query heads.
    pub num_attention_heads: usize,
    /// Key/value heads; divides the query heads.
    pub num_key_value_heads: usize,
    /// Width of an attention head.
    pub head_dim: usize,
    /// Values of a head that are turned: `head_dim · partial_rotary_factor`, even.
    pub rotary_dims: usize,
    /// Base of the rotary angles.
    pub rope_theta: f64,
    /// Added to the mean square in every RMSNorm.
    pub rms_norm_eps: f64,
    /// Longest context.
    pub max_position_embeddings: usize,
    /// Rows of embedding and head.
    pub vocab_size: usize,
    /// Key heads of the delta nets.
    pub linear_num_key_heads: usize,
    /// Value heads of the delta nets, a multiple of the key heads.
    pub linear_num_value_heads: usize,
    /// Width of their heads, of keys and of values.
    pub linear_head_dim: usize,
    /// Taps of their convolution.
    pub linear_conv_kernel_dim: usize,
}

impl TextConfig {
    /// Reads the `text_config` in the text of a `config.json`; `path` stands in messages.
    ///
    /// # Errors
    /// [`Error::Structure`] when it is not a JSON object, [`Error::Key`] when a key is missing or has
    /// a value that the model does not have.
    pub fn parse(path: impl AsRef<Path>, json: &[u8]) -> Result<Self, Error> {
        let path = path.as_ref();
        let root = object::parse(path, json)?;
        Self::from_root(&Object::root(path, &root))
    }

    pub(super) fn from_root(root: &Object<'_>) -> Result<Self, Error> {
        let text = root.object("text_config")?;
        for (name, expected) in [
            ("model_type", json!(MODEL_TYPE)),
            ("tie_word_embeddings", json!(false)),
            ("attention_bias", json!(false)),
            ("attn_output_gate", json!(true)),
            ("hidden_act", json!("silu")),
            ("num_experts", json!(0)),
        ] {
            text.only(name, &expected)?;
        }
        let dim = |name: &str| text.size(name, MAX_DIM);
        let head_dim = dim("head_dim")?;
        let linear_head_dim = dim("linear_key_head_dim")?;
        let config = Self {
            hidden_size: dim("hidden_size")?,
            intermediate_size: dim("intermediate_size")?,
            linear_layers: linear_layers(&text)?,
            num_attention_heads: dim("num_attention_heads")?,
            num_key_value_heads: dim("num_key_value_heads")?,
            head_dim,
            rotary_dims: rotary_dims(&text, head_dim)?,
            rope_theta: rope(&text, "rope_theta")?,
            rms_norm_eps: text.positive("rms_norm_eps")?,
            max_position_embeddings: dim("max_position_embeddings")?,
            vocab_size: dim("vocab_size")?,
            linear_num_key_heads: dim("linear_num_key_heads")?,
            linear_num_value_heads: dim("linear_num_value_heads")?,
            linear_head_dim,
            linear_conv_kernel_dim: dim("linear_conv_kernel_dim")?,
        };
        if dim("linear_value_head_dim")? != linear_head_dim {
            let expected = format!("{linear_head_dim}, the width of a key");
            return Err(text.wrong("linear_value_head_dim", expected));
        }
        for (name, of, heads) in [
            ("num_key_value_heads", config.num_attention_heads, config.num_key_value_heads),
            ("linear_num_key_heads", config.linear_num_value_heads, config.linear_num_key_heads),
        ] {
            if !of.is_multiple_of(heads) {
                return Err(text.wrong(name, format!("a divisor of the {of} heads")));
            }
        }
        Ok(config)
    }
}

/// By `layer_types` if there are any, otherwise by the interval: every fourth layer attends, the last
/// of each four.
fn linear_layers(text: &Object<'_>) -> Result<Vec<bool>, Error> {
    let n = text.size("num_hidden_layers", MAX_LAYERS)?;
    if text.get("layer_types").is_none() {
        let interval = text.size("full_attention_interval", MAX_DIM)?;
        return Ok((0..n).map(|i| (i + 1) % interval != 0).collect());
    }
    let list = text.list("layer_types")?;
    if list.len() != n {
        let found = format!("{} entries", list.len());
        return Err(text.found("layer_types", format!("one entry for each of {n} layers"), found));
    }
    let kind = |(i, value): (usize, &Value)| match value.as_str() {
        Some(LINEAR) => Ok(true),
        Some(FULL) => Ok(false),
        _ => {
            let expected = format!("\"{LINEAR}\" or \"{FULL}\"");
            let found = object::describe(value);
            Err(text.found(&format!("layer_types[{i}]"), expected, found))
        }
    };
    list.iter().enumerate().map(kind).collect()
}

/// A positive number in `rope_parameters`, beside it, or in both.
fn rope(text: &Object<'_>, name: &str) -> Result<f64, Error> {
    if text.get("rope_parameters").is_none() {
        return text.positive(name);
    }
    let inner = text.object("rope_parameters")?;
    inner.only("rope_type", &json!("default"))?;
    if inner.get(name).is_none() {
        return text.positive(name);
    }
    let value = inner.positive(name)?;
    if text.get(name).is_some() && text.positive(name)?.to_bits() != value.to_bits() {
        return Err(text.wrong(name, format!("{value}, as in rope_parameters")));
    }
    Ok(value)
}

fn rotary_dims(text: &Object<'_>, head_dim: usize) -> Result<usize, Error> {
    const NAME: &str = "partial_rotary_factor";
    let factor = rope(text, NAME)?;
    // Widths have 24 bits, so the product of a fraction with few bits is exact.
    let dims = factor * head_dim as f64;
    let whole = dims.fract() == 0.0 && factor <= 1.0 && (dims as usize).is_multiple_of(2);
    if !whole {
        let expected = format!("a part of the {head_dim} values of a head that is an even number");
        return Err(text.found(NAME, expected, format!("{factor}")));
    }
    Ok(dims as usize)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// The published model's.
    pub(in crate::mlx) fn config() -> Value {
        json!({"text_config": {
            "model_type": "qwen3_5_text",
            "hidden_size": 5120,
            "intermediate_size": 17408,
            "num_hidden_layers": 64,
            "full_attention_interval": 4,
            "num_attention_heads": 24,
            "num_key_value_heads": 4,
            "head_dim": 256,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 10_000_000,
                "partial_rotary_factor": 0.25,
                "mrope_section": [11, 11, 10]
            },
            "rms_norm_eps": 1e-6,
            "max_position_embeddings": 262_144,
            "vocab_size": 248_320,
            "linear_num_key_heads": 16,
            "linear_num_value_heads": 48,
            "linear_key_head_dim": 128,
            "linear_value_head_dim": 128,
            "linear_conv_kernel_dim": 4,
            "tie_word_embeddings": false
        }})
    }

    fn parse(config: &Value) -> Result<TextConfig, Error> {
        TextConfig::parse("config.json", config.to_string().as_bytes())
    }

    #[test]
    fn the_published_dimensions() {
        let text = parse(&config()).unwrap();
        assert_eq!((text.hidden_size, text.vocab_size, text.rotary_dims), (5120, 248_320, 64));
        assert_eq!((text.rope_theta, text.rms_norm_eps), (1e7, 1e-6));
        let attends = text.linear_layers.iter().filter(|linear| !**linear).count();
        assert_eq!((attends, text.linear_layers[3], text.linear_layers[62]), (16, false, true));
    }

    #[test]
    fn what_may_stand_elsewhere() {
        let expected = parse(&config()).unwrap();
        let mut flat = config();
        let text = flat["text_config"].as_object_mut().unwrap();
        text.remove("rope_parameters");
        text.insert("rope_theta".into(), json!(1e7));
        text.insert("partial_rotary_factor".into(), json!(0.25));
        let kind = |i: u32| if i % 4 == 3 { FULL } else { LINEAR };
        text.insert("layer_types".into(), (0..64).map(kind).collect());
        text.remove("full_attention_interval");
        text.remove("tie_word_embeddings");
        assert_eq!(parse(&flat).unwrap(), expected);
        flat["text_config"]["rope_parameters"] = json!({"rope_theta": 1e7});
        assert_eq!(parse(&flat).unwrap(), expected);
    }

    #[test]
    fn wrong_values_are_named_by_key() {
        for (pointer, value, key) in [
            ("", json!([]), "text_config"),
            ("/model_type", json!("llama"), "text_config.model_type"),
            ("/hidden_size", json!(0), "text_config.hidden_size"),
            ("/hidden_size", json!(1 << 25), "text_config.hidden_size"),
            ("/head_dim", json!("256"), "text_config.head_dim"),
            ("/num_key_value_heads", json!(5), "text_config.num_key_value_heads"),
            ("/linear_num_key_heads", json!(7), "text_config.linear_num_key_heads"),
            ("/linear_value_head_dim", json!(64), "text_config.linear_value_head_dim"),
            ("/full_attention_interval", json!(0), "text_config.full_attention_interval"),
            ("/layer_types", json!([LINEAR]), "text_config.layer_types"),
            ("/layer_types", json!(vec![json!(1); 64]), "text_config.layer_types[0]"),
            ("/rms_norm_eps", json!(-1), "text_config.rms_norm_eps"),
            ("/rope_theta", json!(10_000), "text_config.rope_theta"),
            ("/rope_parameters/rope_type", json!("yarn"), "text_config.rope_parameters.rope_type"),
            (
                "/rope_parameters/partial_rotary_factor",
                json!(0.3),
                "text_config.partial_rotary_factor",
            ),
            ("/rope_parameters/rope_theta", json!(0), "text_config.rope_parameters.rope_theta"),
            ("/tie_word_embeddings", json!(true), "text_config.tie_word_embeddings"),
            ("/num_experts", json!(8), "text_config.num_experts"),
        ] {
            let mut config = config();
            let (parent, name) = pointer.rsplit_once('/').unwrap_or(("", "text_config"));
            if pointer.is_empty() {
                config[name] = value;
            } else {
                config.pointer_mut(&format!("/text_config{parent}")).unwrap()[name] = value;
            }
            match parse(&config) {
                Err(Error::Key { key: named, .. }) => assert_eq!(named, key),
                other => panic!("{pointer}: {other:?}"),
            }
        }
        for name in ["vocab_size", "head_dim", "full_attention_interval", "linear_conv_kernel_dim"]
        {
            let mut config = config();
            config["text_config"].as_object_mut().unwrap().remove(name);
            let message = parse(&config).unwrap_err().to_string();
            assert!(message.contains(name) && message.contains("found nothing"), "{message}");
        }
    }
}
