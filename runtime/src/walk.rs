//! The rounds that drafters would have, from one plain decoding of the target.
//!
//! With [`Greedy`] choice the served loop gives the ids of plain decoding, so a draft is accepted
//! exactly when it is the next token of that known text, and what a drafter proposes at a position
//! depends on the tapped states before it and on the token there, not on how the loop came by. So a
//! prompt is decoded once, its taps are kept, and every drafter walks along the text at every draft
//! length without running the target's layers again. The proposals at a position serve all draft
//! lengths, because a drafter always computes its whole block.
//!
//! The rounds are those of [`crate::round`], counted the same way to the last field; tests compare
//! them, and so does whoever measures.
//!
//! [`Greedy`]: crate::round::Greedy

use std::collections::BTreeSet;
use std::ops::ControlFlow;

use crate::Error;
use crate::drafter::{Context, Drafter};
use crate::kv::KvType;
use crate::round::{
    Finish, Greedy, Limits, Observer, Proposer, Request, Round, Session, Speculation,
};
use crate::rows::{Primal, Rows};
use crate::target::{State, Target};

/// A prompt, the target's own text after it, and what drafters have to know to walk along it.
#[derive(Debug)]
pub struct KnownText {
    prompt: usize,
    /// Delivered tokens, with the stop token if there was one.
    ids: Vec<u32>,
    /// What the target would go on with past a stop token; at least as many as a round can draft.
    ahead: Vec<u32>,
    finish: Finish,
    budget: usize,
    /// Taps of the delivered tokens but the last one, `[delivered - 1, layers · hidden]`.
    taps: Rows<Primal>,
    layers: Vec<usize>,
    hidden: usize,
    /// Per drafter: its context after the prompt.
    contexts: Vec<Context>,
}

/// How a text is decoded.
#[derive(Debug, Clone)]
pub struct Decoding<'a> {
    /// The target.
    pub target: &'a Target,
    /// How keys and values of target and drafters are kept.
    pub kv: KvType,
    /// The most tokens that are delivered, at least 1.
    pub budget: usize,
    /// Tokens that end the answer.
    pub stop: &'a BTreeSet<u32>,
    /// Prompt tokens taken in at a time; 0: all.
    pub prefill_chunk: usize,
}

impl Decoding<'_> {
    /// Decodes `prompt` plainly for these drafters; nothing when `cancelled` says so, which is asked
    /// after each token.
    ///
    /// # Errors
    /// [`Error::ContextFull`] when prompt and budget do not fit the target's context; as
    /// [`Session::generate`].
    pub fn run(
        &self,
        drafters: &[&Drafter],
        prompt: &[u32],
        cancelled: &dyn Fn() -> bool,
    ) -> Result<Option<KnownText>, Error> {
        let config = self.target.config();
        // The last token that is delivered needs no position.
        let needed = prompt.len().saturating_add(self.budget.saturating_sub(1));
        if needed > config.context_length {
            return Err(Error::ContextFull { needed, limit: config.context_length });
        }
        let layers: BTreeSet<usize> =
            drafters.iter().flat_map(|d| d.config().target_layer_ids.iter().copied()).collect();
        let mut recorder = Recorder {
            layers: layers.into_iter().collect(),
            hidden: config.hidden,
            drafters,
            contexts: drafters.iter().map(|d| Context::new(d.config(), self.kv)).collect(),
            prompt_left: prompt.len(),
            taps: None,
        };
        // Past a stop, as many tokens as the longest round could still agree with.
        let most = drafters.iter().map(|d| d.config().block_size - 1).max().unwrap_or(0);
        let mut follower =
            Follower { stop: self.stop, most, n: 0, stopped: None, cancelled, broke: false };
        let limits = Limits {
            max_tokens: Some(self.budget.max(1)),
            stop: BTreeSet::new(),
            context: None,
            prefill_chunk: self.prefill_chunk,
        };
        let mut session = Session { state: State::new(config, self.kv), pending: None };
        let speculation = Speculation::On { proposer: &mut recorder, max: 0 };
        let generated = session.generate(
            self.target,
            prompt,
            &limits,
            &mut Greedy,
            speculation,
            &mut follower,
        )?;
        if follower.broke {
            return Ok(None);
        }
        let (mut ids, mut ahead) = (generated.ids, Vec::new());
        let mut finish = Finish::Length;
        if let Some(n) = follower.stopped {
            ahead = ids.split_off(n);
            finish = Finish::Stop;
        }
        let width = recorder.layers.len() * config.hidden;
        Ok(Some(KnownText {
            prompt: prompt.len(),
            ids,
            ahead,
            finish,
            budget: self.budget.max(1),
            taps: recorder.taps.unwrap_or_else(|| Rows::zeroed(0, width.max(1))),
            layers: recorder.layers,
            hidden: config.hidden,
            contexts: recorder.contexts,
        }))
    }
}

impl KnownText {
    /// The delivered tokens, with the stop token if there was one.
    #[must_use]
    pub fn ids(&self) -> &[u32] {
        &self.ids
    }

    /// Why there are no more.
    #[must_use]
    pub fn finish(&self) -> Finish {
        self.finish
    }

    /// The rounds of drafter `index` of those that the text was decoded for, at each of `lengths`
    /// drafts.
    ///
    /// # Errors
    /// What the drafter says.
    ///
    /// # Panics
    /// If the text was not decoded for such a drafter.
    pub fn walk(
        &self,
        target: &Target,
        index: usize,
        drafter: &Drafter,
        lengths: &[usize],
    ) -> Result<Vec<Vec<Round>>, Error> {
        let mut context = self.contexts[index].clone();
        let end = self.ids.len();
        // Per draft length: tokens delivered so far, and the rounds. The prompt's pass gave the first.
        let mut walks: Vec<(usize, Vec<Round>)> = vec![(1, Vec::new()); lengths.len()];
        for delivered in 1..end {
            if walks.iter().all(|(at, _)| *at != delivered) {
                continue;
            }
            // The budget bounds the drafts of a round: one more token than drafts is delivered.
            let room = self.budget - delivered - 1;
            let max = |length: usize| length.min(room);
            let here = walks.iter().zip(lengths).filter(|((at, _), _)| *at == delivered);
            let mut drafts = Vec::new();
            if here.map(|(_, length)| max(*length)).max() > Some(0) {
                let position = self.prompt + delivered - 1;
                let taken = context.len() - self.prompt;
                if taken < position - self.prompt {
                    let taps = self.taps.slice(taken..position - self.prompt);
                    drafter
                        .extend(&mut context, &columns(taps, &self.layers, self.hidden, drafter))?;
                }
                drafts = drafter.draft(&mut context, target, self.ids[delivered - 1])?;
            }
            for ((at, rounds), length) in walks.iter_mut().zip(lengths) {
                if *at == delivered {
                    let n = max(*length).min(drafts.len());
                    let round = self.round(delivered, &drafts[..n]);
                    *at += round.delivered;
                    rounds.push(round);
                }
            }
        }
        Ok(walks.into_iter().map(|(_, rounds)| rounds).collect())
    }

    /// The round that verifies `drafts` after `delivered` tokens.
    fn round(&self, delivered: usize, drafts: &[u32]) -> Round {
        let text = self.ids[delivered..].iter().chain(&self.ahead);
        let agreed = drafts.iter().zip(text).take_while(|(draft, id)| draft == id).count();
        let left = self.ids.len() - delivered;
        let n = (agreed + 1).min(left);
        Round { drafted: drafts.len(), accepted: agreed.min(n), agreed, delivered: n }
    }
}

/// The columns of `taps` that this drafter wants, in its order.
fn columns(taps: Rows<Primal>, layers: &[usize], hidden: usize, drafter: &Drafter) -> Rows<Primal> {
    let wanted = &drafter.config().target_layer_ids;
    if wanted.as_slice() == layers {
        return taps;
    }
    let place = |layer: &usize| layers.binary_search(layer).expect("decoded for this drafter");
    let places: Vec<usize> = wanted.iter().map(place).collect();
    let mut data = Vec::with_capacity(taps.n() * wanted.len() * hidden);
    for row in taps.iter() {
        for place in &places {
            data.extend_from_slice(&row[place * hidden..(place + 1) * hidden]);
        }
    }
    Rows::from_vec(wanted.len() * hidden, data)
}

/// Proposes nothing; gives the prompt's taps to the drafters and keeps those of the answer.
#[derive(Debug)]
struct Recorder<'a> {
    /// Layers that any drafter taps, ascending.
    layers: Vec<usize>,
    hidden: usize,
    drafters: &'a [&'a Drafter],
    contexts: Vec<Context>,
    prompt_left: usize,
    taps: Option<Rows<Primal>>,
}

impl Proposer for Recorder<'_> {
    fn taps(&self) -> &[usize] {
        &self.layers
    }

    fn extend(&mut self, taps: &Rows<Primal>) -> Result<(), Error> {
        if self.prompt_left > 0 {
            self.prompt_left -= taps.n();
            for (drafter, context) in self.drafters.iter().zip(&mut self.contexts) {
                let taps = taps.slice(0..taps.n());
                drafter.extend(context, &columns(taps, &self.layers, self.hidden, drafter))?;
            }
            return Ok(());
        }
        let rows = taps.slice(0..taps.n());
        match &mut self.taps {
            Some(all) => all.append(rows),
            None => self.taps = Some(rows),
        }
        Ok(())
    }

    fn propose(&mut self, _: &Target, _: &Request<'_>) -> Result<Vec<u32>, Error> {
        Ok(Vec::new())
    }
}

/// Ends the decoding so many tokens after a stop token.
struct Follower<'a> {
    stop: &'a BTreeSet<u32>,
    most: usize,
    n: usize,
    /// Tokens up to the first stop token, with it.
    stopped: Option<usize>,
    cancelled: &'a dyn Fn() -> bool,
    broke: bool,
}

impl Follower<'_> {
    fn unless_cancelled(&mut self) -> ControlFlow<()> {
        self.broke |= (self.cancelled)();
        if self.broke { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }
}

impl Observer for Follower<'_> {
    fn prefill(&mut self, _: usize, _: usize) -> ControlFlow<()> {
        self.unless_cancelled()
    }

    fn token(&mut self, id: u32, _: &[f32]) -> ControlFlow<()> {
        self.n += 1;
        if self.stopped.is_none() && self.stop.contains(&id) {
            self.stopped = Some(self.n);
        }
        if self.stopped.is_some_and(|stopped| self.n >= stopped + self.most) {
            return ControlFlow::Break(());
        }
        self.unless_cancelled()
    }
}
