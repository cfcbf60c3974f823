//! The figures of a request as documents carry them, under llama-server's names where it has them.

use serde::Serialize;

use super::DraftStats;
use crate::round::Generated;

/// Times and drafts of one request.
///
/// `predicted_ms` runs from the first token to the last; `predicted_per_second` are the tokens after
/// the first in that time. `draft_*` are there only when tokens were drafted.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Timings {
    /// Loading the models, where that was part of the run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub load_ms: Option<f64>,
    /// Prompt tokens that came from a snapshot, where there are such.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cache_n: Option<usize>,
    /// Prompt tokens that were taken in.
    pub prompt_n: usize,
    /// The time to the first token.
    pub prompt_ms: f64,
    /// `prompt_ms / prompt_n`.
    pub prompt_per_token_ms: Option<f64>,
    /// `prompt_n / prompt_ms`, per second.
    pub prompt_per_second: Option<f64>,
    /// Tokens delivered.
    pub predicted_n: usize,
    /// The time from the first token to the last.
    pub predicted_ms: f64,
    /// `predicted_ms / (predicted_n - 1)`.
    pub predicted_per_token_ms: Option<f64>,
    /// `(predicted_n - 1) / predicted_ms`, per second.
    pub predicted_per_second: Option<f64>,
    /// The drafts, with speculation.
    #[serde(flatten)]
    pub drafts: Option<Drafts>,
}

/// The drafts of one request or several: [`DraftStats`] for documents.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Drafts {
    /// Drafts sent to verification.
    pub draft_n: usize,
    /// Drafts delivered.
    pub draft_n_accepted: usize,
    /// Verification passes.
    pub draft_rounds: usize,
    /// Tokens per round: `(predicted_n - 1) / draft_rounds`.
    pub accept_len: Option<f64>,
    /// Tokens per round without the trimming at a stop.
    pub accept_len_raw: Option<f64>,
    /// Drafts sent, by place in the block.
    pub drafted_per_position: Vec<usize>,
    /// Drafts delivered, by place in the block.
    pub accepted_per_position: Vec<usize>,
}

impl From<&DraftStats> for Drafts {
    fn from(stats: &DraftStats) -> Self {
        Self {
            draft_n: stats.drafted,
            draft_n_accepted: stats.accepted,
            draft_rounds: stats.rounds,
            accept_len: stats.tokens_per_round(),
            accept_len_raw: stats.untrimmed_per_round(),
            drafted_per_position: stats.by_position.iter().map(|(sent, _)| *sent).collect(),
            accepted_per_position: stats.by_position.iter().map(|(_, taken)| *taken).collect(),
        }
    }
}

impl Timings {
    /// The figures of `generated`; `prompt`: tokens taken in, and the milliseconds to the first token.
    #[must_use]
    pub fn new(
        prompt: (usize, f64),
        predicted_ms: f64,
        generated: &Generated,
        speculating: bool,
    ) -> Self {
        let ((prompt_n, prompt_ms), predicted_n) = (prompt, generated.ids.len());
        let later = predicted_n.saturating_sub(1);
        Self {
            load_ms: None,
            cache_n: None,
            prompt_n,
            prompt_ms,
            prompt_per_token_ms: ratio(prompt_ms, prompt_n as f64),
            prompt_per_second: ratio(prompt_n as f64 * 1e3, prompt_ms),
            predicted_n,
            predicted_ms,
            predicted_per_token_ms: ratio(predicted_ms, later as f64),
            predicted_per_second: ratio(later as f64 * 1e3, predicted_ms),
            drafts: speculating.then(|| Drafts::from(&DraftStats::of(generated))),
        }
    }
}

fn ratio(a: f64, b: f64) -> Option<f64> {
    (b > 0.0).then(|| a / b)
}

/// Whether speculation was on, and why.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SpecStatus {
    /// `active`, `off`, or `fallback` where it ended on the way.
    pub state: &'static str,
    /// In a few words.
    pub reason: String,
}

impl SpecStatus {
    /// Tokens are not drafted, for this reason.
    #[must_use]
    pub fn off(reason: &str) -> Self {
        Self { state: "off", reason: reason.into() }
    }

    /// Of a request with at most `draft_max` drafts a round that ended after `tokens` tokens with its
    /// prompt; `end` is the drafter's number of positions.
    #[must_use]
    pub fn of(draft_max: usize, tokens: usize, end: usize) -> Self {
        if tokens > end {
            let reason =
                format!("past the {end} positions of the drafter, tokens were not drafted");
            return Self { state: "fallback", reason };
        }
        Self { state: "active", reason: format!("at most {draft_max} drafts a round") }
    }
}
