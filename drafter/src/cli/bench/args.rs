//! What `drafter bench` can be asked for.

use clap::{Args, ValueEnum};
use std::path::PathBuf;

use super::super::args::{DraftMax, ModelArgs};

#[derive(Debug, Args)]
pub(crate) struct BenchArgs {
    #[command(flatten)]
    pub(crate) models: ModelArgs,
    /// What is measured [default: all that the models allow]
    #[arg(long, value_name = "TEST,…", value_delimiter = ',')]
    pub(crate) tests: Vec<Test>,
    /// Rows of a verification
    #[arg(long, value_name = "N,…", value_delimiter = ',', default_values_t = [2, 4, 8],
        value_parser = rows)]
    pub(crate) rows: Vec<usize>,
    /// Positions before a pass, filled with noise
    #[arg(long, value_name = "N,…", value_delimiter = ',', default_values_t = [0])]
    pub(crate) depths: Vec<usize>,
    /// Lengths of prompts for `prefill`, taken in 128 tokens at a time
    #[arg(long, value_name = "N,…", value_delimiter = ',', default_values_t = [128],
        value_parser = tokens)]
    pub(crate) prefill: Vec<usize>,
    /// Draft lengths for `e2e`; 0 is plain decoding [default: 0, 1, 3, the block minus one, auto]
    #[arg(long, value_name = "auto|K,…", value_delimiter = ',')]
    pub(crate) draft_max: Vec<DraftMax>,
    /// Tokens of an answer for `e2e`
    #[arg(short = 'n', long, value_name = "N", default_value_t = 32,
        value_parser = clap::value_parser!(u32).range(2..=1 << 20))]
    pub(crate) tokens: u32,
    /// Measurements of everything, of which the median counts
    #[arg(long, value_name = "N", default_value_t = 5,
        value_parser = clap::value_parser!(u16).range(1..=10_000))]
    pub(crate) trials: u16,
    /// Measurements before those, which do not count
    #[arg(long, value_name = "N", default_value_t = 1,
        value_parser = clap::value_parser!(u16).range(0..=10_000))]
    pub(crate) warmup: u16,
    #[command(flatten)]
    pub(crate) prompt: BenchPrompt,
}

/// The prompt of `e2e`; a built-in one by default.
#[derive(Debug, Args)]
#[group(multiple = false)]
pub(crate) struct BenchPrompt {
    /// Prompt for `e2e` [default: a built-in one]
    #[arg(short, long, value_name = "TEXT", allow_hyphen_values = true)]
    pub(crate) prompt: Option<String>,
    /// A file with the prompt; `-` is standard input
    #[arg(short, long, value_name = "FILE")]
    pub(crate) file: Option<PathBuf>,
    /// The prompt as token ids
    #[arg(long, value_name = "ID,…", value_delimiter = ',')]
    pub(crate) ids: Option<Vec<u32>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Test {
    /// A step of plain decoding
    Decode,
    /// A pass over several rows, with its commit
    Verify,
    /// A block of the drafter, with the head
    Draft,
    /// Taking tapped states into the drafter's context
    Context,
    /// Taking in a prompt
    Prefill,
    /// Answers, with and without speculation
    E2e,
}

impl Test {
    pub(crate) const ALL: [Self; 6] =
        [Self::Decode, Self::Verify, Self::Draft, Self::Context, Self::Prefill, Self::E2e];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Decode => "decode",
            Self::Verify => "verify",
            Self::Draft => "draft",
            Self::Context => "context",
            Self::Prefill => "prefill",
            Self::E2e => "e2e",
        }
    }
}

/// A number of rows that a pass may have.
fn rows(text: &str) -> Result<usize, String> {
    bounded(text, 128)
}

fn tokens(text: &str) -> Result<usize, String> {
    bounded(text, 1 << 20)
}

fn bounded(text: &str, most: usize) -> Result<usize, String> {
    match text.parse() {
        Ok(n) if (1..=most).contains(&n) => Ok(n),
        _ => Err(format!("expected a number from 1 to {most}")),
    }
}
