//! Models from command lines.

use std::path::{Path, PathBuf};
use std::time::Instant;

use command_line::Streams;
use command_line::args::Workers;
use command_line::exit::reading;
use formats::dflash2::drafter as file;
use formats::shown_path;
use runtime::backend::{Dot, ModelOnCpu};
use runtime::drafter::Drafter;
use runtime::pack_cache::SourceFile;
use runtime::quant::ActQuant;
use runtime::target::Target;

use super::exit::Advised;
use super::packs::Packs;
use super::pair::Pair;
use crate::link::files::{drafter_files, target_files};

/// A target and perhaps a drafter, loaded.
#[derive(Debug)]
pub(crate) struct Models {
    pub(crate) target: Target,
    pub(crate) drafter: Option<Drafter>,
    pub(crate) load_ms: f64,
}

impl Models {
    /// Loads the target, and the drafter if there is one and it is wanted, with their packed weights.
    pub(crate) fn load(
        pair: &Pair,
        act: ActQuant,
        workers: &Workers,
        draft: bool,
        packs: &Packs<'_>,
    ) -> anyhow::Result<Self> {
        let begin = Instant::now();
        let target = open_target(&pair.target, act, workers, packs)?;
        let drafter = match pair.drafter.as_deref().filter(|_| draft) {
            None => None,
            Some(path) => {
                let config = pair.drafter_config.as_deref();
                Some(open_drafter(path, config, &target, act, workers, packs)?)
            }
        };
        Ok(Self { target, drafter, load_ms: milliseconds(begin) })
    }
}

/// Loads a target with its packed weights.
pub(crate) fn open_target(
    path: &Path,
    act: ActQuant,
    workers: &Workers,
    packs: &Packs<'_>,
) -> anyhow::Result<Target> {
    let backend = ModelOnCpu::new(Dot::detect(workers.isa()));
    let packs = used(packs, act);
    let before = packs.and_then(|packs| packs.sources(&target_files(path).unwrap_or_default()));
    let target = Target::open(path, act, workers.isa(), &backend)
        .map_err(|e| advised(reading(path, e), target_advice(path)))?;
    attach(packs, path, &backend, before)?;
    Ok(target)
}

/// Loads a drafter for a target, with its packed weights.
pub(crate) fn open_drafter(
    path: &Path,
    config: Option<&Path>,
    target: &Target,
    act: ActQuant,
    workers: &Workers,
    packs: &Packs<'_>,
) -> anyhow::Result<Drafter> {
    let backend = ModelOnCpu::new(Dot::detect(workers.isa()));
    let packs = used(packs, act);
    let refused = |e| advised(reading(path, e), drafter_advice(path));
    let opened = file::Drafter::open(path, config).map_err(|e| refused(e.into()))?;
    let before = packs.and_then(|packs| packs.sources(&drafter_files(&opened)));
    let opened = opened.mapped().map_err(|e| refused(e.into()))?;
    let drafter = Drafter::load(&opened, target, act, workers.isa(), &backend).map_err(refused)?;
    attach(packs, path, &backend, before)?;
    Ok(drafter)
}

/// The oracle multiplies what is in the file.
fn used<'a>(packs: &'a Packs<'a>, act: ActQuant) -> Option<&'a Packs<'a>> {
    Some(packs).filter(|_| act != ActQuant::F32)
}

/// Gives a model its packed weights; `sources` are its files as they were before it was opened.
fn attach(
    packs: Option<&Packs<'_>>,
    path: &Path,
    backend: &ModelOnCpu,
    sources: Option<Vec<SourceFile>>,
) -> anyhow::Result<()> {
    let attached = packs.map(|packs| packs.attach(path, &backend.pack(), sources));
    attached.unwrap_or(Ok(())).map_err(|e| match e.downcast::<runtime::Error>() {
        Ok(error) => reading(path, error),
        Err(other) => other,
    })
}

/// Most drafts of a round: what is wanted, as far as the drafter's block has so many. None without a
/// drafter.
pub(crate) fn draft_max(models: &Models, wanted: Option<usize>, streams: &Streams) -> usize {
    let Some(drafter) = &models.drafter else { return 0 };
    let most = drafter.config().block_size - 1;
    if let Some(wanted) = wanted.filter(|wanted| *wanted > most) {
        streams.note(&format!("--draft-max {wanted}: the drafter's block has {most} drafts"));
    }
    wanted.map_or(most, |wanted| wanted.min(most))
}

fn advised(error: anyhow::Error, hint: Option<String>) -> anyhow::Error {
    match hint {
        Some(hint) => Advised { error, hint }.into(),
        None => error,
    }
}

/// What may have been meant by a path that is no target.
fn target_advice(path: &Path) -> Option<String> {
    if formats::dflash2::drafter::Drafter::open(path, None).is_ok() {
        return Some("this is a drafter: give it with --drafter".into());
    }
    file_in(path, "gguf")
}

/// What may have been meant by a path that is no drafter.
fn drafter_advice(path: &Path) -> Option<String> {
    file_in(path, "q4nx").or_else(|| file_in(path, "gguf"))
}

/// Advice to give the file of this kind that lies in the folder that was given.
fn file_in(dir: &Path, extension: &str) -> Option<String> {
    let mut files: Vec<PathBuf> = std::fs::read_dir(dir)
        .ok()?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.extension().is_some_and(|e| e == extension))
        .collect();
    files.sort();
    let first = files.first()?;
    Some(format!("give the path of a file, such as `{}`", shown_path(first)))
}

/// The time since `begin`.
pub(crate) fn milliseconds(begin: Instant) -> f64 {
    begin.elapsed().as_secs_f64() * 1e3
}
