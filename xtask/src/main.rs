//! `cargo xtask`: developer tasks.

mod bindings;
mod demo;

use std::io::Write as _;
use std::path::PathBuf;

use anyhow::Context as _;
use clap::Parser;
use xtask::fixture::{self, Float, Shape};
use xtask::synth_target;

/// Developer tasks.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
enum Task {
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

fn main() -> anyhow::Result<()> {
    match Task::parse() {
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
