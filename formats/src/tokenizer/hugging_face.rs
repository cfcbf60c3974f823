//! A `tokenizer.json` with a byte-level BPE, as GGUF keys.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use serde::Deserialize;
use serde_json::Value as Json;

use super::{TOKENS, too_large};
use crate::error::shown;
use crate::gguf::{Array, Value};
use crate::{Error, Source, without_bom};

/// A larger file is refused unread; the targets' have about 20 MB.
const MAX_BYTES: u64 = 64 << 20;
/// Most tokens: the most elements that readers take in an array.
const MAX_TOKENS: usize = 16 << 20;

/// The two spellings of the pattern that the pre-tokenizer `qwen35` stands for.
const PATTERNS: [&str; 2] = [
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
];

/// `tokenizer.ggml.token_type` of each kind of token.
mod token_type {
    pub(super) const NORMAL: i32 = 1;
    pub(super) const CONTROL: i32 = 3;
    pub(super) const USER_DEFINED: i32 = 4;
    pub(super) const UNUSED: i32 = 5;
}

#[derive(Deserialize)]
struct Tokenizer {
    model: Model,
    #[serde(default)]
    added_tokens: Vec<AddedToken>,
    pre_tokenizer: Option<Json>,
}

#[derive(Deserialize)]
struct Model {
    r#type: Option<String>,
    vocab: HashMap<String, u64>,
    merges: Vec<Merge>,
    #[serde(default)]
    byte_fallback: bool,
}

/// Older files have `"a b"`, newer ones `["a", "b"]`.
#[derive(Deserialize)]
#[serde(untagged)]
enum Merge {
    Joined(String),
    Pair(String, String),
}

#[derive(Deserialize)]
struct AddedToken {
    id: u64,
    content: String,
    #[serde(default)]
    special: bool,
}

pub(super) fn keys(source: &Source, vocab_size: usize) -> Result<Vec<(String, Value)>, Error> {
    let path = source.path();
    let tokenizer: Tokenizer = read(source, "a tokenizer.json, or a GGUF with a tokenizer")?;
    refuse_other_models(path, &tokenizer)?;
    if vocab_size > MAX_TOKENS {
        return Err(Error::key(
            path,
            "vocab_size",
            format!("at most {MAX_TOKENS} tokens"),
            vocab_size.to_string(),
        ));
    }

    let by_id = tokens_by_id(path, &tokenizer, vocab_size)?;
    let ids = special_ids(path, &by_id)?;
    let mut tokens = Vec::with_capacity(vocab_size);
    let mut types = Vec::with_capacity(vocab_size);
    for id in 0..vocab_size {
        match by_id.get(&id) {
            Some((token, ty)) => {
                tokens.push((*token).to_owned());
                types.push(*ty);
            }
            None => {
                tokens.push(format!("[PAD{id}]"));
                types.push(token_type::UNUSED);
            }
        }
    }
    let merges = tokenizer.model.merges.iter().map(Merge::joined).collect();
    let mut keys = vec![
        ("tokenizer.ggml.model".into(), Value::String("gpt2".into())),
        ("tokenizer.ggml.pre".into(), Value::String("qwen35".into())),
        (TOKENS.into(), Value::Array(Array::String(tokens))),
        ("tokenizer.ggml.token_type".into(), Value::Array(Array::I32(types))),
        ("tokenizer.ggml.merges".into(), Value::Array(Array::String(merges))),
    ];
    keys.extend(ids);
    Ok(keys)
}

impl Merge {
    /// The pair with one space between. A space inside a part is written as the
    /// byte alphabet writes it, like llama.cpp's converter does.
    fn joined(&self) -> String {
        match self {
            Self::Joined(pair) => pair.clone(),
            Self::Pair(a, b) => format!("{} {}", a.replace(' ', "Ġ"), b.replace(' ', "Ġ")),
        }
    }
}

fn read<T: for<'a> Deserialize<'a>>(source: &Source, expected: &str) -> Result<T, Error> {
    let error = |expected: String, found| Error::Structure {
        path: source.path().to_path_buf(),
        part: "the contents".into(),
        expected,
        found,
        hint: None,
    };
    if source.len() > MAX_BYTES {
        let found = format!("{} bytes", source.len());
        return Err(error(format!("at most {MAX_BYTES} bytes"), found));
    }
    let bytes = source.read_vec(0, source.len())?;
    serde_json::from_slice(without_bom(&bytes))
        .map_err(|e| error(expected.into(), format!("a JSON error: {}", shown(&e.to_string()))))
}

/// What the keys `gpt2` and `qwen35` would misdescribe.
fn refuse_other_models(path: &Path, tokenizer: &Tokenizer) -> Result<(), Error> {
    let model = &tokenizer.model;
    if let Some(other) = model.r#type.as_deref().filter(|ty| *ty != "BPE") {
        let found = format!("\"{}\"", shown(other));
        return Err(Error::key(path, "model.type", "\"BPE\"", found));
    }
    if model.byte_fallback {
        return Err(Error::key(path, "model.byte_fallback", "false (a byte-level BPE)", "true"));
    }
    let (pattern, byte_level) = match &tokenizer.pre_tokenizer {
        Some(pre) => pre_tokenizer(pre),
        None => (None, false),
    };
    if !byte_level {
        return Err(Error::key(
            path,
            "pre_tokenizer",
            "a byte-level BPE",
            "no step of type `ByteLevel`",
        ));
    }
    match pattern {
        Some(pattern) if PATTERNS.contains(&pattern) => Ok(()),
        other => Err(Error::Key {
            path: path.to_path_buf(),
            key: "pre_tokenizer".into(),
            expected: "the pattern of Qwen 3.5".into(),
            found: other.map_or_else(|| "none".into(), |p| format!("`{}`", shown(p))),
            hint: Some("give the target's GGUF instead".into()),
        }),
    }
}

/// The pattern of a Split step, and whether there is a ByteLevel step.
fn pre_tokenizer(pre: &Json) -> (Option<&str>, bool) {
    let steps = match pre["pretokenizers"].as_array() {
        Some(steps) => steps.as_slice(),
        None => std::slice::from_ref(pre),
    };
    let pattern = steps.iter().find_map(|step| step["pattern"]["Regex"].as_str());
    (pattern, steps.iter().any(|step| step["type"] == "ByteLevel"))
}

/// Text and type of every token, by id.
fn tokens_by_id<'a>(
    path: &Path,
    tokenizer: &'a Tokenizer,
    vocab_size: usize,
) -> Result<BTreeMap<usize, (&'a str, i32)>, Error> {
    let normal = tokenizer
        .model
        .vocab
        .iter()
        .map(|(token, id)| ("model.vocab", *id, token.as_str(), token_type::NORMAL));
    let added = tokenizer.added_tokens.iter().map(|token| {
        let ty = if token.special || looks_special(&token.content) {
            token_type::CONTROL
        } else {
            token_type::USER_DEFINED
        };
        ("added_tokens", token.id, token.content.as_str(), ty)
    });
    let mut by_id = BTreeMap::new();
    for (key, id, token, ty) in normal.chain(added) {
        let slot = usize::try_from(id).ok().filter(|id| *id < vocab_size);
        let Some(slot) = slot else {
            return Err(too_large(path, key, vocab_size, format!("the id {id}")));
        };
        // An added token may stand in the vocabulary too, under the same id.
        if let Some((other, _)) = by_id.insert(slot, (token, ty))
            && other != token
        {
            let found = format!("`{}` and `{}`", shown(other), shown(token));
            return Err(Error::key(path, key, format!("one token with the id {id}"), found));
        }
    }
    Ok(by_id)
}

/// Added tokens that no text should lead to, though they are not marked special:
/// llama.cpp's converter goes by the brackets.
fn looks_special(token: &str) -> bool {
    token.starts_with("<|") && token.ends_with("|>")
}

/// Ids of the special tokens, from the `tokenizer_config.json` beside `path`.
fn special_ids(
    path: &Path,
    by_id: &BTreeMap<usize, (&str, i32)>,
) -> Result<Vec<(String, Value)>, Error> {
    let beside = path.with_file_name("tokenizer_config.json");
    if !beside.is_file() {
        return Ok(Vec::new());
    }
    let config: Json = read(&Source::open(&beside)?, "a tokenizer_config.json")?;
    let mut keys = Vec::new();
    for (field, key) in [
        ("eos_token", "tokenizer.ggml.eos_token_id"),
        ("pad_token", "tokenizer.ggml.padding_token_id"),
        ("bos_token", "tokenizer.ggml.bos_token_id"),
    ] {
        let value = &config[field];
        if value.is_null() {
            continue;
        }
        let token = value.as_str().or_else(|| value["content"].as_str());
        let id = token.and_then(|token| by_id.iter().find(|(_, (text, _))| *text == token));
        let Some((id, _)) = id else {
            let found = shown(&value.to_string());
            return Err(Error::key(&beside, field, "a token of the vocabulary", found));
        };
        // Ids are below MAX_TOKENS.
        keys.push((key.to_owned(), Value::U32(*id as u32)));
    }
    Ok(keys)
}
