//! `drafter eval`: tokens per round of one drafter, or of several on the same prompts.
//!
//! The target decodes every prompt once; the drafters walk along its text ([`runtime::walk`]). For some
//! prompts, or all, the served loop runs as well, and must give the same ids and rounds.

mod args;
mod arms;
mod document;
mod figures;
mod output;
mod page;
mod power;
mod records;
mod served;
mod suite;
mod table;
mod verdict;

use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::Context as _;
use command_line::args::Workers;
use command_line::exit::{Outcome, Usage};
use command_line::{Streams, signals};
use runtime::drafter::Drafter;
use runtime::round::{Finish, Round};
use runtime::walk::Decoding;

pub(crate) use args::EvalArgs;

use super::models::open_target;
use super::packs::Packs;
use super::summary::warn_of_a_wrong_pair;
use super::text::Text;
use args::Served;
use arms::Arm;
use document::Document;
use served::{Served as ServedRun, Serving};
use suite::Suites;

/// Prompt tokens of a pass.
const CHUNK: usize = 128;

/// What was measured for one prompt.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Measured {
    /// The target's own answer.
    pub(crate) ids: Vec<u32>,
    pub(crate) finish: Finish,
    /// By drafter, then by draft length.
    pub(crate) rounds: Vec<Vec<Vec<Round>>>,
    /// Where the served loop ran: by drafter, then by draft length, seconds after the first token.
    pub(crate) seconds: Option<served::Seconds>,
}

/// Runs the command.
pub(crate) fn run(
    args: &EvalArgs,
    workers: &Workers,
    streams: &Streams,
) -> anyhow::Result<Outcome> {
    match measure(args, workers, streams)? {
        None => Ok(Outcome::Interrupted),
        Some(run) => finish(args, workers, streams, &run),
    }
}

/// Measures; nothing when a signal ends it.
fn measure(args: &EvalArgs, workers: &Workers, streams: &Streams) -> anyhow::Result<Option<Run>> {
    if args.tokens < 2 {
        return Err(
            Usage("--tokens: the first token belongs to no round; give 2 or more".into()).into()
        );
    }
    let paths = arms::paths(args)?;
    let outputs: Vec<&Path> =
        args.records.iter().chain(&args.report).map(PathBuf::as_path).collect();
    output::check(&outputs, args.force)?;
    signals::install().context("installing signal handlers")?;

    let packs = Packs::of(&args.packs, streams);
    let target = open_target(&paths.target, args.act, workers, &packs)?;
    let arms = arms::load(&paths, &target, args.act, workers, &packs)?;
    let text = Text::load(&paths.target, target.vocab())?;
    let lengths = arms::draft_lengths(&args.draft_max, &arms)?;
    let suites = Suites::load(&args.suites, &text, target.vocab(), args.think, args.limit)?;
    let inputs = arms::inputs(&paths)?;
    output::refuse_inputs(&outputs, inputs.all().chain(&args.suites))?;
    let files = match inputs.hash(streams) {
        Err(error) if super::link::is_interruption(&error) => return Ok(None),
        other => other?,
    };

    let stop = if args.ignore_eos { Default::default() } else { text.stops().clone() };
    let decoding = Decoding {
        target: &target,
        kv: args.kv.into(),
        budget: args.tokens,
        stop: &stop,
        prefill_chunk: CHUNK,
    };
    let drafters: Vec<&Drafter> = arms.iter().map(|arm| &arm.drafter).collect();
    let serving = Serving { decoding: &decoding, drafters: &drafters, lengths: &lengths };
    let mut counted = vec![0; suites.classes.len()];
    let mut measured = Vec::new();
    let mut identity = served::Identities::default();
    let begin = Instant::now();
    for (n, prompt) in suites.prompts.iter().enumerate() {
        let total = suites.prompts.len();
        let here = || format!("prompt {} of {total}", n + 1);
        let left = match n {
            0 => String::new(),
            n => {
                let left = begin.elapsed().as_secs_f64() / n as f64 * (total - n) as f64;
                format!(", {left:.0} s left")
            }
        };
        let show = |what: &str| streams.progress(&format!("{}: {what}{left}", here()));
        show("target");
        let Some(known) =
            decoding.run(&drafters, &prompt.ids, &signals::received).with_context(here)?
        else {
            return interrupted(streams, &here());
        };
        let mut rounds = Vec::new();
        for (index, arm) in arms.iter().enumerate() {
            show(&arm.name);
            rounds.push(known.walk(&target, index, &arm.drafter, &lengths).with_context(here)?);
            if signals::received() {
                return interrupted(streams, &here());
            }
        }
        let nth = counted[prompt.class];
        counted[prompt.class] += 1;
        let wanted = match args.served {
            Served::All => true,
            Served::Some(some) => nth < some,
        };
        let mut seconds = None;
        if wanted || args.speed {
            let cancelled = |what: &str| {
                show(what);
                signals::received()
            };
            let names: Vec<&str> = arms.iter().map(|arm| arm.name.as_str()).collect();
            let run = serving
                .prompt(&prompt.ids, &known, &rounds, args.speed, &names, &cancelled)
                .with_context(here)?;
            match run {
                ServedRun::Cancelled => return interrupted(streams, &here()),
                ServedRun::Compared(found) => {
                    identity.prompts += 1;
                    seconds = args.speed.then_some(found.seconds);
                    if let Some(difference) = found.difference {
                        identity.difference.get_or_insert((n, difference));
                    }
                }
            }
        }
        measured.push(Measured {
            ids: known.ids().to_vec(),
            finish: known.finish(),
            rounds,
            seconds,
        });
        if identity.difference.is_some() {
            break;
        }
    }
    streams.progress("");
    let power = power::source();
    Ok(Some(Run { text, suites, arms, lengths, measured, identity, files, power }))
}

/// Everything that was measured, and what it was measured with.
#[derive(Debug)]
pub(crate) struct Run {
    text: Text,
    suites: Suites,
    arms: Vec<Arm>,
    lengths: Vec<usize>,
    measured: Vec<Measured>,
    identity: served::Identities,
    files: arms::Files,
    power: Option<&'static str>,
}

impl Run {
    /// Drafters that never drafted, and at which draft length: nothing can be said of them.
    fn silent(&self) -> Vec<(usize, usize)> {
        let pairs = (0..self.arms.len()).flat_map(|arm| {
            self.lengths.iter().enumerate().map(move |(place, k)| (arm, place, *k))
        });
        let none = |(arm, place): (usize, usize)| {
            self.measured.iter().all(|measured| measured.rounds[arm][place].is_empty())
        };
        pairs.filter(|(arm, place, _)| none((*arm, *place))).map(|(arm, _, k)| (arm, k)).collect()
    }

    /// No where the served loop differs, or where a drafter has no result.
    fn outcome(&self) -> Outcome {
        let sound = self.identity.difference.is_none() && self.silent().is_empty();
        if sound { Outcome::Done } else { Outcome::No }
    }
}

fn finish(
    args: &EvalArgs,
    workers: &Workers,
    streams: &Streams,
    run: &Run,
) -> anyhow::Result<Outcome> {
    let document = Document::new(args, workers, run);
    if let Some(path) = &args.records {
        output::publish(path, &records::lines(run)?, args.force)?;
    }
    if let Some(path) = &args.report {
        output::publish(path, page::html(&document).as_bytes(), args.force)?;
    }
    if streams.json() {
        streams.document(&document)?;
    } else {
        streams.text(&table::text(&document))?;
    }
    for arm in 0..run.arms.len() {
        let last = run.lengths.len() - 1;
        let stats = figures::stats(&run.measured, arm, last, |_| true);
        if stats.is_alarming() {
            let name = &run.arms[arm].name;
            streams.note(&format!("drafter `{name}`:"));
            warn_of_a_wrong_pair(&stats, streams);
        }
    }
    Ok(run.outcome())
}

fn interrupted(streams: &Streams, here: &str) -> anyhow::Result<Option<Run>> {
    streams.progress("");
    streams.note(&format!("interrupted in {here}; nothing was written"));
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::args::{Cli, Command};
    use clap::Parser as _;

    #[test]
    fn a_difference_is_the_answer_no() {
        let fixture = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/fixtures/pair");
        let (target, drafter) = (format!("{fixture}/target.gguf"), format!("{fixture}/drafter"));
        let args = ["drafter", "eval", "-t", &target, "-d", &drafter, "-n", "6", "--limit", "1"];
        let cli = Cli::try_parse_from(args).unwrap();
        let Command::Eval(args) = &cli.command else { unreachable!("asked for") };
        let streams = Streams::new("drafter", 1, &cli.output);
        let mut run = measure(args, &cli.workers, &streams).unwrap().unwrap();
        let said = |run: &Run| table::text(&Document::new(args, &cli.workers, run));
        assert_eq!(run.outcome(), Outcome::Done);
        assert!(said(&run).contains("identical: 3 of 3 prompts served"));

        let mut found = served::Difference {
            drafter: Some(0),
            draft_max: 7,
            identity: runtime::stats::Identity::Identical,
            round: Some(1),
        };
        run.identity.difference = Some((2, found.clone()));
        assert_eq!(run.outcome(), Outcome::No);
        let text = said(&run);
        let line =
            "different: prompt 3 served with pair at 7 drafts: ids identical, round 2 is another";
        assert!(text.contains(line), "{text}");
        found.drafter = None;
        found.identity = runtime::stats::Identity::EarlyStopMismatch;
        run.identity.difference = Some((2, found));
        assert!(said(&run).contains("prompt 3 served plainly: ids early_stop_mismatch"));
        assert_eq!(Document::new(args, &cli.workers, &run).identity.verdict, "different");

        // A drafter without rounds is no result either.
        run.identity.difference = None;
        run.measured.iter_mut().for_each(|measured| measured.rounds[0][1].clear());
        assert_eq!((run.silent(), run.outcome()), (vec![(0, 7)], Outcome::No));
    }
}
