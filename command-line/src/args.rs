//! Arguments that every command of both programs takes, and how all of them are parsed.

use clap::builder::Resettable;
use clap::error::ContextValue;
use clap::{Args, Parser, ValueEnum};
use formats::shown_path;
use hadamard::{Isa, Level};

/// Where the work is done.
#[derive(Debug, Args)]
pub struct Workers {
    /// Worker threads, at most 256; 0 means one per core
    #[arg(
        long,
        value_name = "N",
        default_value_t = 0,
        global = true,
        env = "TERNARIZE_THREADS",
        value_parser = clap::value_parser!(u16).range(0..=256)
    )]
    threads: u16,
    /// Highest instruction set to use: scalar, avx2 or avx512 (for bug reports)
    #[arg(long, value_name = "LEVEL", global = true, env = "TERNARIZE_ISA")]
    isa: Option<Level>,
}

impl Workers {
    /// The number of worker threads.
    #[must_use]
    pub fn threads(&self) -> usize {
        match self.threads {
            0 => std::thread::available_parallelism().map_or(1, usize::from),
            n => usize::from(n),
        }
    }

    /// The instruction set.
    #[must_use]
    pub fn isa(&self) -> Isa {
        self.isa.map_or_else(Isa::detect, Isa::at_most)
    }
}

/// What is printed.
#[derive(Debug, Args)]
pub struct Output {
    /// Print one JSON document on standard output
    #[arg(long, global = true)]
    pub json: bool,
    /// Print results and errors only
    #[arg(short, long, global = true)]
    pub quiet: bool,
    /// When to colour messages
    #[arg(long, value_name = "WHEN", default_value = "auto", global = true)]
    pub color: ColorWhen,
}

/// When messages are coloured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ColorWhen {
    /// On a terminal.
    Auto,
    /// Everywhere.
    Always,
    /// Nowhere.
    Never,
}

/// Parses the command line and the variables that stand in for it.
///
/// # Errors
/// What the parser says, also where the help or the version is asked for.
pub fn parse<C: Parser>() -> Result<C, clap::Error> {
    // A variable that is set to nothing is not set.
    let command = C::command().mut_args(|arg| {
        let is_empty = arg.get_env().and_then(std::env::var_os).is_some_and(|v| v.is_empty());
        if is_empty { arg.env(Resettable::<clap::builder::OsStr>::Reset) } else { arg }
    });
    command
        .try_get_matches()
        .and_then(|mut matches| C::from_arg_matches_mut(&mut matches))
        .map_err(escaped)
}

/// Arguments may be names of files, with whatever these hold.
fn escaped(mut error: clap::Error) -> clap::Error {
    let texts: Vec<_> = error
        .context()
        .filter_map(|(kind, value)| match value {
            ContextValue::String(text) => Some((kind, ContextValue::String(shown_path(text)))),
            ContextValue::Strings(texts) => {
                Some((kind, ContextValue::Strings(texts.iter().map(shown_path).collect())))
            }
            _ => None,
        })
        .collect();
    for (kind, text) in texts {
        error.insert(kind, text);
    }
    error
}
