//! Who proposes tokens.

use super::sampler::Sampler;
use crate::Error;
use crate::drafter::{Context, Drafter, likeliest};
use crate::math::exp_f64;
use crate::rows::{Primal, Rows};
use crate::target::Target;

/// Proposes tokens for the target to verify. Whatever it proposes, the output stays the same; only
/// the number of rounds depends on it.
pub trait Proposer: std::fmt::Debug {
    /// Layers of the target whose output it wants to see.
    fn taps(&self) -> &[usize];

    /// Takes in the tapped states of the tokens that the target has taken in, `[n, taps · hidden]`,
    /// in order and each once. Not called where nothing is tapped.
    ///
    /// # Errors
    /// What its computation says.
    fn extend(&mut self, taps: &Rows<Primal>) -> Result<(), Error>;

    /// Up to `request.max` tokens that may follow the pending one. More are cut off.
    ///
    /// # Errors
    /// What its computation says.
    fn propose(&mut self, target: &Target, request: &Request<'_>) -> Result<Vec<u32>, Error>;

    /// As [`Proposer::propose`]; writes to `confidence`, which is empty, for each proposal an estimate
    /// of the probability that it is right if those before it are. Nothing where it does not know.
    ///
    /// # Errors
    /// As [`Proposer::propose`].
    fn propose_with_confidence(
        &mut self,
        target: &Target,
        request: &Request<'_>,
        confidence: &mut Vec<f64>,
    ) -> Result<Vec<u32>, Error> {
        let _ = confidence;
        self.propose(target, request)
    }
}

/// What a proposer is asked for.
#[derive(Debug, Clone, Copy)]
pub struct Request<'a> {
    /// The token that proposals follow.
    pub pending: u32,
    /// Its position; proposal `i` is for the position `i + 1` after it.
    pub position: usize,
    /// The most proposals that can be used.
    pub max: usize,
    /// How the target's token at a position will be drawn; none when it is the likeliest.
    pub sampler: Option<&'a Sampler>,
}

/// What a drafter makes of the target's sampler. The output is the same with each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Coupling {
    /// Nothing: it proposes its likeliest tokens.
    Off,
    /// It adds the target's noise to its own scores, all of them, at the target's temperature.
    Noise,
    /// It draws from its own scores as the target does: temperature, top-k, top-p, min-p and noise.
    /// In a simulation with scores that are the logits with normal errors this is as good as
    /// [`Coupling::Noise`] at top-p 0.95, and better at 0.8 where scores are good and tokens few.
    #[default]
    Full,
}

/// A DFlash 2 drafter and its context.
#[derive(Debug)]
pub struct DrafterProposer<'a> {
    /// The model.
    pub drafter: &'a Drafter,
    /// Rows of all tokens that the target has taken in.
    pub context: Context,
    /// How its walk follows the target's draws.
    pub coupling: Coupling,
}

impl<'a> DrafterProposer<'a> {
    /// A proposer that draws as the target does.
    #[must_use]
    pub fn new(drafter: &'a Drafter, context: Context) -> Self {
        Self { drafter, context, coupling: Coupling::default() }
    }
}

impl Proposer for DrafterProposer<'_> {
    fn taps(&self) -> &[usize] {
        &self.drafter.config().target_layer_ids
    }

    fn extend(&mut self, taps: &Rows<Primal>) -> Result<(), Error> {
        self.drafter.extend(&mut self.context, taps)
    }

    fn propose(&mut self, target: &Target, request: &Request<'_>) -> Result<Vec<u32>, Error> {
        self.propose_with_confidence(target, request, &mut Vec::new())
    }

    fn propose_with_confidence(
        &mut self,
        target: &Target,
        request: &Request<'_>,
        confidence: &mut Vec<f64>,
    ) -> Result<Vec<u32>, Error> {
        // Always the full block: a narrower one would be another drafter.
        let Request { pending, position, sampler, .. } = *request;
        let unfiltered;
        let sampler = match (self.coupling, sampler) {
            (Coupling::Off, _) | (_, None) => None,
            (Coupling::Noise, Some(sampler)) => {
                unfiltered = sampler.unfiltered();
                Some(&unfiltered)
            }
            (Coupling::Full, Some(sampler)) => Some(sampler),
        };
        let choose = |i: usize, scores: &[(u32, f32)]| {
            let (id, p) = match sampler {
                None => weighed_likeliest(scores),
                Some(sampler) => sampler.weighed_pick(scores, position + 1 + i),
            };
            confidence.push(p);
            id
        };
        self.drafter.draft_by(&mut self.context, target, pending, choose)
    }
}

/// The likeliest token and its softmax probability among `scores`.
fn weighed_likeliest(scores: &[(u32, f32)]) -> (u32, f64) {
    let id = likeliest(scores);
    let best = scores.iter().find(|(other, _)| *other == id).map_or(0.0, |(_, score)| *score);
    let sum: f64 = scores.iter().map(|(_, score)| exp_f64(f64::from(score - best))).sum();
    (id, 1.0 / sum)
}
