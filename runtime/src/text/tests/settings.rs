//! Stop tokens and sampling defaults.

use formats::Source;
use formats::gguf::Value;

use super::super::{JsonFile, SamplingDefaults, StopSources, stop_set};
use super::*;

fn json(name: &str, text: &str) -> JsonFile {
    JsonFile::read(&Source::from_bytes(name, text.as_bytes())).unwrap()
}

#[test]
fn stops_are_the_union_of_all_sources() {
    let words = vocabulary();
    let tokenizer = words.tokenizer();
    let id = |token: &str| words.id(token);
    let named = [id("<|im_end|>"), id("<|endoftext|>")];
    assert_eq!(stop_set(&tokenizer, &StopSources::default()).unwrap(), named.into());

    let file = words
        .clone()
        .set("tokenizer.ggml.eos_token_id", Value::U32(id("a")))
        .set("tokenizer.ggml.eot_token_id", Value::I32(id("b") as i32))
        .file();
    let generation = json(
        "generation_config.json",
        &format!("{{\"eos_token_id\": [{}, {}]}}", id("c"), named[1]),
    );
    let config = format!(
        "{{\"eos_token_id\": {}, \"text_config\": {{\"eos_token_id\": {}}}}}",
        id("d"),
        id("e")
    );
    let config = json("config.json", &config);
    let sources = StopSources {
        gguf: Some(&file),
        generation_config: Some(&generation),
        config: Some(&config),
    };
    let mut all = named.to_vec();
    all.extend(["a", "b", "c", "d", "e"].map(id));
    assert_eq!(stop_set(&tokenizer, &sources).unwrap(), all.into_iter().collect());
}

#[test]
fn a_name_that_is_no_control_token_stops_nothing() {
    let mut words = vocabulary();
    let at = words.id("<|endoftext|>") as usize;
    words.types[at] = 4;
    let stops = stop_set(&words.tokenizer(), &StopSources::default()).unwrap();
    assert_eq!(stops, [words.id("<|im_end|>")].into());
}

#[test]
fn stops_outside_the_vocabulary_are_refused() {
    let words = vocabulary();
    let tokenizer = words.tokenizer();
    let n = words.tokens.len();
    for value in [
        n.to_string(),
        "-1".into(),
        "1.5".into(),
        "\"</s>\"".into(),
        format!("[0, {}]", 1_u64 << 32),
        "[[0]]".into(),
    ] {
        let generation = json("generation_config.json", &format!("{{\"eos_token_id\": {value}}}"));
        let sources =
            StopSources { generation_config: Some(&generation), ..StopSources::default() };
        let message = stop_set(&tokenizer, &sources).unwrap_err().to_string();
        assert!(message.starts_with("`generation_config.json`: key `eos_token_id`"), "{message}");
    }
    let file = words.set("tokenizer.ggml.eos_token_id", Value::U64(n as u64)).file();
    let sources = StopSources { gguf: Some(&file), ..StopSources::default() };
    assert!(stop_set(&tokenizer, &sources).is_err());
    let absent = json("config.json", "{\"eos_token_id\": null, \"text_config\": {}}");
    let sources = StopSources { config: Some(&absent), ..StopSources::default() };
    assert_eq!(stop_set(&tokenizer, &sources).unwrap().len(), 2);
}

#[test]
fn sampling_defaults_of_both_files() {
    let file = vocabulary()
        .set("general.sampling.temp", Value::F32(1.0))
        .set("general.sampling.top_k", Value::I32(20))
        .set("general.sampling.top_p", Value::F64(0.95))
        .file();
    let gguf = SamplingDefaults::from_gguf(&file).unwrap();
    let expected = SamplingDefaults {
        temperature: Some(1.0),
        top_k: Some(20),
        top_p: Some(0.95),
        min_p: None,
    };
    assert_eq!(gguf, expected);
    let config = json(
        "generation_config.json",
        r#"{"do_sample": true, "temperature": 0.7, "min_p": 0, "top_k": -1}"#,
    );
    let config = SamplingDefaults::from_generation_config(&config).unwrap();
    assert_eq!((config.temperature, config.top_k, config.min_p), (Some(0.7), Some(0), Some(0.0)));
    let both = config.or(gguf);
    assert_eq!(
        (both.temperature, both.top_k, both.top_p, both.min_p),
        (Some(0.7), Some(0), Some(0.95), Some(0.0))
    );
    let greedy = json("generation_config.json", r#"{"do_sample": false, "temperature": 0.7}"#);
    assert_eq!(SamplingDefaults::from_generation_config(&greedy).unwrap().temperature, Some(0.0));
}

#[test]
fn impossible_sampling_defaults_are_refused() {
    for field in [
        "\"temperature\": -1",
        "\"top_p\": 0",
        "\"top_p\": 1.5",
        "\"top_p\": 1e-60",
        "\"min_p\": 2",
        "\"top_k\": 1.5",
        "\"top_k\": \"20\"",
        "\"temperature\": 1e300",
    ] {
        let config = json("generation_config.json", &format!("{{{field}}}"));
        let message = SamplingDefaults::from_generation_config(&config).unwrap_err().to_string();
        assert!(
            message.contains("generation_config.json") && message.contains("expected"),
            "{message}"
        );
    }
    for value in [Value::F32(f32::NAN), Value::F32(-0.5), Value::String("1".into())] {
        let file = vocabulary().set("general.sampling.temp", value).file();
        let message = SamplingDefaults::from_gguf(&file).unwrap_err().to_string();
        assert!(message.contains("`general.sampling.temp`"), "{message}");
    }
    let list = Source::from_bytes("config.json", b"[1]".as_slice());
    assert!(JsonFile::read(&list).unwrap_err().to_string().contains("a JSON object"));
}
