//! How many drafts a round should have verified.
//!
//! A drafter always drafts its whole block; what costs more or less is the verification. A longer
//! pass over the target takes longer, and drafts late in the block are accepted rarely. Tokens are
//! the same whatever a rule decides here: a proposal is only ever cut short, and a round without
//! proposals is plain decoding.
//!
//! [`Adaptive`] decides from the times it sees, so the number of rounds is not the same in every run,
//! unlike the tokens.

mod acceptance;
mod adaptive;
mod costs;
#[cfg(test)]
mod tests;

pub use adaptive::Adaptive;

/// Decides about each round of a request. Kept over several requests, it keeps what it has learnt.
pub trait DraftLength: std::fmt::Debug {
    /// A request begins.
    fn begin(&mut self) {}

    /// The most drafts that the next round may have verified, at most `room`. With 0 nothing is
    /// drafted.
    fn most(&mut self, room: usize) -> usize;

    /// How many of `drafts` are verified; at most all. `confidence[i]` estimates the probability that
    /// draft `i` is right if those before it are; empty where the proposer does not know.
    fn cut(&mut self, drafts: usize, confidence: &[f64]) -> usize;

    /// The proposer took in `rows` tokens at once, which it needs to have done before it drafts.
    fn took_in(&mut self, rows: usize, seconds: f64) {
        let _ = (rows, seconds);
    }

    /// What a round took and gave.
    fn observe(&mut self, outcome: &Outcome);
}

/// What a round took and gave.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Outcome {
    /// Seconds for drafting, with what the drafter takes in; none if the round drafted nothing.
    pub draft: Option<f64>,
    /// Drafts that were verified.
    pub verified: usize,
    /// Those that the target agreed with, delivered or not.
    pub agreed: usize,
    /// Seconds for the pass over the target, one row for each verified draft and one more.
    pub verify: f64,
}
