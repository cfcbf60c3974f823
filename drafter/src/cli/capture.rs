//! `drafter capture`.

pub(crate) mod args;
mod atomic;
mod labels;
mod state;
mod work;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use anyhow::Context as _;
use command_line::args::Workers;
use command_line::exit::{Outcome, Usage, reading};
use command_line::{Streams, signals};
use formats::calib::{self, Texts, Units};
use formats::dflash2::drafter as file;
use formats::dflash2::names::check_block;
use formats::digest::of_files;
use formats::{Source, labels as label_file, shown_path};
use runtime::capture::{Capture, Captured};
use runtime::kv::KvType;
use runtime::moments::{Moments, exponents};
use runtime::round::{Limits, Sampler, Sampling};
use serde::Serialize;

use super::SCHEMA;
use super::exit::Input;
use super::models::{self, Models};
use super::packs::Packs;
use super::pair::Pair;
use super::text::Text;
use crate::link::files::{Interrupted, target_files};
use args::CaptureArgs;
use labels::Folder;
use state::State;
use work::{Unit, Work};

const PROGRAM: &str = concat!("drafter ", env!("CARGO_PKG_VERSION"));

/// What `--json` prints.
#[derive(Debug, Serialize)]
struct Document {
    schema: u32,
    target: String,
    drafter: String,
    act: &'static str,
    kv: &'static str,
    block: usize,
    output: Option<String>,
    labels: Option<String>,
    units: Counts,
    positions: u64,
    rounds: u64,
    tokens_per_round: Option<f64>,
    moments_bytes: usize,
    seconds: f64,
}

/// Prompts or windows.
#[derive(Debug, Serialize)]
struct Counts {
    /// That there are.
    all: u64,
    /// Of this shard.
    shard: usize,
    /// Done, with those of earlier runs.
    done: u64,
    /// Done by earlier runs.
    resumed: u64,
}

/// Runs the command.
pub(crate) fn run(
    args: &CaptureArgs,
    workers: &Workers,
    streams: &Streams,
) -> anyhow::Result<Outcome> {
    let begin = Instant::now();
    let pair = Pair::of(&args.models)?;
    let Some(path) = pair.drafter.clone() else {
        return Err(Usage("capture needs --drafter".into()).into());
    };
    let sampling = args.sampling.sampling();
    Sampler::new(sampling).map_err(|e| Usage(e.to_string()))?;
    let state = args.outputs.output.as_deref();
    let mut state = state.map(|out| State::of(out, args.force)).transpose()?;
    signals::install().context("installing signal handlers")?;

    let opened = file::Drafter::open(&path, pair.drafter_config.as_deref())
        .map_err(|e| reading(&path, e))?;
    if state.is_some() {
        if opened.rotation.is_some() {
            let message =
                "expected a float drafter, found a ternary one; it can have --labels only";
            return Err(Input(format!("`{}`: {message}", shown_path(&path))).into());
        }
        check_block(&path, &opened.config, args.block)?;
    }
    let full = args.full(&opened.config).map_err(|name| {
        Usage(format!("--full: `{name}` is no input; they are `all`, `fc`, `layers.0.qkv`, …"))
    })?;
    let packs = Packs::of(&args.models.packs, streams);
    let mut models = Models::load(&pair, args.models.act(), workers, true, &packs)?;
    let text = Text::load(&pair.target, models.target.vocab())?;
    let wanted = args.draft_max.map(usize::from);
    let draft_max = models::draft_max(&models, wanted, streams);
    let work = Work::read(args, &text, draft_max)?;
    let kv: KvType = args.models.kv.into();

    let target_sources = target_files(&pair.target)?;
    let target_sources = target_sources.iter().map(Source::open).collect::<Result<Vec<_>, _>>()?;
    let target_sha256 = hash("target", &target_sources, streams)?;
    let drafter_sha256 = hash("drafter", &opened.files, streams)?;
    let lineage = calib::Models {
        target_sha256,
        drafter_sha256,
        act: args.models.act().name().into(),
        kv: args.models.kv.name().into(),
        block: args.block,
        row_weights: args.weights.of(opened.config.block_size),
    };
    let folder = args.outputs.labels.as_deref().map(|path| {
        let document = label_file::Document {
            program: PROGRAM.into(),
            target_sha256: lineage.target_sha256.clone(),
            drafter_sha256: lineage.drafter_sha256.clone(),
            act: lineage.act.clone(),
            kv: lineage.kv.clone(),
            target_layer_ids: opened.config.target_layer_ids.clone(),
            texts: work.texts.clone(),
            first: 0,
        };
        Folder::open(path, args.force, document)
    });
    let folder = folder.transpose()?;

    let Some(drafter) = &mut models.drafter else { unreachable!("loaded above") };
    let mut document = calib::Document {
        program: PROGRAM.into(),
        models: lineage,
        texts: vec![work.texts.clone()],
        inputs: Default::default(),
    };
    let mut moments = None;
    let mut moments_bytes = 0;
    if let Some(state) = &mut state {
        moments_bytes = Moments::bytes(&opened.config, args.block, &full);
        let megabytes = moments_bytes as f64 / 1e6;
        streams.status(&format!("memory: {megabytes:.0} MB of moments and rows beside the models"));
        let exponents = exponents(&models.target, drafter, kv)?;
        let row_weights = document.models.row_weights.clone();
        let isa = workers.isa();
        let new = Moments::new(&opened.config, args.block, row_weights, &full, &exponents, isa)?;
        document.inputs = new.records();
        if state.resume(&mut document, &new, args.shard)? {
            let done = document.texts[0].units.count();
            streams.note(&format!("going on after {done} units of `{}`", shown_path(state.path())));
        } else {
            // Shows before the work whether it can be saved.
            state.save(&document, &new)?;
        }
        let new = Arc::new(new);
        drafter.set_inputs(Some(new.clone()));
        moments = Some(new);
    }
    let Some(drafter) = &models.drafter else { unreachable!("loaded above") };
    let mut run = Run {
        capture: Capture {
            target: &models.target,
            drafter,
            kv,
            draft_max,
            coupling: args.sampling.coupling(),
            top: if folder.is_some() { labels::TOP.min(models.target.vocab()) } else { 0 },
        },
        sampling,
        limits: Limits {
            stop: if args.ignore_eos { Default::default() } else { text.stops().clone() },
            ..Limits::default()
        },
        moments: moments.as_deref(),
        state,
        folder,
        document,
        begin: Instant::now(),
        resumed: 0,
    };
    let ended = run.all(&work, args, streams)?;
    streams.progress("");
    let texts = &run.document.texts[0];
    let shown = |path: &Option<PathBuf>| path.as_ref().map(shown_path);
    let document = Document {
        schema: SCHEMA,
        target: shown_path(&pair.target),
        drafter: shown_path(&path),
        act: args.models.act().name(),
        kv: args.models.kv.name(),
        block: args.block,
        output: shown(&args.outputs.output),
        labels: shown(&args.outputs.labels),
        units: Counts {
            all: texts.n_units,
            shard: (0..texts.n_units).filter(|unit| args.shard.has(*unit)).count(),
            done: texts.units.count(),
            resumed: run.resumed,
        },
        positions: texts.positions,
        rounds: texts.rounds,
        tokens_per_round: (texts.rounds > 0).then(|| texts.positions as f64 / texts.rounds as f64),
        moments_bytes,
        seconds: begin.elapsed().as_secs_f64(),
    };
    if streams.json() {
        streams.document(&document)?;
    } else {
        streams.text(&format!(
            "{} of {} units: {} positions in {} rounds, {:.3} tokens per round\n",
            document.units.done,
            document.units.shard,
            document.positions,
            document.rounds,
            document.tokens_per_round.unwrap_or(0.0)
        ))?;
    }
    if !ended {
        streams.note("interrupted; the same command goes on with what was saved");
        return Ok(Outcome::Interrupted);
    }
    Ok(Outcome::Done)
}

struct Run<'a> {
    capture: Capture<'a>,
    sampling: Sampling,
    limits: Limits,
    moments: Option<&'a Moments>,
    state: Option<State>,
    folder: Option<Folder>,
    document: calib::Document,
    begin: Instant,
    resumed: u64,
}

impl Run<'_> {
    /// All units that are left; whether all are done.
    fn all(&mut self, work: &Work, args: &CaptureArgs, streams: &Streams) -> anyhow::Result<bool> {
        let n = work.units.len();
        let mut left: Vec<u64> = (0..n as u64).filter(|unit| args.shard.has(*unit)).collect();
        left.retain(|unit| !self.document.texts[0].units.contains(*unit));
        self.resumed = self.document.texts[0].units.count();
        if self.moments.is_none() {
            for unit in std::mem::take(&mut left) {
                match self.folder.as_ref().map_or(Ok(None), |folder| folder.done(unit))? {
                    Some(done) => {
                        self.add(unit, &done);
                        self.resumed += 1;
                    }
                    None => left.push(unit),
                }
            }
        }
        let mut saved = self.document.texts[0].clone();
        for (done, unit) in left.iter().enumerate() {
            streams.progress(&self.progress(done, left.len()));
            let at = usize::try_from(*unit).unwrap_or(usize::MAX);
            let here = || format!("unit {} of {n}", unit + 1);
            let captured = self.unit(*unit, &work.units[at]).with_context(here)?;
            let Some(captured) = captured.filter(|_| !signals::received()) else {
                // What is in memory has a part of a unit, or may be lost: what counts is on disk.
                streams.progress("");
                if let Some(state) = &self.state {
                    let (n, path) = (saved.units.count(), shown_path(state.path()));
                    streams.note(&format!("{n} units are in `{path}`"));
                    self.document.texts[0] = saved;
                }
                return Ok(false);
            };
            let mut of_unit = Units::default();
            of_unit.insert(*unit);
            let texts = Texts {
                units: of_unit,
                positions: captured.positions as u64,
                rounds: captured.rounds as u64,
                context_rows: captured.context_rows as u64,
                ..work.texts.clone()
            };
            if let Some(folder) = &self.folder {
                folder.write(*unit, texts.clone(), &captured)?;
            }
            self.add(*unit, &texts);
            if let (Some(state), Some(moments)) = (&mut self.state, self.moments)
                && state.is_due()
            {
                state.save(&self.document, moments)?;
                saved = self.document.texts[0].clone();
            }
        }
        if let (Some(state), Some(moments)) = (&mut self.state, self.moments) {
            state.save(&self.document, moments)?;
            state.publish()?;
        }
        Ok(true)
    }

    fn unit(&self, number: u64, unit: &Unit) -> anyhow::Result<Option<Captured>> {
        if unit.positions == 0 {
            return Ok(Some(Captured::default()));
        }
        let cancelled = &signals::received;
        let captured = match unit.lead {
            Some(lead) => self.capture.text(&unit.ids, lead, cancelled)?,
            None => {
                // The first token of an answer belongs to no round.
                let max_tokens = usize::try_from(unit.positions + 1).ok();
                let limits = Limits { max_tokens, ..self.limits.clone() };
                let seed = self.sampling.seed.wrapping_add(number);
                let mut sampler = Sampler::new(Sampling { seed, ..self.sampling })?;
                self.capture.answer(&unit.ids, &limits, &mut sampler, cancelled)?
            }
        };
        if let (Some(moments), Some(_)) = (self.moments, &captured) {
            moments.end_unit()?;
        }
        Ok(captured)
    }

    fn add(&mut self, unit: u64, done: &Texts) {
        let texts = &mut self.document.texts[0];
        texts.units.insert(unit);
        texts.positions += done.positions;
        texts.rounds += done.rounds;
        texts.context_rows += done.context_rows;
    }

    fn progress(&self, done: usize, n: usize) -> String {
        let mut text = format!("unit {} of {n}", done + 1);
        if done > 0 {
            let seconds = self.begin.elapsed().as_secs_f64() / done as f64 * (n - done) as f64;
            text += &match seconds as u64 {
                0..90 => format!(", {seconds:.0} s left"),
                _ => format!(", {:.0} min left", seconds / 60.0),
            };
        }
        text
    }
}

/// The SHA-256 of a model's files.
fn hash(what: &str, files: &[Source], streams: &Streams) -> anyhow::Result<String> {
    let total: u64 = files.iter().map(Source::len).sum();
    let sha256 = of_files(files, &mut |done| {
        streams.progress(&format!("hashing the {what}: {} %", 100 * done / total.max(1)));
        !signals::received()
    })?;
    streams.progress("");
    Ok(sha256.ok_or(Interrupted)?)
}
