//! The proof, on a user's own models, that speculation changes nothing.
//!
//! One prompt is decoded plainly, and then with every draft length. After each token the id and the
//! bits of all logits are compared, after each commit a digest of the whole state, and at the end the
//! drafter's context. The runs also differ in how the prompt is cut into passes, which must not
//! matter either. The first difference ends the proof.

use std::collections::HashMap;
use std::ops::{ControlFlow, RangeInclusive};

use crate::Error;
use crate::drafter::{Context, Drafter};
use crate::kv::KvType;
use crate::round::{
    Coupling, DrafterProposer, Finish, Generated, Limits, Observer, Round, Session, Speculation,
    Verifier,
};
use crate::target::{Digest, State, Target};

/// What is run.
#[derive(Debug)]
pub struct Pair<'a> {
    /// Decodes.
    pub target: &'a Target,
    /// Proposes.
    pub drafter: &'a Drafter,
    /// How keys and values are stored.
    pub kv: KvType,
    /// How the drafter follows sampled draws.
    pub coupling: Coupling,
}

/// How a proof ended.
#[derive(Debug, Clone, PartialEq)]
pub enum Proof {
    /// No difference.
    Exact(Proved),
    /// The first difference.
    Different(Difference),
    /// The caller ended it.
    Cancelled,
}

/// What was compared and found equal.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Proved {
    /// Delivered tokens of plain decoding.
    pub tokens: usize,
    /// Rows of logits whose bits were compared.
    pub logits: usize,
    /// State digests that were compared.
    pub states: usize,
    /// Rounds of each draft length.
    pub rounds: Vec<(usize, Vec<Round>)>,
}

/// What differs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum What {
    /// The delivered token.
    Id,
    /// The bits of a logit; the token is the same.
    Logits,
    /// The state after a commit.
    State,
    /// The drafter's context at the end.
    Context,
    /// Fewer tokens, or more.
    Length,
}

impl What {
    /// A noun.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Id => "id",
            Self::Logits => "logits",
            Self::State => "state",
            Self::Context => "context",
            Self::Length => "length",
        }
    }
}

/// The largest two logits of a position, with their ids.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TopTwo {
    /// The larger one.
    pub first: (u32, f32),
    /// The other; the same where the vocabulary has one token.
    pub second: (u32, f32),
}

impl TopTwo {
    fn of(logits: &[f32]) -> Self {
        let (mut first, mut second) = ((0, f32::NEG_INFINITY), (0, f32::NEG_INFINITY));
        for (id, logit) in logits.iter().enumerate() {
            if *logit > first.1 {
                second = first;
                first = (id as u32, *logit);
            } else if *logit > second.1 {
                second = (id as u32, *logit);
            }
        }
        Self { first, second }
    }

    /// How far apart they are.
    #[must_use]
    pub fn margin(&self) -> f32 {
        self.first.1 - self.second.1
    }
}

/// The first difference.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Difference {
    /// The draft length that was not like plain decoding.
    pub draft_max: usize,
    /// What differs.
    pub what: What,
    /// At which delivered token, counted from 0.
    pub token: usize,
    /// At which position of the context.
    pub position: usize,
    /// Plain decoding there; none past its end.
    pub plain: Option<Chosen>,
    /// The speculative run there; none past its end.
    pub found: Option<Chosen>,
}

/// A delivered token and the logits it was chosen from.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Chosen {
    /// The token.
    pub id: u32,
    /// The largest logits.
    pub top: TopTwo,
}

/// Compares plain decoding of `prompt` with speculation at every draft length of `drafts`.
///
/// `verifier` makes the chooser of a run, the same each time. The limits' chunk of the prompt is that
/// of plain decoding; the other runs use other chunks. `cancelled` is asked after each token, with the
/// draft length of the run, none for plain decoding.
///
/// # Errors
/// What target, drafter and verifier say.
pub fn prove(
    pair: &Pair<'_>,
    prompt: &[u32],
    limits: &Limits,
    drafts: RangeInclusive<usize>,
    verifier: &mut dyn FnMut() -> Box<dyn Verifier>,
    cancelled: &dyn Fn(Option<usize>) -> bool,
) -> Result<Proof, Error> {
    let mut plain = Trace { tokens: Vec::new(), states: HashMap::new(), cancelled };
    let generated = pair.run(prompt, limits, &mut *verifier(), Speculation::Off, &mut plain)?;
    if generated.finish == Finish::Cancelled {
        return Ok(Proof::Cancelled);
    }
    let mut proved = Proved { tokens: plain.tokens.len(), ..Proved::default() };

    let mut context_digest = None;
    for (i, draft_max) in drafts.enumerate() {
        let limits = Limits { prefill_chunk: chunk(i, limits.prefill_chunk), ..limits.clone() };
        let context = Context::new(pair.drafter.config(), pair.kv);
        let mut proposer =
            DrafterProposer { drafter: pair.drafter, context, coupling: pair.coupling };
        let mut check = Check { plain: &plain, draft_max, n: 0, states: 0, difference: None };
        let speculation = Speculation::On { proposer: &mut proposer, max: draft_max };
        let generated = pair.run(prompt, &limits, &mut *verifier(), speculation, &mut check)?;

        if generated.finish == Finish::Cancelled && check.difference.is_none() {
            return Ok(Proof::Cancelled);
        }
        let digest = proposer.context.digest();
        let first = *context_digest.get_or_insert(digest);
        let found = check.difference.or_else(|| {
            let what = if check.n != plain.tokens.len() {
                What::Length
            } else if digest != first {
                What::Context
            } else {
                return None;
            };
            Some((what, check.n, None))
        });
        if let Some((what, token, found)) = found {
            let plain = plain.tokens.get(token).map(|t| t.chosen);
            let position = prompt.len() + token;
            let difference = Difference { draft_max, what, token, position, plain, found };
            return Ok(Proof::Different(difference));
        }
        proved.logits += check.n;
        proved.states += check.states;
        proved.rounds.push((draft_max, generated.rounds));
    }
    Ok(Proof::Exact(proved))
}

/// Prompt tokens of a pass in the `i`th run: all, one by one, and numbers that divide nothing.
fn chunk(i: usize, plain: usize) -> usize {
    [plain, 5, 1, 16, 0, 3, 64, 7][i % 8]
}

impl<'a> Pair<'a> {
    /// A pair with keys and values in f16.
    #[must_use]
    pub fn new(target: &'a Target, drafter: &'a Drafter) -> Self {
        Self { target, drafter, kv: KvType::default(), coupling: Coupling::default() }
    }

    fn run(
        &self,
        prompt: &[u32],
        limits: &Limits,
        verifier: &mut dyn Verifier,
        speculation: Speculation<'_>,
        observer: &mut dyn Observer,
    ) -> Result<Generated, Error> {
        let state = State::new(self.target.config(), self.kv);
        let mut session = Session { state, pending: None };
        session.generate(self.target, prompt, limits, verifier, speculation, observer)
    }
}

/// A delivered token.
#[derive(Debug)]
struct Token {
    chosen: Chosen,
    logits: blake3::Hash,
}

impl Token {
    fn new(id: u32, logits: &[f32]) -> Self {
        let mut hasher = blake3::Hasher::new();
        for chunk in logits.chunks(4096) {
            let bytes: Vec<u8> = chunk.iter().flat_map(|x| x.to_le_bytes()).collect();
            hasher.update(&bytes);
        }
        Self { chosen: Chosen { id, top: TopTwo::of(logits) }, logits: hasher.finalize() }
    }
}

/// Plain decoding, to compare with.
struct Trace<'a> {
    tokens: Vec<Token>,
    /// By the number of delivered tokens.
    states: HashMap<usize, Digest>,
    cancelled: &'a dyn Fn(Option<usize>) -> bool,
}

/// Goes on, or not.
fn unless(cancelled: bool) -> ControlFlow<()> {
    if cancelled { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
}

impl Observer for Trace<'_> {
    fn prefill(&mut self, _: usize, _: usize) -> ControlFlow<()> {
        unless((self.cancelled)(None))
    }

    fn token(&mut self, id: u32, logits: &[f32]) -> ControlFlow<()> {
        self.tokens.push(Token::new(id, logits));
        unless((self.cancelled)(None))
    }

    fn committed(&mut self, state: &State, pending: u32) {
        self.states.insert(self.tokens.len(), state.digest(Some(pending)));
    }
}

/// Another run, compared as it goes.
struct Check<'a> {
    plain: &'a Trace<'a>,
    draft_max: usize,
    n: usize,
    states: usize,
    difference: Option<(What, usize, Option<Chosen>)>,
}

impl Observer for Check<'_> {
    fn prefill(&mut self, _: usize, _: usize) -> ControlFlow<()> {
        unless((self.plain.cancelled)(Some(self.draft_max)))
    }

    fn token(&mut self, id: u32, logits: &[f32]) -> ControlFlow<()> {
        let found = Token::new(id, logits);
        let at = self.n;
        self.n += 1;
        let what = match self.plain.tokens.get(at) {
            None => What::Length,
            Some(plain) if plain.chosen.id != id => What::Id,
            Some(plain) if plain.logits != found.logits => What::Logits,
            Some(_) => return unless((self.plain.cancelled)(Some(self.draft_max))),
        };
        self.difference.get_or_insert((what, at, Some(found.chosen)));
        ControlFlow::Break(())
    }

    fn committed(&mut self, state: &State, pending: u32) {
        if self.difference.is_some() {
            return;
        }
        self.states += 1;
        if self.plain.states.get(&self.n) != Some(&state.digest(Some(pending))) {
            self.difference = Some((What::State, self.n.saturating_sub(1), None));
        }
    }
}
