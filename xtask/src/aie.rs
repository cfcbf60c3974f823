//! What the vendor's toolchain needs to make an image of the array, as a folder, and the run of that
//! toolchain.
//!
//! ```text
//! array.mlir            the array with one job's instructions, [`COMPILED`]
//! jobs/NAME.bin         instruction words of each job, little-endian
//! kernels/              the kernels' sources
//! build.sh              compiles all of it into build/
//! manifest.json         what is there, with sha256
//! ```
//!
//! The bytes depend on the sources alone.

mod toolchain;

use std::collections::BTreeMap;
use std::fs::{self, Permissions};
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use aie_kernels::design::configuration;
use aie_kernels::host::Kernel;
use aie_kernels::job::Job;
use aie_kernels::mlir::{self, Sequence};
use aie_kernels::passes::{DRAFT, TARGET};
use aie_kernels::verifier::{check, check_instructions};
use anyhow::{Context as _, ensure};
use formats::digest::sha256;
use serde_json::{Value, json};

pub use toolchain::{Built, Missing, Toolchain};

/// The job whose instructions the compiler makes as well, to compare: two row groups, so both copies of
/// the activations.
pub const COMPILED: &str = "34816x5120";

/// The manifest's file.
pub const MANIFEST: &str = "manifest.json";

const KIND: &str = "npu-array/1";

const BUILD: &str = include_str!("aie/build.sh");

/// All files by their paths in the folder.
///
/// # Errors
/// A design that the verifier refuses or that has no form in MLIR.
pub fn files() -> anyhow::Result<BTreeMap<String, Vec<u8>>> {
    let c = configuration();
    let violations = check(&c);
    ensure!(violations.is_empty(), "the design breaks limits: {}", violations[0]);
    let mut out = BTreeMap::new();
    let mut jobs = Vec::new();
    let shapes = TARGET.iter().chain(&DRAFT).map(|p| (p.rows, p.k));
    for (rows, k) in shapes.collect::<std::collections::BTreeSet<_>>() {
        let job = Job::new(rows, k)?;
        let name = format!("{rows}x{k}");
        let words = job.instructions(0)?;
        let violations = check_instructions(&c, &words)?;
        ensure!(violations.is_empty(), "job {name} breaks limits: {}", violations[0]);
        if name == COMPILED {
            let arguments = [
                ("weights", job.weight_bytes()),
                ("activations", job.activation_bytes()),
                ("results", job.result_bytes()),
            ];
            let sequence = Sequence { name: "job", words: &words, arguments: &arguments };
            out.insert("array.mlir".to_owned(), mlir::module(&c, &[sequence])?.into_bytes());
        }
        let path = format!("jobs/{name}.bin");
        jobs.push(json!({
            "name": name,
            "out_features": rows,
            "in_features": k,
            "weight_bytes": job.weight_bytes(),
            "activation_bytes": job.activation_bytes(),
            "result_bytes": job.result_bytes(),
            "instructions": path,
        }));
        out.insert(path, words.iter().flat_map(|w| w.to_le_bytes()).collect());
    }
    for (name, text) in aie_kernels::SOURCES {
        out.insert(format!("kernels/{name}"), text.as_bytes().to_vec());
    }
    out.insert("build.sh".to_owned(), BUILD.as_bytes().to_vec());
    let manifest = manifest(&out, &jobs);
    out.insert(MANIFEST.to_owned(), format!("{manifest:#}\n").into_bytes());
    Ok(out)
}

fn manifest(files: &BTreeMap<String, Vec<u8>>, jobs: &[Value]) -> Value {
    let listed: Vec<Value> = files
        .iter()
        .map(|(path, bytes)| {
            json!({ "path": path, "size_bytes": bytes.len(), "sha256": sha256(bytes) })
        })
        .collect();
    let kernels = Kernel::ALL.map(|k| json!({ "symbol": k.symbol(), "source": k.source() }));
    json!({
        "schema": 1,
        "kind": KIND,
        "device": "npu2",
        "mlir_aie": toolchain::MLIR_AIE,
        "llvm_aie": toolchain::LLVM_AIE,
        "compiled_job": COMPILED,
        "kernels": kernels,
        "jobs": jobs,
        "files": listed,
    })
}

/// Writes the folder: whole or not at all. How many files there are.
///
/// # Errors
/// A folder that is there (with `force`: one that this did not write), or what the system says.
pub fn emit(output: &Path, force: bool) -> anyhow::Result<usize> {
    if output.exists() {
        ensure!(force, "`{}` is there; --force replaces it", output.display());
        ensure!(is_ours(output), "`{}` holds something else: not replaced", output.display());
    }
    let files = files()?;
    let parent = output.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    fs::create_dir_all(parent).with_context(|| format!("making `{}`", parent.display()))?;
    let temporary = tempfile::Builder::new()
        .prefix(".npu-array-")
        .tempdir_in(parent)
        .with_context(|| format!("writing to `{}`", parent.display()))?;
    let new = temporary.path().join("new");
    for (path, bytes) in &files {
        let at = new.join(path);
        fs::create_dir_all(at.parent().context("a file is in a folder")?)?;
        let mut file = fs::File::create(&at)?;
        file.write_all(bytes)?;
        if path.ends_with(".sh") {
            file.set_permissions(Permissions::from_mode(0o755))?;
        }
        file.sync_all()?;
    }
    if output.exists() {
        fs::rename(output, temporary.path().join("old"))?;
    }
    fs::rename(&new, output).with_context(|| format!("writing `{}`", output.display()))?;
    fs::File::open(parent)?.sync_all()?;
    Ok(files.len())
}

/// Whether [`emit`] wrote a folder.
fn is_ours(folder: &Path) -> bool {
    let manifest = fs::read(folder.join(MANIFEST)).ok();
    let manifest = manifest.and_then(|text| serde_json::from_slice::<Value>(&text).ok());
    manifest.is_some_and(|m| m["kind"] == KIND)
}
