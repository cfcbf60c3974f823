//! `cargo xtask demo`: the main job on the committed pair, every command shown.

use std::env;
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context as _, ensure};
use serde_json::Value;

const TARGET: &str = "tests/fixtures/pair/target.gguf";
const INPUT: &str = "tests/fixtures/pair/drafter/model.safetensors";
const Q4NX: &str = "target/demo/model.q4nx";
const GGUF: &str = "target/demo/model.gguf";
const PROMPT: &str = "def read(self, size=-1):\n";
const TOKENS: &str = "96";

/// Builds and runs the programs.
pub(crate) fn run() -> anyhow::Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().context("the workspace's folder")?;
    env::set_current_dir(root).with_context(|| format!("entering `{}`", root.display()))?;
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let built = Command::new(cargo)
        .args(["build", "--release", "--quiet", "--package", "compiler", "--package", "drafter"])
        .args(["--target-dir", "target"])
        .status()
        .context("starting cargo")?;
    ensure!(built.success(), "building the programs failed");
    std::fs::create_dir_all("target/demo").context("making `target/demo`")?;

    // The pair is 256 wide, so its rotation blocks are smaller than the default.
    let block = ["--block", "256", "--tokenizer", TARGET];
    shown("ternarize", &[&[INPUT, "-o", Q4NX, "-o", GGUF, "--force"], &block[..]].concat())?;
    shown("ternarize", &["verify", Q4NX, "--against", INPUT])?;
    shown("ternarize", &["verify", GGUF, "--against", Q4NX])?;

    let prompt = ["--prompt", PROMPT, "-n", TOKENS, "--ignore-eos"];
    let plain = [&["run", "--target", TARGET], &prompt[..]].concat();
    let float = [&plain[..], &["--drafter", INPUT]].concat();
    let ternary = [&plain[..], &["--drafter", Q4NX]].concat();
    shown("drafter", &plain)?;
    shown("drafter", &ternary)?;
    let ids = document(&plain)?["ids"].clone();
    let mut lines = vec![format!("plain decoding: {TOKENS} tokens in {TOKENS} passes")];
    for (name, arguments) in [("float", &float), ("ternary", &ternary)] {
        let found = document(arguments)?;
        ensure!(found["ids"] == ids, "the {name} drafter changed the tokens");
        let timings = &found["timings"];
        lines.push(format!(
            "with the {name} drafter: the same {TOKENS} ids in {} rounds, {:.2} tokens per round",
            timings["draft_rounds"],
            timings["accept_len"].as_f64().unwrap_or_default()
        ));
    }
    writeln!(std::io::stdout(), "\n{}", lines.join("\n"))?;
    shown("drafter", &["verify-exact", "--target", TARGET, "--drafter", Q4NX, "-n", "32"])
}

/// Shows and runs one command.
fn shown(program: &str, arguments: &[&str]) -> anyhow::Result<()> {
    let words = arguments.iter().map(|word| match word.contains([' ', '(', '\n']) {
        true => format!("{word:?}"),
        false => (*word).to_owned(),
    });
    let line = words.collect::<Vec<_>>().join(" ");
    writeln!(std::io::stdout(), "\n$ {program} {line}")?;
    let path = format!("target/release/{program}");
    let status = Command::new(&path)
        .args(arguments)
        .status()
        .with_context(|| format!("starting `{path}`"))?;
    ensure!(status.success(), "`{program} {line}` failed: {status}");
    Ok(())
}

/// What `drafter` prints with `--json`.
fn document(arguments: &[&str]) -> anyhow::Result<Value> {
    let output = Command::new("target/release/drafter")
        .args(arguments)
        .arg("--json")
        .stderr(Stdio::inherit())
        .output()
        .context("starting `target/release/drafter`")?;
    ensure!(output.status.success(), "`drafter {}` failed", arguments.join(" "));
    Ok(serde_json::from_slice(&output.stdout)?)
}
