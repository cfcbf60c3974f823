//! A small vocabulary of the kind `qwen35`, and what must hold for any.

mod chats;
mod settings;
mod tokens;

use formats::Source;
use formats::gguf::{Array, File, Value, layout};

use super::Tokenizer;
use super::byte_alphabet::{CHARS, push};

/// Words whose letters are merged from the left: every beginning is a token.
const WORDS: &[&str] = &[
    " the",
    " and",
    " model",
    "ing",
    "er",
    "user",
    "assistant",
    "system",
    "think",
    " think",
    "im",
    "end",
    "re",
    "'s",
    "'ll",
    "  ",
    "    ",
    "\n\n",
    "é",
    "ü",
    "語",
    "🦀",
    "20",
    "\u{301}",
    "<|",
    "|>",
    "</",
    ">\n",
    " <",
    "\r\n",
];

/// As in the targets: three kinds of special token, then padding.
pub(super) const SPECIALS: &[(&str, i32)] = &[
    ("<|endoftext|>", 3),
    ("<|im_start|>", 3),
    ("<|im_end|>", 3),
    ("<|im_end|>\n", 3),
    ("<tool_call>", 4),
    ("</tool_call>", 4),
    ("<tool_response>", 4),
    ("</tool_response>", 4),
    ("<think>", 4),
    ("</think>", 4),
];

/// The keys of a GGUF with a tokenizer, for a test to change.
#[derive(Clone)]
pub(super) struct Words {
    pub(super) tokens: Vec<String>,
    pub(super) types: Vec<i32>,
    pub(super) merges: Vec<String>,
    pub(super) keys: Vec<(String, Value)>,
}

/// The vocabulary of the tests. `<|im_end|>` followed by a line feed is a token too, so that the
/// longest has to be found; [`plain_vocabulary`] is without it.
pub(super) fn vocabulary() -> Words {
    words(SPECIALS)
}

/// A vocabulary with the special tokens that models have.
pub(super) fn plain_vocabulary() -> Words {
    let specials: Vec<_> =
        SPECIALS.iter().copied().filter(|(text, _)| !text.ends_with('\n')).collect();
    words(&specials)
}

fn words(specials: &[(&str, i32)]) -> Words {
    let mut tokens: Vec<String> = CHARS.iter().map(char::to_string).collect();
    let mut merges = Vec::new();
    for word in WORDS {
        let mut written = String::new();
        push(word, &mut written);
        let mut chars = written.chars();
        let mut left = chars.next().unwrap().to_string();
        for right in chars {
            let merge = format!("{left} {right}");
            left.push(right);
            if !tokens.contains(&left) {
                tokens.push(left.clone());
                merges.push(merge);
            }
        }
    }
    let mut types = vec![1; tokens.len()];
    for (text, ty) in specials {
        tokens.push((*text).into());
        types.push(*ty);
    }
    for _ in 0..3 {
        tokens.push(format!("[PAD{}]", tokens.len()));
        types.push(5);
    }
    Words { tokens, types, merges, keys: Vec::new() }
}

impl Words {
    pub(super) fn file(&self) -> File {
        let string = |s: &str| Value::String(s.into());
        let mut keys = vec![
            ("general.architecture".into(), string("qwen35")),
            ("tokenizer.ggml.model".into(), string("gpt2")),
            ("tokenizer.ggml.pre".into(), string("qwen35")),
            ("tokenizer.ggml.tokens".into(), Value::Array(Array::String(self.tokens.clone()))),
            ("tokenizer.ggml.token_type".into(), Value::Array(Array::I32(self.types.clone()))),
            ("tokenizer.ggml.merges".into(), Value::Array(Array::String(self.merges.clone()))),
        ];
        keys.retain(|(key, _)| self.keys.iter().all(|(other, _)| other != key));
        keys.extend(self.keys.clone());
        let header = layout(&keys, Vec::new()).unwrap().header;
        File::open(Source::from_bytes("words.gguf", header)).unwrap()
    }

    pub(super) fn set(mut self, key: &str, value: Value) -> Self {
        self.keys.push((key.into(), value));
        self
    }

    pub(super) fn tokenizer(&self) -> Tokenizer {
        Tokenizer::from_gguf(&self.file()).unwrap()
    }

    pub(super) fn refusal(&self) -> String {
        Tokenizer::from_gguf(&self.file()).unwrap_err().to_string()
    }

    pub(super) fn id(&self, token: &str) -> u32 {
        self.tokens.iter().position(|t| t == token).unwrap() as u32
    }

    /// The same as a tokenizer.json, without the padding.
    pub(super) fn json(&self) -> serde_json::Value {
        let all = self.tokens.iter().zip(&self.types).enumerate();
        let normal = all.clone().filter(|(_, (_, ty))| **ty == 1);
        let vocab: serde_json::Map<_, _> =
            normal.map(|(id, (token, _))| (token.clone(), id.into())).collect();
        let added: Vec<_> = all
            .filter(|(_, (_, ty))| matches!(**ty, 3 | 4))
            .map(|(id, (token, ty))| {
                serde_json::json!({
                    "id": id, "content": token, "special": *ty == 3, "normalized": false,
                    "single_word": false, "lstrip": false, "rstrip": false,
                })
            })
            .collect();
        serde_json::json!({
            "version": "1.0",
            "added_tokens": added,
            "normalizer": { "type": "NFC" },
            "pre_tokenizer": { "type": "Sequence", "pretokenizers": [
                {
                    "type": "Split",
                    "pattern": { "Regex": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+" },
                    "behavior": "Isolated",
                    "invert": false,
                },
                {
                    "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false,
                    "use_regex": false,
                },
            ] },
            "post_processor": null,
            "decoder": {
                "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false,
                "use_regex": false,
            },
            "model": {
                "type": "BPE", "dropout": null, "unk_token": null,
                "continuing_subword_prefix": "", "end_of_word_suffix": "", "fuse_unk": false,
                "byte_fallback": false, "vocab": vocab, "merges": self.merges,
            },
        })
    }
}
