//! Text to ids and back.

use std::str::FromStr;
use std::time::Instant;

use formats::gguf::{Array, Value};
use proptest::prelude::*;
use tokenizers::tokenizer::{NormalizedString, Normalizer};

use super::super::{Controls, Tokenizer};
use super::*;

/// Any text, and texts near special tokens, where things go wrong.
pub(super) fn any_text() -> impl Strategy<Value = String> {
    let part = prop_oneof![
        3 => prop::sample::select(SPECIALS).prop_map(|(text, _)| text.to_owned()),
        2 => prop::sample::select(&["<|", "|>", "im_end", "<", ">", "/", "think", "<|im_", "end|>"])
            .prop_map(str::to_owned),
        2 => "[ \t\r\n]{1,4}",
        3 => "[a-z'0-9 .,é語🦀\u{301}\u{1c}]{1,8}",
        2 => "(?s).{1,4}",
        1 => "[\u{100000}-\u{100010}\u{10fffd}\u{f0000}-\u{f0004}]{1,3}",
    ];
    prop::collection::vec(part, 0..8).prop_map(|parts| parts.concat())
}

#[test]
fn hand_cases() {
    let words = vocabulary();
    let tokenizer = words.tokenizer();
    let ids = |tokens: &[&str]| tokens.iter().map(|t| words.id(t)).collect::<Vec<_>>();
    for (text, tokens) in [
        ("", &[][..]),
        (" the model", &["Ġthe", "Ġmodel"]),
        ("thing", &["th", "ing"]),
        ("2020", &["2", "0", "2", "0"]),
        ("user's", &["us", "er", "'s"]),
        ("é", &["Ã©"]),
        ("e\u{301}", &["e", "ÌģÌ"]),
        ("a     b", &["a", "ĠĠ", "ĠĠ", "Ġ", "b"]),
        ("\n\n\n", &["ĊĊ", "Ċ"]),
        ("<|im_end|>", &["<|", "im", "_", "end", "|>"]),
        ("<think>", &["<", "th", "in", "k", ">"]),
    ] {
        // U+0301 is the bytes cc 81, one token of this vocabulary.
        let tokens: Vec<_> = tokens.iter().map(|t| if *t == "ÌģÌ" { "Ìģ" } else { t }).collect();
        assert_eq!(tokenizer.encode(text), ids(&tokens), "{text:?}");
    }
    assert_eq!(
        tokenizer.encode_with_specials("<think>a<|im_end|>\nb<|im_end|>"),
        ids(&["<think>", "a", "<|im_end|>\n", "b", "<|im_end|>"]),
    );
    assert_eq!(tokenizer.special("<think>"), Some(words.id("<think>")));
    assert_eq!(tokenizer.special("user"), None);
    assert!(
        tokenizer.is_special(words.id("<think>")) && !tokenizer.is_control(words.id("<think>"))
    );
    assert!(tokenizer.is_control(words.id("<|im_end|>")));
}

#[test]
fn decoding_hides_controls_and_padding() {
    let words = vocabulary();
    let tokenizer = words.tokenizer();
    let padding = tokenizer.vocab() as u32 - 1;
    let ids = [words.id("<think>"), words.id("a"), padding, words.id("<|im_end|>")];
    assert_eq!(tokenizer.decode(&ids, Controls::Hidden).unwrap(), "<think>a");
    assert_eq!(tokenizer.decode(&ids, Controls::Shown).unwrap(), "<think>a<|im_end|>");
    let message = tokenizer.decode(&[padding + 1], Controls::Shown).unwrap_err().to_string();
    assert_eq!(
        message,
        format!("token id {}: the vocabulary has {} tokens", padding + 1, padding + 1)
    );
}

#[test]
fn a_stream_never_splits_a_character() {
    let words = vocabulary();
    let tokenizer = words.tokenizer();
    let byte = |byte: u8| words.id(&CHARS[usize::from(byte)].to_string());
    let mut stream = tokenizer.detokenizer(Controls::Hidden);
    let crab = "🦀".as_bytes();
    let mut texts: Vec<_> = crab.iter().map(|b| stream.push(byte(*b)).unwrap()).collect();
    assert_eq!(texts, ["", "", "", "🦀"]);
    // A hidden token in the middle changes nothing; a wrong id neither.
    texts.clear();
    for id in [
        byte(crab[0]),
        words.id("<|im_end|>"),
        u32::MAX,
        byte(crab[1]),
        byte(crab[2]),
        byte(crab[3]),
    ] {
        texts.extend(stream.push(id));
    }
    assert_eq!(texts.concat(), "🦀");
    // What is no character is out as soon as that is certain.
    assert_eq!(stream.push(byte(0xf0)).unwrap(), "");
    assert_eq!(stream.push(byte(b'a')).unwrap(), "\u{fffd}a");
    assert_eq!(stream.push(byte(0xff)).unwrap(), "\u{fffd}");
    assert_eq!(stream.push(byte(0xe8)).unwrap(), "");
    assert_eq!((stream.flush(), stream.flush()), ("\u{fffd}".into(), String::new()));
}

#[test]
fn broken_vocabularies_are_refused() {
    let words = vocabulary();
    let string = |s: &str| Value::String(s.into());
    let cases: [(Words, &str); 16] = [
        (
            words.clone().set("tokenizer.ggml.pre", string("qwen2")),
            "expected `qwen35`, found `qwen2`",
        ),
        (words.clone().set("tokenizer.ggml.model", string("llama")), "`tokenizer.ggml.model`"),
        (words.clone().set("tokenizer.ggml.tokens", string("a")), "`tokenizer.ggml.tokens`"),
        (words.clone().set("tokenizer.ggml.token_type", string("a")), "integers that fit u64"),
        (
            words.clone().set("tokenizer.ggml.merges", Value::Array(Array::I32(vec![]))),
            "array of strings",
        ),
        (words.clone().set("tokenizer.ggml.add_bos_token", Value::Bool(true)), "add_bos_token"),
        (Words { types: words.types[1..].to_vec(), ..words.clone() }, "one per token"),
        (edit(&words, |w| w.types[7] = 2), "2 for token 7"),
        (edit(&words, |w| w.tokens[300] = w.tokens[299].clone()), "with the ids 299 and 300"),
        (edit(&words, |w| w.tokens[5] = String::new()), "no empty token"),
        (edit(&words, |w| w.types[32] = 5), "a token `Ġ` for the byte 0x20"),
        (
            edit(&words, |w| w.merges[0] = "Ġt".into()),
            "two tokens with a space between, found `Ġt` at 0",
        ),
        (edit(&words, |w| w.merges[1] = "a  b".into()), "at 1"),
        (edit(&words, |w| w.merges[1] = "a b c".into()), "at 1"),
        (edit(&words, |w| w.merges[0] = "q q".into()), "`qq` is none"),
        (edit(&words, |w| w.merges[1] = w.merges[0].clone()), "each merge once"),
    ];
    for (words, expected) in cases {
        let message = words.refusal();
        assert!(
            message.contains(expected) && message.starts_with("`words.gguf`: key"),
            "{message}"
        );
    }
    let special = edit(&words, |w| w.merges.push("<think> a".into()));
    assert!(special.refusal().contains("`<think>` is none"));
}

fn edit(words: &Words, change: impl FnOnce(&mut Words)) -> Words {
    let mut words = words.clone();
    change(&mut words);
    words
}

#[test]
fn a_tokenizer_json_gives_the_same_ids() {
    let words = vocabulary();
    let (ours, theirs) = (words.tokenizer(), from_json(&words.json()).unwrap());
    let padding = ours.vocab() as u32 - 1;
    assert_eq!(theirs.vocab(), ours.vocab());
    for text in ["the <think>model é 2020\n\n", "<|im_end|>\n x"] {
        assert_eq!(theirs.encode(text), ours.encode(text));
        assert_eq!(theirs.encode_with_specials(text), ours.encode_with_specials(text));
    }
    // Its normaliser composes.
    assert_eq!(theirs.encode("e\u{301}"), ours.encode("é"));
    assert_eq!(theirs.decode(&[padding], Controls::Shown).unwrap(), "");
    let debug = format!("{theirs:?}");
    assert!(debug.contains("nfc: true"), "{debug}");
}

fn from_json(json: &serde_json::Value) -> Result<Tokenizer, crate::Error> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("tokenizer.json");
    std::fs::write(&path, json.to_string()).unwrap();
    Tokenizer::from_tokenizer_json(&path, vocabulary().tokens.len())
}

#[test]
fn a_tokenizer_json_that_means_something_else_is_refused() {
    let refused = |pointer: &str, value: serde_json::Value| {
        let mut json = vocabulary().json();
        *json.pointer_mut(pointer).unwrap() = value;
        from_json(&json).unwrap_err().to_string()
    };
    use serde_json::json;
    for (pointer, value, key) in [
        ("/normalizer", json!({ "type": "NFKC" }), "normalizer"),
        ("/added_tokens/0/lstrip", json!(true), "added_tokens"),
        ("/added_tokens/0/normalized", json!(true), "added_tokens"),
        ("/model/dropout", json!(0.1), "model.dropout"),
        ("/model/end_of_word_suffix", json!("</w>"), "model.end_of_word_suffix"),
        ("/model/continuing_subword_prefix", json!("##"), "continuing_subword_prefix"),
        ("/model/byte_fallback", json!(true), "model.byte_fallback"),
        ("/pre_tokenizer/pretokenizers/1/use_regex", json!(true), "pre_tokenizer"),
        ("/pre_tokenizer/pretokenizers/1/add_prefix_space", json!(true), "pre_tokenizer"),
        ("/pre_tokenizer/pretokenizers/0/behavior", json!("Removed"), "pre_tokenizer"),
        ("/pre_tokenizer/pretokenizers/0/pattern/Regex", json!("a"), "pre_tokenizer"),
        ("/model/merges/0", json!("zzz z"), "merges"),
        ("/pre_tokenizer", json!(null), "pre_tokenizer"),
    ] {
        let message = refused(pointer, value);
        assert!(message.contains(key), "{pointer}: {message}");
    }
    assert!(refused("/model", json!([])).contains("a JSON error"));
}

/// What the library's own pipeline makes of the same vocabulary.
fn library() -> tokenizers::Tokenizer {
    let mut json = vocabulary().json();
    json["normalizer"] = serde_json::Value::Null;
    tokenizers::Tokenizer::from_str(&json.to_string()).unwrap()
}

#[test]
fn a_vocabulary_of_full_size_loads_in_seconds() {
    let mut words = vocabulary();
    let (n_tokens, first) = (248_320, words.tokens.len());
    // Tokens of three letters of the alphabet, and the merges that make them.
    let alphabet: Vec<char> = CHARS.iter().copied().filter(|c| *c as u32 > 0x20).collect();
    let pairs: Vec<String> = alphabet[..63]
        .iter()
        .flat_map(|a| alphabet.iter().map(move |b| format!("{a}{b}")))
        .filter(|pair| !words.tokens.contains(pair))
        .collect();
    let mut seen: std::collections::HashSet<_> = words.tokens.iter().cloned().collect();
    let mut add = |left: &str, right: char, words: &mut Words| {
        let token = format!("{left}{right}");
        if words.tokens.len() < n_tokens && seen.insert(token.clone()) {
            words.tokens.push(token);
            words.types.push(1);
            words.merges.push(format!("{left} {right}"));
        }
    };
    for pair in &pairs {
        let mut chars = pair.chars();
        add(&chars.next().unwrap().to_string(), chars.next().unwrap(), &mut words);
    }
    for pair in &pairs {
        alphabet.iter().for_each(|c| add(pair, *c, &mut words));
    }
    assert_eq!(words.tokens.len(), n_tokens);
    assert!(words.merges.len() > n_tokens - first - 1);
    let file = words.file();
    let begin = Instant::now();
    let tokenizer = Tokenizer::from_gguf(&file).unwrap();
    let elapsed = begin.elapsed();
    assert_eq!(tokenizer.vocab(), n_tokens);
    // Unoptimised, on a busy machine.
    assert!(elapsed.as_secs() < 20, "{elapsed:?}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn text_comes_back_and_holds_no_special_token(text in any_text()) {
        let tokenizer = vocabulary().tokenizer();
        let ids = tokenizer.encode(&text);
        prop_assert!(!ids.iter().any(|id| tokenizer.is_special(*id)), "{:?}", ids);
        prop_assert_eq!(tokenizer.decode(&ids, Controls::Hidden).unwrap(), text);
    }

    #[test]
    fn marked_up_text_comes_back(text in any_text()) {
        let tokenizer = vocabulary().tokenizer();
        let ids = tokenizer.encode_with_specials(&text);
        prop_assert_eq!(tokenizer.decode(&ids, Controls::Shown).unwrap(), text);
    }

    #[test]
    fn a_stream_is_the_whole(ids in prop::collection::vec(0..vocabulary().tokens.len() as u32, 0..60)) {
        let tokenizer = vocabulary().tokenizer();
        for controls in [Controls::Hidden, Controls::Shown] {
            let mut stream = tokenizer.detokenizer(controls);
            let mut text: String = ids.iter().map(|id| stream.push(*id).unwrap()).collect();
            text.push_str(&stream.flush());
            prop_assert_eq!(text, tokenizer.decode(&ids, controls).unwrap());
        }
    }

    #[test]
    fn ids_and_text_are_those_of_the_librarys_pipeline(
        text in any_text(),
        ids in prop::collection::vec(0..vocabulary().tokens.len() as u32 - 3, 0..40),
    ) {
        let (ours, theirs) = (vocabulary().tokenizer(), library());
        let expected = theirs.encode_fast(text.as_str(), false).unwrap();
        prop_assert_eq!(ours.encode_with_specials(&text), expected.get_ids());
        for controls in [Controls::Hidden, Controls::Shown] {
            let expected = theirs.decode(&ids, controls == Controls::Hidden).unwrap();
            prop_assert_eq!(ours.decode(&ids, controls).unwrap(), expected);
        }
    }

    #[test]
    fn normalised_text_comes_back_normalised(text in "[a-ze\u{301}\u{308}\u{327}éü \u{1100}\u{1161}]{0,20}") {
        let tokenizer = from_json(&vocabulary().json()).unwrap();
        let mut normalised = NormalizedString::from(text.as_str());
        tokenizers::normalizers::NFC.normalize(&mut normalised).unwrap();
        let back = tokenizer.decode(&tokenizer.encode(&text), Controls::Hidden).unwrap();
        prop_assert_eq!(back, normalised.get());
    }
}
