//! Runs a drafter as serving does, over the target's own answers or over given text, so that an
//! [`InputObserver`](crate::drafter::InputObserver) sees what its matrices would meet there, and what a
//! tuner has to know can be written down.
//!
//! A round starts at every position where the served loop would start one, with the context strictly
//! before it. Over an answer that loop itself runs. Given text takes the place of what the target
//! would say: a draft is accepted when it is the text's own next token.

use std::ops::ControlFlow;

use crate::Error;
use crate::drafter::{Context, Drafter};
use crate::engine::Logprobs;
use crate::kv::KvType;
use crate::round::{
    Coupling, DrafterProposer, Finish, Limits, Observer, Proposer, Request, Session, Speculation,
    Verifier,
};
use crate::rows::{Primal, Rows};
use crate::target::{LogitRows, State, Target};

/// Tokens of a pass of the target.
const CHUNK: usize = 64;

/// The models and how they run.
#[derive(Debug, Clone, Copy)]
pub struct Capture<'a> {
    /// The target.
    pub target: &'a Target,
    /// The drafter, with its observer.
    pub drafter: &'a Drafter,
    /// How keys and values of both are kept.
    pub kv: KvType,
    /// Most drafts of a round.
    pub draft_max: usize,
    /// How the drafter's walk follows the target's draws.
    pub coupling: Coupling,
    /// Likeliest tokens of each position that are wanted, with taps and anchors; 0: none of it.
    pub top: usize,
}

/// What was run.
#[derive(Debug, Default)]
pub struct Captured {
    /// All tokens: those that were given, and the answer.
    pub ids: Vec<u32>,
    /// Tokens that rounds delivered.
    pub positions: usize,
    /// Rounds.
    pub rounds: usize,
    /// Context rows that the blocks of all rounds saw, each as often as it was seen.
    pub context_rows: usize,
    /// What a tuner wants, if it was asked for.
    pub labels: Option<Labels>,
}

/// What a tuner has to know of a text.
#[derive(Debug, Clone, PartialEq)]
pub struct Labels {
    /// Positions of the tokens that rounds started from.
    pub anchors: Vec<usize>,
    /// Tapped states of the positions from 0 on, `[n, taps · hidden]`. The last token has none where no
    /// pass took it in.
    pub taps: Rows<Primal>,
    /// The first position that `likeliest` is of.
    pub first: usize,
    /// Per position from `first` on, the tokens that the target found likeliest there after those before
    /// it, with the natural logarithms of their probabilities, likeliest first.
    pub likeliest: Vec<Vec<(u32, f64)>>,
}

impl Capture<'_> {
    /// Lets the target answer `prompt`. Nothing when `cancelled`, which is asked after each token, says
    /// so: then the observer has seen a part.
    ///
    /// # Errors
    /// As [`Session::generate`].
    pub fn answer(
        &self,
        prompt: &[u32],
        limits: &Limits,
        verifier: &mut dyn Verifier,
        cancelled: &dyn Fn() -> bool,
    ) -> Result<Option<Captured>, Error> {
        let context = Context::new(self.drafter.config(), self.kv);
        let proposer = DrafterProposer {
            coupling: self.coupling,
            ..DrafterProposer::new(self.drafter, context)
        };
        let mut recorder =
            Recorder { proposer, anchors: Vec::new(), seen: 0, taps: None, keep: self.top > 0 };
        let mut listener = Listener { cancelled, top: self.top, likeliest: Vec::new() };
        let limits = Limits { prefill_chunk: CHUNK, ..limits.clone() };
        let mut session =
            Session { state: State::new(self.target.config(), self.kv), pending: None };
        let speculation = Speculation::On { proposer: &mut recorder, max: self.draft_max };
        let generated =
            session.generate(self.target, prompt, &limits, verifier, speculation, &mut listener)?;
        if generated.finish == Finish::Cancelled {
            return Ok(None);
        }
        let mut ids = prompt.to_vec();
        ids.extend(&generated.ids);
        let labels = recorder.taps.map(|taps| Labels {
            anchors: recorder.anchors,
            taps,
            first: prompt.len(),
            likeliest: listener.likeliest,
        });
        Ok(Some(Captured {
            ids,
            positions: generated.rounds.iter().map(|round| round.delivered).sum(),
            rounds: generated.rounds.len(),
            context_rows: recorder.seen,
            labels,
        }))
    }

    /// Goes over a given text, of which the first `lead` tokens are context only. Nothing when `cancelled`,
    /// which is asked after each pass, says so.
    ///
    /// # Errors
    /// [`Error::EmptyPrompt`] when nothing is left after the lead, or it is empty; as
    /// [`Target::advance`] and [`Drafter::draft`].
    pub fn text(
        &self,
        ids: &[u32],
        lead: usize,
        cancelled: &dyn Fn() -> bool,
    ) -> Result<Option<Captured>, Error> {
        if lead == 0 || lead >= ids.len() {
            return Err(Error::EmptyPrompt);
        }
        let layers = &self.drafter.config().target_layer_ids;
        let mut state = State::new(self.target.config(), self.kv);
        let (mut taps, mut likeliest) = (None::<Rows<Primal>>, Vec::new());
        let rows = if self.top > 0 { LogitRows::All } else { LogitRows::None };
        // Nobody wants to know what follows the last token.
        for chunk in ids[..ids.len() - 1].chunks(CHUNK) {
            let start = state.len();
            let pass = self.target.advance(&mut state, chunk, layers, rows)?;
            for (i, logits) in pass.logits.iter().flat_map(Rows::iter).enumerate() {
                if start + i + 1 >= lead {
                    likeliest.push(Logprobs::of(logits, 0, self.top).top);
                }
            }
            match (&mut taps, pass.taps) {
                (Some(taps), Some(more)) => taps.append(more),
                (taps, more) => *taps = more,
            }
            if cancelled() {
                return Ok(None);
            }
        }
        let Some(taps) = taps else { return Err(Error::EmptyPrompt) };
        let mut captured = Captured { ids: ids.to_vec(), ..Captured::default() };
        let mut anchors = Vec::new();
        let mut context = Context::new(self.drafter.config(), self.kv);
        let mut at = lead;
        while at + 1 < ids.len() {
            let more = taps.slice(context.len()..at);
            for first in (0..more.n()).step_by(CHUNK) {
                let part = more.slice(first..more.n().min(first + CHUNK));
                self.drafter.extend(&mut context, &part)?;
            }
            let left = ids.len() - at - 1;
            let max = self.draft_max.min(left - 1);
            let mut agreed = 0;
            if max > 0 {
                anchors.push(at);
                captured.context_rows += context.seen();
                let drafts = self.drafter.draft(&mut context, self.target, ids[at])?;
                let right = drafts.iter().take(max).zip(&ids[at + 1..]);
                agreed = right.take_while(|(draft, id)| draft == id).count();
            }
            captured.rounds += 1;
            captured.positions += agreed + 1;
            at += agreed + 1;
            if cancelled() {
                return Ok(None);
            }
        }
        let rest = taps.slice(context.len()..taps.n());
        if rest.n() > 0 {
            self.drafter.extend(&mut context, &rest)?;
        }
        if self.top > 0 {
            captured.labels = Some(Labels { anchors, taps, first: lead, likeliest });
        }
        Ok(Some(captured))
    }
}

/// A drafter whose anchors are kept, and with `keep` the states it is given.
#[derive(Debug)]
struct Recorder<'a> {
    proposer: DrafterProposer<'a>,
    anchors: Vec<usize>,
    /// Context rows that the blocks saw.
    seen: usize,
    taps: Option<Rows<Primal>>,
    keep: bool,
}

impl Proposer for Recorder<'_> {
    fn taps(&self) -> &[usize] {
        self.proposer.taps()
    }

    fn extend(&mut self, taps: &Rows<Primal>) -> Result<(), Error> {
        if self.keep {
            let rows = taps.slice(0..taps.n());
            match &mut self.taps {
                Some(all) => all.append(rows),
                None => self.taps = Some(rows),
            }
        }
        self.proposer.extend(taps)
    }

    fn propose(&mut self, target: &Target, request: &Request<'_>) -> Result<Vec<u32>, Error> {
        self.anchors.push(request.position);
        self.seen += self.proposer.context.seen();
        self.proposer.propose(target, request)
    }
}

struct Listener<'a> {
    cancelled: &'a dyn Fn() -> bool,
    top: usize,
    likeliest: Vec<Vec<(u32, f64)>>,
}

impl Listener<'_> {
    fn go_on(&self) -> ControlFlow<()> {
        if (self.cancelled)() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }
}

impl Observer for Listener<'_> {
    fn prefill(&mut self, _: usize, _: usize) -> ControlFlow<()> {
        self.go_on()
    }

    fn token(&mut self, id: u32, logits: &[f32]) -> ControlFlow<()> {
        if self.top > 0 {
            self.likeliest.push(Logprobs::of(logits, id, self.top).top);
        }
        self.go_on()
    }
}
