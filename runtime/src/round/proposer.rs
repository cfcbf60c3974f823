//! Who proposes tokens.

use crate::Error;
use crate::drafter::{Context, Drafter};
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

    /// Up to `max` tokens that may follow `pending`. More are cut off.
    ///
    /// # Errors
    /// What its computation says.
    fn propose(&mut self, target: &Target, pending: u32, max: usize) -> Result<Vec<u32>, Error>;
}

/// A DFlash 2 drafter and its context.
#[derive(Debug)]
pub struct DrafterProposer<'a> {
    /// The model.
    pub drafter: &'a Drafter,
    /// Rows of all tokens that the target has taken in.
    pub context: Context,
}

impl Proposer for DrafterProposer<'_> {
    fn taps(&self) -> &[usize] {
        &self.drafter.config().target_layer_ids
    }

    fn extend(&mut self, taps: &Rows<Primal>) -> Result<(), Error> {
        self.drafter.extend(&mut self.context, taps)
    }

    fn propose(&mut self, target: &Target, pending: u32, _: usize) -> Result<Vec<u32>, Error> {
        // Always the full block: a narrower one would be another drafter.
        self.drafter.draft(&mut self.context, target, pending)
    }
}
