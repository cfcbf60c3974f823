//! Byte-level BPE with the pre-tokenizer `qwen35`.
//!
//! Text is cut at the places of [`super::split`], each piece is written in the byte alphabet, and pairs
//! are merged by rank. Special tokens (types 3 and 4) are recognised only where a function says so; of
//! two that begin at one place the longer is taken. Nothing is put in front of a text or behind it.
//!
//! A GGUF's tokenizer takes text as it is, as llama.cpp does. A tokenizer.json says whether text is
//! brought into NFC first, and the original models' does; then a decomposed accent is encoded, and
//! comes back, composed.

use std::collections::HashMap;
use std::fmt;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use aho_corasick::{AhoCorasick, MatchKind};
use formats::gguf::File;
use tokenizers::models::bpe::BPE;
use tokenizers::normalizers::NFC;
use tokenizers::{Model, NormalizedString, Normalizer};

use super::chat::Rendered;
use super::detokenizer::{Controls, Detokenizer};
use super::vocabulary::{Kind, Vocabulary};
use super::{byte_alphabet, split};
use crate::Error;

/// A tokenizer. Clones share it.
#[derive(Clone)]
pub struct Tokenizer(Arc<Inner>);

struct Inner {
    bpe: BPE,
    nfc: bool,
    kinds: Vec<Kind>,
    /// What every token stands for: those of token `id` are at `ends[id - 1]..ends[id]`.
    bytes: Vec<u8>,
    ends: Vec<usize>,
    specials: Specials,
}

/// The special tokens of a vocabulary, and where they are in a text.
struct Specials {
    finder: AhoCorasick,
    /// Ids, in the order of the finder's patterns.
    ids: Vec<u32>,
    by_text: HashMap<String, u32>,
}

impl Tokenizer {
    /// The tokenizer of a target, from the metadata of its GGUF alone.
    ///
    /// # Errors
    /// [`Error::Formats`] naming the key: for another tokenizer than `gpt2` with the pre-tokenizer
    /// `qwen35`; for tokens that are empty, or there twice; for types that are unknown, or not one per
    /// token; for a byte without a token; for merges that are no pair, of no normal tokens, or there
    /// twice.
    pub fn from_gguf(file: &File) -> Result<Self, Error> {
        let key = "tokenizer.ggml.tokens";
        Self::build(Vocabulary::from_gguf(file)?, file.source().path(), key)
    }

    /// The tokenizer of a tokenizer.json. `vocab` is the target's number of tokens: ids that the file
    /// does not have are padding.
    ///
    /// # Errors
    /// As [`Tokenizer::from_gguf`], and for everything in the file that would make another tokenizer
    /// of it: another pattern or step, a normaliser other than NFC, dropout.
    pub fn from_tokenizer_json(path: &Path, vocab: usize) -> Result<Self, Error> {
        Self::build(Vocabulary::from_tokenizer_json(path, vocab)?, path, "added_tokens")
    }

    fn build(vocabulary: Vocabulary, path: &Path, key: &str) -> Result<Self, Error> {
        let Vocabulary { tokens, kinds, merges, nfc } = vocabulary;
        let refused = |expected: &str, found: String| {
            formats::Error::key(path, key, expected, formats::shown(&found))
        };
        let (mut bytes, mut ends) = (Vec::new(), Vec::with_capacity(tokens.len()));
        for (token, kind) in tokens.iter().zip(&kinds) {
            match kind {
                Kind::Normal => bytes.extend(byte_alphabet::bytes(token)),
                Kind::Control | Kind::UserDefined => bytes.extend(token.as_bytes()),
                Kind::Unused => {}
            }
            ends.push(bytes.len());
        }
        let specials = Specials::new(&tokens, &kinds)
            .map_err(|e| refused("special tokens that fit an automaton", e.to_string()))?;
        let ids = (0..).zip(tokens).zip(&kinds);
        let normal =
            ids.filter(|(_, kind)| **kind == Kind::Normal).map(|((id, token), _)| (token, id));
        let bpe = BPE::builder()
            .vocab_and_merges(normal.collect::<tokenizers::models::bpe::Vocab>(), merges)
            .build()
            .map_err(|e| refused("a byte-pair encoding", e.to_string()))?;
        Ok(Self(Arc::new(Inner { bpe, nfc, kinds, bytes, ends, specials })))
    }

    /// Number of ids, padding included.
    #[must_use]
    pub fn vocab(&self) -> usize {
        self.0.kinds.len()
    }

    /// The ids of text that someone wrote. Special tokens in it are text, user-defined ones (type 4)
    /// included: they are structure, too. Other engines recognise those in any text.
    #[must_use]
    pub fn encode(&self, text: &str) -> Vec<u32> {
        let mut ids = Vec::new();
        self.encode_into(text, &mut ids);
        ids
    }

    /// The ids of a text whose special tokens are meant, such as a prompt that was rendered elsewhere.
    /// Never for text of callers: see [`Tokenizer::encode_rendered`].
    #[must_use]
    pub fn encode_with_specials(&self, text: &str) -> Vec<u32> {
        self.encode_parts(text, self.find_specials(text))
    }

    /// The ids of a rendered conversation: only the template's special tokens are such.
    #[must_use]
    pub fn encode_rendered(&self, rendered: &Rendered) -> Vec<u32> {
        self.encode_parts(rendered.text(), rendered.specials().iter().cloned())
    }

    /// The id of a special token (type 3 or 4) by its text.
    #[must_use]
    pub fn special(&self, text: &str) -> Option<u32> {
        self.0.specials.by_text.get(text).copied()
    }

    /// Whether `id` is a control token (type 3).
    #[must_use]
    pub fn is_control(&self, id: u32) -> bool {
        self.kind(id) == Some(Kind::Control)
    }

    /// Whether `id` is a special token (type 3 or 4).
    #[must_use]
    pub fn is_special(&self, id: u32) -> bool {
        self.kind(id).is_some_and(Kind::is_special)
    }

    /// The text of `ids`. Bytes that are no UTF-8 become U+FFFD; padding is empty.
    ///
    /// # Errors
    /// [`Error::TokenId`] for an id outside the vocabulary.
    pub fn decode(&self, ids: &[u32], controls: Controls) -> Result<String, Error> {
        let mut bytes = Vec::new();
        for id in ids {
            bytes.extend(self.bytes(*id, controls)?);
        }
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// A decoder for ids that come one after the other.
    #[must_use]
    pub fn detokenizer(&self, controls: Controls) -> Detokenizer {
        Detokenizer::new(self.clone(), controls)
    }

    /// The bytes of one token; none of padding and of control tokens that are hidden.
    ///
    /// # Errors
    /// [`Error::TokenId`] for an id outside the vocabulary.
    pub fn bytes(&self, id: u32, controls: Controls) -> Result<&[u8], Error> {
        let kind = self.kind(id).ok_or(Error::TokenId { id, vocab: self.vocab() })?;
        if kind == Kind::Control && controls == Controls::Hidden {
            return Ok(&[]);
        }
        let at = id as usize;
        let begin = if at == 0 { 0 } else { self.0.ends[at - 1] };
        Ok(&self.0.bytes[begin..self.0.ends[at]])
    }

    /// Special tokens in `text`, leftmost first, of those the longest.
    pub(super) fn find_specials(&self, text: &str) -> impl Iterator<Item = (Range<usize>, u32)> {
        let Specials { finder, ids, .. } = &self.0.specials;
        finder.find_iter(text).map(|found| (found.range(), ids[found.pattern().as_usize()]))
    }

    fn kind(&self, id: u32) -> Option<Kind> {
        self.0.kinds.get(id as usize).copied()
    }

    fn encode_parts(
        &self,
        text: &str,
        specials: impl Iterator<Item = (Range<usize>, u32)>,
    ) -> Vec<u32> {
        let (mut ids, mut from) = (Vec::new(), 0);
        for (range, id) in specials {
            self.encode_into(&text[from..range.start], &mut ids);
            ids.push(id);
            from = range.end;
        }
        self.encode_into(&text[from..], &mut ids);
        ids
    }

    fn encode_into(&self, text: &str, ids: &mut Vec<u32>) {
        let Inner { bpe, nfc, .. } = &*self.0;
        let normalized = nfc.then(|| {
            let mut text = NormalizedString::from(text);
            NFC.normalize(&mut text).expect("NFC is defined for every text");
            text
        });
        let text = normalized.as_ref().map_or(text, NormalizedString::get);
        let mut piece = String::new();
        for part in split::split(text) {
            piece.clear();
            byte_alphabet::push(part, &mut piece);
            let tokens =
                bpe.tokenize(&piece).expect("only an absent unknown token can be an error");
            ids.extend(tokens.iter().map(|token| token.id));
        }
    }
}

impl Specials {
    fn new(tokens: &[String], kinds: &[Kind]) -> Result<Self, aho_corasick::BuildError> {
        let all = (0..).zip(tokens).zip(kinds);
        let specials: Vec<(u32, &String)> =
            all.filter(|(_, kind)| kind.is_special()).map(|(pair, _)| pair).collect();
        let finder = AhoCorasick::builder()
            .match_kind(MatchKind::LeftmostLongest)
            .build(specials.iter().map(|(_, text)| text))?;
        let ids = specials.iter().map(|(id, _)| *id).collect();
        let by_text = specials.iter().map(|(id, text)| ((*text).clone(), *id)).collect();
        Ok(Self { finder, ids, by_text })
    }
}

impl fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tokenizer")
            .field("vocab", &self.vocab())
            .field("specials", &self.0.specials.ids.len())
            .field("nfc", &self.0.nfc)
            .finish_non_exhaustive()
    }
}
