//! `cargo xtask bindings`: Rust declarations of the C interface over XRT, by bindgen.

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use formats::digest::sha256;

fn crate_folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../runtime/xrt-sys")
}

/// Writes `sys.rs`, or with `check` refuses one that is not what bindgen makes of the header.
pub(crate) fn run(check: bool) -> anyhow::Result<()> {
    let folder = crate_folder();
    let (header, out) = (folder.join("shim/drafter_xrt.h"), folder.join("src/sys.rs"));
    let text = generate(&header)?;
    let shown = out.display();
    if !check {
        return std::fs::write(&out, text).with_context(|| format!("writing `{shown}`"));
    }
    let found = std::fs::read_to_string(&out).with_context(|| format!("reading `{shown}`"))?;
    anyhow::ensure!(
        found == text,
        "`{shown}` is not what bindgen makes of the header: run `cargo xtask bindings`"
    );
    Ok(())
}

fn generate(header: &Path) -> anyhow::Result<String> {
    let bytes = std::fs::read(header).with_context(|| format!("reading `{}`", header.display()))?;
    let sha256 = sha256(&bytes);
    let bindings = bindgen::Builder::default()
        .header(header.to_string_lossy())
        .allowlist_item("(drafter_xrt_|DRAFTER_XRT_).*")
        .derive_default(true)
        .formatter(bindgen::Formatter::Rustfmt)
        .rustfmt_configuration_file(Some(crate_folder().join("../../rustfmt.toml")))
        .disable_header_comment()
        .generate()
        .context("running bindgen, which needs libclang (package libclang-dev)")?;
    Ok(format!(
        "// By `cargo xtask bindings` from shim/drafter_xrt.h with SHA-256\n// {sha256}\n\n{bindings}"
    ))
}
