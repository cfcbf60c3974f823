//! Speculation changes nothing: ids, logits bits and state digests against plain decoding.

#![allow(clippy::unwrap_used, reason = "tests, which clippy does not see in helpers")]

mod support;

use std::collections::BTreeSet;
use std::ops::{ControlFlow, RangeInclusive};
use std::sync::LazyLock;

use formats::gguf::GgmlType;
use hadamard::Isa;
use proptest::prelude::*;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use runtime::Error;
use runtime::backend::Cpu;
use runtime::draft_length::{Adaptive, DraftLength, Outcome};
use runtime::drafter::{Context, Drafter};
use runtime::exact::{Pair, Proof, Proved, What, prove};
use runtime::kv::KvType;
use runtime::quant::ActQuant;
use runtime::round::{
    Coupling, DrafterProposer, Finish, Generated, Greedy, Limits, Observer, Proposer, Request,
    Sampler, Sampling, Session, Speculation, Unobserved, Verifier,
};
use runtime::rows::{Primal, Rows};
use runtime::target::{Digest, LogitRows, State, Target};
use support::drafter::{Kind, config, write};
use support::{Shape, Storage, noise};

static MINI: LazyLock<Target> = LazyLock::new(|| target(&Shape::mini(), ActQuant::A8));

fn target(shape: &Shape, act: ActQuant) -> Target {
    let source = noise(shape, Storage::Pq2_0, 7).source();
    Target::load(source, act, Isa::detect(), &Cpu::default()).unwrap()
}

fn drafter(shape: &Shape, target: &Target) -> Drafter {
    let dir = tempfile::tempdir().unwrap();
    let path = write(dir.path(), &config(shape), Kind::Gguf(GgmlType::PQ2_0), shape.block, 3);
    Drafter::open(&path, None, target, ActQuant::A8, Isa::detect(), &Cpu::default()).unwrap()
}

fn session(target: &Target) -> Session {
    Session { state: State::new(target.config(), KvType::F16), pending: None }
}

/// Everything that must not depend on speculation.
#[derive(Debug, Default)]
struct Trace {
    ids: Vec<u32>,
    logits: Vec<Vec<u32>>,
    /// After how many delivered tokens, and the digest then.
    digests: Vec<(usize, Digest)>,
}

impl Observer for Trace {
    fn token(&mut self, id: u32, logits: &[f32]) -> ControlFlow<()> {
        self.ids.push(id);
        self.logits.push(logits.iter().map(|x| x.to_bits()).collect());
        ControlFlow::Continue(())
    }

    fn committed(&mut self, state: &State, pending: u32) {
        self.digests.push((self.ids.len(), state.digest(Some(pending))));
    }
}

fn run(
    target: &Target,
    prompt: &[u32],
    limits: &Limits,
    speculation: Speculation<'_>,
) -> (Generated, Trace) {
    run_with(target, prompt, limits, &mut Greedy, speculation)
}

fn run_with(
    target: &Target,
    prompt: &[u32],
    limits: &Limits,
    verifier: &mut dyn Verifier,
    speculation: Speculation<'_>,
) -> (Generated, Trace) {
    let mut trace = Trace::default();
    let mut session = session(target);
    let generated =
        session.generate(target, prompt, limits, verifier, speculation, &mut trace).unwrap();
    assert_eq!(generated.ids, trace.ids);
    (generated, trace)
}

/// Each digest of `found` is the one that plain decoding has after as many tokens.
fn assert_same(plain: &Trace, found: &Trace) {
    assert_eq!(plain.ids, found.ids);
    assert!(plain.logits == found.logits, "logits differ");
    for (n, digest) in &found.digests {
        let (_, expected) = plain.digests.iter().find(|(m, _)| m == n).unwrap();
        assert_eq!(expected, digest, "state after {n} tokens");
    }
}

/// How a scripted proposer chooses, knowing what the target will say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Habit {
    Right,
    Random,
    SecondBest,
    Alternating,
    /// Right for a number of tokens that changes from round to round.
    Sometimes,
    /// Says nothing every other round.
    Silent,
    /// More tokens than it was asked for.
    TooMany,
}

const HABITS: [Habit; 7] = [
    Habit::Right,
    Habit::Random,
    Habit::SecondBest,
    Habit::Alternating,
    Habit::Sometimes,
    Habit::Silent,
    Habit::TooMany,
];

#[derive(Debug)]
struct Scripted {
    habit: Habit,
    /// Ids and second choices of plain decoding.
    right: Vec<(u32, u32)>,
    vocab: u32,
    rng: ChaCha8Rng,
    prompt: usize,
    taken_in: usize,
    rounds: usize,
}

impl Scripted {
    fn new(habit: Habit, plain: &Trace, vocab: usize, prompt: usize) -> Self {
        let second = |(id, logits): (&u32, &Vec<u32>)| {
            let mut best = (0, f32::NEG_INFINITY);
            for (i, bits) in logits.iter().enumerate().filter(|(i, _)| *i as u32 != *id) {
                if f32::from_bits(*bits) > best.1 {
                    best = (i as u32, f32::from_bits(*bits));
                }
            }
            (*id, best.0)
        };
        let right = plain.ids.iter().zip(&plain.logits).map(second).collect();
        let rng = ChaCha8Rng::seed_from_u64(1);
        Self { habit, right, vocab: vocab as u32, rng, prompt, taken_in: 0, rounds: 0 }
    }
}

impl Proposer for Scripted {
    fn taps(&self) -> &[usize] {
        &[0]
    }

    fn extend(&mut self, taps: &Rows<Primal>) -> Result<(), Error> {
        self.taken_in += taps.n();
        Ok(())
    }

    fn propose(&mut self, _: &Target, request: &Request<'_>) -> Result<Vec<u32>, Error> {
        let Request { pending, position, max, .. } = *request;
        self.rounds += 1;
        // Taken in: the prompt and all delivered tokens but the pending one.
        assert_eq!(position, self.taken_in);
        let done = self.taken_in - self.prompt + 1;
        assert_eq!(self.right[done - 1].0, pending);
        let n = match self.habit {
            Habit::Silent if self.rounds.is_multiple_of(2) => 0,
            Habit::TooMany => max + 5,
            _ => max,
        };
        let id = |i: usize| {
            let (right, second) = self.right.get(done + i).copied().unwrap_or((0, 1));
            match self.habit {
                Habit::Random => self.rng.random_range(0..self.vocab),
                Habit::SecondBest => second,
                Habit::Alternating if i % 2 == 1 => second,
                Habit::Sometimes if i >= self.rounds * 3 % 8 => second,
                _ => right,
            }
        };
        Ok((0..n).map(id).collect())
    }
}

/// A rule that decides without reason.
#[derive(Debug)]
struct Whim {
    rng: ChaCha8Rng,
    asked: usize,
    outcomes: Vec<Outcome>,
}

impl Whim {
    fn new(seed: u64) -> Self {
        Self { rng: ChaCha8Rng::seed_from_u64(seed), asked: 0, outcomes: Vec::new() }
    }
}

impl DraftLength for Whim {
    fn most(&mut self, room: usize) -> usize {
        self.asked = self.rng.random_range(0..=room.min(7));
        self.asked
    }

    fn cut(&mut self, drafts: usize, confidence: &[f64]) -> usize {
        assert!(drafts <= self.asked);
        assert!(confidence.iter().all(|p| (0.0..=1.0).contains(p)), "{confidence:?}");
        self.rng.random_range(0..=drafts)
    }

    fn observe(&mut self, outcome: &Outcome) {
        assert_eq!(outcome.draft.is_some(), self.asked > 0);
        assert!(outcome.agreed <= outcome.verified && outcome.verified <= self.asked);
        assert!(outcome.verify > 0.0);
        self.outcomes.push(*outcome);
    }
}

fn budget(n: usize) -> Limits {
    Limits { max_tokens: Some(n), ..Limits::default() }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    /// Any habit, any draft length, any chunking of the prompt, any budget, any stop token.
    #[test]
    fn scripted_proposers_change_nothing(
        prompt in prop::collection::vec(0u32..64, 1..24),
        habit in prop::sample::select(&HABITS[..]),
        max in 0usize..8,
        chunk in 0usize..10,
        n in 1usize..30,
        stop_at in 0usize..40,
    ) {
        let (_, free) = run(&MINI, &prompt, &budget(n), Speculation::Off);
        let stop: BTreeSet<u32> = free.ids.get(stop_at).copied().into_iter().collect();
        let limits = Limits { stop, ..budget(n) };
        let (expected, plain) = run(&MINI, &prompt, &limits, Speculation::Off);
        prop_assert!(expected.rounds.iter().all(|round| round.drafted == 0 && round.delivered == 1));
        let limits = Limits { prefill_chunk: chunk, ..limits };
        let mut proposer = Scripted::new(habit, &free, MINI.vocab(), prompt.len());
        let speculation = Speculation::On { proposer: &mut proposer, max };
        let (found, trace) = run(&MINI, &prompt, &limits, speculation);
        assert_same(&plain, &trace);
        prop_assert_eq!(found.finish, expected.finish);
        let delivered: usize = found.rounds.iter().map(|round| round.delivered).sum();
        prop_assert_eq!(1 + delivered, found.ids.len());
        // The rows that the proposer saw are those of the state at the end.
        prop_assert_eq!(proposer.taken_in, prompt.len() + found.ids.len() - 1);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    /// Lengths that change from round to round for no reason or by the rule that learns, with plain
    /// rounds between them.
    #[test]
    fn no_rule_changes_anything(
        prompt in prop::collection::vec(0u32..64, 1..24),
        sampling in sampling(),
        habit in prop::sample::select(&HABITS[..]),
        seed in any::<u64>(),
        chunk in 0usize..10,
        n in 1usize..90,
        stop_at in 0usize..120,
    ) {
        let mut sampler = Sampler::new(sampling).unwrap();
        let (_, free) = run_with(&MINI, &prompt, &budget(n), &mut sampler, Speculation::Off);
        let stop: BTreeSet<u32> = free.ids.get(stop_at).copied().into_iter().collect();
        let limits = Limits { stop, ..budget(n) };
        let off = Speculation::Off;
        let (expected, plain) = run_with(&MINI, &prompt, &limits, &mut sampler, off);
        let limits = Limits { prefill_chunk: chunk, ..limits };
        let (mut whim, mut learns) = (Whim::new(seed), Adaptive::new(7));
        for length in [&mut whim as &mut dyn DraftLength, &mut learns] {
            let mut proposer = Scripted::new(habit, &free, MINI.vocab(), prompt.len());
            let speculation = Speculation::Auto { proposer: &mut proposer, length, catch_up: true };
            let (found, trace) = run_with(&MINI, &prompt, &limits, &mut sampler, speculation);
            assert_same(&plain, &trace);
            prop_assert_eq!(found.finish, expected.finish);
            // Also what waited in rounds without drafts.
            prop_assert_eq!(proposer.taken_in, prompt.len() + found.ids.len() - 1);
        }
    }
}

/// As above, with a drafter: its context is the same in the end, and it is sure of some drafts.
#[test]
fn no_rule_changes_a_drafter_s_context() {
    let target = target(&Shape::mini(), ActQuant::A8);
    let drafter = drafter(&Shape::mini(), &target);
    let prompt: Vec<u32> = (0..17).map(|i| (i * i) % 60).collect();
    for temperature in [0.0, 0.8] {
        let sampling = Sampling { temperature, top_k: 9, top_p: 0.9, ..Sampling::default() };
        let mut sampler = Sampler::new(sampling).unwrap();
        let limits = budget(160);
        let (_, plain) = run_with(&target, &prompt, &limits, &mut sampler, Speculation::Off);
        let mut fixed = DrafterProposer::new(&drafter, Context::new(drafter.config(), KvType::F16));
        let on = Speculation::On { proposer: &mut fixed, max: 7 };
        run_with(&target, &prompt, &limits, &mut sampler, on);
        let (mut whim, mut learns) = (Whim::new(1), Adaptive::new(7));
        for length in [&mut whim as &mut dyn DraftLength, &mut learns] {
            let context = Context::new(drafter.config(), KvType::F16);
            let mut proposer = DrafterProposer::new(&drafter, context);
            let speculation = Speculation::Auto { proposer: &mut proposer, length, catch_up: true };
            let (_, trace) = run_with(&target, &prompt, &limits, &mut sampler, speculation);
            assert_same(&plain, &trace);
            assert_eq!(proposer.context.digest(), fixed.context.digest());
        }
        let rounds = whim.outcomes;
        assert!(rounds.iter().any(|round| round.draft.is_none()));
        assert!(rounds.iter().any(|round| round.verified > 2));
    }
}

#[test]
fn a_drafter_changes_nothing_at_any_draft_length() {
    for (shape, act, n) in [
        (Shape::mini(), ActQuant::A16, 24),
        (Shape::mini(), ActQuant::F32, 12),
        (Shape::tiny(), ActQuant::A8, 10),
    ] {
        let target = target(&shape, act);
        let drafter = drafter(&shape, &target);
        let prompt: Vec<u32> = (0..17).map(|i| (i * i) % 60).collect();
        let (_, plain) = run(&target, &prompt, &budget(n), Speculation::Off);
        let mut contexts = Vec::new();
        for max in 0..8 {
            for chunk in if max == 3 { vec![0, 1, 5] } else { vec![0] } {
                let context = Context::new(drafter.config(), KvType::F16);
                let mut proposer = DrafterProposer::new(&drafter, context);
                let limits = Limits { prefill_chunk: chunk, ..budget(n) };
                let speculation = Speculation::On { proposer: &mut proposer, max };
                let (_, trace) = run(&target, &prompt, &limits, speculation);
                assert_same(&plain, &trace);
                contexts.push(proposer.context.digest());
            }
        }
        assert!(contexts.iter().all(|digest| *digest == contexts[0]));
    }
}

fn sampling() -> impl Strategy<Value = Sampling> {
    let temperature = prop::sample::select(vec![0.0, 0.3, 0.7, 1.0, 4.0]);
    let top_k = prop::sample::select(vec![0, 1, 3, 20]);
    let top_p = prop::sample::select(vec![0.2, 0.8, 0.95, 1.0]);
    let min_p = prop::sample::select(vec![0.0, 0.05, 0.4]);
    (temperature, top_k, top_p, min_p, any::<u64>()).prop_map(
        |(temperature, top_k, top_p, min_p, seed)| Sampling {
            temperature,
            top_k,
            top_p,
            min_p,
            seed,
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    /// As `scripted_proposers_change_nothing`, with any sampling parameters and seed.
    #[test]
    fn sampled_output_is_the_same_with_speculation(
        prompt in prop::collection::vec(0u32..64, 1..24),
        sampling in sampling(),
        habit in prop::sample::select(&HABITS[..]),
        max in 0usize..8,
        chunk in 0usize..10,
        n in 1usize..30,
        stop_at in 0usize..40,
    ) {
        let mut sampler = Sampler::new(sampling).unwrap();
        let (_, free) = run_with(&MINI, &prompt, &budget(n), &mut sampler, Speculation::Off);
        let stop: BTreeSet<u32> = free.ids.get(stop_at).copied().into_iter().collect();
        let limits = Limits { stop, ..budget(n) };
        let off = Speculation::Off;
        let (expected, plain) = run_with(&MINI, &prompt, &limits, &mut sampler, off);
        let limits = Limits { prefill_chunk: chunk, ..limits };
        let mut proposer = Scripted::new(habit, &free, MINI.vocab(), prompt.len());
        let speculation = Speculation::On { proposer: &mut proposer, max };
        let (found, trace) = run_with(&MINI, &prompt, &limits, &mut sampler, speculation);
        assert_same(&plain, &trace);
        prop_assert_eq!(found.finish, expected.finish);
        prop_assert_eq!(proposer.taken_in, prompt.len() + found.ids.len() - 1);
        if habit == Habit::Right
            && let [whole @ .., _] = &found.rounds[..]
        {
            prop_assert!(whole.iter().all(|round| round.accepted == round.drafted));
        }
        if sampling.temperature == 0.0 {
            let (greedy, _) = run(&MINI, &prompt, &limits, Speculation::Off);
            prop_assert_eq!(greedy.ids, found.ids);
        }
    }

    /// A follow-up turn draws what it would have drawn from the beginning.
    #[test]
    fn a_sampled_session_goes_on_where_it_ended(sampling in sampling(), max in 0usize..8) {
        let (first, second) = ([1, 2, 3], [4, 5, 6, 7]);
        let mut sampler = Sampler::new(sampling).unwrap();
        let off = || Speculation::Off;
        let (_, long) = run_with(&MINI, &first, &budget(40), &mut sampler, off());
        let mut history = first.to_vec();
        history.extend(&long.ids[..11]);
        history.extend(second);
        let (expected, _) = run_with(&MINI, &history, &budget(9), &mut sampler, off());
        let mut session = session(&MINI);
        let mut proposer = Scripted::new(Habit::Sometimes, &long, MINI.vocab(), first.len());
        let speculation = Speculation::On { proposer: &mut proposer, max };
        session
            .generate(&MINI, &first, &budget(11), &mut sampler, speculation, &mut Unobserved)
            .unwrap();
        let found = session
            .generate(&MINI, &second, &budget(9), &mut sampler, off(), &mut Unobserved)
            .unwrap();
        prop_assert_eq!(found, expected);
    }
}

/// Draws differ between seeds, and are the same with a drafter, however it follows the sampler.
#[test]
fn a_drafter_changes_no_draw() {
    let target = target(&Shape::mini(), ActQuant::A8);
    let drafter = drafter(&Shape::mini(), &target);
    let prompt: Vec<u32> = (0..9).map(|i| (i * i) % 60).collect();
    let mut texts = BTreeSet::new();
    for seed in 0..6 {
        let sampling = Sampling { temperature: 0.8, top_k: 20, top_p: 0.95, min_p: 0.01, seed };
        let mut sampler = Sampler::new(sampling).unwrap();
        let limits = budget(24);
        let (_, plain) = run_with(&target, &prompt, &limits, &mut sampler, Speculation::Off);
        for coupling in [Coupling::Off, Coupling::Noise, Coupling::Full] {
            for max in [1, 4, 7] {
                let context = Context::new(drafter.config(), KvType::F16);
                let mut proposer =
                    DrafterProposer { coupling, ..DrafterProposer::new(&drafter, context) };
                let speculation = Speculation::On { proposer: &mut proposer, max };
                let (_, trace) = run_with(&target, &prompt, &limits, &mut sampler, speculation);
                assert_same(&plain, &trace);
            }
        }
        texts.insert(plain.ids);
    }
    assert_eq!(texts.len(), 6);
}

/// A drafter whose scores are the target's logits proposes every draw, position by position.
#[test]
fn shared_noise_is_that_of_the_position() {
    #[derive(Debug)]
    struct Twin<'a> {
        target: &'a Target,
        /// The prompt and what will be delivered.
        ids: Vec<u32>,
        coupled: bool,
    }
    impl Proposer for Twin<'_> {
        fn taps(&self) -> &[usize] {
            &[]
        }
        fn extend(&mut self, _: &Rows<Primal>) -> Result<(), Error> {
            unreachable!("nothing is tapped")
        }
        fn propose(&mut self, _: &Target, request: &Request<'_>) -> Result<Vec<u32>, Error> {
            let mut ids = self.ids[..=request.position].to_vec();
            assert_eq!(ids.last(), Some(&request.pending));
            let mut state = State::new(self.target.config(), KvType::F16);
            let mut drafts = Vec::new();
            for i in 0..request.max {
                let pass = self.target.advance(&mut state, &ids, &[], LogitRows::Last)?;
                let logits = pass.logits.unwrap();
                let scores: Vec<(u32, f32)> =
                    logits.row(0).iter().enumerate().map(|(id, l)| (id as u32, *l)).collect();
                let sampler = request.sampler.filter(|_| self.coupled);
                let at = request.position + 1 + i;
                let id = sampler
                    .map_or_else(|| runtime::drafter::likeliest(&scores), |s| s.pick(&scores, at));
                drafts.push(id);
                ids = vec![id];
            }
            Ok(drafts)
        }
    }
    let prompt = [5, 4, 3];
    let sampling = Sampling { top_k: 20, top_p: 0.9, seed: 3, ..Sampling::default() };
    let mut sampler = Sampler::new(sampling).unwrap();
    let (plain, _) = run_with(&MINI, &prompt, &budget(25), &mut sampler, Speculation::Off);
    let mut accepted = Vec::new();
    for coupled in [true, false] {
        let ids = prompt.iter().chain(&plain.ids).copied().collect();
        let mut twin = Twin { target: &MINI, ids, coupled };
        let speculation = Speculation::On { proposer: &mut twin, max: 5 };
        let (found, _) = run_with(&MINI, &prompt, &budget(25), &mut sampler, speculation);
        assert_eq!(found.ids, plain.ids);
        accepted.push(found.rounds.iter().map(|round| round.accepted).sum::<usize>());
    }
    // 24 tokens in rounds of 6: all 20 proposals that are followed by a token of the target's own.
    assert_eq!(accepted[0], 20);
    assert!(accepted[1] < 15, "{accepted:?}");
}

#[test]
fn budgets_are_exact() {
    let prompt = [3, 1, 4, 1, 5];
    let (_, long) = run(&MINI, &prompt, &budget(32), Speculation::Off);
    for n in 0..=20 {
        for max in 0..8 {
            for habit in [Habit::Right, Habit::Alternating] {
                let mut proposer = Scripted::new(habit, &long, MINI.vocab(), prompt.len());
                let speculation = Speculation::On { proposer: &mut proposer, max };
                let (found, trace) = run(&MINI, &prompt, &budget(n), speculation);
                assert_eq!((found.ids.len(), found.finish), (n, Finish::Length));
                assert_eq!(found.ids, long.ids[..n]);
                if let Some((m, digest)) = trace.digests.last() {
                    assert_eq!((*m, long.digests[n - 1].1), (n, *digest));
                }
            }
        }
    }
}

/// A budget of 0 takes the prompt in and leaves a session that can go on.
#[test]
fn a_budget_of_zero_delivers_nothing() {
    let mut session = session(&MINI);
    let mut generate = |prompt: &[u32], n: usize| {
        session
            .generate(&MINI, prompt, &budget(n), &mut Greedy, Speculation::Off, &mut Unobserved)
            .unwrap()
    };
    let none = generate(&[3, 1], 0);
    assert_eq!((none.ids, none.finish), (vec![], Finish::Length));
    let more = generate(&[4, 1, 5], 6);
    let (expected, _) = run(&MINI, &[3, 1, 4, 1, 5], &budget(6), Speculation::Off);
    assert_eq!(more, expected);
}

/// A stop token at every position of a block: the answer ends with it, and so does the state.
#[test]
fn stops_are_exact_at_every_position_of_a_block() {
    let prompt = [9, 9, 2];
    let (_, long) = run(&MINI, &prompt, &budget(40), Speculation::Off);
    let different: BTreeSet<&u32> = long.ids.iter().collect();
    assert!(different.len() > 8, "the text repeats itself: {:?}", long.ids);
    for (at, id) in long.ids.iter().enumerate() {
        if long.ids[..at].contains(id) {
            continue;
        }
        let stop: BTreeSet<u32> = [*id].into();
        // The stop wins on the last token of the budget.
        for max_tokens in [at + 1, 40] {
            let limits =
                Limits { stop: stop.clone(), max_tokens: Some(max_tokens), ..Limits::default() };
            for max in [0, 1, 4, 7] {
                let mut proposer = Scripted::new(Habit::Right, &long, MINI.vocab(), prompt.len());
                let speculation = Speculation::On { proposer: &mut proposer, max };
                let (found, trace) = run(&MINI, &prompt, &limits, speculation);
                assert_eq!((&found.ids[..], found.finish), (&long.ids[..=at], Finish::Stop));
                assert_eq!(trace.digests.last().unwrap().1, long.digests[at].1);
            }
        }
    }
}

/// A follow-up turn from the state that a request left is the same as from the beginning.
#[test]
fn a_session_goes_on_where_it_ended() {
    let (first, second) = ([1, 2, 3], [4, 5, 6, 7]);
    let (answer, _) = run(&MINI, &first, &budget(11), Speculation::Off);
    let history: Vec<u32> = first.iter().chain(&answer.ids).chain(&second).copied().collect();
    let (expected, _) = run(&MINI, &history, &budget(9), Speculation::Off);
    let (_, long) = run(&MINI, &first, &budget(40), Speculation::Off);
    for max in [0, 3, 7] {
        let mut session = session(&MINI);
        let mut proposer = Scripted::new(Habit::Sometimes, &long, MINI.vocab(), first.len());
        let speculation = Speculation::On { proposer: &mut proposer, max };
        session
            .generate(&MINI, &first, &budget(11), &mut Greedy, speculation, &mut Unobserved)
            .unwrap();
        let off = Speculation::Off;
        let found = session
            .generate(&MINI, &second, &budget(9), &mut Greedy, off, &mut Unobserved)
            .unwrap();
        assert_eq!(found, expected);
    }
}

/// The context's last position is used, and one token more is delivered.
#[test]
fn the_end_of_the_context_is_exact() {
    let prompt = [5, 4, 3];
    let (_, long) = run(&MINI, &prompt, &budget(40), Speculation::Off);
    for room in 0..=9 {
        let context = Some(prompt.len() + room);
        for max in [0, 1, 5, 7] {
            let mut proposer = Scripted::new(Habit::Right, &long, MINI.vocab(), prompt.len());
            let speculation = Speculation::On { proposer: &mut proposer, max };
            let limits = Limits { context, ..Limits::default() };
            let (found, _) = run(&MINI, &prompt, &limits, speculation);
            assert_eq!((&found.ids[..], found.finish), (&long.ids[..=room], Finish::Context));
        }
    }
    let limits = Limits { context: Some(2), ..Limits::default() };
    let error = session(&MINI)
        .generate(&MINI, &prompt, &limits, &mut Greedy, Speculation::Off, &mut Unobserved)
        .unwrap_err();
    assert!(matches!(error, Error::ContextFull { needed: 3, limit: 2 }));
}

#[test]
fn an_observer_can_end_a_request() {
    struct After(usize);
    impl Observer for After {
        fn token(&mut self, _: u32, _: &[f32]) -> ControlFlow<()> {
            self.0 -= 1;
            if self.0 == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        }
    }
    let (_, long) = run(&MINI, &[8], &budget(20), Speculation::Off);
    for n in 1..12 {
        let mut proposer = Scripted::new(Habit::Right, &long, MINI.vocab(), 1);
        let speculation = Speculation::On { proposer: &mut proposer, max: 7 };
        let mut session = session(&MINI);
        let found = session
            .generate(&MINI, &[8], &budget(20), &mut Greedy, speculation, &mut After(n))
            .unwrap();
        assert_eq!((found.ids.len(), found.finish), (n, Finish::Cancelled));
        assert_eq!(session.state.digest(session.pending), long.digests[n - 1].1);
    }
}

#[test]
fn what_a_proposer_gets_wrong_is_an_error() {
    #[derive(Debug)]
    struct Outside;
    impl Proposer for Outside {
        fn taps(&self) -> &[usize] {
            &[]
        }
        fn extend(&mut self, _: &Rows<Primal>) -> Result<(), Error> {
            unreachable!("nothing is tapped")
        }
        fn propose(&mut self, _: &Target, _: &Request<'_>) -> Result<Vec<u32>, Error> {
            Ok(vec![64])
        }
    }
    let generate = |prompt: &[u32], speculation| {
        session(&MINI)
            .generate(&MINI, prompt, &budget(9), &mut Greedy, speculation, &mut Unobserved)
            .unwrap_err()
    };
    let mut outside = Outside;
    let error = generate(&[1], Speculation::On { proposer: &mut outside, max: 3 });
    assert!(matches!(error, Error::TokenId { id: 64, vocab: 64 }));
    assert!(matches!(generate(&[], Speculation::Off), Error::EmptyPrompt));
}

/// A right proposer needs as few rounds as can be.
#[test]
fn rounds_are_counted() {
    let (_, long) = run(&MINI, &[8], &budget(40), Speculation::Off);
    let mut proposer = Scripted::new(Habit::Right, &long, MINI.vocab(), 1);
    let speculation = Speculation::On { proposer: &mut proposer, max: 7 };
    let (found, _) = run(&MINI, &[8], &budget(20), speculation);
    let counts: Vec<_> =
        found.rounds.iter().map(|r| (r.drafted, r.accepted, r.delivered)).collect();
    // 1 from the prompt, 8, 8, and 3 that the budget leaves.
    assert_eq!(counts, [(7, 7, 8), (7, 7, 8), (2, 2, 3)]);
    let mut state = State::new(MINI.config(), KvType::F16);
    MINI.advance(&mut state, &[8], &[], LogitRows::None).unwrap();
    assert_eq!(state.len(), 1);
}

/// Greedy, until it changes its mind at one position when the logits come from a pass of several
/// rows: what a kernel whose sums depend on the batch would do.
struct Fickle {
    at: usize,
    times: usize,
}

impl Verifier for Fickle {
    fn choose(&mut self, logits: &[f32], position: usize) -> Result<u32, Error> {
        let id = Greedy.choose(logits, position)?;
        if position == self.at {
            self.times += 1;
        }
        Ok(if self.times == 1 && position == self.at { (id + 1) % 64 } else { id })
    }
}

#[track_caller]
fn exact(
    pair: &Pair<'_>,
    prompt: &[u32],
    limits: &Limits,
    drafts: RangeInclusive<usize>,
    verifier: &mut dyn FnMut() -> Box<dyn Verifier>,
) -> Proved {
    match prove(pair, prompt, limits, drafts, verifier, &|_| false).unwrap() {
        Proof::Exact(proved) => proved,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_proof_can_be_ended() {
    let drafter = drafter(&Shape::mini(), &MINI);
    let pair = Pair::new(&MINI, &drafter);
    let limits = Limits { max_tokens: Some(20), ..Limits::default() };
    for end in [None, Some(2)] {
        let cancelled = |run: Option<usize>| run == end;
        let greedy = &mut || -> Box<dyn Verifier> { Box::new(Greedy) };
        let proof = prove(&pair, &[1, 2, 3], &limits, 0..=7, greedy, &cancelled).unwrap();
        assert_eq!(proof, Proof::Cancelled);
    }
}

#[test]
fn exactness_is_proved_and_disproved() {
    let shape = Shape::mini();
    let drafter = drafter(&shape, &MINI);
    let pair = Pair::new(&MINI, &drafter);
    let prompt: Vec<u32> = (0..23).collect();
    let limits = Limits { max_tokens: Some(20), ..Limits::default() };
    let proved = exact(&pair, &prompt, &limits, 0..=7, &mut || Box::new(Greedy));
    assert_eq!((proved.tokens, proved.logits, proved.rounds.len()), (20, 160, 8));
    assert!(proved.states > 20);

    // The first run is plain; the second chooses otherwise at one position.
    let mut runs = 0;
    let mut verifier = || -> Box<dyn Verifier> {
        runs += 1;
        let at = if runs == 1 { usize::MAX } else { 30 };
        Box::new(Fickle { at, times: 0 })
    };
    let proof = prove(&pair, &prompt, &limits, 3..=3, &mut verifier, &|_| false).unwrap();
    let Proof::Different(difference) = proof else { panic!("{proof:?}") };
    assert_eq!((difference.draft_max, difference.what), (3, What::Id));
    assert_eq!((difference.token, difference.position), (7, 30));
    let (plain, found) = (difference.plain.unwrap(), difference.found.unwrap());
    assert_eq!((plain.id + 1) % 64, found.id);
    assert_eq!(plain.top, found.top);
    assert!(plain.top.margin() >= 0.0 && plain.top.first.0 == plain.id);
}

#[test]
fn a_pair_with_blocks_of_1024_is_exact_too() {
    let shape = Shape::wide();
    let sampling = Sampling { temperature: 0.9, top_k: 12, ..Sampling::default() };
    let sampler = Sampler::new(sampling).unwrap();
    let prompt: Vec<u32> = (5..18).collect();
    let limits = Limits { max_tokens: Some(6), ..Limits::default() };
    for (act, drafts) in [(ActQuant::A8, 6..=7), (ActQuant::A16, 3..=3)] {
        let target = target(&shape, act);
        let drafter = drafter(&shape, &target);
        let pair = Pair::new(&target, &drafter);
        let greedy = &mut || -> Box<dyn Verifier> { Box::new(Greedy) };
        assert_eq!(exact(&pair, &prompt, &limits, drafts.clone(), greedy).tokens, 6);
        let sampled = &mut || -> Box<dyn Verifier> { Box::new(sampler.clone()) };
        assert_eq!(exact(&pair, &prompt, &limits, 7..=7, sampled).tokens, 6);
    }
}
