use super::*;
use serde_json::json;

const PUBLISHED: &[u8] = include_bytes!("../../../../tests/fixtures/published-drafter/config.json");

fn published() -> Value {
    serde_json::from_slice(PUBLISHED).unwrap()
}

fn parse(value: &Value) -> Result<Config, Error> {
    Config::parse(Path::new("config.json"), value.to_string().as_bytes())
}

/// The published configuration after `edit`.
fn edited(edit: impl FnOnce(&mut Value)) -> Result<Config, Error> {
    let mut value = published();
    edit(&mut value);
    parse(&value)
}

/// Key, whole message and hint of the error that `edit` leads to.
#[track_caller]
fn refused(edit: impl FnOnce(&mut Value)) -> (String, String, String) {
    let error = edited(edit).expect_err("refused");
    let hint = error.hint().unwrap_or_default().to_owned();
    let message = error.to_string();
    match error {
        Error::Key { key, .. } => (key, message, hint),
        other => panic!("{other}"),
    }
}

fn remove(value: &mut Value, key: &str) {
    value.as_object_mut().unwrap().remove(key);
}

#[test]
fn the_published_config_has_the_published_values() {
    let c = Config::parse(Path::new("config.json"), PUBLISHED).unwrap();
    assert_eq!((c.hidden_size, c.intermediate_size), (5120, 17408));
    assert_eq!(c.num_hidden_layers, 5);
    assert_eq!((c.num_attention_heads, c.num_key_value_heads, c.head_dim), (32, 8, 128));
    assert_eq!((c.vocab_size, c.max_position_embeddings), (248_320, 262_144));
    assert_eq!(c.num_target_layers, Some(64));
    assert_eq!((c.rms_norm_eps, c.rope_theta), (1e-6, 1e7));
    assert_eq!(c.sliding_window, Some(2048));
    assert_eq!(c.layer_types, [LayerType::Sliding; 5]);
    assert_eq!(c.is_causal, Some(false));
    assert!(!c.is_layer_causal(0));
    assert_eq!((c.block_size, c.conv_group_size, c.conv_kernel_size), (8, 16, 2));
    assert_eq!((c.mask_token_id, c.selector_rank, c.selector_top_k), (248_070, 256, 16));
    assert_eq!(c.target_layer_ids, [5, 19, 33, 47, 61]);
    assert_eq!(c.input_embedding_scale, None);
    assert_eq!(c.output_multiplier, None);
    assert_eq!(c.final_logit_softcapping, None);
    assert_eq!(c.bos_token_id, None);
    assert_eq!(c.eos_token_ids, [248_044]);
    assert_eq!(c.pad_token_id, Some(248_044));
    assert_eq!(c.prism_hadamard, None);
    assert_eq!((c.q_width(), c.kv_width(), c.fc_in(), c.conv_out()), (4096, 1024, 25_600, 1280));
    assert_eq!(c.matrix_widths(), [4096, 5120, 17_408, 25_600]);
}

#[test]
fn a_sibling_with_scales_and_a_soft_cap_is_read() {
    let c = edited(|v| {
        v["dflash_config"]["output_multiplier"] = json!(0.196_116_135_138_184_04);
        v["dflash_config"]["final_logit_softcapping"] = json!(20.0);
        v["input_embedding_scale"] = json!(2);
        v["eos_token_id"] = json!([7, 8]);
    })
    .unwrap();
    assert_eq!(c.output_multiplier, Some(0.196_116_135_138_184_04));
    assert_eq!(c.final_logit_softcapping, Some(20.0));
    assert_eq!(c.input_embedding_scale, Some(2.0));
    assert_eq!(c.eos_token_ids, [7, 8]);

    let c = edited(|v| v["dflash_config"]["final_logit_softcapping"] = json!(0.0)).unwrap();
    assert_eq!(c.final_logit_softcapping, None);
}

#[test]
fn up_504_target_layer_ids_are_never_guessed() {
    let (key, message, _) = refused(|v| remove(&mut v["dflash_config"], "target_layer_ids"));
    assert_eq!(key, "dflash_config.target_layer_ids");
    assert!(message.contains("found nothing"), "{message}");
    assert!(message.contains("in `dflash_config` or at the top level"), "{message}");
}

#[test]
fn up_504_target_layer_ids_are_in_range_and_in_order() {
    let taps = |ids: Value| refused(|v| v["dflash_config"]["target_layer_ids"] = ids).1;
    let message = taps(json!([5, 19, 33, 47, 64]));
    assert!(message.contains("below `num_target_layers` = 64, found 64"), "{message}");
    let message = taps(json!([5, 33, 19, 47, 61]));
    assert!(message.contains("strictly ascending layer numbers, found 33 before 19"), "{message}");
    let message = taps(json!([5, 19, 19, 47, 61]));
    assert!(message.contains("19 before 19"), "{message}");
    for wrong in [json!([]), json!("5"), json!([5, -1]), json!([5, 19.5]), json!([[5]])] {
        taps(wrong);
    }
}

#[test]
fn up_505_a_block_of_8_rows_has_7_drafts() {
    assert_eq!(parse(&published()).unwrap().drafts(), 7);
    let (key, _, _) = refused(|v| v["dflash_config"]["block_size"] = json!(1));
    assert_eq!(key, "dflash_config.block_size");
    refused(|v| v["dflash_config"]["block_size"] = json!(1 << 30));
}

#[test]
fn up_603_a_dflash1_architecture_is_named() {
    let (key, message, hint) = refused(|v| v["architectures"] = json!(["DFlashDraftModel"]));
    assert_eq!(key, "architectures");
    assert!(message.contains("found `DFlashDraftModel`"), "{message}");
    assert_eq!(hint, "this is a DFlash 1 drafter; need DFlash2DraftModel");
}

#[test]
fn up_605_block_size_is_found_in_both_places() {
    let top = edited(|v| {
        remove(&mut v["dflash_config"], "block_size");
        v["block_size"] = json!(6);
    });
    assert_eq!(top.unwrap().block_size, 6);
    let both = edited(|v| v["block_size"] = json!(8));
    assert_eq!(both.unwrap().block_size, 8);
    let (key, message, _) = refused(|v| v["block_size"] = json!(16));
    assert_eq!(key, "dflash_config.block_size");
    assert!(message.contains("8 in `dflash_config` and 16 at the top level"), "{message}");
}

#[test]
fn up_605_all_block_fields_may_stand_at_the_top() {
    let flat = edited(|v| {
        let block = v["dflash_config"].as_object().unwrap().clone();
        remove(v, "dflash_config");
        v.as_object_mut().unwrap().extend(block);
    })
    .unwrap();
    let nested = parse(&published()).unwrap();
    let parsed = |config| Config { raw: Map::new(), text: None, ..config };
    assert_eq!(parsed(flat), parsed(nested));
}

#[test]
fn up_605_rope_theta_is_found_in_both_places() {
    let top = edited(|v| {
        remove(v, "rope_parameters");
        v["rope_theta"] = json!(5e5);
    });
    assert_eq!(top.unwrap().rope_theta, 5e5);
    // An integer and a float of the same value agree.
    assert_eq!(edited(|v| v["rope_theta"] = json!(1e7)).unwrap().rope_theta, 1e7);
    let (key, message, _) = refused(|v| v["rope_theta"] = json!(1e6));
    assert_eq!(key, "rope_parameters.rope_theta");
    assert!(message.contains("at the top level"), "{message}");
}

#[test]
fn up_605_nothing_that_decides_the_network_has_a_default() {
    for name in [
        "block_size",
        "conv_group_size",
        "conv_kernel_size",
        "mask_token_id",
        "selector_rank",
        "selector_top_k",
    ] {
        let (key, message, _) = refused(|v| remove(&mut v["dflash_config"], name));
        assert_eq!(key, format!("dflash_config.{name}"));
        assert!(message.contains("found nothing"), "{message}");
    }
    let (key, _, _) = refused(|v| remove(&mut v["rope_parameters"], "rope_theta"));
    assert_eq!(key, "rope_parameters.rope_theta");
    for name in [
        "architectures",
        "head_dim",
        "hidden_size",
        "intermediate_size",
        "layer_types",
        "max_position_embeddings",
        "num_attention_heads",
        "num_hidden_layers",
        "num_key_value_heads",
        "rms_norm_eps",
        "vocab_size",
    ] {
        assert_eq!(refused(|v| remove(v, name)).0, name);
    }
}

#[test]
fn up_606_an_architecture_in_other_letter_case_gets_the_nearest_match() {
    let (key, message, hint) = refused(|v| v["architectures"] = json!(["Dflash2DraftModel"]));
    assert_eq!(key, "architectures");
    assert!(message.contains("supported architectures (`DFlash2DraftModel`)"), "{message}");
    assert!(hint.contains("nearest") && hint.contains("`DFlash2DraftModel`"), "{hint}");
    let (_, _, hint) = refused(|v| v["architectures"] = json!(["LlamaForCausalLM"]));
    assert_eq!(hint, "");
    for wrong in
        [json!([]), json!("DFlash2DraftModel"), json!(["DFlash2DraftModel", "X"]), json!([1])]
    {
        refused(|v| v["architectures"] = wrong);
    }
}

#[test]
fn wrong_types_are_named_with_what_was_found() {
    let (key, message, _) = refused(|v| v["hidden_size"] = json!("5120"));
    assert_eq!(key, "hidden_size");
    assert!(message.contains("an integer from 0 to 2147483647, found \"5120\""), "{message}");
    for wrong in [json!(-1), json!(1.5), json!(1u64 << 31), json!(u64::MAX), json!([]), json!({})] {
        refused(|v| v["hidden_size"] = wrong);
    }
    refused(|v| v["dflash_config"] = json!([]));
    refused(|v| v["rope_parameters"] = json!(1e7));
    refused(|v| v["is_causal"] = json!("false"));
    refused(|v| v["rms_norm_eps"] = json!("1e-6"));
    refused(|v| v["eos_token_id"] = json!([1, "x"]));
}

#[test]
fn dimensions_that_do_not_fit_each_other_are_refused() {
    for (name, value) in [
        ("num_key_value_heads", json!(6)),
        ("head_dim", json!(127)),
        ("num_attention_heads", json!(0)),
        ("vocab_size", json!(8)),
        ("vocab_size", json!(248_070)),
        ("rms_norm_eps", json!(0.0)),
        ("rms_norm_eps", json!(1e-60)),
        ("rope_parameters", json!({ "rope_theta": 1e300 })),
        ("rope_parameters", json!({ "rope_theta": -1.0 })),
        ("rope_parameters", json!({ "rope_theta": 1e7, "rope_type": "yarn" })),
        ("rope_scaling", json!({ "type": "linear", "factor": 2.0 })),
        ("partial_rotary_factor", json!(0.25)),
        ("attention_bias", json!(true)),
        ("hidden_act", json!("gelu")),
        ("layer_types", json!(["sliding_attention"])),
        ("layer_types", json!(["a", "b", "c", "d", "e"])),
        ("sliding_window", json!(0)),
        ("sliding_window", json!(null)),
        ("use_sliding_window", json!(false)),
        ("num_hidden_layers", json!(2_000_000_000)),
    ] {
        refused(|v| v[name] = value);
    }
    refused(|v| v["dflash_config"]["conv_group_size"] = json!(24));
    refused(|v| v["dflash_config"]["conv_group_size"] = json!(0));
}

#[test]
fn absurd_products_are_refused_by_checked_arithmetic() {
    let max = (1u64 << 31) - 1;
    refused(|v| v["num_attention_heads"] = json!(8 * (max / 8)));
    refused(|v| v["hidden_size"] = json!(16 * (max / 16)));
    refused(|v| {
        v["vocab_size"] = json!(max);
        v["dflash_config"]["selector_rank"] = json!(max);
    });
    refused(|v| v["intermediate_size"] = json!(max));
}

#[test]
fn layers_without_a_window_are_full() {
    let c = edited(|v| {
        for name in ["layer_types", "sliding_window", "use_sliding_window", "is_causal"] {
            remove(v, name);
        }
    })
    .unwrap();
    assert_eq!(c.layer_types, [LayerType::Full; 5]);
    assert!(!c.is_layer_causal(0));
    let c = edited(|v| remove(v, "is_causal")).unwrap();
    assert!(c.is_layer_causal(0));
}

#[test]
fn bytes_that_are_no_object_are_refused() {
    let deep = format!("{}{}", "[".repeat(10_000), "]".repeat(10_000));
    for bytes in [b"".as_slice(), b"{", b"[]", b"null", b"{\"a\": NaN}", b"\xff", deep.as_bytes()] {
        let error = Config::parse(Path::new("config.json"), bytes).unwrap_err();
        assert!(matches!(error, Error::Structure { .. }), "{error}");
    }
}

#[test]
fn a_huge_file_is_refused_unread() {
    let file = tempfile::NamedTempFile::new().unwrap();
    file.as_file().set_len(MAX_CONFIG_BYTES + 1).unwrap();
    let error = Config::read(file.path()).unwrap_err();
    assert!(error.to_string().contains("at most 1048576 bytes"), "{error}");
}

#[test]
fn a_rewritten_config_keeps_unknown_fields_and_their_order() {
    let config = edited(|v| v["a_field_of_tomorrow"] = json!({ "x": [1, 2.5, null] })).unwrap();
    let mark = PrismHadamard::unsigned(&config, 1024, vec!["fc.weight".into(), "b".into()]);
    let bytes = config.to_json_with_hadamard(&mark);
    assert!(bytes.ends_with(b"}\n"));
    let again = Config::parse(Path::new("out.json"), &bytes).unwrap();
    assert_eq!(again.prism_hadamard.as_ref(), Some(&mark));
    let mut keys: Vec<_> = again.raw().keys().collect();
    assert_eq!(keys.pop().unwrap(), "prism_hadamard");
    assert!(keys.into_iter().eq(config.raw().keys()));
    // Writing once more gives the same bytes.
    assert_eq!(again.to_json_with_hadamard(&mark), bytes);
}

#[test]
fn a_wrong_mark_is_refused() {
    let config = parse(&published()).unwrap();
    let mark = PrismHadamard::unsigned(&config, 1024, vec!["fc.weight".into()]).to_value();
    assert!(edited(|v| v["prism_hadamard"] = mark.clone()).is_ok());
    let wrong = |name: &str, value: Value| {
        let mut mark = mark.clone();
        mark[name] = value;
        let (key, message, _) = refused(|v| v["prism_hadamard"] = mark);
        assert_eq!(key, format!("prism_hadamard.{name}"), "{message}");
    };
    wrong("block_size", json!(1000));
    wrong("block_size", json!(0));
    wrong("block_size", json!(2048));
    wrong("og_signs", json!([1, -1]));
    wrong("og_signs", json!(vec![2; 4096]));
    wrong("og_signs", json!("1"));
    wrong("folded", json!("a,a"));
    wrong("folded", json!("a,,b"));
    wrong("folded", json!(["a"]));
    wrong("lm_head", json!("transposed"));
    wrong("embedding", json!("rotated"));
    refused(|v| v["prism_hadamard"] = json!(true));
}

#[test]
fn a_rewritten_config_spells_numbers_as_its_author() {
    let json = std::str::from_utf8(PUBLISHED).unwrap();
    let json =
        json.replacen('{', "{\"huge\": 123456789012345678901234567890, \"z\": [-0, 1E5],", 1);
    let config = Config::parse(Path::new("config.json"), json.as_bytes()).unwrap();
    let text = String::from_utf8(config.to_json_without_hadamard()).unwrap();
    for spelled in ["123456789012345678901234567890,", "-0,", "1E5\n", "\"rms_norm_eps\": 1e-06,"] {
        assert!(text.contains(spelled), "no {spelled} in {text}");
    }
}

#[test]
fn a_key_that_stands_twice_cannot_break_the_message() {
    let json = br#"{"a\n\u001b[2J": 1, "a\n\u001b[2J": 2}"#;
    let message = Config::parse(Path::new("config.json"), json).unwrap_err().to_string();
    assert!(message.contains(r"`a\n\u{1b}[2J` a second time"), "{message}");
}

#[test]
fn a_byte_order_mark_is_skipped() {
    let marked = [b"\xEF\xBB\xBF", PUBLISHED].concat();
    let read = |json: &[u8]| Config::parse(Path::new("config.json"), json).unwrap();
    assert_eq!(read(&marked), read(PUBLISHED));
    assert!(!read(&marked).to_json_without_hadamard().starts_with(b"\xEF"));
}

#[test]
fn numbers_of_many_digits_are_found_in_few() {
    let error = edited(|v| v["rope_parameters"]["rope_theta"] = 1e300.into()).unwrap_err();
    assert!(error.to_string().ends_with("found 1e300"), "{error}");
}
