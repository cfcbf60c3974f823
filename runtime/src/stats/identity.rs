//! What two greedy runs of one prompt must have in common, and what one run's figures must.
//!
//! The classes are those of the contract `budgeted-prefix-identity` that published measurements of
//! Bonsai 2 drafters use: engines that check their budget once a round may go over it by a round, and
//! are compared up to the budget.

use crate::round::{Finish, Generated};

/// How the answers of two runs compare.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Identity {
    /// The same ids.
    Identical,
    /// The same ids up to the budget, which at least one of them passes, by less than a round. Passes
    /// the contract; this engine's own runs never do it.
    BoundaryOvershoot,
    /// Different ids at this place.
    PrefixDivergence {
        /// Counted from 0.
        at: usize,
    },
    /// The same ids as far as both go, but one ended early, or passed the budget by a round or more.
    EarlyStopMismatch,
}

impl Identity {
    /// Compares two answers of at most `budget` tokens, decoded with at most `draft_max` drafts.
    #[must_use]
    pub fn of(a: &[u32], b: &[u32], budget: usize, draft_max: usize) -> Self {
        if a == b && a.len() <= budget {
            return Self::Identical;
        }
        let common = budget.min(a.len()).min(b.len());
        if let Some(at) = (0..common).find(|i| a[*i] != b[*i]) {
            return Self::PrefixDivergence { at };
        }
        let (short, long) = (a.len().min(b.len()), a.len().max(b.len()));
        if short >= budget && long < budget + draft_max + 1 {
            Self::BoundaryOvershoot
        } else {
            Self::EarlyStopMismatch
        }
    }

    /// Whether the contract is kept.
    #[must_use]
    pub fn passes(self) -> bool {
        matches!(self, Self::Identical | Self::BoundaryOvershoot)
    }

    /// The name in documents.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Identical => "identical",
            Self::BoundaryOvershoot => "boundary_overshoot",
            Self::PrefixDivergence { .. } => "prefix_divergence",
            Self::EarlyStopMismatch => "early_stop_mismatch",
        }
    }
}

/// A figure of a run that cannot be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// Not `1 + rounds <= tokens <= 1 + rounds · (draft_max + 1)`.
    Tokens,
    /// More tokens than the budget.
    Budget,
    /// In this round, not `accepted <= agreed <= drafted <= draft_max`, or it delivered neither one token
    /// more than it accepted nor, as the last round of a stopped answer, as many.
    Round {
        /// Counted from 0.
        at: usize,
    },
    /// The rounds do not deliver the tokens after the first.
    Sum,
}

/// Checks what holds for the rounds of every answer of this engine.
///
/// # Errors
/// The first rule that is broken.
pub fn check_rounds(generated: &Generated, budget: usize, draft_max: usize) -> Result<(), Fault> {
    let (tokens, rounds) = (generated.ids.len(), generated.rounds.len());
    if tokens > budget {
        return Err(Fault::Budget);
    }
    for (at, round) in generated.rounds.iter().enumerate() {
        let ordered = round.accepted <= round.agreed
            && round.agreed <= round.drafted
            && round.drafted <= draft_max;
        let stopped = at + 1 == rounds && generated.finish == Finish::Stop;
        let cut = stopped && round.delivered == round.accepted && round.delivered > 0;
        if !ordered || !(round.delivered == round.accepted + 1 || cut) {
            return Err(Fault::Round { at });
        }
    }
    let delivered: usize = generated.rounds.iter().map(|round| round.delivered).sum();
    if tokens > 0 && tokens != 1 + delivered {
        return Err(Fault::Sum);
    }
    if tokens > 0 && !(1 + rounds..=1 + rounds * (draft_max + 1)).contains(&tokens) {
        return Err(Fault::Tokens);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::round::Round;

    #[test]
    fn the_classes_of_the_contract() {
        let of = |a: &[u32], b: &[u32]| Identity::of(a, b, 4, 3);
        assert_eq!(of(&[1, 2, 3], &[1, 2, 3]), Identity::Identical);
        assert_eq!(of(&[1, 2, 3, 4], &[1, 2, 3, 4]), Identity::Identical);
        // Up to three tokens over the budget are a round's.
        assert_eq!(of(&[1, 2, 3, 4], &[1, 2, 3, 4, 5, 6, 7]), Identity::BoundaryOvershoot);
        assert_eq!(of(&[1, 2, 3, 4, 9], &[1, 2, 3, 4, 5]), Identity::BoundaryOvershoot);
        assert_eq!(of(&[1, 2, 3, 4], &[1, 2, 3, 4, 5, 6, 7, 8]), Identity::EarlyStopMismatch);
        assert_eq!(of(&[1, 2, 3, 4], &[1, 2, 9, 4]), Identity::PrefixDivergence { at: 2 });
        assert_eq!(of(&[1, 2], &[1, 2, 3]), Identity::EarlyStopMismatch);
        assert_eq!(of(&[], &[1]), Identity::EarlyStopMismatch);
        assert!(of(&[1, 2, 3, 4, 9], &[1, 2, 3, 4, 5]).passes() && !of(&[1], &[2]).passes());
    }

    fn round(drafted: usize, accepted: usize, agreed: usize, delivered: usize) -> Round {
        Round { drafted, accepted, agreed, delivered }
    }

    fn request(tokens: usize, finish: Finish, rounds: &[Round]) -> Generated {
        Generated { ids: vec![0; tokens], finish, rounds: rounds.to_vec() }
    }

    #[test]
    fn figures_that_cannot_be() {
        let check = |generated: &Generated| check_rounds(generated, 8, 3);
        let full = round(3, 3, 3, 4);
        assert_eq!(check(&request(5, Finish::Length, &[full])), Ok(()));
        assert_eq!(check(&request(1, Finish::Stop, &[])), Ok(()));
        assert_eq!(check(&request(0, Finish::Length, &[])), Ok(()));
        // A stop as the third of three drafts: three accepted, three delivered.
        let stopped = round(3, 3, 3, 3);
        assert_eq!(check(&request(4, Finish::Stop, &[stopped])), Ok(()));
        assert_eq!(check(&request(4, Finish::Length, &[stopped])), Err(Fault::Round { at: 0 }));
        assert_eq!(
            check(&request(6, Finish::Stop, &[stopped, round(3, 1, 1, 2)])),
            Err(Fault::Round { at: 0 })
        );
        // Six counted, three delivered: what counts accepted drafts past a stop says.
        assert_eq!(check(&request(6, Finish::Stop, &[round(3, 1, 3, 2)])), Err(Fault::Sum));
        assert_eq!(
            check(&request(2, Finish::Stop, &[round(3, 6, 6, 1)])),
            Err(Fault::Round { at: 0 })
        );
        assert_eq!(check(&request(9, Finish::Length, &[full, full])), Err(Fault::Budget));
        assert_eq!(
            check(&request(2, Finish::Length, &[round(4, 0, 0, 1)])),
            Err(Fault::Round { at: 0 })
        );
        assert_eq!(check(&request(1, Finish::Length, &[full])), Err(Fault::Sum));
    }
}
