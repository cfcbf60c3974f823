//! `cargo xtask demo`: the main job on the committed fixture, every command shown.

use std::env;
use std::io::Write as _;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, ensure};

const INPUT: &str = "tests/fixtures/tiny-drafter/model.safetensors";
const Q4NX: &str = "target/demo/model.q4nx";
const GGUF: &str = "target/demo/model.gguf";

/// Builds and runs the program.
pub(crate) fn run() -> anyhow::Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().context("the workspace's folder")?;
    env::set_current_dir(root).with_context(|| format!("entering `{}`", root.display()))?;
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let built = Command::new(cargo)
        .args(["build", "--release", "--quiet", "--package", "compiler"])
        .args(["--target-dir", "target"])
        .status()
        .context("starting cargo")?;
    ensure!(built.success(), "building `ternarize` failed");
    std::fs::create_dir_all("target/demo").context("making `target/demo`")?;

    // The fixture is 256 wide, so its rotation blocks are smaller than the default.
    ternarize(&[INPUT, "--block", "256", "-o", Q4NX, "-o", GGUF, "--force"])?;
    ternarize(&["verify", Q4NX, "--against", INPUT])?;
    ternarize(&["verify", GGUF, "--against", Q4NX])
}

/// Shows and runs one command.
fn ternarize(arguments: &[&str]) -> anyhow::Result<()> {
    writeln!(std::io::stdout(), "\n$ ternarize {}", arguments.join(" "))?;
    let status = Command::new("target/release/ternarize")
        .args(arguments)
        .status()
        .context("starting `target/release/ternarize`")?;
    ensure!(status.success(), "`ternarize {}` failed: {status}", arguments.join(" "));
    Ok(())
}
