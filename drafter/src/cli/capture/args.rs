//! What `drafter capture` can be asked for.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::str::FromStr;

use clap::{Args, ValueEnum};
use formats::calib::{Input, WEIGHT_ONE, inputs_of};
use formats::dflash2::config::Config;
use hadamard::{BlockHadamard, Isa};
use runtime::moments::decaying_weights;

use crate::cli::args::{ModelArgs, OnOff, SamplingArgs};

#[derive(Debug, Args)]
pub(crate) struct CaptureArgs {
    #[command(flatten)]
    pub(crate) models: ModelArgs,
    #[command(flatten)]
    pub(crate) texts: TextArgs,
    #[command(flatten)]
    pub(crate) outputs: OutputArgs,
    /// Replace an existing OUT, and labels of other models or texts
    #[arg(long)]
    pub(crate) force: bool,
    /// Most tokens of an answer, or of a window of text
    #[arg(short = 'n', long, value_name = "N", default_value_t = 512, value_parser = clap::value_parser!(u64).range(2..=1 << 20))]
    pub(crate) max_tokens: u64,
    /// Most positions that rounds go over in all, shared evenly among prompts or windows [default: all]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) positions: Option<u64>,
    /// Do part I of N only; `ternarize calib merge` puts the parts together, to the same bits
    #[arg(long, value_name = "I/N", default_value = "1/1")]
    pub(crate) shard: Shard,
    #[command(flatten)]
    pub(crate) sampling: SamplingArgs,
    /// Whether the model thinks first, in answers to messages [default: as its template says]
    #[arg(long, value_name = "WHETHER")]
    pub(crate) think: Option<OnOff>,
    /// Go on past tokens that end an answer
    #[arg(long)]
    pub(crate) ignore_eos: bool,
    /// Most drafts of a round [default: the drafter's block minus one]
    #[arg(long, value_name = "K", value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) draft_max: Option<u16>,
    /// Inputs per Hadamard transform, as for `ternarize`
    #[arg(long, value_name = "N", default_value_t = BlockHadamard::DEFAULT_BLOCK, value_parser = block)]
    pub(crate) block: usize,
    /// How rows of a block count
    #[arg(long, value_name = "HOW", default_value = "decay")]
    pub(crate) weights: Weights,
    /// Inputs of which the whole matrix is captured, not its diagonal blocks alone: names, or `all`
    #[arg(long, value_name = "INPUT,…", value_delimiter = ',')]
    pub(crate) full: Vec<String>,
}

#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
pub(crate) struct TextArgs {
    /// Prompts that the target answers, one JSON object per line: {"prompt": TEXT}, {"messages": […]} or
    /// {"ids": […]}
    #[arg(long, value_name = "FILE.jsonl")]
    pub(crate) prompts: Option<PathBuf>,
    /// Files of text that is gone over as it stands, in windows
    #[arg(long, value_name = "FILE", num_args = 1..)]
    pub(crate) text: Vec<PathBuf>,
}

#[derive(Debug, Args)]
#[group(required = true, multiple = true)]
pub(crate) struct OutputArgs {
    /// File for the second moments
    #[arg(short, long, value_name = "OUT")]
    pub(crate) output: Option<PathBuf>,
    /// Folder for labels, one file per prompt or window: tokens, anchors, tapped states, and the target's
    /// 32 likeliest tokens
    #[arg(long, value_name = "FOLDER")]
    pub(crate) labels: Option<PathBuf>,
}

/// How rows of a block count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Weights {
    /// The pending token and the first draft fully, each further one 0.8 times the one before
    Decay,
    /// All alike
    Uniform,
}

impl Weights {
    /// Of a block of `n` rows.
    pub(crate) fn of(self, n: usize) -> Vec<u64> {
        match self {
            Self::Decay => decaying_weights(n),
            Self::Uniform => vec![WEIGHT_ONE; n],
        }
    }
}

/// A part of the work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Shard {
    /// From 0.
    pub(crate) number: u64,
    pub(crate) of: u64,
}

impl Shard {
    /// Whether a unit is in it.
    pub(crate) fn has(self, unit: u64) -> bool {
        unit % self.of == self.number
    }
}

impl FromStr for Shard {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parsed =
            text.split_once('/').and_then(|(i, n)| Some((i.parse().ok()?, n.parse().ok()?)));
        match parsed {
            Some((i, of)) if (1..=of).contains(&i) => Ok(Self { number: i - 1, of }),
            _ => Err("expected I/N with I from 1 to N".into()),
        }
    }
}

impl CaptureArgs {
    /// The inputs of which everything is wanted.
    ///
    /// # Errors
    /// The name that is none.
    pub(crate) fn full(&self, config: &Config) -> Result<BTreeSet<Input>, String> {
        let all = inputs_of(config);
        let mut full = BTreeSet::new();
        for name in &self.full {
            match Input::parse(name).filter(|input| all.contains(input)) {
                Some(input) => drop(full.insert(input)),
                None if name == "all" => full.extend(&all),
                None => return Err(name.clone()),
            }
        }
        Ok(full)
    }
}

fn block(n: &str) -> Result<usize, String> {
    let n: usize = n.parse().map_err(|_| "expected a number".to_owned())?;
    match BlockHadamard::new(n, Isa::scalar()) {
        Ok(_) if n >= 8 => Ok(n),
        _ => Err("expected a power of two from 8 to 8192".into()),
    }
}
