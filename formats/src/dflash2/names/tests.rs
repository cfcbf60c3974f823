use std::path::Path;

use super::*;
use crate::Error;

const PUBLISHED: &[u8] = include_bytes!("../../../../tests/fixtures/published-drafter/config.json");

fn config() -> Config {
    Config::parse(Path::new("config.json"), PUBLISHED).unwrap()
}

fn names() -> Vec<String> {
    let specs = specs(&config(), Codebooks::Bare);
    specs.into_iter().map(|spec| spec.name).collect()
}

fn try_resolve<S: AsRef<str>>(names: &[S]) -> Result<Resolved, Error> {
    let names = names.iter().map(AsRef::as_ref);
    resolve(Path::new("model.safetensors"), &config(), names)
}

/// Message and hint of the refusal.
#[track_caller]
fn refused<S: AsRef<str>>(names: &[S]) -> (String, String) {
    let error = try_resolve(names).expect_err("refused");
    (error.to_string(), error.hint().unwrap_or_default().to_owned())
}

fn renamed(from: &str, to: &str) -> Vec<String> {
    let mut names = names();
    *names.iter_mut().find(|n| *n == from).unwrap() = to.into();
    names
}

#[test]
fn the_published_drafter_has_81_tensors_of_the_published_sizes() {
    let specs = specs(&config(), Codebooks::Bare);
    assert_eq!(specs.len(), 81);
    let parameters: u64 = specs.iter().map(TensorSpec::parameters).sum();
    assert_eq!(parameters, 1_924_404_480);
    assert_eq!(2 * parameters, 3_848_808_960);
    let of = |keep: fn(Role) -> bool| {
        let kept: Vec<_> = specs.iter().filter(|s| keep(s.role)).collect();
        (kept.len(), kept.iter().map(|s| s.parameters()).sum::<u64>())
    };
    assert_eq!(of(Role::is_matrix), (47, 1_796_997_120));
    assert_eq!(of(Role::is_codebook), (2, 127_139_840));
    assert_eq!(of(Role::is_conv_base), (10, 204_800));
    assert_eq!(of(Role::is_norm), (22, 62_720));
}

#[test]
fn each_name_has_its_place_in_a_gguf() {
    let specs = specs(&config(), Codebooks::Bare);
    for (name, gguf, shape) in [
        ("fc.weight", "fc.weight", vec![5120, 25_600]),
        ("hidden_norm.weight", "enc.output_norm.weight", vec![5120]),
        ("norm.weight", "output_norm.weight", vec![5120]),
        ("layers.4.input_layernorm.weight", "blk.4.attn_norm.weight", vec![5120]),
        ("layers.0.post_attention_layernorm.weight", "blk.0.ffn_norm.weight", vec![5120]),
        ("layers.0.self_attn.q_proj.weight", "blk.0.attn_q.weight", vec![4096, 5120]),
        ("layers.0.self_attn.k_proj.weight", "blk.0.attn_k.weight", vec![1024, 5120]),
        ("layers.0.self_attn.v_proj.weight", "blk.0.attn_v.weight", vec![1024, 5120]),
        ("layers.0.self_attn.o_proj.weight", "blk.0.attn_output.weight", vec![5120, 4096]),
        ("layers.0.self_attn.q_norm.weight", "blk.0.attn_q_norm.weight", vec![128]),
        ("layers.0.self_attn.k_norm.weight", "blk.0.attn_k_norm.weight", vec![128]),
        ("layers.0.mlp.gate_proj.weight", "blk.0.ffn_gate.weight", vec![17_408, 5120]),
        ("layers.0.mlp.up_proj.weight", "blk.0.ffn_up.weight", vec![17_408, 5120]),
        ("layers.0.mlp.down_proj.weight", "blk.0.ffn_down.weight", vec![5120, 17_408]),
        ("layers.0.attention_conv.base_kernel", "blk.0.attn_conv_base", vec![2, 2, 5120]),
        (
            "layers.0.attention_conv.kernel_projection.weight",
            "blk.0.attn_conv_proj.weight",
            vec![1280, 5120],
        ),
        ("layers.0.mlp_conv.base_kernel", "blk.0.ffn_conv_base", vec![2, 2, 5120]),
        (
            "layers.0.mlp_conv.kernel_projection.weight",
            "blk.0.ffn_conv_proj.weight",
            vec![1280, 5120],
        ),
        (
            "candidate_selector.predecessor_codebook",
            "selector_predecessor.weight",
            vec![248_320, 256],
        ),
        ("candidate_selector.successor_codebook", "selector_successor.weight", vec![248_320, 256]),
        ("candidate_selector.hidden_projection.weight", "selector_hidden.weight", vec![256, 5120]),
    ] {
        let by_name = specs.iter().find(|s| s.name == name).unwrap();
        assert_eq!((by_name.gguf_name.as_str(), &by_name.shape), (gguf, &shape));
        let by_gguf = specs.iter().find(|s| s.gguf_name == gguf).unwrap();
        assert_eq!(by_gguf, by_name);
    }
}

#[test]
fn the_models_own_names_resolve_without_notes() {
    let names = names();
    let resolved = try_resolve(&names).unwrap();
    assert_eq!(resolved.codebooks, Codebooks::Bare);
    assert!(resolved.notes.is_empty(), "{:?}", resolved.notes);
    assert!(resolved.tensors.iter().map(|(_, name)| name).eq(&names));
}

#[test]
fn up_601_codebooks_are_read_in_either_spelling() {
    let names: Vec<_> =
        specs(&config(), Codebooks::Weight).into_iter().map(|spec| spec.name).collect();
    let resolved = try_resolve(&names).unwrap();
    assert_eq!(resolved.codebooks, Codebooks::Weight);
    let (spec, name) = resolved.tensors.last().unwrap();
    assert_eq!(spec.role, Role::SuccessorCodebook);
    assert_eq!(name, "candidate_selector.successor_codebook.weight");
    assert!(resolved.notes[0].contains("codebook.weight`"), "{:?}", resolved.notes);
}

#[test]
fn up_601_codebooks_in_two_spellings_are_refused() {
    let mut both = names();
    both.push("candidate_selector.successor_codebook.weight".into());
    let (message, _) = refused(&both);
    assert!(message.contains("a codebook in both spellings"), "{message}");
    assert!(message.contains("`candidate_selector.successor_codebook.weight`"), "{message}");

    let mixed = renamed(
        "candidate_selector.successor_codebook",
        "candidate_selector.successor_codebook.weight",
    );
    let (message, _) = refused(&mixed);
    assert!(message.contains("the two codebooks in different spellings"), "{message}");
}

#[test]
fn up_601_an_mlx_quantized_codebook_is_named() {
    let mut names = names();
    names.push("candidate_selector.predecessor_codebook.scales".into());
    names.push("candidate_selector.predecessor_codebook.biases".into());
    let (message, hint) = refused(&names);
    assert!(message.contains("an MLX-quantized codebook"), "{message}");
    assert!(hint.contains("dequantize"), "{hint}");
}

#[test]
fn up_602_a_renamed_codebook_is_both_missing_and_unknown() {
    let (message, hint) =
        refused(&renamed("candidate_selector.successor_codebook", "candidate_selector.foo"));
    assert!(message.contains("1 missing and 1 unknown tensors"), "{message}");
    assert!(message.contains("missing `candidate_selector.successor_codebook`"), "{message}");
    assert!(message.contains("unknown `candidate_selector.foo`"), "{message}");
    assert!(hint.contains("nearest to `candidate_selector.successor_codebook`"), "{hint}");
}

#[test]
fn up_602_missing_and_unknown_tensors_are_listed() {
    let mut some = names();
    some.retain(|n| n != "norm.weight" && n != "layers.3.mlp.up_proj.weight");
    let (message, _) = refused(&some);
    assert!(
        message.contains("2 missing tensors: `layers.3.mlp.up_proj.weight`, `norm.weight`"),
        "{message}"
    );

    let mut more = names();
    more.push("layers.0.self_attn.q_proj.bias".into());
    let (message, hint) = refused(&more);
    assert!(message.contains("1 unknown tensor: `layers.0.self_attn.q_proj.bias`"), "{message}");
    assert!(hint.contains("`layers.0.self_attn.q_proj.weight`"), "{hint}");
}

#[test]
fn up_602_a_partial_dflash2_set_is_refused() {
    let mut selector = names();
    selector.retain(|n| !n.contains("_conv."));
    let (message, _) = refused(&selector);
    assert!(message.contains("the selector without the convolutions"), "{message}");
    let mut convolutions = names();
    convolutions.retain(|n| !n.contains("candidate_selector"));
    let (message, _) = refused(&convolutions);
    assert!(message.contains("the convolutions without the selector"), "{message}");
}

#[test]
fn up_603_a_dflash1_checkpoint_is_named() {
    let mut names = names();
    names.retain(|n| !n.contains("_conv.") && !n.contains("candidate_selector"));
    assert_eq!(names.len(), 58);
    let (message, _) = refused(&names);
    assert!(
        message.contains("this is a DFlash 1 drafter; need DFlash2DraftModel: 58 tensors"),
        "{message}"
    );
}

#[test]
fn up_604_a_wrong_shape_names_the_axis() {
    let specs = specs(&config(), Codebooks::Bare);
    let path = Path::new("model.safetensors");
    let fc = &specs[0];
    assert!(check_shape(path, fc, &[5120, 25_600]).is_ok());
    let error = check_shape(path, fc, &[5120, 20_480]).unwrap_err();
    let message = error.to_string();
    assert!(message.contains("tensor `fc.weight`"), "{message}");
    assert!(message.contains("shape [out, in] = [5120, 25600], found [5120, 20480]"), "{message}");
    assert!(error.hint().unwrap().contains("the in axis differs"), "{error}");
    let error = check_shape(path, fc, &[25_600, 5120]).unwrap_err();
    assert!(error.hint().unwrap().contains("transposed"), "{error}");
    assert!(check_shape(path, fc, &[]).is_err());
    assert!(check_shape(path, fc, &[5120, 25_600, 1]).is_err());
}

#[test]
fn up_504_four_taps_do_not_fit_an_fc_of_five() {
    let mut config = config();
    config.target_layer_ids.pop();
    let fc = &specs(&config, Codebooks::Bare)[0];
    let error = check_shape(Path::new("x"), fc, &[5120, 25_600]).unwrap_err();
    assert!(error.to_string().contains("[5120, 20480], found [5120, 25600]"), "{error}");
}

#[test]
fn up_604_a_width_that_does_not_divide_names_axis_and_multiple() {
    let path = Path::new("model.safetensors");
    assert!(check_block(path, &config(), 1024).is_ok());
    for (hidden, largest) in [(5000, 8), (5248, 128)] {
        let config = Config { hidden_size: hidden, conv_group_size: 8, ..config() };
        let error = check_block(path, &config, 1024).unwrap_err();
        let message = error.to_string();
        assert!(
            message.contains("an in axis that is a multiple of 1024 (rotation block) and of 128"),
            "{message}"
        );
        assert!(message.contains(&format!("[out, in] = [{hidden}, {}]", 5 * hidden)), "{message}");
        assert!(error.hint().unwrap().contains(&largest.to_string()), "{error:?}");
    }
    assert!(check_block(path, &config(), 0).is_err());
    assert!(check_block(path, &config(), 2048).is_err());
}

#[test]
fn up_608_an_own_embedding_or_head_is_skipped_with_a_note() {
    let mut names = names();
    names.push("model.embed_tokens.weight".into());
    names.push("lm_head.weight".into());
    let resolved = try_resolve(&names).unwrap();
    assert_eq!(resolved.tensors.len(), 81);
    assert_eq!(resolved.notes.len(), 2);
    assert!(resolved.notes[1].contains("`lm_head.weight` is not read"), "{:?}", resolved.notes);
    assert!(resolved.notes[1].contains("borrows the target's"), "{:?}", resolved.notes);
}

#[test]
fn up_609_documented_prefixes_are_removed() {
    for prefix in ["model.", "draft_model.", "_orig_mod.", "_orig_mod.draft_model.model."] {
        let prefixed: Vec<_> = names().iter().map(|n| format!("{prefix}{n}")).collect();
        let resolved = try_resolve(&prefixed).unwrap();
        assert!(resolved.tensors.iter().map(|(_, name)| name).eq(&prefixed));
        assert!(resolved.tensors.iter().map(|(spec, _)| &spec.name).eq(&names()));
        assert_eq!(resolved.notes, [format!("the prefix `{prefix}` of every name is removed")]);
    }
}

#[test]
fn up_609_a_prefix_on_some_tensors_is_refused() {
    let (message, _) = refused(&renamed("norm.weight", "model.norm.weight"));
    assert!(message.contains("a prefix on these tensors, but not on all"), "{message}");
    assert!(message.contains("`model.norm.weight`"), "{message}");
}

#[test]
fn up_609_a_doubled_prefix_is_refused() {
    let name = "layers.0.model.layers.0.mlp.up_proj.weight";
    let (message, _) = refused(&renamed("layers.0.mlp.up_proj.weight", name));
    assert!(message.contains("added twice") && message.contains(name), "{message}");
}

#[test]
fn up_609_unmerged_lora_is_refused_with_a_hint() {
    for name in [
        "layers.0.self_attn.q_proj.lora_A.weight",
        "base_model.model.layers.0.self_attn.q_proj.lora_B.default.weight",
        "layers.0.self_attn.q_proj.base_layer.weight",
    ] {
        let (message, hint) = refused(&renamed("layers.0.self_attn.q_proj.weight", name));
        assert!(message.contains("un-merged LoRA weights") && message.contains(name), "{message}");
        assert!(hint.contains("merge the adapter"), "{hint}");
    }
}

#[test]
fn hostile_names_give_a_short_message() {
    let names: Vec<String> = (0..100_000).map(|i| format!("{i}{}", "x".repeat(300))).collect();
    let (message, _) = refused(&names);
    assert!(message.len() < 10_000, "{}", message.len());
    assert!(refused(&["".to_owned(), "".to_owned()]).0.contains("the same tensor twice"));
    assert!(refused::<&str>(&[]).0.contains("81 missing"));
}

#[test]
fn older_gguf_names_are_read_by_one_table() {
    let today: Vec<_> =
        specs(&config(), Codebooks::Bare).into_iter().map(|spec| spec.gguf_name).collect();
    let path = Path::new("drafter.gguf");
    let resolved = resolve_gguf(path, &config(), today.iter().map(String::as_str)).unwrap();
    assert!(resolved.notes.is_empty());

    let older: Vec<_> = today
        .iter()
        .map(|name| match name.as_str() {
            "selector_hidden.weight" => "selector.hidden_proj.weight".into(),
            "selector_predecessor.weight" => "selector.pred_codebook".into(),
            "selector_successor.weight" => "selector.succ_codebook".into(),
            name => name.replace("_conv_base", "_conv.base").replace("_conv_proj", "_conv.proj"),
        })
        .collect();
    let resolved = resolve_gguf(path, &config(), older.iter().map(String::as_str)).unwrap();
    assert_eq!(resolved.notes.len(), 23);
    assert!(resolved.tensors.iter().map(|(_, name)| name).eq(&older));

    let both = today.iter().chain([&older[older.len() - 1]]).map(String::as_str);
    let error = resolve_gguf(path, &config(), both).unwrap_err();
    assert!(error.to_string().contains("two names of one tensor"), "{error}");
}
