//! Configurations and tensor names that are not those of a DFlash 2 drafter (K5,
//! K6), from the command line. What may be read in two ways gives the same bytes
//! either way; what decides the network is never guessed.

use serde_json::{Value, json};

use crate::harness::{Case, Model, dims, mini_config, run};
use formats::dflash2::config::Config;
use formats::dflash2::names::{Codebooks, specs};
use formats::safetensors::Dtype;

/// The bytes that the fixture gives, whatever spelling it comes in.
fn expected() -> Vec<u8> {
    Case::new(&Model::fixture()).q4nx(&[])
}

#[track_caller]
fn config_is_refused(edit: impl FnOnce(&mut Value), parts: &[&str]) {
    let case = Case::new(&Model::fixture().with_config(edit));
    case.is_refused(3, &[&["config.json", "expected", "found"], parts].concat());
}

#[track_caller]
fn is_refused(model: &Model, parts: &[&str]) {
    Case::new(model).is_refused(3, &[&["model.safetensors"], parts].concat());
}

fn block(config: &mut Value) -> &mut serde_json::Map<String, Value> {
    config["dflash_config"].as_object_mut().unwrap()
}

#[test]
fn up_504_taps_are_required() {
    config_is_refused(
        |c| drop(block(c).remove("target_layer_ids")),
        &["dflash_config.target_layer_ids", "nothing", "never guessed"],
    );
}

#[test]
fn up_504_taps_are_in_range_and_in_order() {
    for (ids, found) in
        [(json!([5, 2]), "5 before 2"), (json!([2, 8]), "8"), (json!([2, 2]), "2 before 2")]
    {
        config_is_refused(
            |c| c["dflash_config"]["target_layer_ids"] = ids,
            &["target_layer_ids", found],
        );
    }
}

#[test]
fn up_504_the_number_of_taps_fits_fc() {
    let one_tap = |c: &mut Value| c["dflash_config"]["target_layer_ids"] = json!([2]);
    is_refused(
        &Model::fixture().with_config(one_tap),
        &["`fc.weight`", "[out, in] = [256, 256]", "[256, 512]", "the in axis differs"],
    );
}

#[test]
fn up_505_a_block_has_a_row_to_draft() {
    for rows in [0, 1, 65] {
        config_is_refused(
            |c| c["dflash_config"]["block_size"] = json!(rows),
            &["dflash_config.block_size", "2 to 64 rows"],
        );
    }
}

#[test]
fn up_601_both_spellings_of_the_codebooks_give_the_same_file() {
    let weight = Model::fixture().renamed(|name| match name {
        name if name.ends_with("_codebook") => format!("{name}.weight"),
        name => name.into(),
    });
    assert!(
        Case::new(&weight).q4nx(&["codebook.weight", "candidate_selector.predecessor_codebook"])
            == expected()
    );
}

#[test]
fn up_601_both_spellings_at_once_are_refused() {
    let mut both = Model::fixture();
    let name = "candidate_selector.successor_codebook";
    both.tensors.insert(format!("{name}.weight"), both.tensors[name].clone());
    is_refused(&both, &["both spellings", name, &format!("{name}.weight")]);
}

#[test]
fn up_602_a_codebook_by_another_name_is_missing_and_unknown() {
    let renamed = Model::fixture()
        .renamed(|name| name.replace("candidate_selector.successor_codebook", "foo"));
    is_refused(&renamed, &["missing `candidate_selector.successor_codebook`", "unknown `foo`"]);
}

#[test]
fn up_602_a_selector_without_convolutions_is_refused() {
    let partial = Model::fixture().without(|name| name.contains("_conv."));
    is_refused(&partial, &["the selector without the convolutions", "attention_conv.base_kernel"]);
}

#[test]
fn up_603_a_dflash_1_drafter_is_named() {
    let v1 = Model::fixture()
        .without(|name| name.contains("_conv.") || name.contains("candidate_selector."));
    is_refused(&v1, &["this is a DFlash 1 drafter", "DFlash2DraftModel"]);
    config_is_refused(
        |c| c["architectures"] = json!(["DFlashDraftModel"]),
        &[
            "architectures",
            "`DFlashDraftModel`",
            "this is a DFlash 1 drafter; need DFlash2DraftModel",
        ],
    );
}

/// The configuration with a matrix of `width` inputs (`down_proj`), and all its tensors zero.
fn with_width(width: usize) -> Model {
    let mut config = mini_config();
    config["intermediate_size"] = json!(width);
    Model::new(config, Dtype::BF16, |spec| vec![0.0; spec.parameters() as usize])
}

#[test]
fn up_604_an_input_width_of_no_whole_groups_is_refused() {
    is_refused(
        &with_width(5000),
        &[
            "`layers.0.mlp.down_proj.weight`",
            "an in axis that is a multiple of 256",
            "of 128 (scale group)",
            "[out, in] = [256, 5000]",
            "cannot be ternary",
        ],
    );
}

#[test]
fn up_604_an_input_width_of_no_whole_rotation_blocks_names_the_block_that_fits() {
    let case = Case::new(&with_width(5248));
    case.is_refused(
        3,
        &[
            "`layers.0.mlp.down_proj.weight`",
            "256",
            "[out, in] = [256, 5248]",
            "divides every matrix is 128",
        ],
    );
    run(&[&case.weights(), &"-o", &case.out("m.gguf"), &"--block=128"]).ok();
}

#[test]
fn up_605_block_size_and_theta_are_read_from_both_places() {
    let expected = expected();
    let block_on_top = |c: &mut Value| {
        c["block_size"] = block(c).remove("block_size").unwrap();
    };
    let theta_on_top = |c: &mut Value| {
        c["rope_theta"] = json!(10_000_000);
        c["rope_parameters"] = json!({ "rope_type": "default" });
    };
    let both_on_top = |c: &mut Value| {
        block_on_top(c);
        theta_on_top(c);
    };
    let edits: [&dyn Fn(&mut Value); 4] = [&|_| {}, &block_on_top, &theta_on_top, &both_on_top];
    for edit in edits {
        let case = Case::new(&Model::fixture().with_config(edit));
        assert!(case.q4nx(&[]) == expected);
        // The written configuration says the same.
        let path = case.out("config.json");
        let config = Config::read(&path).unwrap();
        assert_eq!((config.block_size, config.rope_theta), (8, 1e7));
    }
}

#[test]
fn up_605_no_block_size_and_no_theta_are_refused() {
    config_is_refused(
        |c| drop(block(c).remove("block_size")),
        &["dflash_config.block_size", "nothing"],
    );
    config_is_refused(
        |c| drop(c["rope_parameters"].as_object_mut().unwrap().remove("rope_theta")),
        &["rope_parameters.rope_theta", "nothing"],
    );
}

#[test]
fn up_605_two_places_that_disagree_are_refused() {
    config_is_refused(
        |c| c["rope_theta"] = json!(10_000),
        &["rope_theta", "10000000", "10000 at the top"],
    );
}

#[test]
fn up_606_an_architecture_in_other_letter_case_is_refused_with_the_nearest() {
    config_is_refused(
        |c| c["architectures"] = json!(["Dflash2DraftModel"]),
        &["architectures", "`Dflash2DraftModel`", "`DFlash2DraftModel`", "nearest"],
    );
}

#[test]
fn up_608_an_own_embedding_and_head_are_noted_and_not_read() {
    let mut own = Model::fixture();
    let codebook = own.tensors["candidate_selector.successor_codebook"].clone();
    for name in ["embed_tokens.weight", "lm_head.weight"] {
        own.tensors.insert(name.into(), codebook.clone());
    }
    let case = Case::new(&own);
    assert!(case.q4nx(&["`embed_tokens.weight` is not read", "borrows"]) == expected());
}

#[test]
fn up_609_prefixes_of_wrappers_are_removed() {
    let expected = expected();
    for prefix in ["model.", "draft_model.", "_orig_mod.", "_orig_mod.model."] {
        let wrapped = Model::fixture().renamed(|name| format!("{prefix}{name}"));
        assert!(Case::new(&wrapped).q4nx(&[prefix]) == expected, "{prefix}");
    }
}

#[test]
fn up_609_a_prefix_added_twice_is_refused() {
    let twice = Model::fixture().renamed(|name| match name.strip_prefix("layers.0.") {
        Some(rest) => format!("layers.0.layers.0.{rest}"),
        None => name.into(),
    });
    is_refused(&twice, &["prefix was added twice", "layers.0.layers.0."]);
}

#[test]
fn up_609_unmerged_lora_is_refused_with_what_to_do() {
    let lora = Model::fixture().renamed(|name| name.replace("fc.weight", "fc.base_layer.weight"));
    is_refused(&lora, &["LoRA", "`fc.base_layer.weight`", "merge_and_unload"]);
    let mut adapter = Model::fixture();
    let norm = adapter.tensors["norm.weight"].clone();
    adapter.tensors.insert("fc.lora_A.weight".into(), norm);
    is_refused(&adapter, &["LoRA", "`fc.lora_A.weight`"]);
}

#[test]
fn a_matrix_of_another_type_or_shape_is_named() {
    let model = Model::fixture();
    let integers = model.clone().with("fc.weight", |t| {
        t.dtype = Dtype::I16;
    });
    is_refused(&integers, &["`fc.weight`", "BF16, F16 or F32", "I16"]);
    let transposed = model.with("layers.1.mlp.down_proj.weight", |t| t.shape.reverse());
    is_refused(
        &transposed,
        &["`layers.1.mlp.down_proj.weight`", "[256, 512]", "[512, 256]", "transposed"],
    );
}

#[test]
fn every_matrix_of_the_fixture_can_be_ternary() {
    let config = Model::fixture().config.to_string();
    let config = Config::parse("config.json".as_ref(), config.as_bytes()).unwrap();
    let matrices = specs(&config, Codebooks::Bare).into_iter().filter(|s| s.role.is_matrix());
    assert!(matrices.map(|s| dims(&s)).all(|[out, inputs]| out % 32 == 0 && inputs % 256 == 0));
}
