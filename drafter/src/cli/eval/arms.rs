//! The drafters that are compared, and the target that they share.

use std::collections::BTreeSet;
use std::path::PathBuf;

use command_line::Streams;
use command_line::args::Workers;
use command_line::exit::{Usage, reading};
use formats::Location;
use formats::dflash2::drafter as file;
use runtime::drafter::Drafter;
use runtime::quant::ActQuant;
use runtime::target::Target;
use serde::Serialize;

use super::args::EvalArgs;
use crate::cli::link::known;
use crate::cli::models::open_drafter;
use crate::cli::packs::Packs;
use crate::link::files::{Known, drafter_files, target_files};
use crate::link::places::Places;
use crate::link::store::{Name, Store};

/// One drafter.
#[derive(Debug)]
pub(crate) struct Arm {
    pub(crate) name: String,
    pub(crate) drafter: Drafter,
}

/// Where the models are.
#[derive(Debug)]
pub(crate) struct Paths {
    pub(crate) target: PathBuf,
    pub(crate) drafters: Vec<DrafterPath>,
}

#[derive(Debug)]
pub(crate) struct DrafterPath {
    pub(crate) name: String,
    pub(crate) path: PathBuf,
    pub(crate) config: Option<PathBuf>,
}

/// The paths of the arguments; a link gives the target and the first drafter.
pub(crate) fn paths(args: &EvalArgs) -> anyhow::Result<Paths> {
    let mut drafters: Vec<(Option<Name>, PathBuf, Option<PathBuf>)> = Vec::new();
    let target = if let Some(target) = &args.target {
        target.clone()
    } else {
        let store = Store::in_dir(Places::of_process().links)?;
        let name = match &args.link {
            Some(name) => name.clone(),
            None => store.default()?.ok_or_else(|| {
                Usage("which models? Give --target PATH, or the name of a link".into())
            })?,
        };
        let link = store.load(&name)?;
        link.check()?;
        let config = link.drafter_config.map(|config| config.0);
        drafters.push((Some(link.name), link.drafter.path.0, config));
        link.target.path.0
    };
    drafters.extend(args.drafters.iter().map(|d| (d.name.clone(), d.path.clone(), None)));
    if drafters.is_empty() {
        return Err(Usage("eval needs --drafter".into()).into());
    }
    let mut taken = BTreeSet::new();
    let named = drafters.into_iter().map(|(name, path, config)| {
        let name = name.unwrap_or_else(|| Name::for_drafter(&path)).as_str().to_owned();
        let name = unique(&name, &mut taken);
        DrafterPath { name, path, config }
    });
    Ok(Paths { drafters: named.collect(), target })
}

/// The name, with a number where it is taken.
fn unique(name: &str, taken: &mut BTreeSet<String>) -> String {
    let numbered = (2..).map(|n| format!("{name}-{n}"));
    let free = std::iter::once(name.to_owned()).chain(numbered).find(|n| !taken.contains(n));
    let free = free.unwrap_or_else(|| name.to_owned());
    taken.insert(free.clone());
    free
}

/// Loads the drafters. One that cannot be loaded ends the evaluation: a comparison without it would be
/// another one.
pub(crate) fn load(
    paths: &Paths,
    target: &Target,
    act: ActQuant,
    workers: &Workers,
    packs: &Packs<'_>,
) -> anyhow::Result<Vec<Arm>> {
    let open = |d: &DrafterPath| {
        let drafter = open_drafter(&d.path, d.config.as_deref(), target, act, workers, packs)?;
        Ok(Arm { name: d.name.clone(), drafter })
    };
    paths.drafters.iter().map(open).collect()
}

/// The draft lengths in the order that was asked for, each once.
pub(crate) fn draft_lengths(wanted: &[usize], arms: &[Arm]) -> anyhow::Result<Vec<usize>> {
    let most = |arm: &Arm| arm.drafter.config().block_size - 1;
    let least = arms.iter().map(most).min().unwrap_or(0);
    if wanted.is_empty() {
        return Ok(if least > 3 { vec![3, least] } else { vec![least] });
    }
    let mut lengths = Vec::new();
    for length in wanted {
        if let Some(arm) = arms.iter().find(|arm| *length > most(arm)) {
            return Err(Usage(format!(
                "--draft-max {length}: the block of `{}` has at most {} drafts",
                arm.name,
                most(arm)
            ))
            .into());
        }
        if *length == 0 {
            return Err(Usage("--draft-max 0: nothing is drafted".into()).into());
        }
        if !lengths.contains(length) {
            lengths.push(*length);
        }
    }
    Ok(lengths)
}

/// What the models' files are known by.
#[derive(Debug, Serialize)]
pub(crate) struct Files {
    pub(crate) target: Vec<FileHash>,
    pub(crate) drafters: Vec<Vec<FileHash>>,
}

/// One file, all of whose bytes were hashed.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct FileHash {
    pub(crate) path: Location,
    pub(crate) size_bytes: u64,
    pub(crate) sha256: Option<String>,
}

impl From<Known> for FileHash {
    fn from(Known { path, size_bytes, sha256, .. }: Known) -> Self {
        Self { path, size_bytes, sha256 }
    }
}

/// Every file of the models.
#[derive(Debug)]
pub(crate) struct Inputs {
    target: Vec<PathBuf>,
    drafters: Vec<Vec<PathBuf>>,
}

/// Finds the files that belong to the models.
pub(crate) fn inputs(paths: &Paths) -> anyhow::Result<Inputs> {
    let of_drafter = |d: &DrafterPath| {
        let opened = file::Drafter::open(&d.path, d.config.as_deref());
        Ok(drafter_files(&opened.map_err(|e| reading(&d.path, e))?))
    };
    Ok(Inputs {
        target: target_files(&paths.target)?,
        drafters: paths.drafters.iter().map(of_drafter).collect::<anyhow::Result<_>>()?,
    })
}

impl Inputs {
    /// All of them.
    pub(crate) fn all(&self) -> impl Iterator<Item = &PathBuf> {
        self.target.iter().chain(self.drafters.iter().flatten())
    }

    /// Reads and hashes them.
    pub(crate) fn hash(&self, streams: &Streams) -> anyhow::Result<Files> {
        let hash = |files: &Vec<PathBuf>| -> anyhow::Result<Vec<FileHash>> {
            files.iter().map(|path| Ok(known(path, true, streams)?.into())).collect()
        };
        Ok(Files {
            target: hash(&self.target)?,
            drafters: self.drafters.iter().map(hash).collect::<anyhow::Result<_>>()?,
        })
    }
}
