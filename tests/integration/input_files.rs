//! Damaged and incomplete inputs (K1), as the program reports them. The readers'
//! own tests have the whole list; here each kind of fault is tried once, from
//! the command line to the exit code.

use std::fs;

use crate::harness::{Case, Model, run};

#[test]
fn up_101_a_header_length_beyond_the_file_is_refused_unread() {
    let case = Case::new(&Model::fixture());
    let mut bytes = (1u64 << 63).to_le_bytes().to_vec();
    bytes.resize(16, b' ');
    fs::write(case.weights(), bytes).unwrap();
    case.is_refused(3, &["model.safetensors", "9223372036854775808", "100000000"]);
}

#[test]
fn up_101_a_header_length_over_the_limit_states_the_limit() {
    let case = Case::new(&Model::fixture());
    let mut bytes = 100_000_001u64.to_le_bytes().to_vec();
    bytes.resize(40, b' ');
    fs::write(case.weights(), bytes).unwrap();
    case.is_refused(3, &["model.safetensors", "100000001", "100000000"]);
}

#[test]
fn up_104_half_a_drafter_is_truncated() {
    let case = Case::new(&Model::fixture());
    let whole = fs::read(case.weights()).unwrap();
    fs::write(case.weights(), &whole[..whole.len() / 2]).unwrap();
    let (needed, found) = (whole.len().to_string(), (whole.len() / 2).to_string());
    case.is_refused(3, &["model.safetensors", "truncated", &needed, &found]);
}

#[test]
fn up_104_a_file_that_ends_inside_its_header_is_truncated() {
    let case = Case::new(&Model::fixture());
    let whole = fs::read(case.weights()).unwrap();
    fs::write(case.weights(), &whole[..100]).unwrap();
    case.is_refused(3, &["model.safetensors", "truncated", "header"]);
}

#[test]
fn up_104_half_a_ternary_file_is_truncated() {
    let case = Case::new(&Model::fixture());
    case.ternarize(&["m.q4nx", "m.gguf"], &[]).ok();
    for name in ["m.q4nx", "m.gguf"] {
        let whole = fs::read(case.out(name)).unwrap();
        fs::write(case.out(name), &whole[..whole.len() / 2]).unwrap();
        case.convert(name, "new.gguf", &[]).refused(3, &[name, "truncated"]);
        assert!(!case.out("new.gguf").exists());
    }
}

#[test]
fn up_105_a_missing_shard_is_named() {
    let case = Case::empty();
    let [_, second] = Model::fixture().write_shards(&case.input(""));
    fs::remove_file(case.input(second)).unwrap();
    for input in [case.input(""), case.input("model.safetensors.index.json")] {
        run(&[&input, &"-o", &case.out("m.q4nx")]).refused(3, &["missing", second]);
    }
    assert!(case.made().is_empty());
}

#[test]
fn up_107_a_stray_copy_beside_the_index_is_noted_and_not_read() {
    let model = Model::fixture();
    let whole = Case::new(&model).q4nx(&[]);

    let case = Case::empty();
    model.write_shards(&case.input(""));
    // The same names in another type, with other values.
    let mut stray = model.clone();
    for tensor in stray.tensors.values_mut() {
        tensor.edit(formats::safetensors::Dtype::F32, |values| values.fill(1.0));
    }
    stray.write(&case.input(""));
    run(&[&case.input(""), &"-o", &case.out("m.q4nx"), &"--block=256"])
        .ok()
        .notes(&["ignored", "model.safetensors"]);
    assert!(fs::read(case.out("m.q4nx")).unwrap() == whole);
}

#[test]
fn an_input_that_is_not_there_or_is_no_file_is_refused() {
    let case = Case::empty();
    case.is_refused(3, &["model.safetensors", "No such file"]);
    let out = case.out("m.q4nx");
    run(&[&case.input(""), &"-o", &out]).refused(3, &["in", "safetensors"]);
    run(&[&"/dev/null", &"-o", &out]).refused(3, &["/dev/null", "a regular file"]);
    assert!(case.made().is_empty());
}

#[test]
fn a_missing_config_names_both_places() {
    let case = Case::new(&Model::fixture());
    fs::remove_file(case.input("config.json")).unwrap();
    case.is_refused(3, &["model.config.json", "config.json", "--config"]);
}

#[test]
fn inputs_of_the_wrong_command_are_sent_to_the_right_one() {
    let case = Case::new(&Model::fixture());
    case.ternarize(&["m.q4nx"], &[]).ok();
    fs::copy(case.out("m.q4nx"), case.input("t.q4nx")).unwrap();
    fs::copy(case.out("config.json"), case.input("t.config.json")).unwrap();
    run(&[&case.input("t.q4nx"), &"-o", &case.out("n.q4nx")])
        .refused(3, &["t.q4nx", "ternary already", "convert"]);
    run(&[&"convert", &case.weights(), &"-o", &case.out("n.gguf")])
        .refused(3, &["model.safetensors", "float drafter", "ternarize INPUT"]);
}
