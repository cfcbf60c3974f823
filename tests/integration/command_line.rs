//! What surrounds a run: variables, streams, and names that a terminal would obey.

use std::fs;
use std::process::Command;

use formats::safetensors::Dtype;

use crate::harness::{Case, Model, Run, mini_config, program, run};

fn mini() -> Model {
    Model::noise(mini_config(), Dtype::BF16, 1)
}

/// Runs the program with the arguments of `command`, as `"$@"` of `script`.
fn in_shell(script: &str, command: &Command) -> Run {
    let mut shell = Command::new("sh");
    shell.args(["-c", script, "sh"]).arg(program()).args(command.get_args());
    Run::of(shell)
}

#[test]
fn variables_that_are_set_to_nothing_are_not_set() {
    let case = Case::new(&mini());
    let empty = "TERNARIZE_ISA= TERNARIZE_RULE= TERNARIZE_THREADS= \"$@\"";
    in_shell(empty, &case.command(&["m.gguf"], &[])).ok();
    // Others still count.
    for (variable, flag) in [
        ("TERNARIZE_ISA", "--isa"),
        ("TERNARIZE_RULE", "--rule"),
        ("TERNARIZE_THREADS", "--threads"),
    ] {
        let run = in_shell(&format!("{variable}=x \"$@\""), &case.command(&["n.gguf"], &[]));
        assert_eq!(run.output.status.code(), Some(2));
        assert!(run.stderr().contains("'x'") && run.stderr().contains(flag), "{}", run.stderr());
    }
}

#[test]
fn a_standard_output_that_is_full_is_named() {
    let case = Case::new(&mini());
    case.ternarize(&["m.gguf"], &[]).ok();
    let full = "\"$@\" > /dev/full";
    let parts = ["writing to standard output", "No space left on device"];
    in_shell(full, &case.command(&["n.gguf"], &[])).refused(4, &parts);
    let gguf = case.out("m.gguf");
    let gguf = gguf.to_str().unwrap();
    for args in [
        ["inspect", gguf].as_slice(),
        &["inspect", gguf, "--json"],
        &["verify", gguf],
        &["completions", "bash"],
        &["--help"],
        &["--version"],
    ] {
        in_shell(full, Command::new("").args(args)).refused(4, &parts);
    }
}

#[test]
fn names_of_files_neither_break_lines_nor_steer_the_terminal() {
    const NAME: &str = "a\nnote: \u{1b}[2J\u{202e}";
    const SHOWN: &str = r"a\nnote: \u{1b}[2J\u{202e}";
    let case = Case::empty();
    let dir = case.root().join(NAME);
    mini().write(&dir);
    let file = |suffix: &str| dir.join(format!("{NAME}{suffix}"));
    let (q4nx, gguf) = (file(".q4nx"), file(".gguf"));
    let tidy = |run: &Run| {
        for text in [run.stdout(), run.stderr()] {
            assert!(!text.contains(['\u{1b}', '\u{202e}']), "{text}");
            assert!(!text.lines().any(|line| line.starts_with("note: \\u{1b}")), "{text}");
        }
    };
    let made = run(&[&dir, &"--block=256", &"-o", &q4nx, &"-o", &gguf]).ok();
    tidy(&made);
    assert!(made.stdout().contains(&format!("{SHOWN}.q4nx")), "{}", made.stdout());
    tidy(&run(&[&dir, &"--block=256", &"-o", &file("2.gguf"), &"--dry-run"]).ok());
    tidy(&run(&[&"verify", &q4nx, &"--against", &dir]).ok());
    tidy(&run(&[&"inspect", &q4nx]).ok());
    tidy(&run(&[&"inspect", &dir]).ok());

    run(&[&dir, &"--block=256", &"-o", &gguf]).refused(4, &[SHOWN, "exists"]);
    run(&[&dir, &"-o", &dir.join("no").join(NAME), &"--format=q4nx"]).refused(3, &["1024"]);
    run(&[&"inspect", &file("")]).refused(3, &[SHOWN, "No such file"]);
    fs::write(file(".json"), "{").unwrap();
    run(&[&"convert", &q4nx, &"-o", &file("3.gguf"), &"--config", &file(".json")])
        .refused(3, &[SHOWN, "JSON error"]);
    // A name that is taken for an argument.
    let usage = run(&[&"inspect", &q4nx, &NAME]);
    assert_eq!(usage.output.status.code(), Some(2));
    tidy(&usage);
    assert!(usage.stderr().contains(SHOWN), "{}", usage.stderr());
}

#[test]
fn a_path_is_named_once() {
    let case = Case::empty();
    for command in ["inspect", "verify"] {
        let run = run(&[&command, &case.out("none.gguf")]).refused(3, &["No such file"]);
        assert_eq!(run.stderr().matches("none.gguf").count(), 1, "{}", run.stderr());
    }
}
