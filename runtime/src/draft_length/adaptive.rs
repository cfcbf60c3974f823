//! The rule that learns.
//!
//! ```text
//! p_i        probability that draft i is right if those before it are: the proposer's confidence,
//!            corrected by what drafts of that confidence turned out to be
//! E(k)       1 + p_1 + p_1 p_2 + … + p_1 … p_k       tokens that k verified drafts give on average
//! v(m), c    cost of a pass over m rows, and of drafting
//! r          tokens per cost of late, and at least 1 / v(1), which is plain decoding
//! k          maximises E(k) - r · v(k + 1)           the draft is made, so c does not matter
//! ```
//!
//! Taking the pass that gains most over what its time would give otherwise is what maximises tokens
//! over time in the long run. When rounds with drafts give less than plain decoding, nothing is
//! drafted for a while; then a few rounds are tried, and after each failure the while is longer.
//!
//! Costs are learnt on the way: the first round is plain, the next has one draft, and no round is
//! more than twice as long as any before it, so a machine on which long passes are dear never runs
//! one.

use super::acceptance::Acceptance;
use super::costs::Costs;
use super::{DraftLength, Outcome};

/// Rounds over which the rate is taken.
const MEMORY: f64 = 32.0;
/// Rounds that the rate's beginning is worth, and how much better than plain decoding it is.
const BEGINNING: f64 = 2.0;
const HOPE: f64 = 1.3;

/// Rounds that are tried in the beginning, and after a pause.
const TRIAL: usize = 2;
/// A trial ends early when it gives less than this share of plain decoding.
const LOST: f64 = 0.85;
/// What trials may cost of the time of plain decoding.
const SPENT: f64 = 0.01;
/// Bounds of a pause, in rounds; the longest one is the rest of the answer.
const SHORTEST_PAUSE: usize = 16;
const LONGEST_PAUSE: usize = 1 << 20;
/// The longest pause after a single round that lost.
const FIRST_PAUSE: usize = 64;

/// Rounds with drafts after which a plain one is run to see its cost, early and later.
const EARLY_LOOKS: [usize; 2] = [6, 18];
const LOOK_EVERY: usize = 64;
/// Drafting that is so much better than plain decoding needs no second look.
const CLEARLY: f64 = 1.5;

/// Tokens and their cost, recent ones counting most.
#[derive(Debug, Clone, Copy)]
struct Rate {
    tokens: f64,
    cost: f64,
    rounds: f64,
}

impl Rate {
    fn beginning(plain: f64) -> Self {
        Self { tokens: BEGINNING * HOPE, cost: BEGINNING * plain, rounds: BEGINNING }
    }

    fn add(&mut self, tokens: f64, cost: f64) {
        let keep = 1.0 - 1.0 / MEMORY;
        self.tokens = self.tokens * keep + tokens;
        self.cost = self.cost * keep + cost;
        self.rounds = self.rounds * keep + 1.0;
    }

    /// As if it were of few rounds.
    fn doubt(&mut self) {
        let keep = (BEGINNING / self.rounds).min(1.0);
        (self.tokens, self.cost) = (self.tokens * keep, self.cost * keep);
        self.rounds *= keep;
    }

    fn value(&self) -> f64 {
        self.tokens / self.cost
    }
}

/// Cuts where a further draft no longer pays; stops drafting while it loses.
#[derive(Debug, Clone)]
pub struct Adaptive {
    most: usize,
    costs: Costs,
    acceptance: Acceptance,
    /// Of rounds with drafts.
    rate: Option<Rate>,
    /// Of the round that runs: what its proposer said, and the tokens that are expected.
    confidence: Vec<f64>,
    expected: f64,
    /// Plain rounds to come.
    pause: usize,
    /// Rounds to come that are drafted whatever their rate.
    trial: usize,
    drafted_rounds: usize,
    /// The number of drafted rounds at the last look at plain decoding.
    looked: usize,
}

impl Adaptive {
    /// For at most `most` drafts a round.
    #[must_use]
    pub fn new(most: usize) -> Self {
        Self {
            most,
            costs: Costs::new(most + 1),
            acceptance: Acceptance::new(most),
            rate: None,
            confidence: Vec::new(),
            expected: 0.0,
            pause: 0,
            trial: TRIAL,
            drafted_rounds: 0,
            looked: 0,
        }
    }

    /// Tokens per cost of plain decoding.
    fn plain(&self) -> f64 {
        1.0 / self.costs.pass(1)
    }

    /// Tokens per cost of the best fixed length, by what places of the block have shown.
    fn best_fixed(&self) -> f64 {
        let (mut reached, mut tokens, mut best) = (1.0, 1.0, 0.0f64);
        for k in 1..=self.most {
            reached *= self.acceptance.of(k - 1, None);
            tokens += reached;
            best = best.max(tokens / (self.costs.draft() + self.costs.pass(k + 1)));
        }
        best
    }

    /// Tokens per cost of late. Where the proposer has confidences, places are seen in promising
    /// rounds more often than in others, and say too much.
    fn drafting(&self) -> f64 {
        if self.confidence.is_empty() {
            return self.best_fixed();
        }
        self.rate.map_or(0.0, |rate| rate.value())
    }

    fn should_look(&self) -> bool {
        let early = self.costs.samples(1) < 3 && EARLY_LOOKS.contains(&self.drafted_rounds);
        let late = self.drafted_rounds >= self.looked + LOOK_EVERY
            && self.drafting() < CLEARLY * self.plain();
        (early || late) && self.drafted_rounds != self.looked
    }

    fn begin_pause(&mut self) {
        // What a trial loses if drafts stay what they are.
        let tokens = 1.0 + self.acceptance.of_first();
        let cost = self.costs.draft() + self.costs.pass(2);
        let loss = TRIAL as f64 * (cost * self.plain() - tokens);
        // What the drafter misses meanwhile, it has to take in before the trial.
        let spare = SPENT - self.costs.take_in();
        let rounds = if loss > 0.0 { loss / spare.max(0.0) } else { 0.0 };
        // The first times may have been bad luck.
        let most = if self.drafted_rounds == 1 { FIRST_PAUSE } else { LONGEST_PAUSE };
        self.pause = (rounds as usize).clamp(SHORTEST_PAUSE, most);
        self.trial = TRIAL;
        self.acceptance.doubt();
        if let Some(rate) = &mut self.rate {
            rate.doubt();
        }
    }
}

impl DraftLength for Adaptive {
    fn begin(&mut self) {
        // Other text: only what is known of the machine and of the proposer's confidence stays.
        self.acceptance.forget_places();
        (self.pause, self.trial, self.rate) = (0, TRIAL, None);
    }

    fn most(&mut self, room: usize) -> usize {
        let longest = self.costs.longest();
        if room == 0 || longest == 0 {
            return 0;
        }
        if self.pause > 0 {
            self.pause -= 1;
            return 0;
        }
        if self.should_look() {
            self.looked = self.drafted_rounds;
            return 0;
        }
        room.min(self.most).min(2 * longest - 1)
    }

    fn cut(&mut self, drafts: usize, confidence: &[f64]) -> usize {
        self.confidence.clear();
        self.confidence.extend_from_slice(confidence);
        let worth = self.plain().max(self.drafting());
        let (mut reached, mut tokens) = (1.0, 1.0);
        let mut tokens_of = vec![tokens];
        let mut best = (0, tokens - worth * self.costs.pass(1));
        for k in 1..=drafts {
            reached *= self.acceptance.of(k - 1, confidence.get(k - 1).copied());
            tokens += reached;
            tokens_of.push(tokens);
            let gain = tokens - worth * self.costs.pass(k + 1);
            if gain > best.1 {
                best = (k, gain);
            }
        }
        // A trial is for learning.
        let cut = best.0.max(usize::from(self.trial > 0)).min(drafts);
        self.expected = tokens_of[cut];
        cut
    }

    fn took_in(&mut self, rows: usize, seconds: f64) {
        self.costs.add_take_in(rows, seconds);
    }

    fn observe(&mut self, outcome: &Outcome) {
        let Outcome { draft, verified, agreed, verify } = *outcome;
        self.costs.add_pass(verified + 1, verify);
        let Some(draft) = draft else { return };
        self.costs.add_draft(draft);
        self.acceptance.add(verified, agreed, &self.confidence);
        // What it should have taken: a single slow pass says nothing about drafting.
        let cost = self.costs.draft() + self.costs.pass(verified + 1);
        let plain = self.costs.pass(1);
        let rate = self.rate.get_or_insert_with(|| Rate::beginning(plain));
        rate.add(self.expected, cost);
        self.drafted_rounds += 1;
        self.trial = self.trial.saturating_sub(1);
        let enough = if self.trial > 0 { LOST } else { 1.0 };
        if self.drafting() < enough * self.plain() {
            self.begin_pause();
        }
    }
}
