//! Figures about a request, with definitions that do not leave room.
//!
//! * `draft_n`: drafts that were sent to verification.
//! * `draft_n_accepted`: drafts that were delivered, after stops and budgets.
//! * `draft_rounds`: verification passes; the first token comes from the prompt's pass and belongs to
//!   none.
//! * tokens per round: `(delivered - 1) / draft_rounds`.
//! * tokens per round, untrimmed: what the target agreed with counts although a stop ended the answer
//!   before it; the figure that published benchmarks give.

mod bootstrap;
mod identity;
mod timings;

use crate::round::Generated;

pub use bootstrap::{Bootstrap, Counts, Estimate};
pub use identity::{Fault, Identity, check_rounds};
pub use timings::{Drafts, SpecStatus, Timings};

/// Drafts over the rounds of one request, or of several.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DraftStats {
    /// Verification passes.
    pub rounds: usize,
    /// Drafts that were sent to verification.
    pub drafted: usize,
    /// Drafts that were delivered.
    pub accepted: usize,
    /// Tokens that the rounds delivered.
    pub delivered: usize,
    /// Tokens that the rounds would have delivered without stops: agreed drafts and one more.
    pub untrimmed: usize,
    /// Of the drafts at each place of the block, the first after the pending token first: how many
    /// were sent, and how many delivered.
    pub by_position: Vec<(usize, usize)>,
}

/// Rounds after which a drafter that never fits is noticed.
const ALARM_ROUNDS: usize = 16;

/// The share of accepted first drafts below which something is wrong with a pair, not with its
/// training or with the temperature.
const ALARM_SHARE: f64 = 0.05;

impl DraftStats {
    /// The figures of one request.
    #[must_use]
    pub fn of(generated: &Generated) -> Self {
        let mut stats = Self::default();
        stats.add(generated);
        stats
    }

    /// Counts another request in.
    pub fn add(&mut self, generated: &Generated) {
        for round in &generated.rounds {
            self.rounds += 1;
            self.drafted += round.drafted;
            self.accepted += round.accepted;
            self.delivered += round.delivered;
            self.untrimmed += round.agreed + 1;
            if self.by_position.len() < round.drafted {
                self.by_position.resize(round.drafted, (0, 0));
            }
            for (i, (sent, accepted)) in self.by_position[..round.drafted].iter_mut().enumerate() {
                *sent += 1;
                *accepted += usize::from(i < round.accepted);
            }
        }
    }

    /// Delivered tokens per round; none without rounds.
    #[must_use]
    pub fn tokens_per_round(&self) -> Option<f64> {
        (self.rounds > 0).then(|| self.delivered as f64 / self.rounds as f64)
    }

    /// Tokens per round as published benchmarks count them; none without rounds.
    #[must_use]
    pub fn untrimmed_per_round(&self) -> Option<f64> {
        (self.rounds > 0).then(|| self.untrimmed as f64 / self.rounds as f64)
    }

    /// Whether so few first drafts were accepted that the drafter is likely not this target's, or reads its
    /// states in another basis.
    #[must_use]
    pub fn is_alarming(&self) -> bool {
        let (sent, accepted) = self.by_position.first().copied().unwrap_or_default();
        sent >= ALARM_ROUNDS && (accepted as f64) < ALARM_SHARE * sent as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::round::{Finish, Round};

    fn request(rounds: &[(usize, usize, usize, usize)]) -> Generated {
        let rounds = rounds.iter().map(|(drafted, accepted, agreed, delivered)| Round {
            drafted: *drafted,
            accepted: *accepted,
            agreed: *agreed,
            delivered: *delivered,
        });
        Generated { ids: Vec::new(), finish: Finish::Stop, rounds: rounds.collect() }
    }

    #[test]
    fn by_hand() {
        // A full block, a rejection at once, a stop at the first of three agreed drafts.
        let stats = DraftStats::of(&request(&[(7, 7, 7, 8), (3, 0, 0, 1), (4, 1, 3, 1)]));
        assert_eq!((stats.rounds, stats.drafted, stats.accepted), (3, 14, 8));
        assert_eq!(stats.by_position[..4], [(3, 2), (3, 1), (3, 1), (2, 1)]);
        assert_eq!(stats.tokens_per_round(), Some(10.0 / 3.0));
        assert_eq!(stats.untrimmed_per_round(), Some(13.0 / 3.0));
        let mut sum = DraftStats::default();
        assert_eq!(sum.tokens_per_round(), None);
        sum.add(&request(&[(0, 0, 0, 1)]));
        assert_eq!((sum.tokens_per_round(), sum.by_position.len()), (Some(1.0), 0));
    }

    #[test]
    fn the_alarm_wants_evidence() {
        assert!(!DraftStats::of(&request(&[(7, 0, 0, 1); 15])).is_alarming());
        assert!(DraftStats::of(&request(&[(7, 0, 0, 1); 16])).is_alarming());
        let mut some = vec![(7, 0, 0, 1); 15];
        some.extend([(7, 3, 3, 4); 2]);
        assert!(!DraftStats::of(&request(&some)).is_alarming());
        // One of seven drafts in every other round is what a high temperature leaves.
        assert!(!DraftStats::of(&request(&[(7, 0, 0, 1), (7, 1, 1, 2)].repeat(10))).is_alarming());
        assert!(!DraftStats::of(&request(&[(0, 0, 0, 1); 50])).is_alarming());
    }
}
