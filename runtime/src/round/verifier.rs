//! The target's own choice at a position.

use super::sampler::Sampler;
use crate::Error;
use crate::simd::LANES;

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

/// Logits that are looked at together.
const RUN: usize = 1024;

/// The most likely token, the lowest id among equals.
#[derive(Debug, Clone, Copy, Default)]
pub struct Greedy;

impl Verifier for Greedy {
    fn choose(&mut self, logits: &[f32], position: usize) -> Result<u32, Error> {
        let mut best = (0, f32::NEG_INFINITY);
        // Runs of ids: whether all are numbers and which is the largest takes no branches.
        for (run, logits) in logits.chunks(RUN).enumerate() {
            let mut most = [f32::NEG_INFINITY; LANES];
            let mut finite = true;
            let (whole, rest) = logits.as_chunks::<LANES>();
            for logits in whole.iter().map(|logits| &logits[..]).chain([rest]) {
                for (most, logit) in most.iter_mut().zip(logits) {
                    finite &= logit.is_finite();
                    *most = if *logit > *most { *logit } else { *most };
                }
            }
            if !finite {
                let bad = logits.iter().position(|logit| !logit.is_finite());
                let at = run * RUN + bad.unwrap_or_default();
                return Err(Error::NonFinite { what: "logit", row: position, at });
            }
            if most.iter().any(|most| *most > best.1) {
                for (at, logit) in logits.iter().enumerate() {
                    if *logit > best.1 {
                        best = ((run * RUN + at) as u32, *logit);
                    }
                }
            }
        }
        Ok(best.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

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
            let mut many = vec![0.5; 5000];
            (many[2500], many[3000]) = (bad, f32::NAN);
            let error = Greedy.choose(&many, 5).unwrap_err();
            assert!(matches!(error, Error::NonFinite { row: 5, at: 2500, .. }), "{error}");
        }
    }

    proptest! {
        #[test]
        fn many_are_as_one_after_the_other(
            seed in prop::collection::vec(-5i8..5, 1..90), len in 1usize..5000, rise in any::<bool>(),
        ) {
            let value = |(i, x): (usize, &i8)| f32::from(*x) + if rise { i as f32 / 9.0 } else { 0.0 };
            let logits: Vec<f32> = seed.iter().cycle().take(len).enumerate().map(value).collect();
            let mut best = 0;
            for (id, logit) in logits.iter().enumerate() {
                if *logit > logits[best] {
                    best = id;
                }
            }
            prop_assert_eq!(Greedy.choose(&logits, 0).unwrap(), best as u32);
        }
    }
}
