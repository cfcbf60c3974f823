//! The vendor's toolchain: where it is, and what it makes of an emitted folder.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, ensure};

use super::COMPILED;

/// The release of mlir-aie that the text is written for.
pub(super) const MLIR_AIE: &str = "1.4.2";
/// The build of llvm-aie (Peano) that goes with it.
pub(super) const LLVM_AIE: &str = "21.0.0.2026080301+c9c5ecb7";

/// Bytes of a core's program memory.
const PROGRAM_BYTES: u64 = 16384;

/// A part of the toolchain that is not there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Missing {
    /// What is missing.
    pub what: String,
    /// What to do.
    pub remedy: String,
}

/// Where the tools are.
#[derive(Debug, Clone)]
pub struct Toolchain {
    peano: PathBuf,
    mlir_aie: PathBuf,
}

/// What a build came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Built {
    /// Program bytes of each core, by the name of its file.
    pub programs: Vec<(String, u64)>,
    /// Words that differ from ours: index, the compiler's, ours.
    pub differences: Vec<(usize, Option<u32>, Option<u32>)>,
}

impl Built {
    /// Cores whose program is too large.
    pub fn too_large(&self) -> impl Iterator<Item = &(String, u64)> {
        self.programs.iter().filter(|(_, bytes)| *bytes > PROGRAM_BYTES)
    }

    /// Whether the image is what was emitted.
    #[must_use]
    pub fn is_good(&self) -> bool {
        self.differences.is_empty() && self.too_large().next().is_none()
    }
}

impl Toolchain {
    /// The tools that the environment names.
    ///
    /// # Errors
    /// Every part that is missing.
    pub fn find(variable: impl Fn(&str) -> Option<OsString>) -> Result<Self, Vec<Missing>> {
        let mut missing = Vec::new();
        let mut need = |there: bool, what: String, remedy: &str| {
            if !there {
                missing.push(Missing { what, remedy: remedy.to_owned() });
            }
        };
        let folder = |name: &str| variable(name).map(PathBuf::from).unwrap_or_default();
        let (peano, mlir_aie) = (folder("PEANO_INSTALL_DIR"), folder("MLIR_AIE_INSTALL_DIR"));
        for tool in ["clang++", "llvm-size"] {
            need(
                peano.join("bin").join(tool).is_file(),
                format!("llvm-aie's `{tool}` in $PEANO_INSTALL_DIR/bin"),
                &format!(
                    "install llvm-aie {LLVM_AIE} from the releases of Xilinx/llvm-aie into a Python \
                     3.11 to 3.13 environment and set PEANO_INSTALL_DIR to its folder `llvm-aie`"
                ),
            );
        }
        for path in ["bin/aiecc", "include/aie_api/aie.hpp"] {
            need(
                mlir_aie.join(path).is_file(),
                format!("mlir-aie's `{path}` in $MLIR_AIE_INSTALL_DIR"),
                &format!(
                    "install mlir_aie {MLIR_AIE} from the releases of Xilinx/mlir-aie into the same \
                     environment and set MLIR_AIE_INSTALL_DIR to its folder `mlir_aie`"
                ),
            );
        }
        let path = variable("PATH").unwrap_or_default();
        need(
            std::env::split_paths(&path).any(|folder| folder.join("xclbinutil").is_file()),
            "XRT's `xclbinutil` in PATH".to_owned(),
            "install the package libxrt-utils (Ubuntu 26.04), or add /opt/xilinx/xrt/bin to PATH",
        );
        if missing.is_empty() { Ok(Self { peano, mlir_aie }) } else { Err(missing) }
    }

    /// Runs `build.sh` of an emitted folder and looks at what it made.
    ///
    /// # Errors
    /// A tool that fails, or whose output is not there.
    pub fn build(&self, folder: &Path) -> anyhow::Result<Built> {
        let status = Command::new("sh")
            .arg(folder.join("build.sh"))
            .env("PEANO_INSTALL_DIR", std::path::absolute(&self.peano)?)
            .env("MLIR_AIE_INSTALL_DIR", std::path::absolute(&self.mlir_aie)?)
            .status()
            .context("starting sh")?;
        ensure!(status.success(), "`{}` failed: {status}", folder.join("build.sh").display());
        let build = folder.join("build");
        let image = build.join("array.xclbin");
        ensure!(image.is_file(), "aiecc left no `{}`", image.display());
        let words = |path: PathBuf| -> anyhow::Result<Vec<u32>> {
            let bytes = fs::read(&path).with_context(|| format!("reading `{}`", path.display()))?;
            let (words, rest) = bytes.as_chunks::<4>();
            ensure!(rest.is_empty(), "`{}` is no whole number of words", path.display());
            Ok(words.iter().map(|w| u32::from_le_bytes(*w)).collect())
        };
        let found = words(build.join("insts.bin"))?;
        let ours = words(folder.join(format!("jobs/{COMPILED}.bin")))?;
        let differences = (0..found.len().max(ours.len()))
            .map(|i| (i, found.get(i).copied(), ours.get(i).copied()))
            .filter(|(_, found, ours)| found != ours)
            .collect();
        Ok(Built { programs: self.programs(&build.join("project"))?, differences })
    }

    fn programs(&self, project: &Path) -> anyhow::Result<Vec<(String, u64)>> {
        let mut paths = Vec::new();
        let mut open = vec![project.to_path_buf()];
        while let Some(folder) = open.pop() {
            let entries = fs::read_dir(&folder);
            for entry in entries.with_context(|| format!("reading `{}`", folder.display()))? {
                let path = entry?.path();
                if path.is_dir() {
                    open.push(path);
                } else if path.extension().is_some_and(|e| e == "elf") {
                    paths.push(path);
                }
            }
        }
        ensure!(!paths.is_empty(), "aiecc left no program in `{}`", project.display());
        paths.sort();
        let size = |path: &PathBuf| {
            let run = Command::new(self.peano.join("bin/llvm-size")).arg("-A").arg(path).output();
            let output = run.context("starting llvm-size")?;
            ensure!(output.status.success(), "llvm-size failed on `{}`", path.display());
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            let bytes = text.lines().filter(|line| line.starts_with(".text"));
            let bytes =
                bytes.filter_map(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok());
            let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
            Ok((name, bytes.sum()))
        };
        paths.iter().map(size).collect()
    }
}
