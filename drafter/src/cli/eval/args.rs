//! The arguments of `drafter eval`.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::Args;
use clap::builder::TypedValueParser as _;
use runtime::quant::ActQuant;

use crate::cli::args::{Kv, OnOff, PackArgs};
use crate::link::store::Name;

#[derive(Debug, Args)]
pub(crate) struct EvalArgs {
    /// A linked pair: its target, and its drafter as the first one
    #[arg(value_name = "LINK", conflicts_with = "target")]
    pub(crate) link: Option<Name>,
    /// Target: a GGUF, or the folder of an MLX 2-bit pack
    #[arg(short, long, value_name = "PATH")]
    pub(crate) target: Option<PathBuf>,
    /// Drafter (repeatable); the first one is what the others are compared with. A name may stand before
    /// it: NAME=PATH
    #[arg(
        short,
        long = "drafter",
        value_name = "[NAME=]PATH",
        value_parser = clap::builder::OsStringValueParser::new().map(NamedPath::from)
    )]
    pub(crate) drafters: Vec<NamedPath>,
    /// Prompts: a JSONL file, or the name of a built-in suite (repeatable) [default: fixture]
    ///
    /// One JSON object per line: {"class": LABEL, "prompt": TEXT}, or {"messages": […]} or {"ids": […]}
    /// in the place of the text. `fixture` has 96 held-out prompts in three classes, as ids for the target
    /// in tests/fixtures/pair.
    #[arg(long = "suite", value_name = "FILE|NAME")]
    pub(crate) suites: Vec<PathBuf>,
    /// Most drafts of a round, several with commas [default: 3 and the block minus one]
    #[arg(long, value_name = "K,…", value_delimiter = ',')]
    pub(crate) draft_max: Vec<usize>,
    /// Most tokens of each answer
    #[arg(
        short = 'n',
        long,
        visible_alias = "max-tokens",
        value_name = "N",
        default_value_t = 128
    )]
    pub(crate) tokens: usize,
    /// Go on past tokens that end an answer
    #[arg(long)]
    pub(crate) ignore_eos: bool,
    /// Whether the model thinks first, in chats [default: as its template says]
    #[arg(long, value_name = "WHETHER")]
    pub(crate) think: Option<OnOff>,
    /// Use the first N prompts of each class only
    #[arg(long, value_name = "N")]
    pub(crate) limit: Option<usize>,
    /// Prompts of each class that the served loop decodes too, to compare ids and rounds; `all` or a
    /// number
    #[arg(long, value_name = "N|all", default_value = "1", value_parser = served)]
    pub(crate) served: Served,
    /// Measure tokens per second too: every prompt is served plainly and with each drafter and draft
    /// length, in ABBA order
    #[arg(long)]
    pub(crate) speed: bool,
    /// Integers that meet ternary matrices: a8 or a16; f32 is the slow oracle
    #[arg(long, value_name = "ACT", default_value = "a8")]
    pub(crate) act: ActQuant,
    /// How keys and values are kept
    #[arg(long, value_name = "TYPE", default_value = "f16")]
    pub(crate) kv: Kv,
    #[command(flatten)]
    pub(crate) packs: PackArgs,
    /// Write what every prompt gave, one JSON object per line
    #[arg(long, value_name = "FILE")]
    pub(crate) records: Option<PathBuf>,
    /// Write a page with charts
    #[arg(long, value_name = "FILE.html")]
    pub(crate) report: Option<PathBuf>,
    /// Replace these files
    #[arg(long)]
    pub(crate) force: bool,
}

/// A path, perhaps with a name before it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NamedPath {
    pub(crate) name: Option<Name>,
    pub(crate) path: PathBuf,
}

impl From<OsString> for NamedPath {
    /// What exists as it stands is a path.
    fn from(text: OsString) -> Self {
        let named = text.to_str().and_then(|text| {
            let (name, path) = text.split_once('=')?;
            Some(Self { name: Some(name.parse().ok()?), path: path.into() })
        });
        match named {
            Some(named) if !PathBuf::from(&text).exists() => named,
            _ => Self { name: None, path: text.into() },
        }
    }
}

/// How many prompts of each class the served loop decodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Served {
    All,
    Some(usize),
}

fn served(text: &str) -> Result<Served, String> {
    if text == "all" {
        return Ok(Served::All);
    }
    text.parse().map(Served::Some).map_err(|_| "expected `all` or a number".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_may_stand_before_a_path() {
        let of = |text: &str| {
            let NamedPath { name, path } = NamedPath::from(OsString::from(text));
            (name.map(|name| name.as_str().to_owned()), path)
        };
        assert_eq!(of("float=/m/d"), (Some("float".into()), "/m/d".into()));
        assert_eq!(of("/m/a=b"), (None, "/m/a=b".into()));
        assert_eq!(of("a=b=c"), (Some("a".into()), "b=c".into()));
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x=y");
        std::fs::write(&path, "").unwrap();
        assert_eq!(NamedPath::from(path.clone().into_os_string()).path, path);
    }
}
