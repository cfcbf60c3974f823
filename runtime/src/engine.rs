//! Requests one after another on one device.
//!
//! An [`Engine`] is a handle that any thread may hold: it takes requests into a bounded queue. The
//! [`Worker`] owns the models and runs the requests on the thread that calls [`Worker::run`], so there
//! are no locks around a model and no threads that nobody asked for. What happens is told to the
//! request's own listener, round by round.
//!
//! A request begins from the longest snapshot that fits its prompt, takes in the rest, and generates
//! with the loop of [`crate::round`]. Nothing of that changes a bit of the answer: a snapshot is the
//! state itself, for the target and for the drafter.

mod delivery;
mod logprobs;
mod queue;
mod snapshots;
mod stop_text;

use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use crate::Error;
use crate::draft_length::Adaptive;
use crate::drafter::{Context, Drafter};
use crate::kv::KvType;
use crate::round::{
    Coupling, DrafterProposer, Finish, Generated, Limits, Proposer, Round, Session, Speculation,
    Verifier,
};
use crate::target::{LogitRows, State, Target};
use crate::text::{Controls, Tokenizer};

use delivery::Delivery;
use queue::Queue;
use snapshots::{Snapshot, Snapshots};

pub use delivery::Origin;
pub use logprobs::Logprobs;
pub use queue::{Cancel, Refused};

/// Prompt tokens of a pass, between which a request can be cancelled.
const CHUNK: usize = 64;

/// The models and what belongs to them.
#[derive(Debug)]
pub struct Models {
    /// The target.
    pub target: Target,
    /// The drafter, if there is one.
    pub drafter: Option<Drafter>,
    /// The target's tokenizer.
    pub tokenizer: Tokenizer,
    /// Tokens that end an answer.
    pub stops: BTreeSet<u32>,
}

/// How an engine works.
#[derive(Debug, Clone)]
pub struct Options {
    /// How keys and values are kept.
    pub kv: KvType,
    /// How the drafter follows the target's draws.
    pub coupling: Coupling,
    /// Most tokens of prompt and answer; none: the target's context length.
    pub context: Option<usize>,
    /// Requests that may wait while one runs.
    pub queue: usize,
    /// Bytes that snapshots may take; 0: there are none.
    pub snapshot_bytes: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            kv: KvType::default(),
            coupling: Coupling::default(),
            context: None,
            queue: 16,
            snapshot_bytes: 1 << 30,
        }
    }
}

/// A listener. Breaking ends the request; it is not called again after [`Event::Finished`] or
/// [`Event::Failed`].
pub type Events = Box<dyn FnMut(Event) -> ControlFlow<()> + Send>;

/// What is asked for.
pub struct Job {
    /// The prompt.
    pub prompt: Vec<u32>,
    /// Lengths of beginnings of the prompt that later requests are likely to share. Hints: they change
    /// no answer.
    pub marks: Vec<usize>,
    /// How tokens are chosen.
    pub verifier: Box<dyn Verifier + Send>,
    /// Most tokens of the answer; none: until the context is full.
    pub max_tokens: Option<usize>,
    /// Strings before which the text ends; empty ones count for nothing.
    pub stop: Vec<String>,
    /// Most drafts of a round; 0: plain decoding.
    pub draft_max: usize,
    /// Whether fewer are verified where more do not pay on this machine, as the engine has learnt.
    pub paying: bool,
    /// Log-probabilities of tokens, with this many of the likeliest.
    pub logprobs: Option<usize>,
    /// Ends the request from outside.
    pub cancel: Cancel,
    /// Is told what happens.
    pub events: Events,
}

impl std::fmt::Debug for Job {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Job")
            .field("prompt", &self.prompt.len())
            .field("max_tokens", &self.max_tokens)
            .finish_non_exhaustive()
    }
}

/// What happens to a request.
#[derive(Debug)]
#[non_exhaustive]
pub enum Event {
    /// It left the queue; `cached` tokens of its prompt come from a snapshot.
    Started {
        /// Tokens that need not be taken in.
        cached: usize,
    },
    /// Tokens of the prompt are taken in.
    Prefill {
        /// So many, those from a snapshot included.
        done: usize,
        /// Of so many.
        total: usize,
    },
    /// The first token, or a round.
    Delivered(Delivered),
    /// It is over.
    Finished(Box<Answer>),
    /// It ended with an error.
    Failed(Failure),
}

/// Text of a round.
#[derive(Debug, Clone, PartialEq)]
pub struct Delivered {
    /// Its number, from 1; 0 for the first token, which comes from the prompt's pass.
    pub round: usize,
    /// The round; none for the first token and for text that was held back until the end.
    pub drafts: Option<Round>,
    /// What can be shown now. Joined over a request, the pieces are its text.
    pub pieces: Vec<Piece>,
}

/// Text of one token: whole characters, and no part of a stop string. A token that ends the answer
/// has none, one that ends inside a character gives its text to the next.
#[derive(Debug, Clone, PartialEq)]
pub struct Piece {
    /// The token.
    pub id: u32,
    /// Its text, or a part of it; may be empty.
    pub text: String,
    /// Who chose it.
    pub from: Origin,
    /// Whether it is the first piece of its token.
    pub first: bool,
    /// With the first piece, if they were asked for.
    pub logprobs: Option<Logprobs>,
}

/// Why an answer ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// The model ended it.
    Stop,
    /// A stop string was found.
    StopText,
    /// The budget is used up.
    Length,
    /// The context is full.
    Context,
    /// It was cancelled, or nobody listened.
    Cancelled,
}

/// A whole answer. Its text was handed out before.
#[derive(Debug, Clone, PartialEq)]
pub struct Answer {
    /// Tokens and rounds.
    pub generated: Generated,
    /// Why there are no more.
    pub ending: Ending,
    /// Prompt tokens that came from a snapshot.
    pub cached: usize,
    /// From the beginning of the work to the first token.
    pub prompt_ms: f64,
    /// From the first token to the last.
    pub predicted_ms: f64,
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Failure {
    /// The computation failed.
    #[error(transparent)]
    Runtime(#[from] Error),
    /// A defect: the request was dropped, the engine goes on.
    #[error("internal error: the request ended in a panic")]
    Panic,
}

/// Sums over all requests.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Totals {
    /// Requests that were answered.
    pub finished: u64,
    /// Requests that were cancelled, while they waited or ran.
    pub cancelled: u64,
    /// Requests that ended with an error.
    pub failed: u64,
    /// Prompt tokens that were taken in.
    pub prompt_tokens: u64,
    /// Prompt tokens that came from snapshots.
    pub cached_tokens: u64,
    /// Tokens that were delivered.
    pub predicted_tokens: u64,
    /// Time to first tokens.
    pub prompt_seconds: f64,
    /// Time after first tokens.
    pub predicted_seconds: f64,
    /// Verification passes.
    pub rounds: u64,
    /// Drafts sent to verification.
    pub drafted: u64,
    /// Drafts delivered.
    pub accepted: u64,
    /// Drafts that the target agreed with, by place in the block, delivered or not.
    pub agreed_per_position: Vec<u64>,
    /// Bytes of snapshots now.
    pub snapshot_bytes: u64,
    /// Snapshots now.
    pub snapshots: u64,
}

/// What a worker and its handles share.
#[derive(Debug)]
struct Shared {
    queue: Queue,
    totals: Mutex<Totals>,
}

impl Shared {
    fn totals(&self) -> MutexGuard<'_, Totals> {
        self.totals.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Takes requests. Clones are handles to the same engine.
#[derive(Debug, Clone)]
pub struct Engine {
    shared: Arc<Shared>,
    context: usize,
    most_drafts: usize,
    drafter_positions: Option<usize>,
}

impl Engine {
    /// An engine and its worker.
    #[must_use]
    pub fn new(models: Models, options: Options) -> (Self, Worker) {
        let length = models.target.config().context_length;
        let context = options.context.unwrap_or(length).min(length);
        let shared =
            Arc::new(Shared { queue: Queue::new(options.queue), totals: Mutex::default() });
        let config = models.drafter.as_ref().map(Drafter::config);
        let engine = Self {
            shared: Arc::clone(&shared),
            context,
            most_drafts: config.map_or(0, |config| config.block_size - 1),
            drafter_positions: config.map(|config| config.max_position_embeddings),
        };
        let snapshots = Snapshots::new(options.snapshot_bytes);
        let length = Adaptive::new(engine.most_drafts);
        (engine, Worker { shared, models, options, context, snapshots, length })
    }

    /// Puts a request at the end of the queue.
    ///
    /// # Errors
    /// [`Refused`]; the listener is dropped uncalled.
    pub fn submit(&self, job: Job) -> Result<(), Refused> {
        self.shared.queue.push(job)
    }

    /// Takes no more requests. The worker ends when those that wait are served.
    pub fn close(&self) {
        self.shared.queue.close();
    }

    /// Cancels the request that runs and all that wait.
    pub fn cancel_all(&self) {
        self.shared.queue.cancel_all();
    }

    /// Requests that run (0 or 1), and that wait.
    #[must_use]
    pub fn load(&self) -> (usize, usize) {
        self.shared.queue.load()
    }

    /// Sums over all requests so far.
    #[must_use]
    pub fn totals(&self) -> Totals {
        self.shared.totals().clone()
    }

    /// Most tokens of prompt and answer.
    #[must_use]
    pub fn context(&self) -> usize {
        self.context
    }

    /// Most drafts of a round; 0 without a drafter.
    #[must_use]
    pub fn most_drafts(&self) -> usize {
        self.most_drafts
    }

    /// The drafter's longest context, if there is one.
    #[must_use]
    pub fn drafter_positions(&self) -> Option<usize> {
        self.drafter_positions
    }
}

/// Runs the requests.
#[derive(Debug)]
pub struct Worker {
    shared: Arc<Shared>,
    models: Models,
    options: Options,
    context: usize,
    snapshots: Snapshots,
    /// What it learns is kept over requests.
    length: Adaptive,
}

impl Worker {
    /// Runs requests until the engine is closed and none waits. The work is spread over the current
    /// rayon pool.
    pub fn run(&mut self) {
        let shared = Arc::clone(&self.shared);
        while let Some(job) = shared.queue.next() {
            let Job { mut events, cancel, prompt, marks, verifier, .. } = job;
            let mut request = Request {
                prompt,
                marks,
                verifier,
                limits: Limits {
                    max_tokens: job.max_tokens,
                    stop: self.models.stops.clone(),
                    context: Some(self.context),
                    prefill_chunk: CHUNK,
                },
                stop: job.stop.into_iter().filter(|stop| !stop.is_empty()).collect(),
                draft_max: job.draft_max,
                paying: job.paying,
                logprobs: job.logprobs,
            };
            // Models are only read, and a snapshot is added at once or not at all.
            let run = || self.answer(&mut request, &mut events, &cancel);
            let result = catch_unwind(AssertUnwindSafe(run));
            self.count(&result, request.prompt.len());
            let last = match result {
                Ok(Ok(answer)) => Event::Finished(Box::new(answer)),
                Ok(Err(error)) => Event::Failed(error.into()),
                Err(_) => Event::Failed(Failure::Panic),
            };
            // The device is free before the listener hears of it.
            shared.queue.done();
            let _ = events(last);
        }
    }

    fn answer(
        &mut self,
        request: &mut Request,
        events: &mut Events,
        cancel: &Cancel,
    ) -> Result<Answer, Error> {
        let begin = Instant::now();
        let models = &self.models;
        let mut delivery = Delivery::new(
            events,
            cancel,
            &models.stops,
            models.tokenizer.detokenizer(Controls::Hidden),
            std::mem::take(&mut request.stop),
        );
        delivery.logprobs = request.logprobs;
        let needed = request.prompt.len();
        if needed > self.context {
            return Err(Error::ContextFull { needed, limit: self.context });
        }
        let drafter = models.drafter.as_ref().filter(|_| request.draft_max > 0);
        let found = if cancel.is_cancelled() {
            None
        } else {
            self.snapshots.find(&request.prompt, drafter.is_some())
        };
        let cached = found.as_ref().map_or(0, |snapshot| snapshot.len());
        let (state, context) = match &found {
            Some(snapshot) => snapshot.restore(),
            None => (State::new(models.target.config(), self.options.kv), None),
        };
        let mut proposer = drafter.map(|drafter| DrafterProposer {
            drafter,
            context: context.unwrap_or_else(|| Context::new(drafter.config(), self.options.kv)),
            coupling: self.options.coupling,
        });
        delivery.prompt.1 = needed;
        delivery.send(Event::Started { cached });
        let mut run = Run {
            target: &models.target,
            session: Session { state, pending: None },
            snapshots: &mut self.snapshots,
            parent: found,
        };
        let mut marks: Vec<usize> = request
            .marks
            .iter()
            .copied()
            .filter(|mark| (cached + 1..needed).contains(mark))
            .collect();
        marks.sort_unstable();
        marks.dedup();
        let mut at = cached;
        for mark in marks {
            let part = at..mark;
            run.take_in(&request.prompt, part, proposer.as_mut(), &mut delivery)?;
            if delivery.flow().is_break() {
                break;
            }
            run.keep(&request.prompt[..mark], proposer.as_ref());
            at = mark;
        }
        let generated = if delivery.flow().is_break() {
            Generated { ids: Vec::new(), finish: Finish::Cancelled, rounds: Vec::new() }
        } else {
            delivery.prompt.0 = at;
            let speculation = match &mut proposer {
                None => Speculation::Off,
                Some(proposer) if request.paying => {
                    let length = &mut self.length;
                    Speculation::Auto { proposer, length, catch_up: true }
                }
                Some(proposer) => Speculation::On { proposer, max: request.draft_max },
            };
            run.session.generate(
                run.target,
                &request.prompt[at..],
                &request.limits,
                &mut *request.verifier,
                speculation,
                &mut delivery,
            )?
        };
        let end = Instant::now();
        if let Some(error) = delivery.failed.take() {
            return Err(error);
        }
        delivery.finish();
        if generated.finish != Finish::Cancelled || !generated.ids.is_empty() {
            // The pending token is not part of the state.
            let mut ids = request.prompt.clone();
            ids.extend(&generated.ids);
            ids.truncate(run.session.state.len());
            run.keep(&ids, proposer.as_ref());
        }
        let ending = match generated.finish {
            _ if delivery.stopped => Ending::StopText,
            Finish::Stop => Ending::Stop,
            Finish::Length => Ending::Length,
            Finish::Context => Ending::Context,
            Finish::Cancelled => Ending::Cancelled,
        };
        let first = delivery.first_at.unwrap_or(end);
        let milliseconds =
            |from: Instant, to: Instant| to.saturating_duration_since(from).as_secs_f64() * 1e3;
        Ok(Answer {
            generated,
            ending,
            cached,
            prompt_ms: milliseconds(begin, first),
            predicted_ms: milliseconds(first, end),
        })
    }

    fn count(&self, result: &std::thread::Result<Result<Answer, Error>>, prompt: usize) {
        let mut totals = self.shared.totals();
        totals.snapshot_bytes = self.snapshots.bytes() as u64;
        totals.snapshots = self.snapshots.count() as u64;
        let Ok(Ok(answer)) = result else {
            totals.failed += 1;
            return;
        };
        match answer.ending {
            Ending::Cancelled => totals.cancelled += 1,
            _ => totals.finished += 1,
        }
        totals.predicted_tokens += answer.generated.ids.len() as u64;
        totals.cached_tokens += answer.cached as u64;
        if !answer.generated.ids.is_empty() || answer.ending != Ending::Cancelled {
            totals.prompt_tokens += (prompt - answer.cached) as u64;
        }
        totals.prompt_seconds += answer.prompt_ms / 1e3;
        totals.predicted_seconds += answer.predicted_ms / 1e3;
        for round in &answer.generated.rounds {
            totals.rounds += 1;
            totals.drafted += round.drafted as u64;
            totals.accepted += round.accepted as u64;
            if totals.agreed_per_position.len() < round.drafted {
                totals.agreed_per_position.resize(round.drafted, 0);
            }
            totals.agreed_per_position[..round.agreed].iter_mut().for_each(|n| *n += 1);
        }
    }
}

/// A job without its listener.
struct Request {
    prompt: Vec<u32>,
    marks: Vec<usize>,
    verifier: Box<dyn Verifier + Send>,
    limits: Limits,
    stop: Vec<String>,
    draft_max: usize,
    paying: bool,
    logprobs: Option<usize>,
}

/// A request that runs.
struct Run<'a> {
    target: &'a Target,
    session: Session,
    snapshots: &'a mut Snapshots,
    /// The snapshot that the state last came from.
    parent: Option<Arc<Snapshot>>,
}

impl Run<'_> {
    /// Takes in a part of the prompt, until the request ends.
    fn take_in(
        &mut self,
        prompt: &[u32],
        part: std::ops::Range<usize>,
        mut proposer: Option<&mut DrafterProposer<'_>>,
        delivery: &mut Delivery<'_>,
    ) -> Result<(), Error> {
        let mut done = part.start;
        for chunk in prompt[part].chunks(CHUNK) {
            if delivery.flow().is_break() {
                return Ok(());
            }
            let taps = proposer.as_ref().map_or(&[][..], |proposer| proposer.taps());
            let state = &mut self.session.state;
            let pass = self.target.advance(state, chunk, taps, LogitRows::None)?;
            if let (Some(proposer), Some(taps)) = (&mut proposer, &pass.taps) {
                proposer.extend(taps)?;
            }
            done += chunk.len();
            delivery.progress(done);
        }
        Ok(())
    }

    /// Keeps the state after `ids`.
    fn keep(&mut self, ids: &[u32], proposer: Option<&DrafterProposer<'_>>) {
        let context = proposer.map(|proposer| &proposer.context);
        let kept = self.snapshots.keep(ids, &self.session.state, context, self.parent.as_ref());
        self.parent = kept.or(self.parent.take());
    }
}
