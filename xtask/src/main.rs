//! `cargo xtask`: developer tasks.

mod bindings;
mod demo;

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context as _;
use clap::Parser;
use xtask::aie::{self, Toolchain};
use xtask::fixture::{self, Float, Shape};
use xtask::synth_target;

/// The toolchain's words are not ours, or a program does not fit.
const NO: u8 = 1;
/// A tool of the toolchain failed.
const TOOL: u8 = 4;
/// The toolchain is not installed.
const NO_TOOLCHAIN: u8 = 5;

/// Developer tasks.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
enum Task {
    /// The NPU's array, for the vendor's toolchain.
    #[command(subcommand)]
    Aie(Aie),
    /// Build `ternarize`, run it on the committed fixture, and verify what it wrote.
    Demo,
    /// Make the Rust declarations of the C interface over XRT; needs libclang.
    Bindings {
        /// Only compare them with what is there.
        #[arg(long)]
        check: bool,
    },
    /// Write a drafter of seeded noise: `model.safetensors` and `config.json`.
    Fixture {
        /// Dimensions: a tiny drafter for tests, or those of the published one (3.8 GB).
        #[arg(long, value_enum)]
        shape: Shape,
        /// Folder to write to; made if it is not there.
        #[arg(short, long, value_name = "DIR")]
        output: PathBuf,
        /// Seed of the noise.
        #[arg(long, default_value_t = fixture::SEED)]
        seed: u64,
        /// Type of the stored weights.
        #[arg(long, value_enum, default_value_t = Float::Bf16)]
        dtype: Float,
        /// Replace files that are there.
        #[arg(long)]
        force: bool,
    },
    /// Write a target of seeded noise in the shape of the 27 B model: 7.2 GB, streamed.
    SynthTarget {
        /// Dimensions.
        #[arg(long, value_enum, default_value_t = synth_target::Shape::Full)]
        shape: synth_target::Shape,
        /// The GGUF to write.
        #[arg(short, long, value_name = "FILE")]
        output: PathBuf,
        /// Seed of the noise.
        #[arg(long, default_value_t = 1)]
        seed: u64,
        /// Replace the file if it is there.
        #[arg(long)]
        force: bool,
    },
}

/// What is done with the NPU's array.
#[derive(Debug, clap::Subcommand)]
enum Aie {
    /// Write what the toolchain needs: MLIR, instruction words, kernels, a build script, a manifest.
    Emit {
        /// Folder to write; must not be there.
        #[arg(short, long, value_name = "DIR")]
        output: PathBuf,
        /// Replace a folder that this wrote.
        #[arg(long)]
        force: bool,
    },
    /// Emit, run the toolchain, and compare its instruction words with ours.
    ///
    /// Exit codes: 0 an image whose words are ours; 1 words that differ, or a program above 16 KB; 4 a tool
    /// failed; 5 the toolchain is not installed, which says what to install.
    Build {
        /// Folder to write; one that this wrote is replaced.
        #[arg(short, long, value_name = "DIR", default_value = "target/npu-array")]
        output: PathBuf,
    },
}

fn build(output: &Path) -> anyhow::Result<ExitCode> {
    let mut err = std::io::stderr();
    let tools = match Toolchain::find(|name| std::env::var_os(name)) {
        Ok(tools) => tools,
        Err(missing) => {
            for part in &missing {
                writeln!(err, "missing: {}\n  {}", part.what, part.remedy)?;
            }
            writeln!(err, "the array was not compiled: docs/npu.md has the steps")?;
            return Ok(ExitCode::from(NO_TOOLCHAIN));
        }
    };
    aie::emit(output, true)?;
    let built = match tools.build(output) {
        Ok(built) => built,
        Err(error) => {
            writeln!(err, "{error:#}")?;
            return Ok(ExitCode::from(TOOL));
        }
    };
    for (name, bytes) in &built.programs {
        writeln!(std::io::stdout(), "{name}: {bytes} bytes of program")?;
    }
    for (name, bytes) in built.too_large() {
        writeln!(err, "{name}: {bytes} bytes of program, a core has 16384")?;
    }
    let hex = |word: Option<u32>| word.map_or("none".to_owned(), |word| format!("{word:#010x}"));
    for (at, found, ours) in built.differences.iter().take(10) {
        writeln!(err, "word {at}: the compiler has {}, we have {}", hex(*found), hex(*ours))?;
    }
    if !built.is_good() {
        writeln!(err, "{} words differ: not the image to run", built.differences.len())?;
        return Ok(ExitCode::from(NO));
    }
    let image = output.join("build/array.xclbin");
    writeln!(std::io::stdout(), "`{}`: instruction words are ours", image.display())?;
    Ok(ExitCode::SUCCESS)
}

fn main() -> anyhow::Result<ExitCode> {
    match Task::parse() {
        Task::Aie(Aie::Build { output }) => return build(&output),
        task => run(task)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn run(task: Task) -> anyhow::Result<()> {
    match task {
        Task::Aie(Aie::Emit { output, force }) => {
            let n = aie::emit(&output, force)?;
            writeln!(std::io::stderr(), "{n} files in `{}`", output.display())?;
            Ok(())
        }
        Task::Aie(Aie::Build { .. }) => Ok(()),
        Task::Demo => demo::run(),
        Task::Bindings { check } => bindings::run(check),
        Task::Fixture { shape, output, seed, dtype, force } => {
            let options = fixture::Options { shape, seed, dtype, force };
            let written = fixture::write(&output, &options)
                .with_context(|| format!("writing a fixture to `{}`", output.display()))?;
            writeln!(
                std::io::stderr(),
                "{} tensors, {} data bytes, {} bytes in `{}`",
                written.n_tensors,
                written.data_bytes,
                written.file_bytes,
                written.model.display()
            )?;
            Ok(())
        }
        Task::SynthTarget { shape, output, seed, force } => {
            let bytes = synth_target::write(&output, shape, seed, force)
                .with_context(|| format!("writing a target to `{}`", output.display()))?;
            writeln!(std::io::stderr(), "{bytes} bytes in `{}`", output.display())?;
            Ok(())
        }
    }
}
