use std::path::Path;

use super::*;
use crate::Source;
use crate::dflash2::names::{Codebooks, specs};
use crate::gguf::{File, NewTensor, layout};

const PUBLISHED: &[u8] = include_bytes!("../../../../tests/fixtures/published-drafter/config.json");

/// The published configuration with dimensions small enough to make files of.
fn config() -> Config {
    let mut json: serde_json::Value = serde_json::from_slice(PUBLISHED).unwrap();
    json["num_hidden_layers"] = 2.into();
    json["layer_types"] = vec!["sliding_attention"; 2].into();
    json["hidden_size"] = 256.into();
    json["intermediate_size"] = 512.into();
    json["num_attention_heads"] = 8.into();
    json["num_key_value_heads"] = 2.into();
    json["head_dim"] = 64.into();
    json["vocab_size"] = 320.into();
    json["dflash_config"]["mask_token_id"] = 319.into();
    json["dflash_config"]["output_multiplier"] = 0.25.into();
    Config::parse(Path::new("config.json"), json.to_string().as_bytes()).unwrap()
}

fn lineage() -> Lineage {
    Lineage { version: "0.1.0".into(), input_sha256: "00ff".into(), rule: Some("optimum".into()) }
}

fn metadata(config: &Config) -> Vec<(String, Value)> {
    let drafter = Drafter {
        config,
        name: Some("tiny"),
        encoding: GgmlType::PQ2_0,
        hadamard: &Hadamard::unsigned(config, 256),
        lineage: &lineage(),
        tokenizer: vec![(MASK_TOKEN.into(), Value::U32(7))],
    };
    drafter.keys().unwrap()
}

/// A drafter GGUF of zeros with this metadata.
fn file_of(config: &Config, metadata: &[(String, Value)]) -> File {
    let tensors = specs(config, Codebooks::Bare).into_iter().map(|spec| NewTensor {
        dims: spec.shape.iter().rev().copied().collect(),
        ty: if spec.role.is_matrix() { GgmlType::PQ2_0 } else { GgmlType::F32 },
        name: spec.gguf_name,
    });
    let plan = layout(metadata, tensors.collect()).unwrap();
    let mut bytes = plan.header;
    bytes.resize(usize::try_from(plan.file_len).unwrap(), 0);
    File::open(Source::from_bytes("drafter.gguf", bytes)).unwrap()
}

/// The file after `key` was set or, without a value, removed.
fn edited(key: &str, value: Option<Value>) -> File {
    let config = config();
    let mut metadata = metadata(&config);
    match (metadata.iter_mut().find(|(k, _)| k == key), value) {
        (Some(entry), Some(value)) => entry.1 = value,
        (Some(_), None) => metadata.retain(|(k, _)| k != key),
        (None, Some(value)) => metadata.push((key.into(), value)),
        (None, None) => panic!("no key {key}"),
    }
    file_of(&config, &metadata)
}

#[track_caller]
fn config_refused(key: &str, value: Option<Value>) -> (String, String) {
    let error = Config::from_gguf(&edited(key, value)).expect_err(key);
    assert!(error.to_string().contains("drafter.gguf"), "{error}");
    (error.to_string(), error.hint().unwrap_or_default().into())
}

#[track_caller]
fn rotation_refused(suffix: &str, value: Option<Value>) -> String {
    let error = Hadamard::from_gguf(&edited(&format!("prism.hadamard.{suffix}"), value), &config())
        .expect_err(suffix);
    error.to_string()
}

fn strings(list: &[&str]) -> Value {
    Value::Array(Array::String(list.iter().map(|s| (*s).into()).collect()))
}

fn text(s: &str) -> Value {
    Value::String(s.into())
}

#[test]
fn the_published_drafter_has_the_published_keys() {
    let config = Config::parse(Path::new("config.json"), PUBLISHED).unwrap();
    let drafter = Drafter {
        config: &config,
        name: None,
        encoding: GgmlType::PTQ1_0,
        hadamard: &Hadamard::unsigned(&config, 1024),
        lineage: &lineage(),
        tokenizer: Vec::new(),
    };
    let keys = drafter.keys().unwrap();
    let short: Vec<_> = keys
        .iter()
        .filter(|(k, _)| !k.starts_with("prism.") && k != CONFIG)
        .map(|(k, v)| (k.as_str(), v.clone()))
        .collect();
    let u32s = |list: &[u32]| Value::Array(Array::U32(list.to_vec()));
    assert_eq!(
        short,
        [
            ("general.architecture", text("dflash")),
            ("general.file_type", Value::U32(143)),
            ("general.quantization_version", Value::U32(2)),
            ("dflash.block_count", Value::U32(5)),
            ("dflash.context_length", Value::U32(262_144)),
            ("dflash.embedding_length", Value::U32(5120)),
            ("dflash.feed_forward_length", Value::U32(17_408)),
            ("dflash.attention.head_count", Value::U32(32)),
            ("dflash.attention.head_count_kv", Value::U32(8)),
            ("dflash.attention.key_length", Value::U32(128)),
            ("dflash.attention.value_length", Value::U32(128)),
            ("dflash.attention.layer_norm_rms_epsilon", Value::F32(1e-6)),
            ("dflash.attention.sliding_window", Value::U32(2048)),
            ("dflash.attention.sliding_window_pattern", Value::Array(Array::Bool(vec![true; 5]))),
            ("dflash.attention.causal", Value::Bool(false)),
            ("dflash.rope.freq_base", Value::F32(1e7)),
            ("dflash.block_size", Value::U32(8)),
            ("dflash.conv_kernel_size", Value::U32(2)),
            ("dflash.conv_group_size", Value::U32(16)),
            ("dflash.selector_rank", Value::U32(256)),
            ("dflash.selector_top_k", Value::U32(16)),
            ("dflash.target_layers", u32s(&[6, 20, 34, 48, 62])),
            ("tokenizer.ggml.mask_token_id", Value::U32(248_070)),
            ("ternarize.version", text("0.1.0")),
            ("ternarize.input_sha256", text("00ff")),
            ("ternarize.rule", text("optimum")),
        ]
    );
    let get = |suffix: &str| {
        let key = format!("prism.hadamard.{suffix}");
        &keys.iter().find(|(k, _)| *k == key).unwrap().1
    };
    assert_eq!(get("version"), &Value::U32(1));
    assert_eq!(get("block_size"), &Value::U32(1024));
    assert_eq!(get("transform"), &text("normalized-sylvester-walsh-hadamard"));
    assert_eq!(get("axis"), &text("input-last-dimension"));
    assert_eq!(get("sign_mode"), &text("explicit"));
    assert_eq!(get("sign_widths"), &Value::Array(Array::I32(vec![4096, 5120, 17_408, 25_600])));
    let total = 4096 + 5120 + 17_408 + 25_600;
    assert_eq!(get("sign_values"), &Value::Array(Array::I32(vec![1; total])));
    let Value::Array(Array::String(names)) = get("weight_names") else {
        panic!("names");
    };
    assert_eq!(names.len(), 47);
    assert_eq!(get("inverse_weight_names"), &strings(&[]));
}

#[test]
fn what_is_written_is_read() {
    let before = config();
    let file = file_of(&before, &metadata(&before));
    let after = Config::from_gguf(&file).unwrap();
    assert_eq!(after, Config { text: after.text.clone(), ..before.clone() });
    assert_eq!(after.to_json_without_hadamard(), before.to_json_without_hadamard());
    let rotation = Hadamard::from_gguf(&file, &after).unwrap().unwrap();
    assert_eq!(rotation, Hadamard::unsigned(&before, 256));
}

#[test]
fn without_the_authors_config_one_is_made_of_the_keys() {
    let before = config();
    let after = Config::from_gguf(&edited(CONFIG, None)).unwrap();
    let expected = Config {
        num_target_layers: None,
        eos_token_ids: Vec::new(),
        pad_token_id: None,
        raw: after.raw.clone(),
        text: None,
        ..before
    };
    assert_eq!(after, expected);
    assert_eq!(after.authored(), None);
    // The config.json made from it says the same once more.
    let json = after.to_json_without_hadamard();
    let again = Config::parse(Path::new("config.json"), &json).unwrap();
    assert_eq!(Config { text: None, ..again }, after);
}

#[test]
fn an_authors_config_that_the_keys_contradict_is_refused() {
    let own = |edit: fn(&mut serde_json::Value)| {
        let mut json: serde_json::Value =
            serde_json::from_str(&config().authored().unwrap()).unwrap();
        edit(&mut json);
        Some(text(&json.to_string()))
    };
    for (edited, named) in [
        (own(|v| v["rope_parameters"]["rope_theta"] = 5e5.into()), "`dflash.rope.freq_base`"),
        (own(|v| v["max_position_embeddings"] = 77.into()), "u32 77, not u32 262144"),
        (own(|v| v["dflash_config"]["target_layer_ids"] = vec![1].into()), "dflash.target_layers"),
        (own(|v| v["dflash_config"]["output_multiplier"] = 2.into()), "logit_scale"),
        (own(|v| v["vocab_size"] = 384.into()), "319 of 384, not 319 of 320"),
        (own(|v| v["sliding_window"] = 1.into()), "dflash.attention.sliding_window"),
    ] {
        let (message, hint) = config_refused(CONFIG, edited);
        assert!(message.contains(CONFIG) && message.contains(named), "{message}");
        assert!(hint.contains("remove `ternarize.config`"), "{hint}");
    }
    for (broken, named) in [
        (text("{"), "JSON error"),
        (text("{}"), "architectures"),
        (text(&" ".repeat(2 << 20)), "1 MiB"),
        (Value::U32(1), "a string"),
    ] {
        let (message, _) = config_refused(CONFIG, Some(broken));
        assert!(message.contains(CONFIG) && message.contains(named), "{message}");
    }
    // What has no key is free to say anything.
    let free = own(|v| {
        v["num_target_layers"] = 99.into();
        v["eos_token_id"] = serde_json::json!([7, 8]);
        v["a_field_of_tomorrow"] = "x".into();
    });
    let config = Config::from_gguf(&edited(CONFIG, free)).unwrap();
    assert_eq!((config.num_target_layers, config.eos_token_ids), (Some(99), vec![7, 8]));
    assert_eq!(config.raw["a_field_of_tomorrow"], "x");
}

#[test]
fn the_drafters_mask_token_wins_over_the_tokenizers() {
    let metadata = metadata(&config());
    let masks: Vec<_> = metadata.iter().filter(|(k, _)| k == MASK_TOKEN).collect();
    assert_eq!(masks, [&(MASK_TOKEN.to_owned(), Value::U32(319))]);
}

#[test]
fn up_605_no_key_of_a_gguf_has_a_default() {
    for suffix in [
        "block_count",
        "context_length",
        "embedding_length",
        "feed_forward_length",
        "attention.head_count",
        "attention.head_count_kv",
        "attention.key_length",
        "attention.value_length",
        "attention.layer_norm_rms_epsilon",
        "attention.sliding_window_pattern",
        "rope.freq_base",
        "block_size",
        "conv_kernel_size",
        "conv_group_size",
        "selector_rank",
        "selector_top_k",
        "target_layers",
    ] {
        let key = format!("dflash.{suffix}");
        let (message, _) = config_refused(&key, None);
        assert!(message.contains(&format!("`{key}`")), "{message}");
    }
    config_refused(MASK_TOKEN, None);
    config_refused("general.architecture", None);
}

#[test]
fn up_504_taps_of_a_gguf_count_from_one() {
    let taps = |list: &[u32]| Some(Value::Array(Array::U32(list.to_vec())));
    let (message, _) = config_refused("dflash.target_layers", taps(&[0, 20, 34, 48, 62]));
    assert!(message.contains("layer numbers from 1, found 0"), "{message}");
    let (message, _) = config_refused("dflash.target_layers", taps(&[6, 34, 20, 48, 62]));
    assert!(message.contains("`dflash.target_layers`: expected strictly ascending"), "{message}");
    config_refused("dflash.target_layers", taps(&[]));
    config_refused("dflash.target_layers", Some(text("6")));
}

#[test]
fn up_603_other_drafters_are_named() {
    let (message, hint) = config_refused("general.architecture", Some(text("qwen35")));
    assert!(message.contains("expected `dflash`, found `qwen35`"), "{message}");
    assert!(hint.contains("target"), "{hint}");

    let config = config();
    let mut metadata = metadata(&config);
    metadata.retain(|(k, _)| !k.contains("dflash.conv_") && !k.contains("dflash.selector_"));
    let error = Config::from_gguf(&file_of(&config, &metadata)).unwrap_err();
    assert_eq!(error.hint(), Some("this is a DFlash 1 drafter; need DFlash2DraftModel"));
}

#[test]
fn other_attention_is_refused() {
    config_refused("dflash.attention.value_length", Some(Value::U32(32)));
    config_refused("dflash.rope.dimension_count", Some(Value::U32(32)));
    config_refused("dflash.rope.scaling.type", Some(text("yarn")));
    let sections = |list: &[i32]| Some(Value::Array(Array::I32(list.to_vec())));
    config_refused("dflash.rope.dimension_sections", sections(&[11, 11, 10, 0]));
    let degenerate = edited("dflash.rope.dimension_sections", sections(&[64, 0, 0, 0]));
    assert!(Config::from_gguf(&degenerate).is_ok());
    config_refused("dflash.block_size", Some(Value::U32(1)));
    config_refused("dflash.block_count", Some(Value::U32(u32::MAX)));
    config_refused("dflash.embedding_length", Some(Value::U32(0)));
}

#[test]
fn up_607_a_newer_rotation_is_named_with_both_versions() {
    let message = rotation_refused("version", Some(Value::U32(2)));
    assert!(
        message.contains("expected version 1, the only one that this build reads, found version 2"),
        "{message}"
    );
}

#[test]
fn every_refusal_of_the_reference_loader_is_made() {
    for suffix in ["version", "transform", "axis", "sign_mode", "sign_values", "weight_names"] {
        rotation_refused(suffix, None);
    }
    rotation_refused("transform", Some(text("haar")));
    rotation_refused("axis", Some(text("output")));
    rotation_refused("sign_mode", Some(text("random")));
    for block in [0, 3, 1000, 512, 1 << 31] {
        rotation_refused("block_size", Some(Value::U32(block)));
    }
    let ints = |list: &[i32]| Some(Value::Array(Array::I32(list.to_vec())));
    for widths in [
        ints(&[]),
        ints(&[256, 512]),
        ints(&[0, 256, 512, 1280]),
        ints(&[-256, 512, 1280]),
        ints(&[2048]),
        ints(&[255, 513, 1280]),
        ints(&[256, 256, 1536]),
        Some(Value::Array(Array::U64(vec![u64::MAX, 2049]))),
    ] {
        rotation_refused("sign_widths", widths);
    }
    let total = 256 + 512 + 1280;
    let message = rotation_refused("sign_values", ints(&[vec![1; total - 1], vec![2]].concat()));
    assert!(message.contains("2 at index 2047"), "{message}");
    rotation_refused("sign_values", ints(&[1]));
    rotation_refused("sign_values", Some(text("+")));
    for names in [
        strings(&[]),
        strings(&["fc.weight", "fc.weight"]),
        strings(&["token_embd.weight"]),
        strings(&["blk.0.attn_norm.weight"]),
        strings(&["blk.9.attn_q.weight"]),
        strings(&["selector_predecessor.weight"]),
    ] {
        rotation_refused("weight_names", Some(names));
    }
    rotation_refused("inverse_weight_names", Some(strings(&["token_embd.weight"])));
    rotation_refused("gdn_v_grouped", Some(Value::Bool(true)));
    rotation_refused("tied_output", Some(Value::Bool(true)));
}

#[test]
fn signs_of_any_number_type_are_read() {
    let total = 256 + 512 + 1280;
    let mut signs = vec![1i8; total];
    signs[300] = -1;
    for values in [
        Array::I8(signs.clone()),
        Array::I32(signs.iter().map(|s| i32::from(*s)).collect()),
        Array::F32(signs.iter().map(|s| f32::from(*s)).collect()),
    ] {
        let file = edited("prism.hadamard.sign_values", Some(Value::Array(values)));
        let rotation = Hadamard::from_gguf(&file, &config()).unwrap().unwrap();
        assert_eq!(rotation.signs[&256], signs[..256]);
        assert_eq!(rotation.signs[&512], signs[256..768]);
    }
    let unsigned =
        edited("prism.hadamard.sign_values", Some(Value::Array(Array::U32(vec![1; total]))));
    assert!(Hadamard::from_gguf(&unsigned, &config()).is_ok());
}

#[test]
fn without_signs_all_are_plus() {
    let file = edited("prism.hadamard.sign_mode", Some(text("identity")));
    let rotation = Hadamard::from_gguf(&file, &config()).unwrap().unwrap();
    assert!(rotation.signs.values().flatten().all(|sign| *sign == 1));
}

#[test]
fn ternary_tensors_without_a_rotation_are_refused() {
    let config = config();
    let mut metadata = metadata(&config);
    metadata.retain(|(k, _)| !k.starts_with("prism."));
    let error = Hadamard::from_gguf(&file_of(&config, &metadata), &config).unwrap_err();
    assert!(error.to_string().contains("no `prism.hadamard.*` key"), "{error}");
    let float = layout(&metadata, Vec::new()).unwrap();
    let float = File::open(Source::from_bytes("f.gguf", float.header)).unwrap();
    assert_eq!(Hadamard::from_gguf(&float, &config).unwrap(), None);
}

#[test]
fn causality_that_differs_by_layer_has_no_place_in_a_gguf() {
    let config = Config {
        is_causal: None,
        layer_types: vec![LayerType::Sliding, LayerType::Full],
        ..config()
    };
    assert!(network(&config).unwrap_err().to_string().contains("dflash.attention.causal"));
}
