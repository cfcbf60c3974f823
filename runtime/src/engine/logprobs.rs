//! Log-probabilities of tokens, from the target's logits as they are: before temperature and cuts.

use crate::drafter::top_k;
use crate::math::{Sum16, exp_f64, ln};

/// How likely a token was, and which ones were likelier.
#[derive(Debug, Clone, PartialEq)]
pub struct Logprobs {
    /// Natural logarithm of the token's probability.
    pub logprob: f64,
    /// The likeliest tokens with theirs, likeliest first.
    pub top: Vec<(u32, f64)>,
}

impl Logprobs {
    /// Of `id` and the `top` likeliest tokens: `logit - max - ln Σ e^(logit - max)`, the sum in f64 in
    /// the order of [`Sum16`].
    #[must_use]
    pub fn of(logits: &[f32], id: u32, top: usize) -> Self {
        let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let mut sum = Sum16::new();
        for (i, logit) in logits.iter().enumerate() {
            sum.add(i, exp_f64(f64::from(*logit) - f64::from(max)));
        }
        let norm = f64::from(max) + ln(sum.total());
        let logprob = |id: u32| f64::from(logits[id as usize]) - norm;
        let top = top_k(logits, top).into_iter().map(|id| (id, logprob(id))).collect();
        Self { logprob: logprob(id), top }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probabilities_of_four_tokens() {
        let logits = [1.0f32, 3.0, -2.0, 3.0];
        let found = Logprobs::of(&logits, 0, 3);
        let sum: f64 = logits.iter().map(|l| f64::from(*l).exp()).sum();
        assert!((found.logprob - (1.0 - sum.ln())).abs() < 1e-12);
        assert_eq!(found.top.iter().map(|t| t.0).collect::<Vec<_>>(), [1, 3, 0]);
        assert_eq!(found.top[0].1.to_bits(), found.top[1].1.to_bits());
        assert!(Logprobs::of(&logits, 1, 0).top.is_empty());
        // Far below what e^x can say.
        assert!(Logprobs::of(&[0.0, -2000.0], 1, 0).logprob < -1999.0);
    }
}
