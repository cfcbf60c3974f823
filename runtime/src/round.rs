//! The one generation loop, with and without speculation.
//!
//! A round proposes tokens, verifies them in one pass, accepts the longest prefix that the target
//! would have chosen itself, delivers it with the target's own next token, and commits exactly what
//! was delivered. With [`Speculation::Off`] the same loop runs with no proposals: that is plain
//! decoding, and the oracle. Ids, logits and state are the same bits either way, because every row
//! of a pass is computed as if it were alone and the choice at a position depends on its logits, the
//! position and fixed parameters only. That holds for sampling as well: a [`Sampler`] takes its noise
//! from a counter, so a proposal is accepted exactly when it is the token that is drawn there.
//!
//! The token that was delivered last is *pending*: it is not part of the state until the next round
//! takes it in. At the end of a request, by stop, budget or context, state and pending token hold
//! exactly the prompt and the delivered tokens.

mod noise;
mod proposer;
mod sampler;
mod verifier;

use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::time::Instant;

use crate::Error;
use crate::draft_length::{DraftLength, Outcome};
use crate::profile::Part;
use crate::rows::{Primal, Rows};
use crate::target::{LogitRows, State, Target};

pub use noise::{Noise, philox};
pub use proposer::{Coupling, DrafterProposer, Proposer, Request};
pub use sampler::{Sampler, Sampling};
pub use verifier::{Greedy, Verifier};

/// Whether tokens are proposed.
#[derive(Debug)]
pub enum Speculation<'a> {
    /// Plain decoding.
    Off,
    /// At most `max` proposals a round.
    On {
        /// Who proposes.
        proposer: &'a mut dyn Proposer,
        /// The most proposals of a round.
        max: usize,
    },
    /// As many proposals a round as a rule says.
    Auto {
        /// Who proposes.
        proposer: &'a mut dyn Proposer,
        /// The rule.
        length: &'a mut dyn DraftLength,
        /// Whether the proposer has taken everything in when the request ends, as it has otherwise.
        /// Without that nobody can go on with it, and a request that hardly drafts costs nothing.
        catch_up: bool,
    },
}

impl Speculation<'_> {
    fn proposer(&mut self) -> Option<&mut dyn Proposer> {
        match self {
            Self::Off => None,
            Self::On { proposer, .. } | Self::Auto { proposer, .. } => Some(&mut **proposer),
        }
    }
}

/// Values of taps that may wait while nothing is drafted, 64 MiB: a drafter takes many rows in at less
/// cost than one by one, and perhaps they are never needed.
const WAITING: usize = 1 << 24;

/// When a request ends.
#[derive(Debug, Clone, Default)]
pub struct Limits {
    /// The most tokens that are delivered; none: until the context ends.
    pub max_tokens: Option<usize>,
    /// Tokens that end the answer. The token itself is delivered.
    pub stop: BTreeSet<u32>,
    /// Positions that the state may hold; none: the target's context length.
    pub context: Option<usize>,
    /// Prompt tokens taken in at a time; 0: all. Changes no bit of the result.
    pub prefill_chunk: usize,
}

/// Why a request ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Finish {
    /// A stop token was delivered; also where it is the last one of the budget.
    Stop,
    /// The budget is used up.
    Length,
    /// The context is full.
    Context,
    /// The observer ended it.
    Cancelled,
}

/// What happened in one round.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Round {
    /// Tokens that were proposed and verified.
    pub drafted: usize,
    /// Those that the target agreed with and that were delivered.
    pub accepted: usize,
    /// Those that the target agreed with: more than were delivered where a stop came before them.
    pub agreed: usize,
    /// Tokens that were delivered: `accepted + 1`, or fewer at the end of a request.
    pub delivered: usize,
}

/// The result of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Generated {
    /// Delivered tokens, with the stop token if there was one.
    pub ids: Vec<u32>,
    /// Why there are no more.
    pub finish: Finish,
    /// The rounds; the first token comes from the prompt's pass and belongs to none.
    pub rounds: Vec<Round>,
}

/// Follows a request. Every method may do nothing.
pub trait Observer {
    /// `done` of `total` tokens of the prompt are taken in. Breaking ends the request there.
    fn prefill(&mut self, done: usize, total: usize) -> ControlFlow<()> {
        let _ = (done, total);
        ControlFlow::Continue(())
    }

    /// A token is delivered; `logits` are those it was chosen from. Breaking ends the request after
    /// this token.
    fn token(&mut self, id: u32, logits: &[f32]) -> ControlFlow<()> {
        let _ = (id, logits);
        ControlFlow::Continue(())
    }

    /// The state has taken in what was delivered, up to `pending`.
    fn committed(&mut self, state: &State, pending: u32) {
        let _ = (state, pending);
    }

    /// A round is over; its tokens were delivered and committed. The first token of a request
    /// belongs to no round.
    fn round(&mut self, round: &Round) {
        let _ = round;
    }
}

/// Observes nothing.
#[derive(Debug, Clone, Copy, Default)]
pub struct Unobserved;

impl Observer for Unobserved {}

/// A conversation: the target's state, and the token that it has not taken in yet.
#[derive(Debug, Clone)]
pub struct Session {
    /// What was taken in.
    pub state: State,
    /// Delivered last, to be taken in by the next round.
    pub pending: Option<u32>,
}

impl Session {
    /// Takes in `prompt` (after the pending token, if there is one) and generates until a limit is
    /// reached.
    ///
    /// # Errors
    /// [`Error::EmptyPrompt`] when nothing is there to continue; [`Error::ContextFull`] when the
    /// prompt does not fit; [`Error::NonFinite`] for logits that are no numbers; what target and
    /// proposer say. After an error the session can no longer be used.
    pub fn generate(
        &mut self,
        target: &Target,
        prompt: &[u32],
        limits: &Limits,
        verifier: &mut dyn Verifier,
        speculation: Speculation<'_>,
        observer: &mut dyn Observer,
    ) -> Result<Generated, Error> {
        let context = limits.context.unwrap_or(usize::MAX).min(target.config().context_length);
        let mut run = Run {
            target,
            limits,
            verifier,
            speculation,
            observer,
            ids: Vec::new(),
            waiting: None,
            taking_in: 0.0,
        };
        if let Speculation::Auto { length, .. } = &mut run.speculation {
            length.begin();
        }
        let logits = run.prefill(self, prompt, context)?;
        let mut rounds = Vec::new();
        let Some(logits) = logits else {
            return Ok(Generated { ids: Vec::new(), finish: Finish::Cancelled, rounds });
        };
        if limits.max_tokens == Some(0) {
            return Ok(Generated { ids: Vec::new(), finish: Finish::Length, rounds });
        }
        let first = run.verifier.choose(logits.row(0), self.state.len())?;
        let mut finish = run.deliver(first, logits.row(0));
        self.pending = Some(first);
        run.observer.committed(&self.state, first);
        while finish.is_none() {
            if self.state.len() >= context {
                finish = Some(Finish::Context);
                break;
            }
            let (round, end) = run.round(self, context)?;
            run.observer.round(&round);
            rounds.push(round);
            finish = end;
        }
        if !matches!(run.speculation, Speculation::Auto { catch_up: false, .. }) {
            run.catch_up()?;
        }
        let finish = finish.unwrap_or(Finish::Length);
        Ok(Generated { ids: run.ids, finish, rounds })
    }
}

struct Run<'a, 's> {
    target: &'a Target,
    limits: &'a Limits,
    verifier: &'a mut dyn Verifier,
    speculation: Speculation<'s>,
    observer: &'a mut dyn Observer,
    ids: Vec<u32>,
    /// Taps that the proposer has not taken in yet.
    waiting: Option<Rows<Primal>>,
    /// Seconds for what it took in since it was last asked for proposals.
    taking_in: f64,
}

impl Run<'_, '_> {
    fn taps(&self) -> Vec<usize> {
        match &self.speculation {
            Speculation::Off => Vec::new(),
            Speculation::On { proposer, .. } | Speculation::Auto { proposer, .. } => {
                proposer.taps().to_vec()
            }
        }
    }

    /// Gives the taps of tokens that were taken in to the proposer; `later` lets them wait until there
    /// are too many, or it is asked for proposals.
    fn extend(&mut self, taps: Option<Rows<Primal>>, later: bool) -> Result<(), Error> {
        let Some(taps) = taps else { return Ok(()) };
        match &mut self.waiting {
            Some(waiting) => waiting.append(taps),
            None => self.waiting = Some(taps),
        }
        if later && self.waiting.as_ref().is_some_and(|waiting| waiting.data().len() < WAITING) {
            return Ok(());
        }
        self.catch_up()
    }

    /// Gives the proposer what waits.
    fn catch_up(&mut self) -> Result<(), Error> {
        let (Some(proposer), Some(taps)) = (self.speculation.proposer(), self.waiting.take())
        else {
            return Ok(());
        };
        let begin = Instant::now();
        self.target.arithmetic().profile.part(Part::Context, || proposer.extend(&taps))?;
        if let Speculation::Auto { length, .. } = &mut self.speculation {
            length.took_in(taps.n(), begin.elapsed().as_secs_f64());
        }
        Ok(())
    }

    /// Takes the prompt in; gives the logits after its last token, `[1, vocab]`, or nothing when the
    /// observer ended it.
    fn prefill(
        &mut self,
        session: &mut Session,
        prompt: &[u32],
        context: usize,
    ) -> Result<Option<Rows<Primal>>, Error> {
        let ids: Vec<u32> =
            session.pending.take().into_iter().chain(prompt.iter().copied()).collect();
        let needed = session.state.len().saturating_add(ids.len());
        if needed > context {
            return Err(Error::ContextFull { needed, limit: context });
        }
        let taps = self.taps();
        let chunk =
            if self.limits.prefill_chunk == 0 { ids.len() } else { self.limits.prefill_chunk };
        let mut done = 0;
        for part in ids.chunks(chunk.max(1)) {
            let last = done + part.len() == ids.len();
            let rows = if last { LogitRows::Last } else { LogitRows::None };
            let advance = || self.target.advance(&mut session.state, part, &taps, rows);
            let pass = self.target.arithmetic().profile.part(Part::Prompt, advance)?;
            self.extend(pass.taps, false)?;
            done += part.len();
            if self.observer.prefill(done, ids.len()).is_break() {
                return Ok(None);
            }
            if last {
                return Ok(pass.logits);
            }
        }
        Err(Error::EmptyPrompt)
    }

    /// Delivers a token; says whether the request ends with it.
    fn deliver(&mut self, id: u32, logits: &[f32]) -> Option<Finish> {
        self.ids.push(id);
        let cancelled = self.observer.token(id, logits).is_break();
        if self.limits.stop.contains(&id) {
            Some(Finish::Stop)
        } else if self.limits.max_tokens.is_some_and(|max| self.ids.len() >= max) {
            Some(Finish::Length)
        } else if cancelled {
            Some(Finish::Cancelled)
        } else {
            None
        }
    }

    /// Proposals for this round: no more than the budget and the context can use. With them the
    /// seconds that drafting took, if anything was drafted.
    fn propose(
        &mut self,
        session: &Session,
        pending: u32,
        context: usize,
    ) -> Result<(Vec<u32>, Option<f64>), Error> {
        // A pass of 1 + n tokens delivers up to 1 + n tokens and holds as many positions.
        let budget = self.limits.max_tokens.map_or(usize::MAX, |max| max - self.ids.len());
        let room = (budget - 1).min(context - session.state.len() - 1);
        let n = match &mut self.speculation {
            Speculation::Off => 0,
            Speculation::On { max, .. } => room.min(*max),
            Speculation::Auto { length, .. } => length.most(room).min(room),
        };
        if n == 0 {
            return Ok((Vec::new(), None));
        }
        self.catch_up()?;
        let (position, sampler) = (session.state.len(), self.verifier.sampler());
        let request = Request { pending, position, max: n, sampler };
        let begin = Instant::now();
        let mut confidence = Vec::new();
        let mut drafts = match self.speculation.proposer() {
            None => Vec::new(),
            Some(proposer) => {
                let propose =
                    || proposer.propose_with_confidence(self.target, &request, &mut confidence);
                self.target.arithmetic().profile.part(Part::Draft, propose)?
            }
        };
        let seconds = begin.elapsed().as_secs_f64() + std::mem::take(&mut self.taking_in);
        drafts.truncate(n);
        if let Speculation::Auto { length, .. } = &mut self.speculation {
            drafts.truncate(length.cut(drafts.len(), &confidence));
        }
        Ok((drafts, Some(seconds)))
    }

    fn round(
        &mut self,
        session: &mut Session,
        context: usize,
    ) -> Result<(Round, Option<Finish>), Error> {
        let pending = session.pending.ok_or(Error::EmptyPrompt)?;
        let target = self.target;
        let profile = &target.arithmetic().profile;
        let (drafts, draft) = self.propose(session, pending, context)?;
        let mut ids = vec![pending];
        ids.extend(&drafts);
        let (taps, position) = (self.taps(), session.state.len() + 1);
        let begin = Instant::now();
        let (pass, verified) = profile.part(Part::Verify, || {
            if drafts.is_empty() {
                // Nothing can be rejected, so the state moves on at once.
                let pass = target.advance(&mut session.state, &ids, &taps, LogitRows::Last)?;
                return Ok::<_, Error>((pass, None));
            }
            let (pass, verified) = target.verify(&mut session.state, &ids, &taps)?;
            Ok((pass, Some(verified)))
        })?;
        let mut seconds = begin.elapsed().as_secs_f64();
        let logits = pass.logits.ok_or(Error::EmptyPrompt)?;
        let (mut n, mut finish) = (0, None);
        let mut next = pending;
        while finish.is_none() {
            let choose = || self.verifier.choose(logits.row(n), position + n);
            next = profile.part(Part::Choose, choose)?;
            finish = self.deliver(next, logits.row(n));
            n += 1;
            if drafts.get(n - 1) != Some(&next) {
                break;
            }
        }
        // The last token that was delivered stays pending; its predecessors are taken in.
        if let Some(verified) = verified {
            let begin = Instant::now();
            profile.part(Part::Commit, || session.state.commit(&verified, n));
            seconds += begin.elapsed().as_secs_f64();
        }
        session.pending = Some(next);
        // In rounds without drafts nobody asks the proposer.
        let later = matches!(self.speculation, Speculation::Auto { .. }) && draft.is_none();
        let begin = Instant::now();
        self.extend(pass.taps.map(|taps| taps.slice(0..n)), later)?;
        if !later {
            self.taking_in = begin.elapsed().as_secs_f64();
        }
        self.observer.committed(&session.state, next);
        let agreed = drafts.iter().zip(&self.ids[self.ids.len() - n..]);
        let accepted = agreed.take_while(|(draft, id)| draft == id).count();
        let mut agreed = accepted;
        while accepted == n && agreed < drafts.len() {
            let choice = self.verifier.choose(logits.row(agreed), position + agreed)?;
            if choice != drafts[agreed] {
                break;
            }
            agreed += 1;
        }
        if let Speculation::Auto { length, .. } = &mut self.speculation {
            length.observe(&Outcome { draft, verified: drafts.len(), agreed, verify: seconds });
        }
        Ok((Round { drafted: drafts.len(), accepted, agreed, delivered: n }, finish))
    }
}
