//! `drafter bench`: how fast this machine runs these models, beside what it could do at most.
//!
//! A pass is held against two limits that the same threads are measured at before and after: its
//! operations on ternary weights at the rate of the dot instruction, and the bytes it has to read at
//! the rate of reading memory. Where it lies above the larger of both, something else costs time.

mod answers;
mod args;
mod limits;
mod passes;
mod resident;
mod table;
mod trials;

use anyhow::Context as _;
use command_line::args::Workers;
use command_line::exit::{Outcome, Usage};
use command_line::{Streams, signals};
use formats::shown_path;
use runtime::backend::Dot;
use runtime::drafter::Drafter;
use runtime::kv::KvType;
use runtime::work::Work;
use serde::Serialize;

pub(crate) use args::BenchArgs;

use super::SCHEMA;
use super::args::{DraftMax, PromptSource};
use super::models::Models;
use super::packs::Packs;
use super::pair::Pair;
use super::prompt::{self, Prompt};
use super::text::Text;
use answers::Answers;
use args::Test;
use limits::{Bound, Machine};
use passes::{Bench, Measured};
use resident::Resident;
use trials::{Interrupted, Trials};

/// Tokens of a prompt that are taken in at a time, as `run` and `serve` do.
const CHUNK: usize = 128;

/// Prompt of models without tokenizer.
const IDS: std::ops::RangeInclusive<u32> = 1..=16;

/// What `--json` prints.
#[derive(Debug, Serialize)]
struct Document {
    schema: u32,
    target: String,
    drafter: Option<String>,
    act: &'static str,
    kv: &'static str,
    load_ms: f64,
    warmup: usize,
    trials: usize,
    machine: Machine,
    passes: Vec<PassRow>,
    answers: Vec<Answers>,
    memory: Memory,
    /// Whether a signal ended it early.
    interrupted: bool,
}

#[derive(Debug, Serialize)]
struct PassRow {
    #[serde(flatten)]
    measured: Measured,
    #[serde(flatten)]
    bound: Bound,
}

/// Memory as computed and as the system counts it.
#[derive(Debug, Clone, Copy, Serialize)]
struct Memory {
    /// Packed ternary weights of both models.
    packed_bytes: usize,
    /// Float weights of both models.
    float_bytes: usize,
    /// Recurrent states of the target.
    recurrent_bytes: usize,
    /// Keys and values of the target, for one position.
    kv_bytes_per_position: usize,
    #[serde(flatten)]
    resident: Resident,
}

/// Runs the command.
pub(crate) fn run(
    args: &BenchArgs,
    workers: &Workers,
    streams: &Streams,
) -> anyhow::Result<Outcome> {
    let pair = Pair::of(&args.models)?;
    let tests = tests(args, &pair)?;
    let settings = settings(args, &pair)?;
    signals::install().context("installing signal handlers")?;
    let dot = Dot::detect(workers.isa());
    let before = Machine::measure(dot, args.models.act())?;
    Resident::forget_peak();
    let packs = Packs::of(&args.models.packs, streams);
    let models = Models::load(&pair, args.models.act(), workers, true, &packs)?;
    let prompt = prompt(args, &pair, &models)?;
    let trials = Trials { streams, warmup: args.warmup.into(), trials: args.trials.into() };
    let kv: KvType = args.models.kv.into();
    let bench = Bench { target: &models.target, drafter: models.drafter.as_ref(), kv, trials };
    let settings = settings_of(settings, &bench);

    let mut results = Results::default();
    let ended = measure(args, &tests, &bench, (&prompt, &settings), &mut results)?;
    let resident = Resident::now();
    let machine = before.best(Machine::measure(dot, args.models.act())?);

    let same = results.answers.iter().all(|answers| answers.same_tokens);
    let bound = |measured: Measured| {
        let bound = Bound::of(measured.need, &machine, measured.times.median_ms);
        (measured, bound)
    };
    let passes: Vec<_> = results.passes.into_iter().map(bound).collect();
    let memory = memory(&bench, resident);
    if streams.json() {
        streams.document(&Document {
            schema: SCHEMA,
            target: shown_path(&pair.target),
            drafter: pair.drafter.as_ref().map(shown_path),
            act: args.models.act().name(),
            kv: args.models.kv.name(),
            load_ms: models.load_ms,
            warmup: trials.warmup,
            trials: trials.trials,
            machine,
            passes: passes
                .into_iter()
                .map(|(measured, bound)| PassRow { measured, bound })
                .collect(),
            answers: results.answers,
            memory,
            interrupted: ended.is_err(),
        })?;
    } else {
        let mut lines = vec![machine.line()];
        if !passes.is_empty() {
            lines.extend(table::passes(&passes));
        }
        if !results.answers.is_empty() {
            lines.extend(table::answers(&results.answers));
        }
        lines.push(memory.line());
        streams.text(&(lines.join("\n") + "\n"))?;
    }
    if !same {
        streams.note("answers differ with the draft length; `drafter verify-exact` says where");
        return Ok(Outcome::No);
    }
    Ok(if ended.is_err() { Outcome::Interrupted } else { Outcome::Done })
}

/// What is measured, in the order of the names.
fn tests(args: &BenchArgs, pair: &Pair) -> anyhow::Result<Vec<Test>> {
    let with_drafter = |test: &Test| matches!(test, Test::Draft | Test::Context);
    let wanted = |test: &Test| args.tests.is_empty() || args.tests.contains(test);
    let tests = Test::ALL.into_iter().filter(wanted);
    if pair.drafter.is_some() {
        return Ok(tests.collect());
    }
    if let Some(test) = args.tests.iter().find(|test| with_drafter(test)) {
        return Err(Usage(format!("--tests {} needs --drafter", test.name())).into());
    }
    Ok(tests.filter(|test| !with_drafter(test)).collect())
}

/// The draft lengths that were asked for.
fn settings(args: &BenchArgs, pair: &Pair) -> anyhow::Result<Vec<DraftMax>> {
    let drafts = |setting: &&DraftMax| **setting != DraftMax::Fixed(0);
    if pair.drafter.is_none() && args.draft_max.iter().any(|setting| drafts(&setting)) {
        return Err(Usage("--draft-max needs --drafter".into()).into());
    }
    Ok(args.draft_max.clone())
}

/// The draft lengths that are measured.
fn settings_of(wanted: Vec<DraftMax>, bench: &Bench<'_>) -> Vec<DraftMax> {
    if !wanted.is_empty() {
        return wanted;
    }
    let mut settings = vec![DraftMax::Fixed(0)];
    if let Some(drafter) = bench.drafter {
        let most = drafter.config().block_size - 1;
        let lengths = [1, 3].into_iter().filter(|length| *length < most).chain([most]);
        settings.extend(lengths.map(DraftMax::Fixed));
        settings.push(DraftMax::Auto);
    }
    settings
}

/// The prompt of answers.
fn prompt(args: &BenchArgs, pair: &Pair, models: &Models) -> anyhow::Result<Vec<u32>> {
    let text = Text::load(&pair.target, models.target.vocab())?;
    let args::BenchPrompt { prompt, file, ids } = &args.prompt;
    let source = PromptSource { prompt: prompt.clone(), file: file.clone(), ids: ids.clone() };
    let given = prompt.is_some() || file.is_some() || ids.is_some();
    let ids = match prompt::built_in().into_iter().next() {
        _ if given => text.encode_plain(&Prompt::read(&source)?)?,
        Some(prompt) if text.has_tokenizer() => text.encode_plain(&prompt)?,
        _ => IDS.collect(),
    };
    let vocab = models.target.vocab();
    if let Some(id) = ids.iter().find(|id| **id as usize >= vocab) {
        return Err(Usage(format!("--ids: {id}: the vocabulary has {vocab} tokens")).into());
    }
    if ids.is_empty() {
        return Err(Usage("the prompt is empty".into()).into());
    }
    let (context, tokens) = (models.target.config().context_length, args.tokens as usize);
    if ids.len() + tokens > context {
        let message = format!(
            "{} tokens of prompt and {tokens} of answer: the target's context has {context} positions",
            ids.len()
        );
        return Err(Usage(message).into());
    }
    Ok(ids)
}

/// What was measured so far.
#[derive(Debug, Default)]
struct Results {
    passes: Vec<Measured>,
    answers: Vec<Answers>,
}

impl Results {
    /// Keeps what was measured, and says it.
    fn keep(
        &mut self,
        streams: &Streams,
        measured: Result<Measured, Interrupted>,
    ) -> Result<(), Interrupted> {
        let measured = measured?;
        let Measured { test, rows, depth, times, .. } = &measured;
        streams.status(&format!("{test}, {rows} rows at {depth}: {:.3} ms", times.median_ms));
        self.passes.push(measured);
        Ok(())
    }
}

/// Measures one test after the other.
fn measure(
    args: &BenchArgs,
    tests: &[Test],
    bench: &Bench<'_>,
    (prompt, settings): (&[u32], &[DraftMax]),
    results: &mut Results,
) -> anyhow::Result<Result<(), Interrupted>> {
    let streams = bench.trials.streams;
    for test in tests {
        let (lengths, depths) = match test {
            Test::Decode | Test::Draft => (&[1][..], &args.depths[..]),
            Test::Verify => (&args.rows[..], &args.depths[..]),
            Test::Context => (&args.rows[..], &args.depths[..1]),
            Test::Prefill => (&args.prefill[..], &args.depths[..]),
            Test::E2e => (&[][..], &[][..]),
        };
        for &depth in depths {
            for &n in lengths {
                let measured = match (test, bench.drafter) {
                    (Test::Decode, _) => bench.decode(depth)?,
                    (Test::Verify, _) => bench.verify(n, depth)?,
                    (Test::Prefill, _) => bench.prefill(n, depth)?,
                    (Test::Draft, Some(drafter)) => bench.draft(drafter, depth)?,
                    (Test::Context, Some(drafter)) => bench.context(drafter, n, depth)?,
                    _ => continue,
                };
                if let Err(interrupted) = results.keep(streams, measured) {
                    return Ok(Err(interrupted));
                }
            }
        }
        if *test == Test::E2e {
            match answers::measure(bench, prompt, args.tokens as usize, settings)? {
                Ok(answers) => results.answers = answers,
                Err(interrupted) => return Ok(Err(interrupted)),
            }
        }
    }
    Ok(Ok(()))
}

fn memory(bench: &Bench<'_>, resident: Resident) -> Memory {
    let target = [bench.target.work(), bench.target.head_work()];
    let all: Work = target.into_iter().chain(bench.drafter.map(Drafter::weights)).sum();
    let config = bench.target.config();
    Memory {
        packed_bytes: all.ternary_bytes,
        float_bytes: all.float_bytes,
        recurrent_bytes: config.recurrent_bytes(),
        kv_bytes_per_position: config.kv_bytes(bench.kv),
        resident,
    }
}

impl Memory {
    /// For people.
    fn line(&self) -> String {
        let mb = |bytes: usize| format!("{:.1} MB", bytes as f64 / 1e6);
        let of = |bytes: Option<u64>| bytes.map_or_else(|| "-".into(), |bytes| mb(bytes as usize));
        let Resident { anonymous_bytes, file_bytes, peak_bytes } = self.resident;
        format!(
            "memory: {} packed weights, {} of state, {:.1} kB of keys and values a position; \
             resident {} anonymous, {} of files, at most {}",
            mb(self.packed_bytes),
            mb(self.recurrent_bytes),
            self.kv_bytes_per_position as f64 / 1e3,
            of(anonymous_bytes),
            of(file_bytes),
            of(peak_bytes)
        )
    }
}
