//! `drafter run`.

use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::time::Instant;

use anyhow::Context as _;
use command_line::args::Workers;
use command_line::exit::{Outcome, Usage};
use command_line::{Streams, signals};
use formats::shown_path;
use runtime::draft_length::Adaptive;
use runtime::drafter::{Context, top_k};
use runtime::profile::Profile;
use runtime::round::{
    DrafterProposer, Finish, Generated, Limits, Observer, Sampler, Session, Speculation,
};
use runtime::stats::{DraftStats, SpecStatus, Timings};
use runtime::target::State;
use serde::Serialize;

use super::SCHEMA;
use super::args::{DraftMax, PromptSource, RunArgs, Spec};
use super::device;
use super::exit::Input;
use super::memory::Memory;
use super::models::{self, Models, milliseconds};
use super::packs::Packs;
use super::pair::Pair;
use super::profile;
use super::prompt::Prompt;
use super::summary::{self, warn_of_a_wrong_pair};
use super::text::{Streamer, Text};

/// Prompt tokens of a pass: enough to share the decoding of weights, few enough to show progress.
const CHUNK: usize = 128;

/// What `--json` prints.
#[derive(Debug, Serialize)]
struct Document<'a> {
    schema: u32,
    target: String,
    drafter: Option<String>,
    device: device::Status,
    act: &'static str,
    kv: &'static str,
    prompt_ids: &'a [u32],
    ids: &'a [u32],
    /// Nothing when the model has no tokenizer.
    text: Option<&'a str>,
    finish_reason: &'static str,
    completion_tokens: usize,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    top_logits: Vec<Vec<TopLogit>>,
    timings: &'a Timings,
    memory: Memory,
    spec: &'a SpecStatus,
    #[serde(skip_serializing_if = "Option::is_none")]
    profile: Option<Vec<profile::Part>>,
}

#[derive(Debug, Clone, Copy, Serialize)]
struct TopLogit {
    id: u32,
    logit: f32,
}

/// Runs the command.
pub(crate) fn run(args: &RunArgs, workers: &Workers, streams: &Streams) -> anyhow::Result<Outcome> {
    let pair = Pair::to_run(&args.models, args.spec)?;
    let mut verifier = Sampler::new(args.sampling.sampling()).map_err(|e| Usage(e.to_string()))?;
    let prompt = Prompt::read(&args.prompt.source)?;
    signals::install().context("installing signal handlers")?;

    let packs = Packs::of(&args.models.packs, streams);
    let draft = args.spec != Spec::Off;
    let mut loaded =
        device::load(&pair, &args.models, &args.device, workers, draft, &packs, streams)?;
    let act = loaded.act;
    let models = &mut loaded.models;
    let text = Text::load(&pair.target, models.target.vocab())?;
    let ids = text.encode(&prompt, &args.prompt)?;
    check(args, &ids, models, streams)?;
    let limits = Limits { prefill_chunk: CHUNK, ..args.generation.limits(text.stops()) };

    let times = if args.profile { Profile::new() } else { Profile::default() };
    models.target.set_profile(times.clone());
    if let Some(drafter) = &mut models.drafter {
        drafter.set_profile(times.clone());
    }
    let kv = args.models.kv.into();
    let memory = Memory::of(models, kv, args.generation.ctx);
    streams.status(&memory.line());
    let mut proposer = models.drafter.as_ref().map(|drafter| DrafterProposer {
        drafter,
        context: Context::new(drafter.config(), kv),
        coupling: args.sampling.coupling(),
    });
    let draft_max = models::draft_max(models, args.draft_max.limit(), streams);
    let mut length = Adaptive::new(draft_max);
    let speculation = match (&mut proposer, args.draft_max) {
        (None, _) => Speculation::Off,
        (Some(proposer), DraftMax::Fixed(_)) => Speculation::On { proposer, max: draft_max },
        (Some(proposer), DraftMax::Auto) => {
            Speculation::Auto { proposer, length: &mut length, catch_up: false }
        }
    };

    let begin = Instant::now();
    let mut watcher = Watcher {
        streams,
        streamer: text.streamer(args.special),
        stops: &limits.stop,
        begin,
        prompt_ms: 0.0,
        top: args.top_logits,
        top_logits: Vec::new(),
        failed: None,
    };
    let mut session = Session { state: State::new(models.target.config(), kv), pending: None };
    let generated = session.generate(
        &models.target,
        &ids,
        &limits,
        &mut verifier,
        speculation,
        &mut watcher,
    )?;
    let total_ms = milliseconds(begin);
    watcher.finish()?;

    let speculating = models.drafter.is_some();
    let prompt_time = (ids.len(), watcher.prompt_ms);
    let predicted_ms = (total_ms - watcher.prompt_ms).max(0.0);
    let timings = Timings {
        load_ms: Some(models.load_ms),
        ..Timings::new(prompt_time, predicted_ms, &generated, speculating)
    };
    let spec = status(args, speculating, draft_max, &generated, models, ids.len());
    loaded.note_replays(streams);
    if streams.json() {
        streams.document(&Document {
            schema: SCHEMA,
            target: shown_path(&pair.target),
            drafter: pair.drafter.as_ref().map(shown_path),
            device: loaded.status(),
            act: act.name(),
            kv: args.models.kv.name(),
            prompt_ids: &ids,
            ids: &generated.ids,
            text: watcher.streamer.as_ref().map(Streamer::text),
            finish_reason: finish_reason(generated.finish),
            completion_tokens: generated.ids.len(),
            top_logits: std::mem::take(&mut watcher.top_logits),
            timings: &timings,
            memory,
            spec: &spec,
            profile: args.profile.then(|| profile::document(&times.times())),
        })?;
    }
    if args.profile {
        profile::lines(&times.times()).iter().for_each(|line| streams.status(line));
    }
    report(streams, &generated, &timings, &spec);
    Ok(match generated.finish {
        Finish::Cancelled => Outcome::Interrupted,
        _ => Outcome::Done,
    })
}

/// Refuses what the arguments alone make impossible; says what of them has no effect.
fn check(args: &RunArgs, ids: &[u32], models: &Models, streams: &Streams) -> anyhow::Result<()> {
    let vocab = models.target.vocab();
    match &args.prompt.source {
        PromptSource { file: Some(path), .. } if ids.is_empty() => {
            let path = shown_path(path);
            return Err(Input(format!("`{path}`: expected a prompt, found nothing")).into());
        }
        _ if ids.is_empty() => return Err(Usage("the prompt is empty".into()).into()),
        PromptSource { ids: Some(ids), .. } => {
            if let Some(id) = ids.iter().find(|id| **id as usize >= vocab) {
                let message = format!("--ids: {id}: the vocabulary has {vocab} tokens");
                return Err(Usage(message).into());
            }
        }
        _ => {}
    }
    let context = models.target.config().context_length;
    if let Some(wanted) = args.generation.ctx.filter(|wanted| *wanted > context) {
        streams.note(&format!("--ctx {wanted}: the target's context has {context} positions"));
    }
    Ok(())
}

fn report(streams: &Streams, generated: &Generated, timings: &Timings, spec: &SpecStatus) {
    if !streams.json() {
        summary::lines(timings).iter().for_each(|line| streams.status(line));
        streams.status(&format!("speculation: {} ({})", spec.state, spec.reason));
    }
    match generated.finish {
        Finish::Context => streams.note("the context is full"),
        Finish::Cancelled => {
            streams.note(&format!("interrupted after {} tokens", generated.ids.len()));
        }
        Finish::Stop | Finish::Length => {}
    }
    warn_of_a_wrong_pair(&DraftStats::of(generated), streams);
}

/// Whether tokens were drafted, and why not.
fn status(
    args: &RunArgs,
    speculating: bool,
    draft_max: usize,
    generated: &Generated,
    models: &Models,
    prompt: usize,
) -> SpecStatus {
    if !speculating {
        return SpecStatus::off(if args.spec == Spec::Off { "--spec off" } else { "no --drafter" });
    }
    if draft_max == 0 {
        return SpecStatus::off("--draft-max 0");
    }
    let end = models.drafter.as_ref().map_or(0, |d| d.config().max_position_embeddings);
    let status = SpecStatus::of(draft_max, prompt + generated.ids.len(), end);
    if args.draft_max != DraftMax::Auto || status.state != "active" {
        return status;
    }
    let rounds = &generated.rounds;
    let drafts: usize = rounds.iter().map(|round| round.drafted).sum();
    let without = rounds.iter().filter(|round| round.drafted == 0).count();
    let reason = format!(
        "auto: {:.1} drafts a round, {without} of {} rounds without",
        drafts as f64 / rounds.len().max(1) as f64,
        rounds.len()
    );
    SpecStatus { reason, ..status }
}

/// The names of OpenAI's API.
fn finish_reason(finish: Finish) -> &'static str {
    match finish {
        Finish::Stop => "stop",
        Finish::Length | Finish::Context => "length",
        Finish::Cancelled => "cancelled",
    }
}

/// Prints text as it comes, and keeps the time.
struct Watcher<'a> {
    streams: &'a Streams,
    streamer: Option<Streamer>,
    stops: &'a BTreeSet<u32>,
    begin: Instant,
    prompt_ms: f64,
    top: usize,
    top_logits: Vec<Vec<TopLogit>>,
    failed: Option<anyhow::Error>,
}

impl Watcher<'_> {
    fn print(&mut self, id: u32) -> anyhow::Result<()> {
        let Some(streamer) = &mut self.streamer else {
            return if self.streams.json() { Ok(()) } else { self.streams.text(&format!("{id} ")) };
        };
        let piece = streamer.push(id)?;
        if self.streams.json() { Ok(()) } else { self.streams.text(&piece) }
    }

    /// Prints what was held back, and ends the line.
    fn finish(&mut self) -> anyhow::Result<()> {
        if let Some(error) = self.failed.take() {
            return Err(error);
        }
        let rest = self.streamer.as_mut().map_or_else(String::new, Streamer::finish);
        if self.streams.json() { Ok(()) } else { self.streams.text(&(rest + "\n")) }
    }
}

impl Observer for Watcher<'_> {
    fn prefill(&mut self, done: usize, total: usize) -> ControlFlow<()> {
        if total > CHUNK {
            self.streams.progress(&format!("prompt: {done} of {total} tokens"));
        }
        if done == total {
            if total > CHUNK {
                self.streams.progress("");
            }
            self.prompt_ms = milliseconds(self.begin);
        }
        if signals::received() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }

    fn token(&mut self, id: u32, logits: &[f32]) -> ControlFlow<()> {
        if self.top > 0 {
            let best = top_k(logits, self.top).into_iter();
            let best = best.map(|id| TopLogit { id, logit: logits[id as usize] });
            self.top_logits.push(best.collect());
        }
        if !self.stops.contains(&id)
            && let Err(error) = self.print(id)
        {
            self.failed = Some(error);
            return ControlFlow::Break(());
        }
        if signals::received() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }
}
