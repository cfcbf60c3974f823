//! What becomes of the text of a `config.json`.

use std::fs;
use std::path::Path;

use formats::dflash2::config::Config;
use formats::safetensors::Dtype;
use serde_json::json;

use crate::harness::{Case, Model, mini_config, run};

/// A drafter whose configuration has numbers that a JSON library would respell.
fn spelled() -> (Case, String) {
    let case = Case::new(&Model::noise(mini_config(), Dtype::BF16, 1));
    let path = case.input("config.json");
    let text = fs::read_to_string(&path).unwrap();
    let text = text.replacen(
        '{',
        "{\n  \"seen\": 123456789012345678901234567890,\n  \"z\": -0,\n  \"lr\": 1E-06,\n  \"x\": 1.50,",
        1,
    );
    fs::write(&path, &text).unwrap();
    (case, text)
}

fn without_mark(path: &Path) -> String {
    String::from_utf8(Config::read(path).unwrap().to_json_without_hadamard()).unwrap()
}

#[test]
fn numbers_keep_their_spelling_through_every_format() {
    let (case, text) = spelled();
    case.ternarize(&["m.q4nx", "m.gguf"], &[]).ok();
    let config = fs::read_to_string(case.out("config.json")).unwrap();
    // It is the input's text, and one key more.
    let body = text.trim_end().trim_end_matches('}').trim_end();
    assert!(config.starts_with(&format!("{body},\n  \"prism_hadamard\"")), "{config}");

    for (input, folder) in [("m.gguf", "a"), ("m.q4nx", "b")] {
        fs::create_dir(case.out(folder)).unwrap();
        let to = |name: &str| format!("{folder}/{name}");
        case.convert(input, &to("t.gguf"), &["--format=ptq1_0"]).ok();
        case.convert(&to("t.gguf"), &to("m.q4nx"), &[]).ok();
        assert_eq!(fs::read_to_string(case.out(to("config.json"))).unwrap(), config);
        fs::remove_file(case.out(to("config.json"))).unwrap();
        case.convert(&to("t.gguf"), &to("m.safetensors"), &[]).ok();
        assert_eq!(fs::read_to_string(case.out(to("config.json"))).unwrap(), text);
    }
}

#[test]
fn a_gguf_carries_what_it_has_no_key_for() {
    let mut config = mini_config();
    config["num_target_layers"] = json!(64);
    config["bos_token_id"] = json!(1);
    config["eos_token_id"] = json!([2, 5]);
    config["pad_token_id"] = json!(4);
    config["transformers_version"] = json!("5.0.0");
    let case = Case::new(&Model::noise(config, Dtype::BF16, 1));
    case.ternarize(&["m.gguf"], &[]).ok();
    case.convert("m.gguf", "m.q4nx", &[]).ok();
    assert_eq!(
        without_mark(&case.out("config.json")),
        fs::read_to_string(case.input("config.json")).unwrap()
    );
    let found = run(&[&"inspect", &case.out("m.gguf"), &"--json"]).ok().json();
    assert_eq!(found["config"]["num_target_layers"], 64);
    assert!(found["lineage"].get("config").is_none());
}

#[test]
fn a_gguf_that_carries_another_config_than_its_keys_is_refused() {
    let case = Case::new(&Model::noise(mini_config(), Dtype::BF16, 1));
    case.ternarize(&["m.gguf"], &[]).ok();
    let mut bytes = fs::read(case.out("m.gguf")).unwrap();
    let find = |bytes: &[u8], what: &[u8]| bytes.windows(what.len()).position(|w| w == what);
    // The key of another program is no concern of ours, and such a file is read by
    // its other keys.
    let key = find(&bytes, b"ternarize.config").unwrap();
    let mut foreign = bytes.clone();
    foreign[key..key + 9].copy_from_slice(b"elsewhere");
    fs::write(case.out("foreign.gguf"), &foreign).unwrap();
    case.convert("foreign.gguf", "m.q4nx", &[]).ok();
    assert!(Config::read(&case.out("config.json")).unwrap().num_target_layers.is_none());

    let block = find(&bytes[key..], b"\"selector_top_k\": ").unwrap() + key + 18;
    bytes[block] = if bytes[block] == b'4' { b'3' } else { b'4' };
    fs::write(case.out("m.gguf"), &bytes).unwrap();
    case.convert("m.gguf", "n.q4nx", &[]).refused(
        3,
        &["m.gguf", "`ternarize.config`", "`dflash.selector_top_k`", "remove `ternarize.config`"],
    );
}

#[test]
fn a_byte_order_mark_before_a_config_is_skipped() {
    let case = Case::new(&Model::noise(mini_config(), Dtype::BF16, 1));
    let plain = case.q4nx(&[]);
    let path = case.input("config.json");
    let marked = [b"\xEF\xBB\xBF".to_vec(), fs::read(&path).unwrap()].concat();
    fs::write(&path, marked).unwrap();
    case.ternarize(&["m.q4nx"], &["--force"]).ok();
    assert!(fs::read(case.out("m.q4nx")).unwrap() == plain);
    assert_eq!(fs::read(case.out("config.json")).unwrap()[0], b'{');
    let found = run(&[&"inspect", &path, &"--json"]).ok().json();
    assert_eq!(found["kind"], "drafter_config");
}

#[test]
fn numbers_of_many_digits_are_reported_in_few() {
    let case = Case::new(&Model::noise(mini_config(), Dtype::BF16, 1));
    let path = case.input("config.json");
    let mut config: serde_json::Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    config["rope_parameters"]["rope_theta"] = json!(1e300);
    fs::write(&path, config.to_string()).unwrap();
    let run = case.ternarize(&["m.q4nx"], &[]).refused(3, &["rope_theta", "found 1e300"]);
    assert!(run.stderr().len() < 300, "{}", run.stderr());
}

#[test]
fn a_list_of_rotated_tensors_that_is_not_the_tensors_is_refused() {
    let case = Case::new(&Model::noise(mini_config(), Dtype::BF16, 1));
    case.ternarize(&["m.q4nx"], &[]).ok();
    let path = case.out("config.json");
    let config: serde_json::Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    let folded = config["prism_hadamard"]["folded"].as_str().unwrap();
    let refused = |folded: &str, found: &str| {
        let mut other = config.clone();
        other["prism_hadamard"]["folded"] = json!(folded);
        fs::write(&path, other.to_string()).unwrap();
        let parts = ["config.json", "`prism_hadamard.folded`", "all matrices", found];
        case.convert("m.q4nx", "n.gguf", &[]).refused(3, &parts);
        run(&[&"verify", &case.out("m.q4nx")]).refused(3, &parts);
    };
    refused(folded.split_once(',').unwrap().1, "a list without `");
    refused(&format!("{folded},norm.weight"), "`norm.weight`, which is no matrix");
    refused(&folded.replacen(".weight", ".weights", 1), "a list without `");
}
