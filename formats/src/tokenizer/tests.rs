use serde_json::json;

use super::*;
use crate::gguf::{Array, layout};

fn tokenizer() -> serde_json::Value {
    json!({
        "version": "1.0",
        "added_tokens": [
            { "id": 4, "content": "<|im_end|>", "special": true, "lstrip": false },
            { "id": 5, "content": "<think>", "special": false },
            { "id": 6, "content": "<|fim_pad|>", "special": false },
        ],
        "normalizer": { "type": "NFC" },
        "pre_tokenizer": { "type": "Sequence", "pretokenizers": [
            {
                "type": "Split",
                "pattern": { "Regex": "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}| ?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+" },
                "behavior": "Isolated",
                "invert": false,
            },
            { "type": "ByteLevel", "add_prefix_space": false },
        ] },
        "decoder": { "type": "ByteLevel" },
        "model": {
            "type": "BPE",
            "byte_fallback": false,
            "vocab": { "a": 0, "b": 1, "ab": 2, "Ġ": 3 },
            "merges": ["a b"],
        },
    })
}

/// The keys of a tokenizer.json beside an optional tokenizer_config.json.
fn keys_of(
    tokenizer: &serde_json::Value,
    config: Option<&serde_json::Value>,
    vocab_size: usize,
) -> Result<Vec<(String, Value)>, Error> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("tokenizer.json");
    std::fs::write(&path, tokenizer.to_string()).unwrap();
    if let Some(config) = config {
        std::fs::write(dir.path().join("tokenizer_config.json"), config.to_string()).unwrap();
    }
    gguf_keys(&path, vocab_size)
}

fn get<'a>(keys: &'a [(String, Value)], key: &str) -> &'a Value {
    &keys.iter().find(|(k, _)| k == key).unwrap().1
}

fn strings(list: &[&str]) -> Value {
    Value::Array(Array::String(list.iter().map(|s| (*s).into()).collect()))
}

#[test]
fn a_tokenizer_json_becomes_keys_with_gaps_filled() {
    let config = json!({
        "eos_token": "<|im_end|>",
        "pad_token": { "content": "a", "special": true },
        "bos_token": null,
    });
    let keys = keys_of(&tokenizer(), Some(&config), 9).unwrap();
    let names: Vec<_> = keys.iter().map(|(k, _)| k.as_str()).collect();
    assert_eq!(
        names,
        [
            "tokenizer.ggml.model",
            "tokenizer.ggml.pre",
            "tokenizer.ggml.tokens",
            "tokenizer.ggml.token_type",
            "tokenizer.ggml.merges",
            "tokenizer.ggml.eos_token_id",
            "tokenizer.ggml.padding_token_id",
        ]
    );
    assert_eq!(get(&keys, "tokenizer.ggml.model"), &Value::String("gpt2".into()));
    assert_eq!(get(&keys, "tokenizer.ggml.pre"), &Value::String("qwen35".into()));
    assert_eq!(
        get(&keys, TOKENS),
        &strings(&[
            "a",
            "b",
            "ab",
            "Ġ",
            "<|im_end|>",
            "<think>",
            "<|fim_pad|>",
            "[PAD7]",
            "[PAD8]"
        ])
    );
    assert_eq!(
        get(&keys, "tokenizer.ggml.token_type"),
        &Value::Array(Array::I32(vec![1, 1, 1, 1, 3, 4, 3, 5, 5]))
    );
    assert_eq!(get(&keys, "tokenizer.ggml.merges"), &strings(&["a b"]));
    assert_eq!(get(&keys, "tokenizer.ggml.eos_token_id"), &Value::U32(4));
    assert_eq!(get(&keys, "tokenizer.ggml.padding_token_id"), &Value::U32(0));
}

#[test]
fn merges_are_read_as_pairs_too() {
    let mut tokenizer = tokenizer();
    tokenizer["model"]["merges"] = json!([["a", "b"], [" ", "a"]]);
    let keys = keys_of(&tokenizer, None, 7).unwrap();
    assert_eq!(get(&keys, "tokenizer.ggml.merges"), &strings(&["a b", "Ġ a"]));
}

#[test]
fn a_vocabulary_larger_than_the_drafters_is_refused() {
    let message = keys_of(&tokenizer(), None, 6).unwrap_err().to_string();
    assert!(message.contains("at most the 6 tokens"), "{message}");
    assert!(message.contains("the id 6"), "{message}");
}

#[test]
fn other_tokenizers_are_refused() {
    let refused = |edit: fn(&mut serde_json::Value)| {
        let mut tokenizer = tokenizer();
        edit(&mut tokenizer);
        keys_of(&tokenizer, None, 16).unwrap_err().to_string()
    };
    let message = refused(|t| t["model"]["type"] = json!("Unigram"));
    assert!(message.contains("`model.type`: expected \"BPE\""), "{message}");
    refused(|t| t["model"]["byte_fallback"] = json!(true));
    refused(|t| t["model"]["vocab"]["c"] = json!(0));
    refused(|t| t["model"]["vocab"]["c"] = json!(-1));
    refused(|t| t["model"]["merges"] = json!([["a"]]));
    refused(|t| t["pre_tokenizer"] = json!(null));
    refused(|t| t["added_tokens"][0]["id"] = json!(0));
    let message = refused(|t| {
        t["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = json!("\\p{L}+");
    });
    assert!(message.contains("the pattern of Qwen 3.5"), "{message}");
    let message = refused(|t| *t = json!([1, 2]));
    assert!(message.contains("a tokenizer.json, or a GGUF"), "{message}");
}

#[test]
fn a_special_token_outside_the_vocabulary_is_refused() {
    let config = json!({ "eos_token": "</s>" });
    let message = keys_of(&tokenizer(), Some(&config), 9).unwrap_err().to_string();
    assert!(message.contains("`eos_token`") && message.contains("</s>"), "{message}");
}

#[test]
fn a_gguf_gives_all_its_tokenizer_keys() {
    let string = |s: &str| Value::String(s.into());
    let metadata = vec![
        ("general.architecture".to_owned(), string("qwen35")),
        ("tokenizer.ggml.model".into(), string("gpt2")),
        (TOKENS.into(), strings(&["a", "b"])),
        ("tokenizer.chat_template".into(), string("{{ messages }}")),
    ];
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("target.gguf");
    std::fs::write(&path, layout(&metadata, Vec::new()).unwrap().header).unwrap();
    assert_eq!(gguf_keys(&path, 2).unwrap(), metadata[1..]);
    let message = gguf_keys(&path, 1).unwrap_err().to_string();
    assert!(message.contains("at most the 1 tokens"), "{message}");
}

#[test]
fn short_and_empty_files_are_refused() {
    let file = tempfile::NamedTempFile::new().unwrap();
    for bytes in [b"".as_slice(), b"GG", b"GGUF"] {
        std::fs::write(file.path(), bytes).unwrap();
        assert!(gguf_keys(file.path(), 1).is_err());
    }
}
