//! What leaves the engine while a request runs: the text of each round, and where it came from.

use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::time::Instant;

use super::logprobs::Logprobs;
use super::queue::Cancel;
use super::stop_text::{Out, StopText};
use super::{Delivered, Event, Events, Piece};
use crate::Error;
use crate::round::{Observer, Round};
use crate::target::State;
use crate::text::Detokenizer;

/// Who chose a token first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Origin {
    /// The drafter; the target agreed.
    Draft,
    /// The target, where no draft was right.
    Target,
    /// The target, after all drafts of the round: the pass had this one left over.
    Bonus,
}

impl Origin {
    /// The name in documents.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Draft => "draft",
            Self::Target => "target",
            Self::Bonus => "bonus",
        }
    }
}

/// One delivered token, until its text is out.
#[derive(Debug)]
struct Token {
    id: u32,
    origin: Option<Origin>,
    logprobs: Option<Logprobs>,
}

/// Follows the generation loop and hands out events.
pub(super) struct Delivery<'a> {
    pub(super) events: &'a mut Events,
    pub(super) cancel: &'a Cancel,
    pub(super) stops: &'a BTreeSet<u32>,
    pub(super) logprobs: Option<usize>,
    pub(super) detokenizer: Detokenizer,
    pub(super) text: StopText,
    /// Prompt tokens before those that the loop takes in, and all of them.
    pub(super) prompt: (usize, usize),
    tokens: Vec<Token>,
    /// Text of this round.
    out: Vec<Out>,
    /// Tokens whose round is known.
    settled: usize,
    rounds: usize,
    /// Whether the text ended before a stop string.
    pub(super) stopped: bool,
    /// Whether nobody listens any more.
    pub(super) gone: bool,
    /// When the first token was there.
    pub(super) first_at: Option<Instant>,
    pub(super) failed: Option<Error>,
}

impl<'a> Delivery<'a> {
    pub(super) fn new(
        events: &'a mut Events,
        cancel: &'a Cancel,
        stops: &'a BTreeSet<u32>,
        detokenizer: Detokenizer,
        stop: Vec<String>,
    ) -> Self {
        Self {
            events,
            cancel,
            stops,
            logprobs: None,
            detokenizer,
            text: StopText::new(stop),
            prompt: (0, 0),
            tokens: Vec::new(),
            out: Vec::new(),
            settled: 0,
            rounds: 0,
            stopped: false,
            gone: false,
            first_at: None,
            failed: None,
        }
    }

    /// Whether to go on.
    pub(super) fn flow(&self) -> ControlFlow<()> {
        let end = self.gone || self.stopped || self.failed.is_some() || self.cancel.is_cancelled();
        if end { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }

    /// Hands an event out.
    pub(super) fn send(&mut self, event: Event) {
        if (self.events)(event).is_break() {
            self.gone = true;
        }
    }

    /// `done` prompt tokens are taken in.
    pub(super) fn progress(&mut self, done: usize) {
        self.send(Event::Prefill { done, total: self.prompt.1 });
    }

    /// Hands out what the tokens so far have made of text.
    fn flush(&mut self, round: Option<Round>) {
        let pieces = self.out.drain(..).map(|Out { tag, text, first }| {
            let token = &mut self.tokens[tag];
            let from = token.origin.unwrap_or(Origin::Target);
            let logprobs = token.logprobs.take().filter(|_| first);
            Piece { id: token.id, text, from, first, logprobs }
        });
        let pieces = pieces.collect();
        self.send(Event::Delivered(Delivered { round: self.rounds, drafts: round, pieces }));
    }

    /// The answer is over: what was held back is text.
    pub(super) fn finish(&mut self) {
        if !self.stopped {
            self.text.finish(&mut self.out);
        }
        if !self.out.is_empty() {
            self.flush(None);
        }
    }
}

impl Observer for Delivery<'_> {
    fn prefill(&mut self, done: usize, _: usize) -> ControlFlow<()> {
        self.progress(self.prompt.0 + done);
        self.flow()
    }

    fn token(&mut self, id: u32, logits: &[f32]) -> ControlFlow<()> {
        self.first_at.get_or_insert_with(Instant::now);
        let logprobs = self.logprobs.map(|top| Logprobs::of(logits, id, top));
        let tag = self.tokens.len();
        self.tokens.push(Token { id, origin: None, logprobs });
        // A token that ends the answer is no text of it.
        if !self.stops.contains(&id) {
            match self.detokenizer.push(id) {
                Ok(text) => self.stopped = self.text.push(tag, &text, &mut self.out),
                Err(error) => self.failed = Some(error),
            }
        }
        self.flow()
    }

    fn committed(&mut self, _: &State, _: u32) {
        // The first token is the target's, and belongs to no round.
        if self.rounds == 0 && self.settled == 0 {
            self.tokens[0].origin = Some(Origin::Target);
            self.settled = 1;
            self.flush(None);
        }
    }

    fn round(&mut self, round: &Round) {
        self.rounds += 1;
        for (i, token) in self.tokens[self.settled..].iter_mut().enumerate() {
            token.origin = Some(if i < round.accepted {
                Origin::Draft
            } else if round.drafted > 0 && round.accepted == round.drafted {
                Origin::Bonus
            } else {
                Origin::Target
            });
        }
        self.settled = self.tokens.len();
        self.flush(Some(*round));
    }
}
