//! Models from command lines.

use std::path::{Path, PathBuf};
use std::time::Instant;

use command_line::Streams;
use command_line::args::Workers;
use command_line::exit::reading;
use formats::dflash2::drafter as file;
use formats::shown_path;
use runtime::backend::{Backend, Dot, ModelOnCpu, ModelOnNpu};
use runtime::drafter::Drafter;
use runtime::pack_cache::Pack;
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

/// What multiplies the matrices of one model, and can be given packed weights for them.
pub(crate) trait OneModel: Backend {
    /// The matrices that were taken over until now.
    fn pack(&self) -> Pack;

    /// Puts the weights where they are multiplied.
    fn load(&self) -> Result<(), runtime::Error>;
}

impl OneModel for ModelOnCpu {
    fn pack(&self) -> Pack {
        Self::pack(self)
    }

    fn load(&self) -> Result<(), runtime::Error> {
        Ok(())
    }
}

impl OneModel for ModelOnNpu {
    fn pack(&self) -> Pack {
        Self::pack(self)
    }

    fn load(&self) -> Result<(), runtime::Error> {
        Self::load(self)
    }
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
        // The scalar forms multiply what is in the file.
        let packs = Some(packs).filter(|_| act != ActQuant::F32 && !act.is_npu());
        let backend = || ModelOnCpu::new(Dot::detect(workers.isa()));
        Self::load_on(&backend, pair, act, workers, draft, packs)
    }

    /// [`Models::load`] on other backends than the CPU's; each model has one.
    pub(crate) fn load_on<B: OneModel>(
        backend: &dyn Fn() -> B,
        pair: &Pair,
        act: ActQuant,
        workers: &Workers,
        draft: bool,
        packs: Option<&Packs<'_>>,
    ) -> anyhow::Result<Self> {
        let begin = Instant::now();
        let isa = workers.isa();
        let sources = |files: &[PathBuf]| packs.and_then(|packs| packs.sources(files));
        let attach = |path: &Path, backend: &B, sources| {
            let attached = packs.map(|packs| packs.attach(path, &backend.pack(), sources));
            attached.unwrap_or(Ok(())).map_err(|e| match e.downcast::<runtime::Error>() {
                Ok(error) => reading(path, error),
                Err(other) => other,
            })?;
            backend.load().map_err(|e| reading(path, e))
        };

        let (on_target, path) = (backend(), &pair.target);
        let before = sources(&target_files(path).unwrap_or_default());
        let target = Target::open(path, act, isa, &on_target)
            .map_err(|e| advised(reading(path, e), target_advice(path)))?;
        attach(path, &on_target, before)?;
        let drafter = match pair.drafter.as_deref().filter(|_| draft) {
            None => None,
            Some(path) => {
                let on_drafter = backend();
                let config = pair.drafter_config.as_deref();
                let refused = |e| advised(reading(path, e), drafter_advice(path));
                let opened = file::Drafter::open(path, config).map_err(|e| refused(e.into()))?;
                let before = sources(&drafter_files(&opened));
                let opened = opened.mapped().map_err(|e| refused(e.into()))?;
                let drafter = Drafter::load(&opened, &target, act, isa, &on_drafter);
                let drafter = drafter.map_err(refused)?;
                attach(path, &on_drafter, before)?;
                Some(drafter)
            }
        };
        Ok(Self { target, drafter, load_ms: milliseconds(begin) })
    }
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
