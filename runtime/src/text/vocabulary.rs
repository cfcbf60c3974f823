//! A vocabulary as a file has it, checked once: tokens, their kinds, merges.
//!
//! From a GGUF the keys are `tokenizer.ggml.{model, pre, tokens, token_type, merges}`. A tokenizer.json
//! is brought into the same form by [`formats::tokenizer`]; what that form cannot express is refused
//! here.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};

use formats::gguf::{Array, File, Value};
use formats::{Error, Source, shown};
use serde::Deserialize;
use serde_json::Value as Json;

use super::byte_alphabet::{CHARS, is_in_utf8};
use super::json_file::parse;

const MODEL: &str = "tokenizer.ggml.model";
const PRE: &str = "tokenizer.ggml.pre";
const TOKENS: &str = "tokenizer.ggml.tokens";
const TOKEN_TYPE: &str = "tokenizer.ggml.token_type";
const MERGES: &str = "tokenizer.ggml.merges";
const ADD_BOS: &str = "tokenizer.ggml.add_bos_token";

/// A larger tokenizer.json is refused unread; the targets' have about 20 MB.
const MAX_JSON_BYTES: u64 = 256 << 20;

/// What a token is for: `tokenizer.ggml.token_type`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// 1: bytes of text.
    Normal,
    /// 3: structure that no reader should see, like `<|im_end|>`.
    Control,
    /// 4: structure that is shown, like `<think>`.
    UserDefined,
    /// 5: a row of the embedding that no token has.
    Unused,
}

impl Kind {
    fn of(token_type: u64) -> Option<Self> {
        Some(match token_type {
            1 => Self::Normal,
            3 => Self::Control,
            4 => Self::UserDefined,
            5 => Self::Unused,
            _ => return None,
        })
    }

    /// Whether it is recognised as a whole instead of being merged from bytes.
    pub(super) fn is_special(self) -> bool {
        matches!(self, Self::Control | Self::UserDefined)
    }
}

/// A checked vocabulary.
#[derive(Debug)]
pub(super) struct Vocabulary {
    /// Texts, by id; all different. Normal ones are written in the byte alphabet.
    pub(super) tokens: Vec<String>,
    /// As long as `tokens`.
    pub(super) kinds: Vec<Kind>,
    /// Pairs of normal tokens whose concatenation is one, by rank; all different.
    pub(super) merges: Vec<(String, String)>,
    /// Whether text is brought into Unicode's form NFC first.
    pub(super) nfc: bool,
}

impl Vocabulary {
    pub(super) fn from_gguf(file: &File) -> Result<Self, Error> {
        let path = file.source().path();
        let known = |key: &str, known: &str| match file.require_str(key)? {
            value if value == known => Ok(()),
            other => {
                Err(Error::key(path, key, format!("`{known}`"), format!("`{}`", shown(other))))
            }
        };
        known(MODEL, "gpt2")?;
        known(PRE, "qwen35")?;
        if file.opt_bool(ADD_BOS)? == Some(true) {
            return Err(Error::key(
                path,
                ADD_BOS,
                "false: no prompt of these models begins with one",
                "true",
            ));
        }
        let types = file.opt_u64s(TOKEN_TYPE)?;
        let types = types
            .ok_or_else(|| Error::key(path, TOKEN_TYPE, "an array of token types", "nothing"))?;
        let raw = Raw {
            path: path.to_path_buf(),
            tokens: file.require_strs(TOKENS)?.to_vec(),
            types,
            merges: file.require_strs(MERGES)?,
            nfc: false,
        };
        raw.check()
    }

    pub(super) fn from_tokenizer_json(path: &Path, vocab: usize) -> Result<Self, Error> {
        let source = Source::open(path)?;
        let nfc = parse::<Pipeline>(&source, MAX_JSON_BYTES)?.check(path)?;
        let (mut tokens, mut types, mut merges) = (Vec::new(), None, Vec::new());
        for (key, value) in formats::tokenizer::gguf_keys(path, vocab)? {
            match (key.as_str(), value) {
                (TOKENS, Value::Array(Array::String(found))) => tokens = found,
                (TOKEN_TYPE, Value::Array(found)) => types = found.to_u64s(),
                (MERGES, Value::Array(Array::String(found))) => merges = found,
                _ => {}
            }
        }
        let types = types.unwrap_or_default();
        Raw { path: path.to_path_buf(), tokens, types, merges: &merges, nfc }.check()
    }
}

/// The parts of a vocabulary, of the right types but unchecked.
struct Raw<'a> {
    path: PathBuf,
    tokens: Vec<String>,
    types: Vec<u64>,
    merges: &'a [String],
    nfc: bool,
}

impl Raw<'_> {
    fn check(self) -> Result<Vocabulary, Error> {
        let kinds = self.kinds()?;
        let normal = self.normal_tokens(&kinds)?;
        self.check_bytes(&normal)?;
        let merges = self.merges(&normal)?;
        Ok(Vocabulary { tokens: self.tokens, kinds, merges, nfc: self.nfc })
    }

    fn fault(&self, key: &str, expected: impl Into<String>, found: impl Into<String>) -> Error {
        Error::key(&self.path, key, expected, found)
    }

    fn kinds(&self) -> Result<Vec<Kind>, Error> {
        if self.types.len() != self.tokens.len() {
            let expected = format!("{} elements, one per token", self.tokens.len());
            return Err(self.fault(TOKEN_TYPE, expected, self.types.len().to_string()));
        }
        if u32::try_from(self.tokens.len()).is_err() {
            return Err(self.fault(TOKENS, "ids that fit u32", self.tokens.len().to_string()));
        }
        let kind = |(id, ty): (usize, &u64)| {
            Kind::of(*ty).ok_or_else(|| {
                let expected = "types 1 (normal), 3 (control), 4 (user-defined) and 5 (unused)";
                self.fault(TOKEN_TYPE, expected, format!("{ty} for token {id}"))
            })
        };
        self.types.iter().enumerate().map(kind).collect()
    }

    /// The normal tokens; no two tokens of any kind are alike.
    fn normal_tokens(&self, kinds: &[Kind]) -> Result<HashSet<&str>, Error> {
        let mut ids = HashMap::with_capacity(self.tokens.len());
        for (id, token) in self.tokens.iter().enumerate() {
            if token.is_empty() {
                return Err(self.fault(TOKENS, "no empty token", format!("one with the id {id}")));
            }
            if let Some(other) = ids.insert(token.as_str(), id) {
                let found = format!("`{}` with the ids {other} and {id}", shown(token));
                return Err(self.fault(TOKENS, "each token once", found));
            }
        }
        let normal =
            |(token, kind): (&'_ String, &Kind)| *kind == Kind::Normal && !token.is_empty();
        let tokens = self.tokens.iter().zip(kinds);
        Ok(tokens.filter(|pair| normal(*pair)).map(|(token, _)| token.as_str()).collect())
    }

    /// Text is lost without a token for each byte that it may have.
    fn check_bytes(&self, normal: &HashSet<&str>) -> Result<(), Error> {
        let mut buffer = [0; 4];
        for byte in (0..=u8::MAX).filter(|byte| is_in_utf8(*byte)) {
            let token: &str = CHARS[usize::from(byte)].encode_utf8(&mut buffer);
            if !normal.contains(token) {
                let expected = format!("a token `{token}` for the byte {byte:#04x}");
                return Err(self.fault(TOKENS, expected, "nothing"));
            }
        }
        Ok(())
    }

    fn merges(&self, normal: &HashSet<&str>) -> Result<Vec<(String, String)>, Error> {
        let mut seen = HashSet::with_capacity(self.merges.len());
        let mut merges = Vec::with_capacity(self.merges.len());
        let mut joined = String::new();
        for (rank, merge) in self.merges.iter().enumerate() {
            let found = || format!("`{}` at {rank}", shown(merge));
            let pair = merge.split_once(' ');
            let pair = pair.filter(|(a, b)| !a.is_empty() && !b.is_empty() && !b.contains(' '));
            let Some((a, b)) = pair else {
                return Err(self.fault(MERGES, "two tokens with a space between", found()));
            };
            joined.clear();
            joined.extend([a, b]);
            if let Some(absent) = [a, b, &joined].into_iter().find(|token| !normal.contains(*token))
            {
                let expected = format!("normal tokens only; `{}` is none", shown(absent));
                return Err(self.fault(MERGES, expected, found()));
            }
            if !seen.insert((a, b)) {
                return Err(self.fault(MERGES, "each merge once", found()));
            }
            merges.push((a.to_owned(), b.to_owned()));
        }
        Ok(merges)
    }
}

/// What a tokenizer.json says besides its vocabulary. [`formats::tokenizer`] knows the pattern.
#[derive(Deserialize)]
struct Pipeline {
    normalizer: Option<Json>,
    pre_tokenizer: Option<Json>,
    #[serde(default)]
    added_tokens: Vec<Flags>,
    model: Bpe,
}

/// How an added token is looked for.
#[derive(Deserialize)]
struct Flags {
    content: String,
    #[serde(default)]
    single_word: bool,
    #[serde(default)]
    lstrip: bool,
    #[serde(default)]
    rstrip: bool,
    #[serde(default)]
    normalized: bool,
}

#[derive(Deserialize)]
struct Bpe {
    dropout: Option<f64>,
    continuing_subword_prefix: Option<String>,
    end_of_word_suffix: Option<String>,
    #[serde(default)]
    ignore_merges: bool,
}

impl Pipeline {
    /// Refuses what would tokenize differently from what is built here; returns whether text is
    /// normalised to NFC.
    fn check(&self, path: &Path) -> Result<bool, Error> {
        let nfc = match self.normalizer.as_ref() {
            None => false,
            Some(step) if step["type"] == "NFC" => true,
            Some(step) => {
                let found = shown(&step["type"].to_string());
                return Err(Error::key(path, "normalizer", "null, or of type `NFC`", found));
            }
        };
        for token in &self.added_tokens {
            let Flags { single_word, lstrip, rstrip, normalized, .. } = *token;
            if single_word || lstrip || rstrip || normalized {
                let expected = "tokens with single_word, lstrip, rstrip and normalized false";
                let found = format!("one of them true for `{}`", shown(&token.content));
                return Err(Error::key(path, "added_tokens", expected, found));
            }
        }
        let Bpe { dropout, continuing_subword_prefix, end_of_word_suffix, ignore_merges } =
            &self.model;
        let affix = |text: &Option<String>| text.as_ref().is_some_and(|text| !text.is_empty());
        for (key, set) in [
            ("model.dropout", dropout.is_some_and(|p| p != 0.0)),
            ("model.continuing_subword_prefix", affix(continuing_subword_prefix)),
            ("model.end_of_word_suffix", affix(end_of_word_suffix)),
            ("model.ignore_merges", *ignore_merges),
        ] {
            if set {
                return Err(Error::key(
                    path,
                    key,
                    "none, as in every tokenizer of these models",
                    "one",
                ));
            }
        }
        self.check_steps(path)?;
        Ok(nfc)
    }

    /// One cut by the pattern, then bytes as characters, nothing else.
    fn check_steps(&self, path: &Path) -> Result<(), Error> {
        let pre = self.pre_tokenizer.as_ref().unwrap_or(&Json::Null);
        let steps = pre["pretokenizers"].as_array().map_or(&[][..], Vec::as_slice);
        let as_expected = match steps {
            [split, bytes] => {
                split["type"] == "Split"
                    && split["behavior"] == "Isolated"
                    && split["invert"] == false
                    && bytes["type"] == "ByteLevel"
                    && bytes["add_prefix_space"] == false
                    && bytes["use_regex"] == false
            }
            _ => false,
        };
        if as_expected {
            return Ok(());
        }
        let expected = "a `Split` (Isolated, not inverted), then a `ByteLevel` without prefix space \
                        and without regex";
        Err(Error::key(path, "pre_tokenizer", expected, "other steps"))
    }
}
