//! What can be asked for.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;
use command_line::args::{Output, Workers};
use compiler::calibrated::Calibration;
use compiler::output::Format;
use compiler::ternary::Rule;
use hadamard::{BlockHadamard, Isa};

/// Turns a DFlash 2 drafter into a checked ternary q4nx or GGUF file.
///
/// INPUT is a float drafter: a safetensors file, a `model.safetensors.index.json`, or a
/// folder that holds one of them, with its `config.json` beside it. Every matrix is rotated
/// through a block Hadamard transform and rounded to {-1, 0, +1} with one scale per 128
/// weights. Outputs appear under their names only when all of them are whole.
#[derive(Debug, Parser)]
#[command(
    name = "ternarize",
    version,
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true,
    after_help = EXIT_CODES,
    max_term_width = 100
)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Option<Command>,
    #[command(flatten)]
    pub(crate) ternarize: TernarizeArgs,
    #[command(flatten)]
    pub(crate) common: Common,
}

const EXIT_CODES: &str = "\
Exit codes:
  0    done
  1    the files are sound, but the answer is no (verify)
  2    wrong usage
  3    an input file is missing, damaged or not supported
  4    an output cannot be written
  130  interrupted (143 when terminated, 129 when the terminal went away)";

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Rewrites a ternary drafter in another format, losslessly or not at all
    Convert(ConvertArgs),
    /// Reads a ternary drafter again, all of it, and compares it with its input
    ///
    /// Every group is decoded and every value looked at. A damaged file is an error (exit
    /// code 3); a sound one that is not its input's, or too far from it, gets the verdict no
    /// (exit code 1). Codes of 3, which only PQ2_0 can hold, are reported and pass.
    Verify(VerifyArgs),
    /// Says what a file is: configuration, rotation, lineage, tensors
    ///
    /// Reads safetensors, q4nx, GGUF, MLX 2-bit packs and a drafter's config.json; headers
    /// only. What is no drafter is listed as it stands.
    Inspect(InspectArgs),
    /// Calibration data of `drafter capture`: puts parts together, says what is in a file
    Calib {
        #[command(subcommand)]
        command: CalibCommand,
    },
    /// Prints a completion script
    Completions {
        /// The shell it is for
        shell: Shell,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum CalibCommand {
    /// Adds up files of shards, to the bits of one run; refuses those of other models or arithmetic
    Merge {
        /// Calibration files
        #[arg(required = true, value_name = "FILE")]
        files: Vec<PathBuf>,
        /// Output file
        #[arg(short, long, value_name = "OUT")]
        output: PathBuf,
        /// Replace an existing output
        #[arg(long)]
        force: bool,
    },
    /// Reads a file, all of it, and says what it was made of and what its inputs are like
    Show {
        /// Calibration file
        file: PathBuf,
    },
}

#[derive(Debug, Args)]
pub(crate) struct TernarizeArgs {
    /// Float drafter: safetensors file, shard index or folder
    #[arg(required = true)]
    pub(crate) input: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) outputs: Outputs,
    /// Drafter configuration, if it is not `config.json` beside INPUT
    #[arg(long, value_name = "PATH")]
    pub(crate) config: Option<PathBuf>,
    /// Target GGUF or tokenizer.json whose tokenizer goes into GGUF outputs
    #[arg(long, value_name = "PATH")]
    pub(crate) tokenizer: Option<PathBuf>,
    /// How scales and codes are chosen: `optimal` is the least-squares optimum; `ternary` keeps
    /// weights that are ternary in these rotation blocks already, as a tuner exports them, and
    /// refuses others; `absmean` and `twn` are for comparison
    #[arg(long, value_name = "RULE", default_value = "optimal", env = "TERNARIZE_RULE")]
    pub(crate) rule: Rule,
    /// Fit codes and scales to the inputs of the matrices: a file of `drafter capture`, or
    /// `prior` for what the drafter's own norms say of them
    #[arg(long, value_name = "FILE|prior", env = "TERNARIZE_CALIB")]
    pub(crate) calib: Option<PathBuf>,
    /// With --calib: rounds of scales and codes at most; 0 leaves error feedback alone
    #[arg(long, value_name = "N", default_value_t = Calibration::ROUNDS, requires = "calib")]
    pub(crate) rounds: usize,
    /// With --calib: what is added to the moments' diagonal, relative to its mean
    /// [default: 0.1, more where there are few rows]
    #[arg(long, value_name = "X", requires = "calib", value_parser = max_error)]
    pub(crate) damping: Option<f64>,
    /// Inputs per Hadamard transform, a power of two
    #[arg(long, value_name = "N", default_value_t = BlockHadamard::DEFAULT_BLOCK, value_parser = block)]
    pub(crate) block: usize,
    #[command(flatten)]
    pub(crate) run: RunArgs,
}

#[derive(Debug, Args)]
pub(crate) struct ConvertArgs {
    /// Ternary drafter: q4nx (with its config.json) or GGUF
    pub(crate) input: PathBuf,
    #[command(flatten)]
    pub(crate) outputs: Outputs,
    /// Drafter configuration, if it is not beside INPUT
    #[arg(long, value_name = "PATH")]
    pub(crate) config: Option<PathBuf>,
    /// Target GGUF or tokenizer.json whose tokenizer goes into GGUF outputs
    #[arg(long, value_name = "PATH")]
    pub(crate) tokenizer: Option<PathBuf>,
    /// Round scales (and norms) that a q4nx cannot hold exactly, and report how many
    #[arg(long)]
    pub(crate) round_scales: bool,
    /// Names of the selector's codebooks in safetensors outputs
    #[arg(long, value_name = "STYLE", default_value = "bare")]
    pub(crate) codebooks: CodebookStyle,
    #[command(flatten)]
    pub(crate) run: RunArgs,
}

#[derive(Debug, Args)]
pub(crate) struct VerifyArgs {
    /// Ternary drafter: q4nx (with its config.json) or GGUF
    pub(crate) file: PathBuf,
    /// Float drafter to measure the error against, or ternary drafter to be equal to
    #[arg(long, value_name = "INPUT")]
    pub(crate) against: Option<PathBuf>,
    /// Largest relative squared error of a matrix against a float INPUT [default: 0.75]
    #[arg(long, value_name = "X", value_parser = max_error)]
    pub(crate) max_error: Option<f64>,
    /// Drafter configuration, if it is not beside FILE
    #[arg(long, value_name = "PATH")]
    pub(crate) config: Option<PathBuf>,
    /// Drafter configuration of INPUT, if it is not beside it
    #[arg(long, value_name = "PATH")]
    pub(crate) against_config: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct InspectArgs {
    /// File or folder
    pub(crate) file: PathBuf,
    /// Drafter configuration, if it is not beside FILE
    #[arg(long, value_name = "PATH")]
    pub(crate) config: Option<PathBuf>,
}

/// The two spellings in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum CodebookStyle {
    /// `candidate_selector.predecessor_codebook`, as published
    Bare,
    /// `candidate_selector.predecessor_codebook.weight`, as older trainers write
    Weight,
}

#[derive(Debug, Args)]
pub(crate) struct Outputs {
    /// Output file; give it again for several outputs in one pass
    #[arg(short, long = "output", value_name = "OUT", required = true)]
    pub(crate) outputs: Vec<PathBuf>,
    /// Format of the outputs in their order; otherwise by extension, where .gguf is pq2_0
    #[arg(long = "format", value_name = "FORMAT", value_parser = format)]
    pub(crate) formats: Vec<Format>,
}

#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    /// Write a report: a page with charts where FILE ends in .html, otherwise JSON
    #[arg(long, value_name = "FILE")]
    pub(crate) report: Option<PathBuf>,
    /// Replace existing outputs
    #[arg(long)]
    pub(crate) force: bool,
    /// Check everything and say what would be written, without writing
    #[arg(long)]
    pub(crate) dry_run: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Common {
    #[command(flatten)]
    pub(crate) workers: Workers,
    #[command(flatten)]
    pub(crate) output: Output,
    /// Print details, one line per tensor
    #[arg(short, long, global = true, conflicts_with = "quiet")]
    pub(crate) verbose: bool,
    /// How to show progress; `auto` is a bar on a terminal and nothing elsewhere
    #[arg(long, value_name = "HOW", default_value = "auto", global = true)]
    pub(crate) progress: ProgressHow,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ProgressHow {
    /// A bar on a terminal
    Auto,
    /// One line per tensor
    Plain,
    /// Nothing
    None,
}

fn format(name: &str) -> Result<Format, String> {
    Format::ALL.into_iter().find(|f| f.name() == name).ok_or_else(|| {
        let names: Vec<&str> = Format::ALL.iter().map(|f| f.name()).collect();
        format!("expected one of {}", names.join(", "))
    })
}

fn block(n: &str) -> Result<usize, String> {
    let n: usize = n.parse().map_err(|_| "expected a number".to_owned())?;
    match BlockHadamard::new(n, Isa::scalar()) {
        Ok(_) => Ok(n),
        Err(e) => Err(e.to_string()),
    }
}

fn max_error(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(error) if (0.0..f64::INFINITY).contains(&error) => Ok(error),
        _ => Err("expected a number of at least 0".into()),
    }
}
