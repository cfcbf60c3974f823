//! The program `drafter`, as a user meets it.

#![allow(clippy::unwrap_used, reason = "tests, which clippy does not see in helpers")]

mod common;

use std::path::Path;

use assert_cmd::Command;
use common::support::Shape;
use common::support::drafter::{Kind, config, write};
use common::{Pair, hinted, json_of, refused};
use serde_json::{Value, json};

#[test]
fn ids_are_the_same_with_and_without_speculation() {
    let pair = Pair::new();
    let prompt = ["--ids", "1,2,3,4,5", "-n", "12"];
    let plain = json_of(pair.command("run").args(prompt));
    assert_eq!(plain["ids"].as_array().unwrap().len(), 12);
    assert_eq!(plain["spec"], json!({"state": "off", "reason": "no --drafter"}));
    assert!(plain["timings"].get("draft_n").is_none());
    let all = ["--draft-max", "auto", "--threads", "1"];
    for more in [&["--draft-max", "3"][..], &all, &["--isa", "scalar"], &[]] {
        let found = json_of(pair.drafting("run").args(prompt).args(more));
        assert_eq!(found["ids"], plain["ids"]);
        assert_eq!(found["spec"]["state"], "active");
        let timings = &found["timings"];
        let rounds = timings["draft_rounds"].as_u64().unwrap();
        let per_round = timings["accept_len"].as_f64().unwrap();
        assert!((per_round - 11.0 / rounds as f64).abs() < 1e-12);
        assert!(timings["draft_n_accepted"].as_u64() <= timings["draft_n"].as_u64());
    }
    for more in [["--temp", "0.8", "--top-k", "9"], ["--temp", "1.5", "--top-p", "0.9"]] {
        let plain = json_of(pair.command("run").args(prompt).args(more));
        let found = json_of(pair.drafting("run").args(prompt).args(more));
        assert_eq!(found["ids"], plain["ids"]);
        let other = json_of(pair.command("run").args(prompt).args(more).args(["--seed", "1"]));
        assert_ne!(other["ids"], plain["ids"]);
    }
}

#[test]
fn a_run_without_tokenizer_prints_ids() {
    let pair = Pair::new();
    let plain = json_of(pair.command("run").args(["--ids", "7,8,9", "-n", "4"]));
    assert_eq!(plain["text"], Value::Null);
    let ids: Vec<String> =
        plain["ids"].as_array().unwrap().iter().map(ToString::to_string).collect();
    let output = pair.command("run").args(["--ids", "7,8,9", "-n", "4"]).output().unwrap();
    assert_eq!(String::from_utf8(output.stdout).unwrap().trim(), ids.join(" "));
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(stderr.contains("answer: 4 tokens"), "{stderr}");
    refused(pair.command("run").args(["-p", "hello"]), 3, &["target.gguf", "tokenizer"]);
}

#[test]
fn the_largest_logits_come_with_their_ids() {
    let pair = Pair::new();
    let args = ["--ids", "7,8,9", "-n", "5", "--top-logits", "3"];
    let found = json_of(pair.drafting("run").args(args));
    let rows = found["top_logits"].as_array().unwrap();
    assert_eq!(rows.len(), 5);
    for (row, id) in rows.iter().zip(found["ids"].as_array().unwrap()) {
        assert_eq!((row.as_array().unwrap().len(), &row[0]["id"]), (3, id));
        assert!(row[0]["logit"].as_f64() >= row[1]["logit"].as_f64());
    }
}

#[test]
fn times_are_shown_by_part_and_stage() {
    let pair = Pair::new();
    let args = ["--ids", "7,8,9", "-n", "6", "--profile"];
    let found = json_of(pair.drafting("run").args(args));
    let parts = found["profile"].as_array().unwrap();
    let of = |name: &str| parts.iter().find(|part| part["part"] == name).unwrap();
    for name in ["prompt", "context", "draft", "verify", "choose", "commit"] {
        let part = of(name);
        let ms = |value: &Value| value.as_f64().unwrap();
        let stages = part["stages"].as_array().unwrap();
        let sum: f64 = stages.iter().map(|stage| ms(&stage["ms"])).sum();
        assert!((sum + ms(&part["other_ms"]) - ms(&part["ms"])).abs() < 1e-3, "{part}");
    }
    assert_eq!(of("verify")["calls"], found["timings"]["draft_rounds"]);
    let plain = json_of(pair.drafting("run").args(&args[..4]));
    assert_eq!((&plain["ids"], &plain["profile"]), (&found["ids"], &Value::Null));
    let output = pair.drafting("run").args(args).assert().success();
    let text = String::from_utf8_lossy(&output.get_output().stderr).into_owned();
    assert!(text.contains("delta_net") && text.contains("verify"), "{text}");
}

#[test]
fn budgets_and_contexts_are_exact() {
    let pair = Pair::new();
    for n in [0, 1, 2, 7, 8, 9] {
        let n = n.to_string();
        let found = json_of(pair.drafting("run").args(["--ids", "1,2,3", "-n", &n]));
        assert_eq!(found["ids"].as_array().unwrap().len().to_string(), n);
        assert_eq!(
            (&found["finish_reason"], &found["completion_tokens"]),
            (&json!("length"), &json!(found["ids"].as_array().unwrap().len()))
        );
    }
    // The last token needs no place in the context.
    let found = json_of(pair.drafting("run").args(["--ids", "1,2,3", "--ctx", "10"]));
    assert_eq!(found["ids"].as_array().unwrap().len(), 8);
    refused(pair.command("run").args(["--ids", "1,2,3", "--ctx", "2"]), 3, &["context of 2", "3"]);
}

#[test]
fn exactness_can_be_verified() {
    let pair = Pair::new();
    let prompts = pair.dir.path().join("prompts.jsonl");
    std::fs::write(&prompts, "{\"ids\": [1,2,3]}\n\n{\"ids\": [9,8,7,6,5,4,3,2,1]}\n").unwrap();
    let mut command = pair.drafting("verify-exact");
    let found = json_of(command.arg("--prompts").arg(&prompts).args(["-n", "10"]));
    assert_eq!((&found["verdict"], &found["prompts"]), (&json!("exact"), &json!(2)));
    assert_eq!(found["logits_compared"], 8 * 20);
    assert_eq!(found["drafts"].as_array().unwrap().len(), 8);
    let mut command = pair.drafting("verify-exact");
    command.arg("--prompts").arg(&prompts).args(["-n", "6", "--draft-max", "2..3", "--temp", "1"]);
    let output = command.output().unwrap();
    assert!(output.status.success());
    assert!(String::from_utf8(output.stdout).unwrap().contains("exact: 12 tokens of 2 prompts"));

    std::fs::write(&prompts, "{\"ids\": [1,2,3]}\n{\"idz\": [1]}\n").unwrap();
    let mut command = pair.drafting("verify-exact");
    refused(command.arg("--prompts").arg(&prompts), 3, &["prompts.jsonl", "line 2", "idz"]);
    let mut command = pair.drafting("verify-exact");
    refused(command.args(["--draft-max", "0..8"]), 2, &["at most 7"]);
    refused(&mut pair.command("verify-exact"), 2, &["--drafter"]);
    refused(pair.drafting("verify-exact").args(["-n", "0"]), 2, &["nothing to compare"]);
}

#[test]
fn what_an_argument_cannot_do_is_said() {
    let pair = Pair::new();
    let ran = |args: &[&str]| {
        let output = pair.drafting("run").args(["--ids", " 1, 2"]).args(args).output().unwrap();
        assert!(output.status.success());
        String::from_utf8(output.stderr).unwrap()
    };
    let stderr = ran(&["-n", "2", "--ctx", "100000"]);
    assert!(stderr.contains("note: --ctx 100000: the target's context has"), "{stderr}");
    let stderr = ran(&["-n", "0"]);
    assert!(stderr.contains("answer: 0 tokens\ndrafts: none\n"), "{stderr}");
}

/// What is printed for `--ctx` grows with it, and is what the caches hold.
#[test]
fn memory_is_stated_before_it_is_used() {
    let pair = Pair::new();
    let memory = |kv: &str, ctx: &str| {
        let args = ["--ids", "1,2", "-n", "1", "--kv", kv, "--ctx", ctx];
        json_of(pair.drafting("run").args(args))["memory"].clone()
    };
    let (half, single, longer) = (memory("f16", "8"), memory("f32", "8"), memory("f16", "16"));
    assert_eq!((&half["context"], &longer["context"]), (&json!(8), &json!(16)));
    for key in ["kv_bytes", "drafter_bytes"] {
        let bytes = |of: &Value| of[key].as_u64().unwrap();
        assert!(bytes(&half) > 0);
        assert_eq!(2 * bytes(&half), bytes(&single), "{key}");
        assert_eq!(2 * bytes(&half), bytes(&longer), "{key}");
    }
    let config = config(&Shape::mini());
    let of = |key: &str| config[key].as_u64().unwrap();
    let row = of("num_hidden_layers") * 2 * of("num_key_value_heads") * of("head_dim") * 2;
    assert_eq!(half["drafter_bytes"], 8 * row);
    assert_eq!(half["recurrent_bytes"], longer["recurrent_bytes"]);
}

#[test]
fn drafts_are_limited_by_what_pays_or_by_a_number() {
    let pair = Pair::new();
    let reason = |more: &[&str]| {
        let args = ["--ids", "1,2,3,4,5", "-n", "30"];
        let found = json_of(pair.drafting("run").args(args).args(more));
        (found["spec"]["reason"].as_str().unwrap().to_owned(), found["timings"].clone())
    };
    let (auto, timings) = reason(&[]);
    let rounds = timings["draft_rounds"].as_u64().unwrap();
    assert!(auto.starts_with("auto: ") && auto.contains(&format!("of {rounds} rounds")), "{auto}");
    assert_eq!(reason(&["--draft-max", "2"]).0, "at most 2 drafts a round");
    assert_eq!(reason(&["--draft-max", "0"]).0, "--draft-max 0");
    let mut command = pair.drafting("run");
    let output = command.args(["--ids", "1", "--draft-max", "some"]).assert().code(2);
    let text = String::from_utf8_lossy(&output.get_output().stderr).into_owned();
    assert!(text.contains("`auto` or a number"), "{text}");
}

#[test]
fn more_drafts_than_the_block_has_are_cut_with_a_note() {
    let pair = Pair::new();
    let mut command = pair.drafting("run");
    let output = command.args(["--ids", "1,2", "-n", "3", "--draft-max", "8"]).output().unwrap();
    assert!(output.status.success());
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(stderr.contains("note: --draft-max 8: the drafter's block has 7"), "{stderr}");
}

#[test]
fn what_cannot_be_run_is_refused_in_one_line() {
    let pair = Pair::new();
    let ids = ["--ids", "1,2"];
    refused(pair.command("run").args(ids).args(["--spec", "required"]), 2, &["--drafter"]);
    refused(pair.command("run").args(["--ids", "1,64"]), 2, &["--ids: 64", "64 tokens"]);
    refused(pair.command("run").args(["--ids", "1,64", "--ids", "3"]), 2, &["--ids: 64"]);
    let empty = pair.dir.path().join("empty.jsonl");
    std::fs::write(&empty, "{\"ids\": [1]}\n{\"ids\": []}").unwrap();
    let mut command = pair.drafting("verify-exact");
    refused(command.arg("--prompts").arg(&empty), 3, &["prompt 2 of 2", "empty prompt"]);
    refused(pair.command("run").args(ids).args(["--temp", "-1"]), 2, &["temperature", "-1"]);
    refused(pair.command("run").args(ids).args(["--temp", "1", "--top-p", "0"]), 2, &["top_p"]);

    let shape = Shape { vocab: 96, ..Shape::mini() };
    let dir = tempfile::tempdir().unwrap();
    let other = write(dir.path(), &config(&shape), Kind::Float, shape.block, 3);
    let mut command = pair.command("run");
    let fit = ["does not fit", "vocabulary size", "96", "64"];
    refused(command.args(ids).arg("--drafter").arg(other), 3, &fit);

    let bad = dir.path().join("bad.gguf");
    for (bytes, part) in [(&b""[..], "bad.gguf"), (b"GGUF", "bad.gguf"), (b"MZ..........", "GGUF")]
    {
        std::fs::write(&bad, bytes).unwrap();
        let mut command = Command::cargo_bin("drafter").unwrap();
        refused(command.arg("run").args(ids).arg("--target").arg(&bad), 3, &[part]);
    }
    let mut command = Command::cargo_bin("drafter").unwrap();
    command.arg("run").args(ids).arg("--target").arg(&pair.drafter);
    refused(&mut command, 3, &["general.architecture", "dflash"]);
    hinted(&mut command, "this is a drafter: give it with --drafter");
    let mut command = Command::cargo_bin("drafter").unwrap();
    command.arg("run").args(ids).arg("--target").arg(pair.dir.path());
    hinted(&mut command, "give the path of a file");
    let mut command = pair.command("run");
    hinted(command.args(ids).arg("--drafter").arg(&pair.target), "this may be a target");
    let mut command = pair.command("run");
    hinted(command.args(ids).arg("--drafter").arg(pair.dir.path()), "give the path of a file");

    let mut command = Command::cargo_bin("drafter").unwrap();
    command.arg("run").args(ids).arg("--target").arg(Path::new("/nowhere/x.gguf"));
    refused(&mut command, 3, &["/nowhere/x.gguf"]);
}
