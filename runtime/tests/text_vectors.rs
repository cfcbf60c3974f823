//! The tokenizer and the chat template against vectors of `tools/tokenizer_vectors.py`, which has no
//! code in common with them.
//!
//! ```text
//! TEXT_GGUF=target.gguf TEXT_VECTORS=vectors.json cargo test -p runtime --test text_vectors -- --ignored
//! ```

#![allow(clippy::unwrap_used, reason = "tests, which clippy does not see in helpers")]

use std::path::PathBuf;

use formats::Source;
use formats::gguf::File;
use runtime::Error;
use runtime::text::{Chat, ChatTemplate, Controls, Message, Tokenizer};
use serde::Deserialize;
use serde_json::{Map, Value};

#[derive(Deserialize)]
struct Vectors {
    vocab: usize,
    /// Text, ids, ids with special tokens recognised.
    encode: Vec<(String, Vec<u32>, Vec<u32>)>,
    /// Ids, text, text with control tokens.
    decode: Vec<(Vec<u32>, String, String)>,
    chats: Vec<ChatVector>,
}

#[derive(Deserialize)]
struct ChatVector {
    messages: Vec<Map<String, Value>>,
    tools: Vec<Value>,
    variables: Map<String, Value>,
    text: Option<String>,
    error: Option<String>,
    ids: Option<Vec<u32>>,
}

fn path(variable: &str) -> PathBuf {
    std::env::var_os(variable).unwrap_or_else(|| panic!("{variable} names no file")).into()
}

fn chat(vector: &ChatVector) -> Chat {
    let message = |fields: &Map<String, Value>| {
        let mut extra = fields.clone();
        let mut string = |key: &str| extra.remove(key).map(|v| v.as_str().unwrap().to_owned());
        let (role, reasoning_content) = (string("role").unwrap(), string("reasoning_content"));
        let content = extra.remove("content").unwrap_or_default();
        Message { role, content, reasoning_content, extra, ..Message::default() }
    };
    Chat {
        messages: vector.messages.iter().map(message).collect(),
        tools: vector.tools.clone(),
        add_generation_prompt: vector.variables["add_generation_prompt"].as_bool().unwrap(),
        extra: vector.variables.clone(),
        ..Chat::default()
    }
}

#[test]
#[ignore = "needs the files that TEXT_GGUF and TEXT_VECTORS name"]
fn text_is_as_the_vectors_say() {
    let file = File::open(Source::open(path("TEXT_GGUF")).unwrap()).unwrap();
    let vectors = std::fs::read(path("TEXT_VECTORS")).unwrap();
    let vectors: Vectors = serde_json::from_slice(&vectors).unwrap();
    let tokenizer = Tokenizer::from_gguf(&file).unwrap();
    assert_eq!(tokenizer.vocab(), vectors.vocab);
    assert!(vectors.encode.len() >= 1000);

    for (text, plain, special) in &vectors.encode {
        assert_eq!(&tokenizer.encode(text), plain, "{text:?}");
        assert_eq!(&tokenizer.encode_with_specials(text), special, "{text:?}");
        assert_eq!(&tokenizer.decode(plain, Controls::Hidden).unwrap(), text);
    }
    for (ids, hidden, shown) in &vectors.decode {
        for (controls, expected) in [(Controls::Hidden, hidden), (Controls::Shown, shown)] {
            assert_eq!(&tokenizer.decode(ids, controls).unwrap(), expected, "{ids:?}");
            let mut stream = tokenizer.detokenizer(controls);
            let mut text: String = ids.iter().map(|id| stream.push(*id).unwrap()).collect();
            text.push_str(&stream.flush());
            assert_eq!(&text, expected, "{ids:?}");
        }
    }

    let template = ChatTemplate::from_gguf(&file, &tokenizer).unwrap();
    let (mut n_text, mut n_ids, mut n_told, mut n_refused) = (0, 0, 0, 0);
    for vector in &vectors.chats {
        match (template.render(&chat(vector)), &vector.text) {
            (Ok(rendered), Some(text)) => {
                n_text += 1;
                assert_eq!(rendered.text(), text);
                if let Some(ids) = &vector.ids {
                    n_ids += 1;
                    assert_eq!(&tokenizer.encode_rendered(&rendered), ids, "{text:?}");
                }
            }
            (Err(Error::Conversation { message, .. }), None) => {
                n_refused += 1;
                assert!(vector.error.as_ref().unwrap().contains(&message), "{message}");
            }
            (Err(Error::ControlText { .. }), Some(_)) => n_told += 1,
            (result, text) => panic!("{result:?} for {text:?}"),
        }
    }
    println!(
        "{} texts, {} id lists, {n_text} chats ({n_ids} with ids, {n_refused} refused, {n_told} not \
         told apart)",
        vectors.encode.len(),
        vectors.decode.len(),
    );
    // Tokens that arise between two texts are rare, even in noise.
    assert!(n_told * 10 <= vectors.chats.len());
}
