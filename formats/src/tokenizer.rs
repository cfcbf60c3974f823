//! The tokenizer keys of a GGUF, from a target GGUF or a `tokenizer.json`.
//!
//! A drafter has the vocabulary of its target. Engines that load the drafter on
//! its own want the tokens in its file; with a target GGUF at hand they are
//! copied, otherwise they are made from the byte-level BPE of Hugging Face's
//! `tokenizer.json` as llama.cpp's converter makes them.

mod hugging_face;

use std::path::Path;

use crate::gguf::{File, Value};
use crate::{Error, Source};

const TOKENS: &str = "tokenizer.ggml.tokens";

/// All `tokenizer.*` keys of the file at `path`, which is a GGUF or a
/// `tokenizer.json`; `vocab_size` is that of the drafter.
///
/// A GGUF's keys are copied as they are, with the chat template. A
/// `tokenizer.json` gives the tokens, their types and the merges, and the
/// `tokenizer_config.json` beside it, if there is one, the ids of the special
/// tokens; ids without a token are filled up to `vocab_size` with `[PADid]`.
///
/// # Errors
/// [`Error::Io`]; [`Error::Key`] when the file has no byte-level BPE vocabulary,
/// or one that is larger than `vocab_size`; whatever reading a GGUF leads to.
pub fn gguf_keys(path: &Path, vocab_size: usize) -> Result<Vec<(String, Value)>, Error> {
    let source = Source::open(path)?;
    let is_gguf = source.len() >= 4 && source.read_vec(0, 4)? == b"GGUF";
    if is_gguf {
        from_gguf(&File::open(source)?, vocab_size)
    } else {
        hugging_face::keys(&source, vocab_size)
    }
}

fn from_gguf(file: &File, vocab_size: usize) -> Result<Vec<(String, Value)>, Error> {
    let n_tokens = file.require_strs(TOKENS)?.len();
    if n_tokens > vocab_size {
        return Err(too_large(file.source().path(), TOKENS, vocab_size, n_tokens.to_string()));
    }
    let keys = file.metadata().iter();
    Ok(keys.filter(|(key, _)| key.starts_with("tokenizer.")).cloned().collect())
}

fn too_large(path: &Path, key: &str, vocab_size: usize, found: String) -> Error {
    Error::Key {
        path: path.to_path_buf(),
        key: key.into(),
        expected: format!("at most the {vocab_size} tokens of the drafter's vocabulary"),
        found,
        hint: Some("this is the tokenizer of another model".into()),
    }
}

#[cfg(test)]
mod tests;
