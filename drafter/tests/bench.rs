//! `drafter bench` on a pair of noise.

#![allow(clippy::unwrap_used, reason = "a test")]

mod common;

use common::{Pair, json_of, refused};
use serde_json::Value;

const QUICK: [&str; 4] = ["--trials", "3", "--warmup", "1"];

#[test]
fn every_test_has_its_rows_and_its_arithmetic() {
    let pair = Pair::new();
    let mut command = pair.drafting("bench");
    command.args(QUICK).args(["--depths", "0,40", "--rows", "2,4", "--prefill", "9", "-n", "6"]);
    let document = json_of(&mut command);
    let passes = document["passes"].as_array().unwrap();
    let of = |test: &str| passes.iter().filter(|pass| pass["test"] == test).collect::<Vec<_>>();
    let counts = ["decode", "verify", "draft", "context", "prefill"].map(|test| of(test).len());
    assert_eq!(counts, [2, 4, 2, 2, 2]);
    let number = |value: &Value| value.as_f64().unwrap();
    let machine = &document["machine"];
    for pass in passes {
        let [min, median, max] = ["min_ms", "median_ms", "max_ms"].map(|key| number(&pass[key]));
        assert!(0.0 < min && min <= median && median <= max, "{pass}");
        assert_eq!(pass["trials_ms"].as_array().unwrap().len(), 3);
        let operations = number(&pass["operations"]) / number(&machine["dot_per_second"]) * 1e3;
        let bytes = number(&pass["bytes"]) / number(&machine["read_bytes_per_second"]) * 1e3;
        let ratio = median / operations.max(bytes);
        assert!((number(&pass["ratio"]) / ratio - 1.0).abs() < 1e-9, "{pass}");
    }
    // Twice the rows, twice the operations, the same bytes.
    let verify = of("verify");
    let twice = [0, 1].map(|at| number(&verify[at]["operations"]));
    assert_eq!((2.0 * twice[0], &verify[0]["bytes"]), (twice[1], &verify[1]["bytes"]));
    // Forty positions more, their keys and values more.
    let position = number(&document["memory"]["kv_bytes_per_position"]);
    let decode = of("decode").iter().map(|pass| number(&pass["bytes"])).collect::<Vec<_>>();
    assert_eq!(decode[1] - decode[0], 40.0 * position);
}

#[test]
fn answers_are_the_same_and_add_up() {
    let pair = Pair::new();
    let mut command = pair.drafting("bench");
    command.args(QUICK).args(["--tests", "e2e", "-n", "9", "--ids", "1,2,3"]);
    let document = json_of(&mut command);
    let answers = document["answers"].as_array().unwrap();
    let lengths: Vec<_> = answers.iter().map(|a| a["draft_max"].as_str().unwrap()).collect();
    assert_eq!(lengths.first(), Some(&"0"));
    assert_eq!(lengths.last(), Some(&"auto"));
    assert_eq!(
        (answers[0]["speed_up"].as_f64(), answers[0]["rounds"].as_u64()),
        (Some(1.0), Some(8))
    );
    for answer in answers {
        assert_eq!(answer["same_tokens"], true);
        let rounds =
            answer["tokens"].as_f64().unwrap() / answer["tokens_per_round"].as_f64().unwrap();
        assert!(rounds <= 8.0 + 1e-9, "{answer}");
    }
    assert!(document["passes"].as_array().unwrap().is_empty());
}

#[test]
fn people_get_tables() {
    let pair = Pair::new();
    let mut command = pair.command("bench");
    let output = command.args(QUICK).args(["-n", "4", "--prefill", "5"]).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{text}");
    for word in ["machine:", "decode", "verify", "prefill", "draft-max", "memory:"] {
        assert!(text.contains(word), "{word}: {text}");
    }
    assert!(!text.lines().any(|line| line.starts_with("draft ")), "{text}");
}

#[test]
fn what_cannot_be_measured_is_refused() {
    let pair = Pair::new();
    refused(pair.command("bench").args(["--tests", "draft"]), 2, &["--drafter"]);
    refused(pair.command("bench").args(["--draft-max", "3"]), 2, &["--drafter"]);
    refused(pair.command("bench").args(["--depths", "999999"]), 2, &["--depths", "positions"]);
    refused(pair.command("bench").args(["--ids", "4000000000"]), 2, &["vocabulary"]);
    refused(pair.command("bench").args(["-p", ""]), 3, &["tokenizer"]);
}
