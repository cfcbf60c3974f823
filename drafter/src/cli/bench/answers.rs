//! Whole answers, plain and with drafts, one after the other in every trial, so that what disturbs the
//! machine disturbs all of them.

use std::ops::ControlFlow;
use std::time::Instant;

use command_line::signals;
use runtime::draft_length::Adaptive;
use runtime::drafter::Context;
use runtime::round::{DrafterProposer, Greedy, Limits, Observer, Session, Speculation};
use runtime::target::State;
use serde::Serialize;

use super::super::args::DraftMax;
use super::super::models::milliseconds;
use super::passes::Bench;
use super::trials::{Interrupted, Times, median};

/// Answers with one setting.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Answers {
    /// `auto` or a number; 0 is plain decoding.
    pub(crate) draft_max: String,
    /// From the first token to the last.
    #[serde(flatten)]
    pub(crate) times: Times,
    /// Median time until the first token.
    pub(crate) prompt_ms: f64,
    /// Tokens after the first.
    tokens: usize,
    pub(crate) tokens_per_second: f64,
    pub(crate) rounds: usize,
    /// Drafts that were verified, per round.
    pub(crate) drafts_per_round: f64,
    pub(crate) tokens_per_round: f64,
    pub(crate) ms_per_round: f64,
    /// The time of plain decoding over this one's: the median over the trials. Nothing where plain
    /// decoding was not measured.
    pub(crate) speed_up: Option<f64>,
    /// Whether the tokens are those of the first setting.
    pub(crate) same_tokens: bool,
}

/// One answer.
#[derive(Debug, Clone)]
struct Answer {
    ids: Vec<u32>,
    prompt_ms: f64,
    ms: f64,
    rounds: usize,
    drafted: usize,
}

/// Measures answers of `tokens` tokens to `prompt` with each of `settings`.
pub(crate) fn measure(
    bench: &Bench<'_>,
    prompt: &[u32],
    tokens: usize,
    settings: &[DraftMax],
) -> anyhow::Result<Result<Vec<Answers>, Interrupted>> {
    let trials = &bench.trials;
    let mut answers: Vec<Vec<Answer>> = vec![Vec::new(); settings.len()];
    for n in 0..trials.warmup + trials.trials {
        for (setting, answers) in settings.iter().zip(&mut answers) {
            if trials.interrupted(&format!("e2e, draft-max {}", name(*setting)), n) {
                return Ok(Err(Interrupted));
            }
            let answer = answer(bench, prompt, tokens, *setting)?;
            if signals::received() {
                trials.streams.progress("");
                return Ok(Err(Interrupted));
            }
            if n >= trials.warmup {
                answers.push(answer);
            }
        }
    }
    trials.streams.progress("");
    let plain = settings.iter().position(|setting| *setting == DraftMax::Fixed(0));
    let summary = |(setting, of): (&DraftMax, &Vec<Answer>)| {
        let sum = |count: fn(&Answer) -> usize| of.iter().map(count).sum::<usize>() as f64;
        let times = Times::new(of.iter().map(|answer| answer.ms).collect());
        let after_first = tokens - 1;
        let speed_up = plain.map(|plain| {
            let shares = answers[plain].iter().zip(of).map(|(plain, this)| plain.ms / this.ms);
            median(&shares.collect::<Vec<_>>())
        });
        let rounds = sum(|answer| answer.rounds);
        Answers {
            draft_max: name(*setting),
            prompt_ms: median(&of.iter().map(|answer| answer.prompt_ms).collect::<Vec<_>>()),
            tokens: after_first,
            tokens_per_second: after_first as f64 / times.median_ms * 1e3,
            rounds: of.last().map_or(0, |answer| answer.rounds),
            drafts_per_round: sum(|answer| answer.drafted) / rounds,
            tokens_per_round: (of.len() * after_first) as f64 / rounds,
            ms_per_round: of.iter().map(|answer| answer.ms).sum::<f64>() / rounds,
            times,
            speed_up,
            same_tokens: of.iter().all(|answer| answer.ids == answers[0][0].ids),
        }
    };
    Ok(Ok(settings.iter().zip(&answers).map(summary).collect()))
}

/// The name on command lines.
fn name(setting: DraftMax) -> String {
    setting.limit().map_or_else(|| "auto".into(), |max| max.to_string())
}

fn answer(
    bench: &Bench<'_>,
    prompt: &[u32],
    tokens: usize,
    setting: DraftMax,
) -> anyhow::Result<Answer> {
    let Bench { target, drafter, kv, .. } = *bench;
    let limits =
        Limits { max_tokens: Some(tokens), prefill_chunk: super::CHUNK, ..Limits::default() };
    let mut proposer = drafter.map(|d| DrafterProposer::new(d, Context::new(d.config(), kv)));
    let most = drafter.map_or(0, |drafter| drafter.config().block_size - 1);
    let mut length = Adaptive::new(most);
    let speculation = match (&mut proposer, setting) {
        (None, _) | (_, DraftMax::Fixed(0)) => Speculation::Off,
        (Some(proposer), DraftMax::Fixed(max)) => Speculation::On { proposer, max: max.min(most) },
        (Some(proposer), DraftMax::Auto) => {
            Speculation::Auto { proposer, length: &mut length, catch_up: false }
        }
    };
    let mut session = Session { state: State::new(target.config(), kv), pending: None };
    let begin = Instant::now();
    let mut clock = Clock { begin, first_ms: None };
    let generated =
        session.generate(target, prompt, &limits, &mut Greedy, speculation, &mut clock)?;
    let (all, prompt_ms) = (milliseconds(begin), clock.first_ms.unwrap_or(0.0));
    Ok(Answer {
        prompt_ms,
        ms: all - prompt_ms,
        rounds: generated.rounds.len(),
        drafted: generated.rounds.iter().map(|round| round.drafted).sum(),
        ids: generated.ids,
    })
}

/// Keeps the time of the first token, and ends the answer on a signal.
struct Clock {
    begin: Instant,
    first_ms: Option<f64>,
}

impl Observer for Clock {
    fn prefill(&mut self, _: usize, _: usize) -> ControlFlow<()> {
        go_on()
    }

    fn token(&mut self, _: u32, _: &[f32]) -> ControlFlow<()> {
        self.first_ms.get_or_insert_with(|| milliseconds(self.begin));
        go_on()
    }
}

fn go_on() -> ControlFlow<()> {
    if signals::received() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
}
