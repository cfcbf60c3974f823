//! From the metadata of a drafter GGUF back to its configuration.

use serde_json::{Map, Value as Json, json};

use std::path::Path;

use super::{
    ARCHITECTURE, BOS_TOKEN, CONFIG, EOS_TOKEN, MASK_TOKEN, PADDING_TOKEN, VALUE_LENGTH, key,
    network,
};
use crate::Error;
use crate::dflash2::config::{self, Config, LayerType, check};
use crate::dflash2::names::today_in_gguf;
use crate::gguf::{File, Value};

/// A tensor whose second dimension is the vocabulary size.
const CODEBOOK: &str = "selector_predecessor.weight";

impl Config {
    /// Reads the configuration of a drafter GGUF. Where the file carries its
    /// author's `config.json`, it is that one, and says what the keys say; else
    /// [`Config::raw`] is made from the keys.
    ///
    /// # Errors
    /// [`Error::Key`] when the file is no DFlash 2 drafter, and when a key is
    /// absent, of the wrong type, or breaks a rule: nothing is guessed.
    pub fn from_gguf(file: &File) -> Result<Self, Error> {
        refuse_other_models(file)?;
        let int = |field| file.require_u32(&key(field)).map(|v| v as usize);
        let number = |field| file.require_f32(&key(field)).map(shortest);
        let optional = |field| file.opt_f32(&key(field)).map(|v| v.map(shortest));
        let num_hidden_layers = int("num_hidden_layers")?;
        let head_dim = int("head_dim")?;
        refuse_other_attention(file, head_dim)?;
        let (sliding_window, layer_types) = window(file, num_hidden_layers)?;
        let mut config = Self {
            hidden_size: int("hidden_size")?,
            intermediate_size: int("intermediate_size")?,
            num_hidden_layers,
            num_attention_heads: int("num_attention_heads")?,
            num_key_value_heads: int("num_key_value_heads")?,
            head_dim,
            vocab_size: vocab_size(file)?,
            max_position_embeddings: int("max_position_embeddings")?,
            num_target_layers: None,
            rms_norm_eps: number("rms_norm_eps")?,
            rope_theta: number("rope_theta")?,
            sliding_window,
            layer_types,
            // llama.cpp's default, unlike that of config.json.
            is_causal: Some(file.opt_bool(&key("is_causal"))?.unwrap_or(false)),
            block_size: int("block_size")?,
            conv_group_size: int("conv_group_size")?,
            conv_kernel_size: int("conv_kernel_size")?,
            mask_token_id: file.require_u32(MASK_TOKEN)?,
            selector_rank: int("selector_rank")?,
            selector_top_k: int("selector_top_k")?,
            target_layer_ids: taps(file)?,
            input_embedding_scale: optional("input_embedding_scale")?,
            output_multiplier: optional("output_multiplier")?,
            final_logit_softcapping: optional("final_logit_softcapping")?.filter(|cap| *cap > 0.0),
            bos_token_id: file.opt_u32(BOS_TOKEN)?,
            eos_token_ids: file.opt_u32(EOS_TOKEN)?.into_iter().collect(),
            pad_token_id: file.opt_u32(PADDING_TOKEN)?,
            prism_hadamard: None,
            raw: Map::new(),
            text: None,
        };
        check(&config).map_err(|v| v.at(file.source().path(), key(v.field)))?;
        if let Some(json) = file.opt_str(CONFIG)? {
            return authored(file, &config, json);
        }
        config.raw = published_form(&config);
        Ok(config)
    }
}

/// The author's configuration. The keys that engines read decide: one that says
/// something else is refused.
fn authored(file: &File, keys: &Config, json: &str) -> Result<Config, Error> {
    let refuse =
        |expected: &str, found: String, hint| Err(fault(file, CONFIG, expected, found, hint));
    if json.len() as u64 > config::MAX_CONFIG_BYTES {
        let found = format!("{} bytes", json.len());
        return refuse("a config.json of at most 1 MiB", found, None);
    }
    let own = match Config::parse(Path::new("config.json"), json.as_bytes()) {
        Ok(own) => own,
        Err(why) => return refuse("the drafter's config.json", why.to_string(), None),
    };
    let hint = Some("the file's metadata was edited; remove `ternarize.config` to go by the rest");
    let differs = |key: &str, own: String, here: String| {
        let found = format!("another value of `{key}`: {own}, not {here}");
        refuse("what the other keys say", found, hint)
    };
    if (own.vocab_size, own.mask_token_id) != (keys.vocab_size, keys.mask_token_id) {
        let ids = |c: &Config| format!("{} of {}", c.mask_token_id, c.vocab_size);
        return differs(MASK_TOKEN, ids(&own), ids(keys));
    }
    // In the words of the keys, where a float is an f32.
    let (words, here) = (network(&own)?, network(keys)?);
    for (name, _) in words.iter().chain(&here) {
        let (a, b) = (value_of(&words, name), value_of(&here, name));
        if a != b {
            return differs(name, in_words(a), in_words(b));
        }
    }
    Ok(Config { prism_hadamard: None, ..own })
}

fn value_of<'a>(keys: &'a [(String, Value)], name: &str) -> Option<&'a Value> {
    keys.iter().find(|(key, _)| key == name).map(|(_, value)| value)
}

fn in_words(value: Option<&Value>) -> String {
    match value {
        None => "nothing".into(),
        Some(Value::Array(list)) => match list.to_u64s() {
            Some(list) if list.len() <= 16 => format!("{list:?}"),
            _ => format!("a list of {}", list.len()),
        },
        Some(value) => value.to_string(),
    }
}

fn fault(
    file: &File,
    key: impl Into<String>,
    expected: impl Into<String>,
    found: impl Into<String>,
    hint: Option<&str>,
) -> Error {
    Error::Key {
        path: file.source().path().to_path_buf(),
        key: key.into(),
        expected: expected.into(),
        found: found.into(),
        hint: hint.map(str::to_owned),
    }
}

/// The f64 that prints like the f32, so that 1e-6 does not become 9.999999974752427e-7.
fn shortest(v: f32) -> f64 {
    v.to_string().parse().unwrap_or_else(|_| f64::from(v))
}

fn refuse_other_models(file: &File) -> Result<(), Error> {
    let architecture = file.require_str("general.architecture")?;
    if architecture != ARCHITECTURE {
        let hint = "a drafter GGUF has the architecture `dflash`; this may be a target";
        return Err(fault(
            file,
            "general.architecture",
            format!("`{ARCHITECTURE}`"),
            format!("`{}`", crate::error::shown(architecture)),
            Some(hint),
        ));
    }
    let selector = key("selector_top_k");
    if file.tensor("markov_w1.weight").is_some() {
        let hint = format!("this is a DSpark drafter; need {}", config::ARCHITECTURE);
        return Err(fault(file, selector, "a DFlash 2 drafter", "a Markov head", Some(&hint)));
    }
    let newer = ["selector_top_k", "selector_rank", "conv_kernel_size", "conv_group_size"];
    if newer.iter().all(|field| file.get(&key(field)).is_none()) {
        let hint = format!("this is a DFlash 1 drafter; need {}", config::ARCHITECTURE);
        return Err(fault(file, selector, "an integer", "nothing", Some(&hint)));
    }
    Ok(())
}

fn refuse_other_attention(file: &File, head_dim: usize) -> Result<(), Error> {
    if file.require_u32(VALUE_LENGTH)? as usize != head_dim {
        let expected = format!("{head_dim}, as the keys");
        let found = file.get(VALUE_LENGTH).map_or_else(String::new, Value::to_string);
        return Err(fault(file, VALUE_LENGTH, expected, found, None));
    }
    let rotated = "dflash.rope.dimension_count";
    if let Some(n) = file.opt_u32(rotated)?
        && n as usize != head_dim
    {
        let expected = format!("{head_dim} (all dimensions of a head rotate)");
        return Err(fault(file, rotated, expected, n.to_string(), None));
    }
    let sections = "dflash.rope.dimension_sections";
    if let Some(list) = file.opt_u64s(sections)?
        && list.iter().skip(1).any(|n| *n != 0)
    {
        return Err(fault(
            file,
            sections,
            "one section",
            format!("{} sections in use", list.iter().filter(|n| **n != 0).count()),
            None,
        ));
    }
    let scaling = "dflash.rope.scaling.type";
    match file.opt_str(scaling)? {
        None | Some("none") => Ok(()),
        Some(other) => Err(fault(
            file,
            scaling,
            "`none` (plain RoPE)",
            format!("`{}`", crate::error::shown(other)),
            None,
        )),
    }
}

fn window(file: &File, n_layers: usize) -> Result<(Option<usize>, Vec<LayerType>), Error> {
    // A layer has 15 tensors, so a count over the file's is refused by the rules.
    let full = || vec![LayerType::Full; n_layers.min(file.tensors().len())];
    let window = match file.opt_u32(&key("sliding_window"))? {
        None | Some(0) => return Ok((None, full())),
        Some(window) => window as usize,
    };
    let pattern = file.require_bools(&key("layer_types"))?;
    let types = pattern.iter().map(|sliding| match sliding {
        true => LayerType::Sliding,
        false => LayerType::Full,
    });
    Ok((Some(window), types.collect()))
}

fn taps(file: &File) -> Result<Vec<usize>, Error> {
    let key = key("target_layer_ids");
    let taps = file.require_u64s(&key)?;
    taps.iter()
        .map(|tap| {
            tap.checked_sub(1)
                .and_then(|id| u32::try_from(id).ok())
                .map(|id| id as usize)
                .ok_or_else(|| fault(file, &*key, "layer numbers from 1", tap.to_string(), None))
        })
        .collect()
}

fn vocab_size(file: &File) -> Result<usize, Error> {
    let codebook = file.tensors().iter().find(|tensor| {
        tensor.name == CODEBOOK || today_in_gguf(&tensor.name).as_deref() == Some(CODEBOOK)
    });
    codebook
        .and_then(|tensor| tensor.dims.get(1))
        .and_then(|rows| u32::try_from(*rows).ok())
        .map(|rows| rows as usize)
        .ok_or_else(|| Error::Names {
            path: file.source().path().to_path_buf(),
            problem: "no codebook to take the vocabulary size from".into(),
            names: vec![format!("`{CODEBOOK}`")],
            hint: None,
        })
}

/// The `config.json` of a drafter that came without one.
fn published_form(c: &Config) -> Map<String, Json> {
    let mut block = Map::new();
    block.insert("block_size".into(), c.block_size.into());
    block.insert("conv_group_size".into(), c.conv_group_size.into());
    block.insert("conv_kernel_size".into(), c.conv_kernel_size.into());
    for (name, value) in [
        ("final_logit_softcapping", c.final_logit_softcapping),
        ("input_embedding_scale", c.input_embedding_scale),
    ] {
        block.extend(value.map(|value| (name.to_owned(), value.into())));
    }
    block.insert("mask_token_id".into(), c.mask_token_id.into());
    block.extend(c.output_multiplier.map(|v| ("output_multiplier".to_owned(), v.into())));
    block.insert("selector_rank".into(), c.selector_rank.into());
    block.insert("selector_top_k".into(), c.selector_top_k.into());
    block.insert("target_layer_ids".into(), c.target_layer_ids.clone().into());

    let layer_types: Vec<_> = c.layer_types.iter().map(|t| t.name()).collect();
    let whole = json!({
        "architectures": [config::ARCHITECTURE],
        "attention_bias": false,
        "bos_token_id": c.bos_token_id,
        "is_causal": c.is_causal,
        "dflash_config": block,
        "dtype": "bfloat16",
        "eos_token_id": c.eos_token_ids.first(),
        "head_dim": c.head_dim,
        "hidden_act": "silu",
        "hidden_size": c.hidden_size,
        "intermediate_size": c.intermediate_size,
        "layer_types": layer_types,
        "max_position_embeddings": c.max_position_embeddings,
        "model_type": "qwen3",
        "num_attention_heads": c.num_attention_heads,
        "num_hidden_layers": c.num_hidden_layers,
        "num_key_value_heads": c.num_key_value_heads,
        "pad_token_id": c.pad_token_id,
        "rms_norm_eps": c.rms_norm_eps,
        "rope_parameters": { "rope_theta": c.rope_theta, "rope_type": "default" },
        "sliding_window": c.sliding_window,
        "tie_word_embeddings": false,
        "use_sliding_window": c.sliding_window.is_some(),
        "vocab_size": c.vocab_size,
    });
    match whole {
        Json::Object(map) => map,
        _ => Map::new(),
    }
}
