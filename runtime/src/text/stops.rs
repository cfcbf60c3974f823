//! Which tokens end an answer.
//!
//! Models name them in several places, and a later revision of one file may know one more than the
//! others. So all places count, and none replaces another.

use std::collections::BTreeSet;

use formats::gguf::File;
use formats::shown;
use serde_json::Value;

use super::json_file::JsonFile;
use super::tokenizer::Tokenizer;
use crate::Error;

/// Control tokens that end a turn or a text under these names.
const NAMES: [&str; 2] = ["<|im_end|>", "<|endoftext|>"];
const GGUF_KEYS: [&str; 2] = ["tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id"];
const FIELD: &str = "eos_token_id";

/// The files of a model that may name stop tokens.
#[derive(Debug, Clone, Copy, Default)]
pub struct StopSources<'a> {
    /// `tokenizer.ggml.eos_token_id` and `tokenizer.ggml.eot_token_id`.
    pub gguf: Option<&'a File>,
    /// `eos_token_id` of a `generation_config.json`: an id, or a list of ids.
    pub generation_config: Option<&'a JsonFile>,
    /// `eos_token_id` of a `config.json`, or of its `text_config`.
    pub config: Option<&'a JsonFile>,
}

/// The union of what all sources name, and of `<|im_end|>` and `<|endoftext|>` if the vocabulary has
/// them as control tokens. Empty if there is none of all that: then only the budget ends an answer.
///
/// # Errors
/// [`Error::Formats`] naming file and key, when a value is no id of the vocabulary.
pub fn stop_set(tokenizer: &Tokenizer, sources: &StopSources<'_>) -> Result<BTreeSet<u32>, Error> {
    let vocab = tokenizer.vocab();
    let named = NAMES.iter().filter_map(|name| tokenizer.special(name));
    let mut stops: BTreeSet<u32> = named.filter(|id| tokenizer.is_control(*id)).collect();
    if let Some(file) = sources.gguf {
        for key in GGUF_KEYS {
            if let Some(id) = file.opt_u64(key)? {
                let id = checked(id, vocab).map_err(|(expected, found)| {
                    formats::Error::key(file.source().path(), key, expected, found)
                })?;
                stops.insert(id);
            }
        }
    }
    let text_config =
        |file: &'_ JsonFile| file.get("text_config").map(|inner| inner[FIELD].clone());
    let fields = [
        (
            sources.generation_config,
            FIELD,
            sources.generation_config.and_then(|f| f.get(FIELD)).cloned(),
        ),
        (sources.config, FIELD, sources.config.and_then(|f| f.get(FIELD)).cloned()),
        (sources.config, "text_config.eos_token_id", sources.config.and_then(text_config)),
    ];
    for (file, key, value) in fields {
        let (Some(file), Some(value)) = (file, value) else {
            continue;
        };
        let ids = ids_of(&value, vocab)
            .map_err(|(expected, found)| formats::Error::key(file.path(), key, expected, found))?;
        stops.extend(ids);
    }
    Ok(stops)
}

/// What is legal, and what was found.
type Refusal = (String, String);

fn ids_of(value: &Value, vocab: usize) -> Result<Vec<u32>, Refusal> {
    let id = |value: &Value| match value.as_u64() {
        Some(id) => checked(id, vocab),
        None => Err(("an id, or a list of ids".into(), shown(&value.to_string()))),
    };
    match value {
        Value::Null => Ok(Vec::new()),
        Value::Array(values) => values.iter().map(id).collect(),
        value => Ok(vec![id(value)?]),
    }
}

fn checked(id: u64, vocab: usize) -> Result<u32, Refusal> {
    match u32::try_from(id) {
        Ok(small) if (small as usize) < vocab => Ok(small),
        _ => Err((format!("one of the {vocab} tokens"), format!("the id {id}"))),
    }
}
