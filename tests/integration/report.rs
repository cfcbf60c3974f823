//! What is printed where: reports, documents, progress, exit codes of usage.

use std::fs;
use std::process::{Command, Stdio};

use formats::safetensors::Dtype;
use serde_json::Value;

use crate::harness::{Case, Model, Run, mini_config, program, run, sha256};

fn mini() -> Case {
    Case::new(&Model::noise(mini_config(), Dtype::BF16, 2))
}

fn sum(items: &Value, key: &str) -> u64 {
    items.as_array().unwrap().iter().map(|item| item[key].as_u64().unwrap()).sum()
}

fn keys(object: &Value) -> Vec<&str> {
    object.as_object().unwrap().keys().map(String::as_str).collect()
}

#[test]
fn the_report_holds_what_was_done() {
    let case = Case::new(&Model::fixture());
    let path = case.out("report.json");
    let option = format!("--report={}", path.display());
    let printed = case.ternarize(&["m.q4nx", "m.gguf"], &["--json", &option]).ok().json();
    let report: Value = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
    assert_eq!(report, printed);

    assert_eq!(
        keys(&report),
        [
            "schema",
            "version",
            "input",
            "rule",
            "block",
            "outputs",
            "total",
            "matrices",
            "other_tensors",
            "notes",
            "convert_ms",
            "hash_ms",
            "sync_ms",
        ]
    );
    assert_eq!(
        (&report["schema"], &report["rule"], &report["block"]),
        (&1.into(), &"optimal".into(), &256.into())
    );
    assert!(report["notes"][0].as_str().unwrap().contains("OpenFlowLM"));

    let input = &report["input"];
    assert_eq!(input["container"], "safetensors");
    assert_eq!(input["files"].as_array().unwrap().len(), 1);
    assert_eq!(input["files"][0]["sha256"], sha256(&case.weights()));
    assert_eq!(input["files"][0]["size_bytes"], fs::metadata(case.weights()).unwrap().len());

    for (output, name) in report["outputs"].as_array().unwrap().iter().zip(["m.q4nx", "m.gguf"]) {
        let path = case.out(name);
        assert_eq!(output["path"], path.to_str().unwrap());
        assert_eq!(output["sha256"], sha256(&path));
        assert_eq!(output["size_bytes"], fs::metadata(&path).unwrap().len());
        assert!(output["data_bytes"].as_u64() < output["size_bytes"].as_u64());
    }
    assert_eq!(report["outputs"][0]["config"], case.out("config.json").to_str().unwrap());
    assert_eq!(report["outputs"][1].get("config"), None);

    // Sums: the matrices are the total, and with the rest all parameters.
    let (total, matrices) = (&report["total"], &report["matrices"]);
    assert_eq!(matrices.as_array().unwrap().len(), 9 * 2 + 2);
    assert_eq!(report["other_tensors"].as_array().unwrap().len(), 6 * 2 + 4);
    for key in ["weights", "zero_groups", "underflow_groups"] {
        assert_eq!(total[key], sum(matrices, key), "{key}");
    }
    let count = |tensors: &Value| -> u64 {
        let shapes = tensors.as_array().unwrap().iter().map(|t| t["shape"].as_array().unwrap());
        shapes.map(|shape| shape.iter().map(|d| d.as_u64().unwrap()).product::<u64>()).sum()
    };
    assert_eq!(total["weights"], count(matrices));
    assert_eq!(input["parameters"], count(matrices) + count(&report["other_tensors"]));
    let scales = |quality: &Value| -> u64 {
        let exponents = quality["scale_exponents"].as_object().unwrap().values();
        exponents.map(|n| n.as_u64().unwrap()).sum()
    };
    for quality in matrices.as_array().unwrap().iter().chain([total]) {
        let zero = quality["zero_groups"].as_u64().unwrap()
            + quality["underflow_groups"].as_u64().unwrap();
        assert_eq!(quality["weights"], 128 * (scales(quality) + zero));
        let error = quality["relative_error"].as_f64().unwrap();
        assert!((0.01..0.25).contains(&error), "{error}");
    }
}

#[test]
fn a_page_shows_what_was_done() {
    let case = Case::new(&Model::fixture());
    let path = case.out("<b>report&.html");
    let option = format!("--report={}", path.display());
    let report = case.ternarize(&["m.gguf"], &["--json", &option]).ok().json();
    let page = fs::read_to_string(&path).unwrap();
    for matrix in report["matrices"].as_array().unwrap() {
        let error = format!("<td>{:.4}</td>", matrix["relative_error"].as_f64().unwrap());
        assert!(page.contains(&error), "{error}");
    }
    let total = report["total"]["relative_error"].as_f64().unwrap();
    for part in [
        &format!("Relative squared error {total:.4}"),
        "Gaussian optimum: 0.1871",
        "layer 1",
        "attention_conv",
        "hidden_projection",
        "Scales, layer 0",
        report["outputs"][0]["sha256"].as_str().unwrap(),
    ] {
        assert!(page.contains(part), "{part}");
    }
    assert!(!page.contains("http:") && !page.contains("<script") && !page.contains("<b>"));
    // A conversion has files to show, and no errors.
    let converted = case.out("again.HTML");
    let from = case.out("m.gguf");
    run(&[
        &"convert",
        &from,
        &"-o",
        &case.out("n.gguf"),
        &"--format=ptq1_0",
        &"--report",
        &converted,
    ])
    .ok();
    let page = fs::read_to_string(converted).unwrap();
    assert!(page.contains("converted") && page.contains("n.gguf") && !page.contains("Gaussian"));
}

#[test]
fn a_page_shows_what_calibration_did() {
    let case = Case::new(&Model::fixture());
    let path = case.out("report.html");
    let option = format!("--report={}", path.display());
    let more = ["--json", "--calib=prior", &option];
    let report = case.ternarize(&["m.gguf"], &more).ok().json();
    let page = fs::read_to_string(&path).unwrap();
    let matrices = report["matrices"].as_array().unwrap();
    let calibrated: Vec<&Value> =
        matrices.iter().map(|m| &m["calibration"]).filter(|c| c.is_object()).collect();
    assert!((1..matrices.len()).contains(&calibrated.len()));
    for calibration in calibrated {
        let [loss, optimal] =
            ["loss", "optimal_loss"].map(|key| calibration[key].as_f64().unwrap());
        let cells = format!("<td>{loss:.4}</td><td>{optimal:.4}</td>");
        assert!(page.contains(&cells), "{cells}");
    }
    assert!(page.contains("Calibrated with the weights of the norms"));
}

#[test]
fn the_lineage_of_a_gguf_is_that_of_the_report() {
    let case = mini();
    let report = case.ternarize(&["m.gguf"], &["--json"]).ok().json();
    let file =
        formats::gguf::File::open(formats::Source::open(case.out("m.gguf")).unwrap()).unwrap();
    let text = |key: &str| match file.get(key) {
        Some(formats::gguf::Value::String(text)) => text.clone(),
        other => panic!("{key}: {other:?}"),
    };
    assert_eq!(report["input"]["files"][0]["sha256"], text("ternarize.input_sha256"));
    assert_eq!(report["version"], text("ternarize.version"));
    assert_eq!(text("ternarize.rule"), "optimal");
}

#[test]
fn equal_runs_write_equal_files() {
    let case = mini();
    case.ternarize(&["a.gguf", "b.gguf"], &["--format=ptq1_0", "--format=ptq1_0"]).ok();
    let a = fs::read(case.out("a.gguf")).unwrap();
    assert!(fs::read(case.out("b.gguf")).unwrap() == a);
    std::thread::sleep(std::time::Duration::from_secs(1));
    case.ternarize(&["b.gguf"], &["--format=ptq1_0", "--force"]).ok();
    assert!(fs::read(case.out("b.gguf")).unwrap() == a, "no times or host names in outputs");
}

#[test]
fn json_errors_are_one_document_and_the_line_for_people() {
    let case = mini();
    fs::write(case.out("m.gguf"), "mine").unwrap();
    let refused = case.ternarize(&["m.gguf"], &["--json"]);
    assert_eq!(refused.output.status.code(), Some(4));
    let document = refused.json();
    assert_eq!(keys(&document), ["schema", "error"]);
    let error = &document["error"];
    assert_eq!(error["exit_code"], 4);
    assert!(error["hint"].as_str().unwrap().contains("--force"));
    let line = format!("ternarize: {}", error["message"].as_str().unwrap());
    assert!(refused.stderr().lines().any(|l| l == line), "{}", refused.stderr());

    fs::remove_file(case.weights()).unwrap();
    let document = case.ternarize(&["n.gguf"], &["--json"]).json();
    assert_eq!(document["error"]["exit_code"], 3);
    assert_eq!(document["error"]["hint"], Value::Null);
}

#[test]
fn a_system_error_is_told_once() {
    let case = mini();
    fs::remove_file(case.weights()).unwrap();
    let refused = case.ternarize(&["n.gguf"], &[]).refused(3, &["No such file"]);
    assert_eq!(refused.stderr().matches("No such file").count(), 1, "{}", refused.stderr());
}

#[test]
fn a_dry_run_writes_nothing() {
    let case = mini();
    let text = case.ternarize(&["m.q4nx", "m.gguf"], &["--dry-run"]).ok();
    assert!(case.made().is_empty());
    for part in ["would write", "m.q4nx", "m.gguf", "config.json", "memory: at most"] {
        assert!(text.stdout().contains(part), "{}", text.stdout());
    }
    let plan = case.ternarize(&["m.q4nx", "m.gguf"], &["--dry-run", "--json"]).ok().json();
    assert!(case.made().is_empty());
    assert_eq!(plan["dry_run"], true);
    // What it promises is what is written.
    case.ternarize(&["m.q4nx", "m.gguf"], &[]).ok();
    for output in plan["outputs"].as_array().unwrap() {
        let path = output["path"].as_str().unwrap();
        assert_eq!(output["size_bytes"], fs::metadata(path).unwrap().len());
    }
    assert_eq!(plan["tensors"].as_array().unwrap().len(), 21);
}

#[test]
fn quiet_prints_nothing() {
    let case = mini();
    let run = case.ternarize(&["m.q4nx"], &["-q"]).ok();
    assert_eq!((run.stdout(), run.stderr()), ("", ""));
    // Errors it does print.
    case.ternarize(&["m.q4nx"], &["-q"]).refused(4, &["exists"]);
}

#[test]
fn results_go_to_standard_output_and_the_rest_does_not() {
    let case = mini();
    let run = case.ternarize(&["m.q4nx"], &[]).ok();
    assert!(run.stdout().contains(&sha256(&case.out("m.q4nx"))));
    assert!(run.stderr().contains("writing"), "{}", run.stderr());
    assert!(!run.stdout().contains("note:") && !run.stdout().contains("writing"));
    for text in [run.stdout(), run.stderr()] {
        assert!(!text.contains('\u{1b}') && !text.contains('\r'), "{text:?}");
    }
    let verbose = case.ternarize(&["m.q4nx"], &["--verbose", "--force"]).ok();
    assert!(verbose.stdout().contains("layers.0.mlp.down_proj.weight"));
}

#[test]
fn plain_progress_is_a_line_per_tensor() {
    let case = mini();
    let run = case.ternarize(&["m.q4nx"], &["--progress=plain", "--threads=1"]).ok();
    let lines: Vec<&str> = run.stderr().lines().filter(|line| line.contains(" % ")).collect();
    assert_eq!(lines.len(), 21, "{}", run.stderr());
    assert!(lines.last().unwrap().starts_with("100.0 % "), "{lines:?}");
}

#[test]
fn colour_is_for_those_who_ask() {
    let case = mini();
    fs::remove_file(case.weights()).unwrap();
    let coloured = case.ternarize(&["m.q4nx"], &["--color=always"]);
    assert!(coloured.stderr().contains('\u{1b}'));
    let plain = case.ternarize(&["m.q4nx"], &["--color=never"]);
    assert!(!plain.stderr().contains('\u{1b}'));
}

#[test]
fn wrong_usage_exits_with_2() {
    let case = mini();
    let weights = case.weights();
    let weights = weights.to_str().unwrap();
    for args in [
        [weights, "-o", "m.q4nx", "--no-such-flag"].as_slice(),
        &[weights],
        &[],
        &[weights, "-o", "m.q4nx", "--block", "many"],
        &[weights, "-o", "m.q4nx", "--rule", "best"],
        &[weights, "-o", "m.q4nx", "--isa", "sse9"],
        &[weights, "-o", "m.q4nx", "--format", "t2"],
        &[weights, "-o", "m.bin"],
        &[weights, "-o", "m.safetensors"],
        &[weights, "-o", "m.q4nx", "--format", "q4nx", "--format", "q4nx"],
        &[weights, "-o", "m.q4nx", "--round-scales"],
        &[weights, "-o", "m.q4nx", "-q", "-v"],
        &["convert", weights],
        &["convert", weights, "-o", "m.gguf", "--rule", "twn"],
        &["completions", "tcsh"],
    ] {
        let mut command = Command::new(program());
        command.current_dir(case.out("")).args(args);
        let run = Run::of(command);
        assert_eq!(run.output.status.code(), Some(2), "{args:?}: {}", run.stderr());
        assert!(run.stdout().is_empty() && !run.stderr().is_empty(), "{args:?}");
        assert!(case.made().is_empty());
    }
}

#[test]
fn a_block_that_is_no_power_of_two_is_refused() {
    let case = mini();
    for block in ["0", "1", "3", "384", "16384", "-1", "1k"] {
        let block = format!("--block={block}");
        let run = run(&[&case.weights(), &block, &"-o", &case.out("m.gguf")]);
        assert_eq!(run.output.status.code(), Some(2), "{}", run.stderr());
        assert!(run.stderr().contains("--block"), "{}", run.stderr());
    }
    assert!(case.made().is_empty());
}

#[test]
fn environment_variables_stand_in_for_flags() {
    let case = mini();
    let report = |more: &[&str], rule: &str| {
        let mut command = case.command(&["m.gguf"], &["--json", "--force"]);
        command.args(more);
        // `Run::of` removes the variables of whoever runs the tests.
        let mut outer = Command::new("env");
        outer
            .arg(format!("TERNARIZE_RULE={rule}"))
            .arg(command.get_program())
            .args(command.get_args());
        Run::of(outer)
    };
    assert_eq!(report(&[], "twn").ok().json()["rule"], "twn");
    assert_eq!(report(&["--rule=absmean"], "twn").ok().json()["rule"], "absmean");
    assert_eq!(report(&[], "best").output.status.code(), Some(2));
}

#[test]
fn help_and_version_are_results() {
    for args in ["--help", "--version"] {
        let run = run(&[&args]).ok();
        assert!(run.stdout().contains("ternarize") && run.stderr().is_empty());
    }
    let help = run(&[&"--help"]).ok();
    for code in ["Exit codes", "130  interrupted"] {
        assert!(help.stdout().contains(code), "{}", help.stdout());
    }
    for shell in ["bash", "zsh", "fish", "powershell"] {
        assert!(run(&[&"completions", &shell]).ok().stdout().contains("ternarize"));
    }
}

#[test]
fn a_reader_that_goes_away_is_no_failure() {
    let case = mini();
    let weights = case.weights();
    for args in [
        ["--help", "", ""].as_slice(),
        &["completions", "bash"],
        &[weights.to_str().unwrap(), "--block=256", "--dry-run", "-o", "m.gguf"],
        &[weights.to_str().unwrap(), "--block=256", "--dry-run", "-o", "m.gguf", "--json"],
        &[weights.to_str().unwrap(), "--block=256", "-o", "m.gguf", "--json"],
        &[weights.to_str().unwrap(), "--block=256", "-o", "n.gguf"],
    ] {
        let args = args.iter().filter(|arg| !arg.is_empty());
        let mut child = Command::new(program())
            .current_dir(case.out(""))
            .args(args.clone())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        drop(child.stdout.take());
        let output = child.wait_with_output().unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(0), "{args:?}: {stderr}");
        assert!(!stderr.contains("ternarize: ") && !stderr.contains("panicked"), "{stderr}");
    }
    // The work was done all the same.
    assert_eq!(case.made(), ["m.gguf", "n.gguf"]);
}
