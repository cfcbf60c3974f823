//! The engine on the trained pair: order, ends, cancellation, and answers that do not depend on what
//! was asked before.

#![allow(clippy::unwrap_used, reason = "tests, which clippy does not see in helpers")]

use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use formats::Source;
use formats::gguf::File;
use hadamard::Isa;
use proptest::prelude::*;
use runtime::Error;
use runtime::backend::Cpu;
use runtime::drafter::Drafter;
use runtime::engine::{
    Answer, Cancel, Ending, Engine, Event, Failure, Job, Models, Options, Origin, Piece, Refused,
};
use runtime::quant::ActQuant;
use runtime::round::{Greedy, Round, Sampler, Sampling, Verifier};
use runtime::target::Target;
use runtime::text::{StopSources, Tokenizer, stop_set};

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/pair")
}

fn models() -> Models {
    let path = folder().join("target.gguf");
    let target = Target::open(&path, ActQuant::A8, Isa::detect(), &Cpu::default()).unwrap();
    let drafter = folder().join("drafter/model.safetensors");
    let drafter =
        Drafter::open(&drafter, None, &target, ActQuant::A8, Isa::detect(), &Cpu::default())
            .unwrap();
    let file = File::open(Source::open(&path).unwrap()).unwrap();
    let tokenizer = Tokenizer::from_gguf(&file).unwrap();
    let sources = StopSources { gguf: Some(&file), ..StopSources::default() };
    let stops = stop_set(&tokenizer, &sources).unwrap();
    Models { target, drafter: Some(drafter), tokenizer, stops }
}

/// An engine whose worker has a thread.
struct Running {
    engine: Engine,
    tokenizer: Tokenizer,
    worker: Option<JoinHandle<()>>,
}

impl Running {
    fn start(options: Options) -> Self {
        Self::of(models(), options)
    }

    fn of(models: Models, options: Options) -> Self {
        let tokenizer = models.tokenizer.clone();
        let (engine, mut worker) = Engine::new(models, options);
        Self { engine, tokenizer, worker: Some(std::thread::spawn(move || worker.run())) }
    }

    fn ask(&self, job: Asked) -> Told {
        let (job, told) = job.job();
        self.engine.submit(job).unwrap();
        Told::of(&told)
    }

    fn ids(&self, text: &str) -> Vec<u32> {
        self.tokenizer.encode_with_specials(text)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.engine.close();
        self.engine.cancel_all();
        let result = self.worker.take().unwrap().join();
        if !std::thread::panicking() {
            result.unwrap();
        }
    }
}

struct Asked {
    prompt: Vec<u32>,
    marks: Vec<usize>,
    verifier: Box<dyn Verifier + Send>,
    max_tokens: Option<usize>,
    stop: Vec<String>,
    draft_max: usize,
    paying: bool,
    logprobs: Option<usize>,
    cancel: Cancel,
}

impl Asked {
    fn new(prompt: &[u32]) -> Self {
        Self {
            prompt: prompt.to_vec(),
            marks: Vec::new(),
            verifier: Box::new(Greedy),
            max_tokens: Some(48),
            stop: Vec::new(),
            draft_max: 7,
            paying: false,
            logprobs: None,
            cancel: Cancel::default(),
        }
    }

    fn job(self) -> (Job, Receiver<Event>) {
        let (sender, receiver) = channel();
        (self.telling(sender), receiver)
    }

    fn telling(self, sender: Sender<Event>) -> Job {
        self.listening(move |event| match sender.send(event) {
            Ok(()) => ControlFlow::Continue(()),
            Err(_) => ControlFlow::Break(()),
        })
    }

    fn listening(self, events: impl FnMut(Event) -> ControlFlow<()> + Send + 'static) -> Job {
        Job {
            prompt: self.prompt,
            marks: self.marks,
            verifier: self.verifier,
            max_tokens: self.max_tokens,
            stop: self.stop,
            draft_max: self.draft_max,
            paying: self.paying,
            logprobs: self.logprobs,
            cancel: self.cancel,
            events: Box::new(events),
        }
    }
}

/// All that a listener heard.
struct Told {
    cached: usize,
    pieces: Vec<Piece>,
    result: Result<Answer, Failure>,
}

impl Told {
    fn of(events: &Receiver<Event>) -> Self {
        let mut told = Self { cached: 0, pieces: Vec::new(), result: Err(Failure::Panic) };
        for event in events {
            match event {
                Event::Started { cached } => told.cached = cached,
                Event::Delivered(delivered) => told.pieces.extend(delivered.pieces),
                Event::Finished(answer) => told.result = Ok(*answer),
                Event::Failed(failure) => told.result = Err(failure),
                _ => {}
            }
        }
        told
    }

    fn text(&self) -> String {
        self.pieces.iter().map(|piece| piece.text.as_str()).collect()
    }

    fn answer(&self) -> &Answer {
        self.result.as_ref().unwrap()
    }

    fn ids(&self) -> &[u32] {
        &self.answer().generated.ids
    }

    fn rounds(&self) -> &[Round] {
        &self.answer().generated.rounds
    }
}

const CHAT: &str = "<|im_start|>user\nWhat does the function `dump` in `json` do?<|im_end|>\n\
                    <|im_start|>assistant\n<think>\n\n</think>\n\n";
const CODE: &str = "def read(self, size=-1):\n";

fn no_snapshots() -> Options {
    Options { snapshot_bytes: 0, ..Options::default() }
}

#[test]
fn every_request_speculates_and_none_depends_on_the_others() {
    for options in [no_snapshots(), Options::default()] {
        let running = Running::start(options);
        let (chat, code) = (running.ids(CHAT), running.ids(CODE));
        let plain = running.ask(Asked { draft_max: 0, ..Asked::new(&chat) });
        assert!(plain.text().len() > 40 && plain.rounds().iter().all(|r| r.drafted == 0));
        for _ in 0..5 {
            running.ask(Asked { max_tokens: Some(5), ..Asked::new(&code) });
            let told = running.ask(Asked::new(&chat));
            assert_eq!(told.text(), plain.text());
            assert_eq!(told.ids(), plain.ids());
            assert!(told.rounds().iter().any(|r| r.accepted > 0));
        }
        let totals = running.engine.totals();
        assert_eq!((totals.finished, totals.failed, totals.cancelled), (11, 0, 0));
        assert_eq!(running.engine.load(), (0, 0));
    }
}

/// UP-801, UP-802, UP-805, UP-807.
#[test]
fn budgets_are_exact() {
    let running = Running::start(no_snapshots());
    let code = running.ids(CODE);
    let whole = running.ask(Asked::new(&code));
    for n in (0..=17).chain([48]) {
        let told = running.ask(Asked { max_tokens: Some(n), ..Asked::new(&code) });
        assert_eq!(told.ids(), &whole.ids()[..n]);
        assert_eq!(told.answer().ending, Ending::Length);
        let delivered: usize = told.rounds().iter().map(|r| r.delivered).sum();
        assert_eq!(delivered + usize::from(n > 0), n);
        assert!(told.rounds().iter().map(|r| r.accepted).sum::<usize>() <= n);
        assert!(whole.text().starts_with(&told.text()));
    }
}

/// UP-803, UP-804: a token that ends the answer, at every place of a block.
#[test]
fn stop_tokens_end_inside_a_round() {
    let whole = {
        let running = Running::start(no_snapshots());
        running.ask(Asked::new(&running.ids(CODE)))
    };
    for at in 0..12 {
        let stop = whole.ids()[at];
        let first = whole.ids().iter().position(|id| *id == stop).unwrap();
        let mut models = models();
        models.stops = BTreeSet::from([stop]);
        let running = Running::of(models, Options::default());
        let code = running.ids(CODE);
        let told = running.ask(Asked::new(&code));
        assert_eq!(told.ids(), &whole.ids()[..=first]);
        assert_eq!(told.answer().ending, Ending::Stop);
        assert!(told.pieces.iter().all(|piece| piece.id != stop || piece.text.is_empty()));
        let text = running.tokenizer.decode(&told.ids()[..first], runtime::text::Controls::Hidden);
        assert_eq!(told.text(), text.unwrap());
        // The state is that of the delivered tokens: the next turn takes in the last one and its own.
        let next = [&code[..], told.ids(), &running.ids("\n    return")].concat();
        let told = running.ask(Asked { max_tokens: Some(3), ..Asked::new(&next) });
        assert_eq!(told.cached, code.len() + first);
    }
}

#[test]
fn text_ends_before_stop_strings_wherever_they_are() {
    let running = Running::start(Options::default());
    let code = running.ids(CODE);
    let whole = running.ask(Asked::new(&code)).text();
    let chars: Vec<usize> = whole.char_indices().map(|(at, _)| at).collect();
    for (n, at) in chars.iter().enumerate().step_by(5) {
        let end = chars.get(n + 1 + n % 6).copied().unwrap_or(whole.len());
        let stop = &whole[*at..end];
        let told = running.ask(Asked {
            stop: vec!["never there".into(), stop.into(), String::new()],
            ..Asked::new(&code)
        });
        assert_eq!(told.text(), whole[..whole.find(stop).unwrap()]);
        assert_eq!(told.answer().ending, Ending::StopText);
        assert!(told.answer().generated.ids.len() <= 48);
    }
    // One that is only begun at the end is text.
    let tail = format!("{}never", &whole[whole.len() - 4..]);
    let told = running.ask(Asked { stop: vec![tail], ..Asked::new(&code) });
    assert_eq!((told.text(), told.answer().ending), (whole, Ending::Length));
}

#[test]
fn pieces_say_who_chose_them() {
    let running = Running::start(no_snapshots());
    let told = running.ask(Asked { logprobs: Some(2), ..Asked::new(&running.ids(CHAT)) });
    let firsts: Vec<&Piece> = told.pieces.iter().filter(|piece| piece.first).collect();
    let rounds = told.rounds();
    let count = |origin| firsts.iter().filter(|piece| piece.from == origin).count();
    let accepted: usize = rounds.iter().map(|r| r.accepted).sum();
    assert!(accepted > 0);
    assert_eq!(count(Origin::Draft), accepted);
    let bonus = rounds.iter().filter(|r| r.drafted > 0 && r.delivered == r.drafted + 1).count();
    assert_eq!(count(Origin::Bonus), bonus);
    assert_eq!(firsts.len(), told.ids().len());
    assert!(firsts.iter().zip(told.ids()).all(|(piece, id)| piece.id == *id));
    // Greedy: the chosen token is the likeliest.
    for piece in firsts {
        let logprobs = piece.logprobs.as_ref().unwrap();
        assert_eq!(logprobs.top[0], (piece.id, logprobs.logprob));
        assert_eq!(logprobs.top.len(), 2);
        assert!(logprobs.logprob <= 0.0);
    }
}

/// A job that waits in its listener until it is let go on.
fn holding(prompt: &[u32]) -> (Job, Receiver<()>, Sender<()>) {
    let (started, is_started) = channel();
    let (go, may_go) = channel::<()>();
    let job = Asked { max_tokens: Some(2), ..Asked::new(prompt) }.listening(move |event| {
        if matches!(event, Event::Started { .. }) {
            started.send(()).unwrap();
            may_go.recv().unwrap();
        }
        ControlFlow::Continue(())
    });
    (job, is_started, go)
}

/// UP-1103.
#[test]
fn the_queue_is_fair_and_has_an_end() {
    let running = Running::start(Options { queue: 3, ..Options::default() });
    let code = running.ids(CODE);
    let (job, started, go) = holding(&code);
    running.engine.submit(job).unwrap();
    started.recv().unwrap();
    let (sender, order) = channel();
    let mut cancels = Vec::new();
    let job = |n: usize| {
        let sender = sender.clone();
        let asked = Asked { max_tokens: Some(1), ..Asked::new(&code) };
        let cancel = asked.cancel.clone();
        let job = asked.listening(move |event| {
            if let Event::Finished(answer) = event {
                sender.send((n, answer.ending)).unwrap();
            }
            ControlFlow::Continue(())
        });
        (job, cancel)
    };
    for n in 0..3 {
        let (job, cancel) = job(n);
        running.engine.submit(job).unwrap();
        cancels.push(cancel);
    }
    assert_eq!(running.engine.load(), (1, 3));
    assert_eq!(running.engine.submit(job(3).0), Err(Refused::Full { waiting: 3 }));
    // Who is gone takes no place.
    cancels[1].cancel();
    assert_eq!(running.engine.load(), (1, 2));
    running.engine.submit(job(4).0).unwrap();
    assert_eq!(running.engine.submit(job(5).0), Err(Refused::Full { waiting: 3 }));
    go.send(()).unwrap();
    let order: Vec<_> = order.iter().take(3).collect();
    assert_eq!(order, [(0, Ending::Length), (2, Ending::Length), (4, Ending::Length)]);
    running.engine.close();
    assert_eq!(running.engine.submit(job(6).0), Err(Refused::Closed));
}

/// UP-1101, UP-1102.
#[test]
fn cancelling_ends_within_a_round() {
    let running = Running::start(Options::default());
    let code = running.ids(CODE);
    let whole = running.ask(Asked { max_tokens: Some(200), ..Asked::new(&code) });
    for after in 0..4 {
        // By the token, and by a listener that is gone.
        for by_token in [true, false] {
            let asked = Asked { max_tokens: Some(200), ..Asked::new(&code) };
            let cancel = asked.cancel.clone();
            let (sender, answers) = channel();
            let mut heard = 0;
            running
                .engine
                .submit(asked.listening(move |event| {
                    match event {
                        Event::Delivered(_) => heard += 1,
                        Event::Finished(answer) => sender.send((*answer, heard)).unwrap(),
                        _ => {}
                    }
                    if heard <= after {
                        return ControlFlow::Continue(());
                    }
                    if by_token {
                        cancel.cancel();
                        return ControlFlow::Continue(());
                    }
                    ControlFlow::Break(())
                }))
                .unwrap();
            let (answer, heard) = answers.recv().unwrap();
            assert_eq!(answer.ending, Ending::Cancelled);
            assert!(heard <= after + 3, "{heard} events");
            assert!(answer.generated.rounds.len() <= after + 1);
            assert_eq!(answer.generated.ids, whole.ids()[..answer.generated.ids.len()]);
            // What was delivered is what the state holds.
            let next = [&code[..], &answer.generated.ids, &[5, 6]].concat();
            let (cached, asked) =
                (next.len() - 3, Asked { max_tokens: Some(9), ..Asked::new(&next) });
            let told = running.ask(asked);
            assert!(told.cached >= cached, "{} of {cached}", told.cached);
        }
    }
    // Before it begins, and while the prompt is taken in.
    let asked = Asked::new(&code);
    asked.cancel.cancel();
    let (job, told) = asked.job();
    running.engine.submit(job).unwrap();
    let told = Told::of(&told);
    assert_eq!((told.answer().ending, told.ids().len()), (Ending::Cancelled, 0));
    let long: Vec<u32> = code.iter().cycle().take(1000).copied().collect();
    let asked = Asked::new(&long);
    let cancel = asked.cancel.clone();
    let (sender, answers) = channel();
    let job = asked.listening(move |event| {
        match event {
            Event::Prefill { done, .. } if done > 100 => cancel.cancel(),
            Event::Finished(answer) => sender.send(answer.generated.ids.len()).unwrap(),
            Event::Delivered(_) => panic!("cancelled before"),
            _ => {}
        }
        ControlFlow::Continue(())
    });
    running.engine.submit(job).unwrap();
    assert_eq!(answers.recv().unwrap(), 0);
    assert_eq!(
        running.ask(Asked { max_tokens: Some(200), ..Asked::new(&code) }).ids(),
        whole.ids()
    );
}

fn sampled(seed: u64) -> Box<dyn Verifier + Send> {
    let sampling =
        Sampling { temperature: 0.8, top_p: 0.95, top_k: 20, seed, ..Sampling::default() };
    Box::new(Sampler::new(sampling).unwrap())
}

/// UP-1203: the same chat, continued, cold and warm: same ids, and same rounds with them.
/// Draft lengths by measured times: the same tokens, and a drafter that has taken in all that a later
/// request may begin from.
#[test]
fn drafts_that_pay_change_no_token() {
    let running = Running::start(Options::default());
    for text in ["def f(x):\n", "Where is the lamp?", "def f(x):\n    return x\n"] {
        let ids = running.ids(text);
        let asked = |paying, draft_max| Asked {
            paying,
            draft_max,
            max_tokens: Some(60),
            ..Asked::new(&ids)
        };
        let plain = running.ask(asked(false, 0));
        for _ in 0..3 {
            let found = running.ask(asked(true, 7));
            assert_eq!(found.answer().generated.ids, plain.answer().generated.ids);
        }
        let drafted = running.ask(asked(false, 7));
        assert_eq!(drafted.answer().generated.ids, plain.answer().generated.ids);
    }
}

#[test]
fn warm_is_cold() {
    let cold = Running::start(no_snapshots());
    let warm = Running::start(Options::default());
    let system = "<|im_start|>system\nAnswer in short sentences, as a manual does.<|im_end|>\n";
    let generation = "<|im_start|>assistant\n<think>\n\n</think>\n\n";
    let turns = ["What does `json.dump` do?", "And `json.load`?", "Write an example."];
    let mut history = system.to_owned();
    let mut reused = Vec::new();
    let ask = |text: &str, sampling: Option<u64>, draft_max: usize| {
        let prompt = cold.ids(&format!("{text}{generation}"));
        let marks = vec![cold.ids(system).len(), cold.ids(text).len()];
        let asked = || Asked {
            marks: marks.clone(),
            verifier: sampling.map_or_else(|| Box::new(Greedy) as _, sampled),
            draft_max,
            max_tokens: Some(32),
            ..Asked::new(&prompt)
        };
        let (a, b) = (cold.ask(asked()), warm.ask(asked()));
        assert_eq!(a.cached, 0);
        assert_eq!(a.text(), b.text());
        assert_eq!(a.answer().generated, b.answer().generated, "the same proposals were made");
        (prompt.len(), b)
    };
    for turn in turns {
        history += &format!("<|im_start|>user\n{turn}<|im_end|>\n");
        let (_, told) = ask(&history, None, 7);
        reused.push(told.cached);
        // Once more, with other draws, and plainly.
        let before_generation = cold.ids(&history).len();
        for (seed, drafts) in [(Some(3), 7), (Some(4), 0)] {
            let (_, again) = ask(&history, seed, drafts);
            assert_eq!(again.cached, before_generation);
        }
        history +=
            &format!("<|im_start|>assistant\n<think>\n\n</think>\n\n{}<|im_end|>\n", told.text());
    }
    assert_eq!(reused[0], 0);
    assert!(reused[1] > cold.ids(system).len() && reused[2] > reused[1], "{reused:?}");
    // The reasoning left out of the history, and another last turn: from the end of the turn before.
    let edited = history.replace("<think>\n\n</think>\n\n", "");
    let (_, told) = ask(&(edited + "<|im_start|>user\nShorter.<|im_end|>\n"), None, 7);
    assert!(told.cached > cold.ids(system).len());
    let (_, told) =
        ask(&format!("{system}<|im_start|>user\nHow old is Python?<|im_end|>\n"), None, 7);
    assert_eq!(told.cached, cold.ids(system).len());
}

#[test]
fn snapshots_stay_under_their_limit() {
    let whole = Running::start(no_snapshots());
    let code = whole.ids(CODE);
    for limit in [1, 1 << 20, 3 << 20] {
        let running = Running::start(Options { snapshot_bytes: limit, ..Options::default() });
        for n in 0..8 {
            let prompt: Vec<u32> =
                code.iter().cycle().skip(n % 5).take(20 + 9 * (n % 4)).copied().collect();
            let asked = || Asked { marks: vec![5, 9], max_tokens: Some(9), ..Asked::new(&prompt) };
            assert_eq!(running.ask(asked()).ids(), whole.ask(asked()).ids());
            let totals = running.engine.totals();
            assert!(totals.snapshot_bytes <= limit as u64);
            assert_eq!(totals.snapshots == 0, totals.snapshot_bytes == 0);
        }
        assert_eq!(running.engine.totals().snapshots > 0, limit > 1);
    }
}

/// UP-1004, UP-1202: at the end of the context.
#[test]
fn the_last_token_of_the_context_is_produced() {
    let options = Options { context: Some(40), ..Options::default() };
    let running = Running::start(options);
    let ids: Vec<u32> = running.ids(CODE).iter().cycle().take(41).copied().collect();
    assert_eq!(running.engine.context(), 40);
    for room in 0..=9 {
        let prompt = &ids[..40 - room];
        let told = running.ask(Asked { max_tokens: None, ..Asked::new(prompt) });
        assert_eq!((told.ids().len(), told.answer().ending), (room + 1, Ending::Context));
    }
    let told = running.ask(Asked::new(&ids));
    assert!(matches!(
        told.result,
        Err(Failure::Runtime(Error::ContextFull { needed: 41, limit: 40 }))
    ));
}

#[derive(Debug)]
struct Broken;

impl Verifier for Broken {
    fn choose(&mut self, _: &[f32], position: usize) -> Result<u32, Error> {
        if position > 20 {
            panic!("a defect");
        }
        Ok(7)
    }
}

/// UP-705, UP-1105: a request that fails takes nothing with it.
#[test]
fn failures_end_their_request_only() {
    let running = Running::start(Options::default());
    let code = running.ids(CODE);
    let whole = running.ask(Asked::new(&code));
    let told = running.ask(Asked::new(&[1, 2, 1_000_000]));
    assert!(matches!(told.result, Err(Failure::Runtime(Error::TokenId { id: 1_000_000, .. }))));
    let told = running.ask(Asked::new(&[]));
    assert!(matches!(told.result, Err(Failure::Runtime(Error::EmptyPrompt))));
    let told = running.ask(Asked { verifier: Box::new(Broken), ..Asked::new(&code) });
    assert!(matches!(told.result, Err(Failure::Panic)));
    assert_eq!(running.ask(Asked::new(&code)).ids(), whole.ids());
    assert_eq!(running.engine.totals().failed, 3);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(8))]

    /// Requests in any order, from one small vocabulary of turns, against an engine that keeps nothing.
    #[test]
    fn any_history_gives_the_cold_answer(
        asked in prop::collection::vec((0usize..3, 0usize..3, 0usize..8, 0usize..12, any::<bool>()), 1..6),
    ) {
        thread_local! {
            static COLD: Running = Running::start(no_snapshots());
        }
        COLD.with(|cold| {
            let warm = Running::start(Options { snapshot_bytes: 2 << 20, ..Options::default() });
            for (a, b, drafts, n, draws) in asked {
                let part = |n: usize| cold.ids(["def a():\n", "import os\n\n", "# The name\n"][n]);
                let prompt = [part(a), part(b), part(a)].concat();
                let asked = || Asked {
                    marks: vec![part(a).len(), prompt.len() - 1],
                    draft_max: drafts,
                    max_tokens: Some(n),
                    verifier: if draws { sampled(n as u64) } else { Box::new(Greedy) },
                    ..Asked::new(&prompt)
                };
                let (cold, warm) = (cold.ask(asked()), warm.ask(asked()));
                assert_eq!(&cold.answer().generated, &warm.answer().generated);
                assert_eq!(cold.text(), warm.text());
            }
        });
    }
}
