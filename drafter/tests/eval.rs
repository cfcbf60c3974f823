//! `drafter eval` on the shipped pair.

#![allow(clippy::unwrap_used, reason = "tests, which clippy does not see in helpers")]

mod common;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use assert_cmd::Command;
use common::{Pair, json_of, refused};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tempfile::TempDir;

const FIXTURE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/fixtures/pair");

fn target() -> PathBuf {
    Path::new(FIXTURE).join("target.gguf")
}

fn drafter() -> PathBuf {
    Path::new(FIXTURE).join("drafter/model.safetensors")
}

fn eval() -> Command {
    let mut command = Command::cargo_bin("drafter").unwrap();
    command.env_remove("TERNARIZE_THREADS").timeout(Duration::from_secs(120));
    command.arg("eval");
    command
}

fn pair() -> Command {
    let mut command = eval();
    command.arg("--target").arg(target()).arg("--drafter").arg(drafter());
    command
}

/// The shipped drafter with its last norm turned round: it prefers what is least likely.
fn damaged(dir: &TempDir) -> PathBuf {
    let folder = dir.path().join("wrong");
    fs::create_dir(&folder).unwrap();
    fs::copy(Path::new(FIXTURE).join("drafter/config.json"), folder.join("config.json")).unwrap();
    let mut bytes = fs::read(drafter()).unwrap();
    let data = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let header: Value = serde_json::from_slice(&bytes[8..data]).unwrap();
    let norm = &header["norm.weight"];
    assert_eq!(norm["dtype"], "BF16");
    let [from, to] = [0, 1].map(|end| norm["data_offsets"][end].as_u64().unwrap() as usize);
    for sign in bytes[data + from..data + to].iter_mut().skip(1).step_by(2) {
        *sign ^= 0x80;
    }
    let path = folder.join("model.safetensors");
    fs::write(&path, bytes).unwrap();
    path
}

fn records(path: &Path) -> Vec<Value> {
    let text = fs::read_to_string(path).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn sha256(path: &Path) -> String {
    Sha256::digest(fs::read(path).unwrap()).iter().map(|byte| format!("{byte:02x}")).collect()
}

fn list(value: &Value) -> &[Value] {
    value.as_array().unwrap()
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap()
}

/// Counts the records again: rounds, drafted, accepted, delivered, and per position drafted and
/// accepted.
fn count(records: &[Value], place: usize, class: &Value) -> ([u64; 4], Vec<(u64, u64)>) {
    let (mut sums, mut positions) = ([0; 4], Vec::new());
    for record in records.iter().filter(|r| class.is_null() || r["class"] == *class) {
        let mut tokens = 1;
        for round in list(&record["rounds"][place]["rounds"]) {
            let [drafted, accepted, agreed, delivered] =
                [0, 1, 2, 3].map(|n| round[n].as_u64().unwrap());
            assert!(accepted <= agreed && agreed <= drafted && accepted <= delivered);
            for (sum, n) in sums.iter_mut().zip([1, drafted, accepted, delivered]) {
                *sum += n;
            }
            for position in 0..drafted {
                if positions.len() as u64 <= position {
                    positions.push((0, 0));
                }
                positions[position as usize].0 += 1;
                positions[position as usize].1 += u64::from(position < accepted);
            }
            tokens += delivered;
        }
        assert_eq!(list(&record["ids"]).len() as u64, tokens);
    }
    (sums, positions)
}

#[test]
fn every_figure_can_be_counted_again_from_the_records() {
    let dir = tempfile::tempdir().unwrap();
    let (wrong, path) = (damaged(&dir), dir.path().join("records.jsonl"));
    let arm = format!("wrong={}", wrong.display());
    let mut command = pair();
    command.args(["--drafter", &arm, "--limit", "4", "-n", "24", "--records"]).arg(&path);
    let found = json_of(&mut command);
    let records = records(&path);
    assert_eq!(records.len(), 12);
    assert_eq!((&found["draft_max"], &found["max_tokens"]), (&json!([3, 7]), &json!(24)));
    assert_eq!(found["identity"]["verdict"], "identical");
    assert_eq!(found["identity"]["prompts_served"], 3);

    let results = list(&found["results"]);
    assert_eq!(results.len(), 4);
    for (place, result) in results.iter().enumerate() {
        let record = &records[0]["rounds"][place];
        assert_eq!(record["drafter"], result["drafter"]);
        assert_eq!(record["draft_max"], result["draft_max"]);
        let groups = list(&result["groups"]);
        let classes: Vec<&Value> = groups.iter().map(|group| &group["class"]).collect();
        assert_eq!(classes, [&json!("code"), &json!("prose"), &json!("chat"), &Value::Null]);
        for group in groups {
            let (sums, positions) = count(&records, place, &group["class"]);
            for (key, sum) in ["rounds", "drafted", "accepted", "delivered"].iter().zip(sums) {
                assert_eq!(group[key], sum, "{key}");
            }
            let rate = &group["tokens_per_round"];
            assert!((number(&rate["value"]) - sums[3] as f64 / sums[0] as f64).abs() < 1e-12);
            for (position, (drafted, accepted)) in list(&group["by_position"]).iter().zip(positions)
            {
                assert_eq!(
                    (&position["drafted"], &position["accepted"]),
                    (&drafted.into(), &accepted.into())
                );
                let share = number(&position["share"]["value"]);
                assert!((share - accepted as f64 / drafted as f64).abs() < 1e-12);
            }
            // A class of four prompts may be too small to say where the ends are; twelve prompts are not.
            if !group["class"].is_null() && rate["low"].is_null() {
                assert!(rate["high"].is_null());
                continue;
            }
            assert!(number(&rate["low"]) <= number(&rate["value"]));
            assert!(number(&rate["value"]) <= number(&rate["high"]));
        }
    }
    // A damaged drafter is seen, at both lengths.
    let comparisons = list(&found["comparisons"]);
    assert_eq!(comparisons.len(), 2);
    for (comparison, place) in comparisons.iter().zip([0, 1]) {
        assert_eq!(
            (&comparison["drafter"], &comparison["against"]),
            (&json!("wrong"), &found["drafters"][0]["name"])
        );
        assert_eq!(comparison["verdict"], "loses");
        let all = |n: usize| {
            let (sums, _) = count(&records, n, &Value::Null);
            sums[3] as f64 / sums[0] as f64
        };
        let change = number(&comparison["groups"][3]["change"]["value"]);
        assert!((change - (all(place + 2) / all(place) - 1.0)).abs() < 1e-12);
    }
    assert_eq!(list(&found["verdicts"]).len(), 2);
    assert!(found["verdicts"][0].as_str().unwrap().starts_with("wrong loses"));

    // What a reader needs to do the same again.
    assert_eq!(found["target"][0]["sha256"], sha256(&target()));
    assert_eq!(found["drafters"][1]["files"][0]["sha256"], sha256(&wrong));
    assert_eq!(list(&found["drafters"][1]["files"]).len(), 2);
    for key in ["chat_template_sha256", "act", "kv", "isa", "version"] {
        assert!(found[key].is_string(), "{key}");
    }
    assert_eq!((&found["think"], &found["suite"]["suites"]), (&Value::Null, &json!(["fixture"])));
    assert_eq!(found["suite"]["prompts_sha256"].as_str().unwrap().len(), 64);
    // The same prompts from a file are the same prompts.
    let mut command = pair();
    let prompts = Path::new(FIXTURE).join("prompts.jsonl");
    command.args(["--limit", "4", "-n", "2", "--served", "0", "--suite"]).arg(prompts);
    let again = json_of(&mut command);
    assert_eq!(again["suite"]["prompts_sha256"], found["suite"]["prompts_sha256"]);
    assert_eq!(again["identity"]["verdict"], "not_checked");
}

#[test]
fn people_get_a_table_and_a_verdict() {
    let dir = tempfile::tempdir().unwrap();
    let mut command = pair();
    command.arg("-d").arg(damaged(&dir));
    command.args(["--limit", "2", "-n", "12", "--draft-max", "7", "--served", "all"]);
    let output = command.output().unwrap();
    let (out, err) =
        (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
    assert!(output.status.success(), "{err}");
    for part in [
        "tokens per round over 6 prompts, at most 12 tokens each",
        "code",
        "all (95 % interval)",
        "identical: 6 of 6 prompts served with every drafter and draft length",
        "tokens per round at 7 drafts against",
    ] {
        assert!(out.contains(part), "{part} in {out}");
    }
    assert!(err.contains("note: drafter `") && err.contains("made for another target"), "{err}");
}

#[test]
fn a_link_gives_the_target_and_the_first_drafter() {
    let dir = tempfile::tempdir().unwrap();
    let wrong = damaged(&dir);
    let home = |command: &mut Command| {
        command.env("XDG_DATA_HOME", dir.path());
    };
    let mut link = Command::cargo_bin("drafter").unwrap();
    home(&mut link);
    link.arg("link").arg(drafter()).arg("--target").arg(target());
    link.args(["--name", "shipped"]).assert().success();
    for name in [&["shipped"][..], &[]] {
        let mut command = eval();
        home(&mut command);
        command.args(name).arg("--drafter").arg(&wrong).args(["--limit", "1", "-n", "8"]);
        let found = json_of(&mut command);
        let names: Vec<&Value> = list(&found["drafters"]).iter().map(|d| &d["name"]).collect();
        assert_eq!(names[0], "shipped");
        assert_eq!(names.len(), 2);
    }
    let mut command = eval();
    home(&mut command);
    refused(command.args(["absent", "-n", "8"]), 2, &["absent"]);
}

#[test]
fn speed_is_measured_with_everything_twice() {
    let mut command = pair();
    command.args(["--limit", "1", "-n", "10", "--draft-max", "2,5", "--speed"]);
    let found = json_of(&mut command);
    let speed = &found["speed"];
    assert_eq!((&speed["order"], &speed["runs_per_prompt"]), (&json!("ABBA"), &json!(2)));
    assert!(number(&speed["plain_per_second"]["value"]) > 0.0);
    let drafting = list(&speed["drafting"]);
    assert_eq!(drafting.len(), 2);
    for rate in drafting {
        let against =
            number(&rate["per_second"]["value"]) / number(&speed["plain_per_second"]["value"]);
        assert!((number(&rate["against_plain"]["value"]) - (against - 1.0)).abs() < 1e-9);
        assert_eq!(rate["against_first"], Value::Null);
    }
    // Whatever is timed is compared.
    assert_eq!(found["identity"]["prompts_served"], 3);
}

#[test]
fn answers_of_one_token_are_no_result() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("records.jsonl");
    let mut command = pair();
    command.args(["-n", "128", "--limit", "8", "--served", "0", "--draft-max", "7", "--records"]);
    json_of(command.arg(&path));
    let records = records(&path);
    let stopped = records.iter().find(|record| record["finish_reason"] == "stop").unwrap();
    let mut ids = list(&stopped["prompt_ids"]).to_vec();
    ids.extend_from_slice(list(&stopped["ids"]).split_last().unwrap().1);
    let suite = dir.path().join("one.jsonl");
    fs::write(&suite, format!("{}\n", json!({ "ids": ids, "class": "short" }))).unwrap();

    let output = pair().arg("--suite").arg(&suite).arg("--json").output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let found: Value = serde_json::from_slice(&output.stdout).unwrap();
    let group = &found["results"][0]["groups"][0];
    for key in ["rounds", "drafted", "accepted", "delivered"] {
        assert_eq!(group[key], 0, "{key}");
    }
    assert_eq!(group["tokens_per_round"], Value::Null);
    assert!(found["verdicts"][0].as_str().unwrap().contains("no rounds"));
    // Beside an answer with rounds it is no harm.
    let more = json!({ "ids": stopped["prompt_ids"], "class": "long" });
    fs::write(&suite, format!("{}\n{more}\n", json!({ "ids": ids, "class": "short" }))).unwrap();
    let found = json_of(pair().arg("--suite").arg(&suite).args(["-n", "8"]));
    let groups = list(&found["results"][0]["groups"]);
    assert_eq!((&groups[0]["rounds"], &groups[0]["prompts"]), (&json!(0), &json!(1)));
    assert_eq!(groups[1]["rounds"], groups[2]["rounds"]);
}

#[test]
fn what_cannot_be_evaluated_is_refused_in_one_line() {
    let dir = tempfile::tempdir().unwrap();
    refused(pair().args(["-n", "1"]), 2, &["--tokens", "2 or more"]);
    refused(pair().args(["--draft-max", "3,8"]), 2, &["--draft-max 8", "at most 7"]);
    refused(pair().args(["--draft-max", "0"]), 2, &["nothing is drafted"]);
    refused(eval().arg("--target").arg(target()), 2, &["--drafter"]);
    refused(pair().args(["--suite", "chat"]), 3, &["`chat`", "`fixture`"]);
    refused(pair().args(["-n", "100000"]), 3, &["context"]);
    let suite = dir.path().join("suite.jsonl");
    fs::write(&suite, "{\"ids\": [1, 1536]}\n").unwrap();
    refused(pair().arg("--suite").arg(&suite), 3, &["prompt 1 of suite `suite`", "1536"]);
    // The built-in prompts are ids of another vocabulary.
    refused(&mut Pair::new().drafting("eval"), 3, &["fixture", "1536"]);

    let path = dir.path().join("mine");
    fs::write(&path, "mine").unwrap();
    let short = ["--limit", "1", "-n", "2", "--records"];
    refused(pair().args(short).arg(&path), 4, &["exists already"]);
    refused(pair().args(short).arg(dir.path().join("no/such")), 4, &["no such folder"]);
    let twice = |name: &str| {
        pair()
            .args(short)
            .arg(&path)
            .arg("--report")
            .arg(dir.path().join(name))
            .arg("--force")
            .output()
            .unwrap()
    };
    assert_eq!(twice("mine").status.code(), Some(2));
    let copy = dir.path().join("d.safetensors");
    fs::copy(drafter(), &copy).unwrap();
    fs::copy(Path::new(FIXTURE).join("drafter/config.json"), dir.path().join("config.json"))
        .unwrap();
    let mut command = eval();
    command.arg("--target").arg(target()).arg("--drafter").arg(&copy).args(short);
    refused(command.arg(&copy).arg("--force"), 2, &["is an input"]);
    assert_eq!(fs::read_to_string(&path).unwrap(), "mine");
    assert!(fs::read(&copy).unwrap() == fs::read(drafter()).unwrap());
    json_of(pair().args(short).arg(&path).arg("--force"));
    assert_eq!(records(&path).len(), 3);
    let missing = dir.path().join("none.gguf");
    refused(
        eval().arg("--target").arg(&missing).arg("--drafter").arg(drafter()),
        3,
        &["none.gguf"],
    );
}

#[test]
fn a_page_shows_the_figures() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("eval.html");
    let mut command = pair();
    command.arg("-d").arg(format!("wrong={}", damaged(&dir).display()));
    command.args(["--limit", "2", "-n", "12", "--speed", "--served", "0", "--report"]).arg(&path);
    let found = json_of(&mut command);
    let page = fs::read_to_string(&path).unwrap();
    let all = number(&found["results"][0]["groups"][3]["tokens_per_round"]["value"]);
    for part in [
        &format!(">{all:.3}</text>"),
        &format!("<td>{all:.3}</td>"),
        "Acceptance by position, prose",
        "Tokens per second",
        "identical: 6 of 6 prompts",
        found["suite"]["prompts_sha256"].as_str().unwrap(),
        found["drafters"][1]["files"][0]["sha256"].as_str().unwrap(),
    ] {
        assert!(page.contains(part), "{part} in {page}");
    }
    assert!(!page.contains("http:") && !page.contains("https:") && !page.contains("<script"));
}
