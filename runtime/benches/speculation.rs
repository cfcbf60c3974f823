//! What drafts save on a target of full size, with proposals that are right as often as published.
//!
//! ```text
//! cargo bench -p runtime --bench speculation -- TARGET DRAFTER [chat|code [TOKENS [THREADS [ROW,…]]]]
//! ```
//!
//! Synthetic weights make a drafter that is never right. So the drafter runs for its cost, and its
//! proposals are replaced by tokens that plain decoding gave before: right for as many places as the
//! profile says, then wrong. A round's probability that a draft is right is drawn from a Beta
//! distribution with a + b = 2.53, its mean set for the profile's tokens per round of seven drafts;
//! both draws are a low-discrepancy sequence, so that few rounds have the profile's average. `auto`
//! does not know that probability, `sure` is `auto` and is told it.
//!
//! `model`: tokens per round by the profile, over the medians of what drafting and verifying took in
//! that row, in units of a plain step.

#![allow(clippy::print_stdout, reason = "a table is what a bench is for")]

use std::ops::ControlFlow;
use std::path::PathBuf;
use std::time::Instant;

use hadamard::Isa;
use runtime::Error;
use runtime::backend::{Cpu, Dot};
use runtime::draft_length::{Adaptive, DraftLength, Outcome};
use runtime::drafter::{Context, Drafter};
use runtime::kv::KvType;
use runtime::quant::ActQuant;
use runtime::round::{
    DrafterProposer, Generated, Greedy, Limits, Observer, Proposer, Request, Session, Speculation,
};
use runtime::rows::{Primal, Rows};
use runtime::target::{State, Target};

const PROMPT: u32 = 16;

/// A profile: the parameters of the Beta distribution.
#[derive(Debug, Clone, Copy)]
struct Profile {
    a: f64,
    b: f64,
}

impl Profile {
    const SUM: f64 = 2.53;

    /// With `tokens` per round of seven drafts.
    fn new(tokens: f64) -> Self {
        let (mut low, mut high) = (0.0, 1.0);
        for _ in 0..60 {
            let mean = (low + high) / 2.0;
            let found = Self { a: Self::SUM * mean, b: Self::SUM * (1.0 - mean) };
            *(if found.tokens(7) < tokens { &mut low } else { &mut high }) = mean;
        }
        Self { a: Self::SUM * low, b: Self::SUM * (1.0 - low) }
    }

    /// Tokens per round of `k` drafts.
    fn tokens(&self, k: usize) -> f64 {
        let (mut moment, mut sum) = (1.0, 1.0);
        for i in 0..k {
            moment *= (self.a + i as f64) / (Self::SUM + i as f64);
            sum += moment;
        }
        sum
    }

    /// The probability with that share of the distribution below it.
    fn quantile(&self, share: f64) -> f64 {
        const STEPS: usize = 20_000;
        let at = |i: usize| (i as f64 + 0.5) / STEPS as f64;
        let density = |x: f64| x.powf(self.a - 1.0) * (1.0 - x).powf(self.b - 1.0);
        let total: f64 = (0..STEPS).map(|i| density(at(i))).sum();
        let mut sum = 0.0;
        (0..STEPS)
            .map(at)
            .find(|x| {
                sum += density(*x);
                sum >= share * total
            })
            .unwrap_or(1.0)
    }
}

/// The `i`th number of the van der Corput sequence.
fn corput(mut i: usize, base: usize) -> f64 {
    let (mut x, mut unit) = (0.0, 1.0);
    while i > 0 {
        unit /= base as f64;
        x += unit * (i % base) as f64;
        i /= base;
    }
    x
}

/// Drafts for the time of it, and proposes what the script says.
#[derive(Debug)]
struct Scripted<'a> {
    drafter: DrafterProposer<'a>,
    /// What follows position `PROMPT`.
    right: &'a [u32],
    profile: Profile,
    sure: bool,
    rounds: usize,
}

impl Proposer for Scripted<'_> {
    fn taps(&self) -> &[usize] {
        self.drafter.taps()
    }

    fn extend(&mut self, taps: &Rows<Primal>) -> Result<(), Error> {
        self.drafter.extend(taps)
    }

    fn propose(&mut self, target: &Target, request: &Request<'_>) -> Result<Vec<u32>, Error> {
        self.propose_with_confidence(target, request, &mut Vec::new())
    }

    fn propose_with_confidence(
        &mut self,
        target: &Target,
        request: &Request<'_>,
        confidence: &mut Vec<f64>,
    ) -> Result<Vec<u32>, Error> {
        let mut drafts = self.drafter.propose(target, request)?;
        self.rounds += 1;
        let p = self.profile.quantile(corput(self.rounds, 2));
        // As many in a row are right as geometrically distributed: at least i with probability p^i.
        let u = 1.0 - corput(self.rounds, 3);
        let right = (1..).take_while(|i| p.powi(*i) >= u).count();
        let at = request.position + 1 - PROMPT as usize;
        for (i, id) in drafts.iter_mut().enumerate() {
            let next = self.right.get(at + i).copied().unwrap_or(0);
            *id = if i < right { next } else { u32::from(next == 0) };
        }
        if self.sure {
            confidence.resize(drafts.len(), p);
        }
        Ok(drafts)
    }
}

/// Keeps what a rule is told. Without a rule, `fixed` drafts.
#[derive(Debug)]
struct Recorded {
    rule: Option<Adaptive>,
    fixed: usize,
    outcomes: Vec<Outcome>,
}

impl DraftLength for Recorded {
    fn begin(&mut self) {
        self.rule.iter_mut().for_each(DraftLength::begin);
    }

    fn most(&mut self, room: usize) -> usize {
        self.rule.as_mut().map_or(self.fixed.min(room), |rule| rule.most(room))
    }

    fn cut(&mut self, drafts: usize, confidence: &[f64]) -> usize {
        self.rule.as_mut().map_or(drafts, |rule| rule.cut(drafts, confidence))
    }

    fn took_in(&mut self, rows: usize, seconds: f64) {
        self.rule.iter_mut().for_each(|rule| rule.took_in(rows, seconds));
    }

    fn observe(&mut self, outcome: &Outcome) {
        self.rule.iter_mut().for_each(|rule| rule.observe(outcome));
        self.outcomes.push(*outcome);
    }
}

/// The times of the first and the last token.
#[derive(Debug, Default)]
struct Clock(Option<(Instant, Instant)>);

impl Observer for Clock {
    fn token(&mut self, _: u32, _: &[f32]) -> ControlFlow<()> {
        let now = Instant::now();
        self.0.get_or_insert((now, now)).1 = now;
        ControlFlow::Continue(())
    }
}

fn run(
    target: &Target,
    tokens: usize,
    speculation: Speculation<'_>,
) -> Result<(Generated, f64), Error> {
    let prompt: Vec<u32> = (1..=PROMPT).collect();
    let limits = Limits { max_tokens: Some(tokens), ..Limits::default() };
    let mut session = Session { state: State::new(target.config(), KvType::F16), pending: None };
    let mut clock = Clock::default();
    let generated =
        session.generate(target, &prompt, &limits, &mut Greedy, speculation, &mut clock)?;
    let seconds = clock.0.map_or(0.0, |(first, last)| (last - first).as_secs_f64());
    Ok((generated, seconds))
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut sorted: Vec<f64> = values.collect();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(f64::NAN)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut words = std::env::args().skip(1).filter(|word| word != "--bench");
    let (Some(target), Some(drafter)) = (words.next(), words.next()) else {
        println!("speculation: needs a target and a drafter, skipped");
        return Ok(());
    };
    let name = words.next().unwrap_or_else(|| "code".into());
    let profile = Profile::new(if name == "chat" { 2.78 } else { 3.82 });
    let tokens: usize = words.next().map_or(Ok(64), |word| word.parse())?;
    let threads: usize = words.next().map_or(Ok(2), |word| word.parse())?;
    let rules = words.next().unwrap_or_else(|| "1,3,7,auto,sure".into());
    rayon::ThreadPoolBuilder::new().num_threads(threads).build_global()?;

    let isa = Isa::detect();
    let (act, backend) = (ActQuant::A8, Cpu::new(Dot::detect(isa)));
    let target = Target::open(&PathBuf::from(target), act, isa, &backend)?;
    let drafter = Drafter::open(&PathBuf::from(drafter), None, &target, act, isa, &backend)?;
    // Whatever is slow the first time, and then for the record.
    run(&target, 4, Speculation::Off)?;
    let (plain, seconds) = run(&target, tokens, Speculation::Off)?;
    let step = seconds / (tokens - 1) as f64;
    println!("{name}: {tokens} tokens, {threads} threads, plain {:.0} ms per token", step * 1e3);
    println!(
        "{:12} {:>7} {:>8} {:>7} {:>7} {:>8} {:>8} {:>8}",
        "drafts", "rounds", "drafted", "tokens", "draft", "verify", "speed-up", "model"
    );
    for rule in rules.split(',') {
        let fixed = rule.parse().unwrap_or(0);
        let mut length =
            Recorded { rule: (fixed == 0).then(|| Adaptive::new(7)), fixed, outcomes: Vec::new() };
        let context = Context::new(drafter.config(), KvType::F16);
        let mut proposer = Scripted {
            drafter: DrafterProposer::new(&drafter, context),
            right: &plain.ids,
            profile,
            sure: rule == "sure",
            rounds: 0,
        };
        let speculation =
            Speculation::Auto { proposer: &mut proposer, length: &mut length, catch_up: false };
        let (found, seconds) = run(&target, tokens, speculation)?;
        assert_eq!(found.ids, plain.ids, "speculation changed the tokens");
        let rounds = &found.rounds;
        let drafted: usize = rounds.iter().map(|round| round.drafted).sum();
        let given = rounds.iter().map(|round| round.agreed + 1).sum::<usize>() as f64;
        let draft = median(length.outcomes.iter().filter_map(|o| o.draft)) / step;
        let whole = |o: &&Outcome| fixed == 0 || o.verified == fixed;
        let verify = median(length.outcomes.iter().filter(whole).map(|o| o.verify)) / step;
        let model = match fixed {
            0 => String::new(),
            k => format!("{:.3}", profile.tokens(k) / (draft + verify)),
        };
        println!(
            "{rule:12} {:>7} {:>8.2} {:>7.3} {:>7.3} {:>8.3} {:>8.3} {model:>8}",
            rounds.len(),
            drafted as f64 / rounds.len() as f64,
            given / rounds.len() as f64,
            draft,
            verify,
            step * (tokens - 1) as f64 / seconds,
        );
    }
    Ok(())
}
