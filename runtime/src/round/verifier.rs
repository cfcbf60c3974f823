//! The target's own choice at a position.

use super::sampler::Sampler;
use crate::Error;

/// Chooses the token at a position from the target's logits.
///
/// The choice must be a function of the arguments alone (and of what the verifier was made with): it
/// is then the same whether the logits come from a pass over one token or over eight, and a proposal
/// is accepted exactly when it equals the choice.
pub trait Verifier {
    /// The token at `position`, from the logits of the one before.
    ///
    /// # Errors
    /// [`Error::NonFinite`] for logits from which nothing can be chosen.
    fn choose(&mut self, logits: &[f32], position: usize) -> Result<u32, Error>;

    /// The sampler that it chooses with, for proposers that add the same noise; none when it does
    /// not draw.
    fn sampler(&self) -> Option<&Sampler> {
        None
    }
}

/// The most likely token, the lowest id among equals.
#[derive(Debug, Clone, Copy, Default)]
pub struct Greedy;

impl Verifier for Greedy {
    fn choose(&mut self, logits: &[f32], position: usize) -> Result<u32, Error> {
        let mut best = (0, f32::NEG_INFINITY);
        for (id, logit) in logits.iter().enumerate() {
            if !logit.is_finite() {
                return Err(Error::NonFinite { what: "logit", row: position, at: id });
            }
            if *logit > best.1 {
                best = (id as u32, *logit);
            }
        }
        Ok(best.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ties_go_to_the_lowest_id() {
        assert_eq!(Greedy.choose(&[-3.0, 2.0, 2.0, 1.0], 0).unwrap(), 1);
        assert_eq!(Greedy.choose(&[-0.0, 0.0], 0).unwrap(), 0);
        assert_eq!(Greedy.choose(&[f32::MIN], 0).unwrap(), 0);
    }

    #[test]
    fn logits_that_are_no_numbers_are_an_error() {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let error = Greedy.choose(&[1.0, bad], 5).unwrap_err();
            assert!(error.to_string().contains("non-finite logit"), "{error}");
        }
    }
}
