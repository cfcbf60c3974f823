//! The figures of a run.

use command_line::Streams;
use runtime::round::Generated;
use runtime::stats::DraftStats;
use serde::Serialize;

/// Times and drafts of one request, under llama-server's names where it has them.
///
/// `predicted_ms` runs from the first token to the last; `predicted_per_second` are the tokens after
/// the first in that time. `draft_*` are there only when tokens were drafted, as defined in
/// [`runtime::stats`].
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Timings {
    pub(crate) load_ms: f64,
    pub(crate) prompt_n: usize,
    pub(crate) prompt_ms: f64,
    pub(crate) prompt_per_token_ms: Option<f64>,
    pub(crate) prompt_per_second: Option<f64>,
    pub(crate) predicted_n: usize,
    pub(crate) predicted_ms: f64,
    pub(crate) predicted_per_token_ms: Option<f64>,
    pub(crate) predicted_per_second: Option<f64>,
    #[serde(flatten)]
    pub(crate) drafts: Option<Drafts>,
}

#[derive(Debug, Clone, Serialize)]
pub(crate) struct Drafts {
    pub(crate) draft_n: usize,
    pub(crate) draft_n_accepted: usize,
    pub(crate) draft_rounds: usize,
    /// Tokens per round: `(predicted_n - 1) / draft_rounds`.
    pub(crate) accept_len: Option<f64>,
    /// Tokens per round without the trimming at a stop.
    pub(crate) accept_len_raw: Option<f64>,
    pub(crate) drafted_per_position: Vec<usize>,
    pub(crate) accepted_per_position: Vec<usize>,
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
    pub(crate) fn new(
        load_ms: f64,
        prompt: (usize, f64),
        predicted_ms: f64,
        generated: &Generated,
        speculating: bool,
    ) -> Self {
        let ((prompt_n, prompt_ms), predicted_n) = (prompt, generated.ids.len());
        let later = predicted_n.saturating_sub(1);
        Self {
            load_ms,
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

    /// The figures for people.
    pub(crate) fn lines(&self) -> Vec<String> {
        let rate = |per_second: Option<f64>| {
            per_second.map_or_else(String::new, |rate| format!(" ({rate:.2} tok/s)"))
        };
        let mut lines = vec![
            format!(
                "prompt: {} tokens in {:.2} s{}",
                self.prompt_n,
                self.prompt_ms / 1e3,
                rate(self.prompt_per_second)
            ),
            match self.predicted_n {
                n @ (0 | 1) => format!("answer: {n} tokens"),
                n => format!(
                    "answer: {n} tokens, {:.2} s after the first{}",
                    self.predicted_ms / 1e3,
                    rate(self.predicted_per_second)
                ),
            },
        ];
        if let Some(drafts) = &self.drafts {
            lines.extend(drafts.lines());
        }
        lines
    }
}

impl Drafts {
    /// The figures for people.
    pub(crate) fn lines(&self) -> Vec<String> {
        if self.draft_rounds == 0 {
            return vec!["drafts: none".into()];
        }
        let number = |x: Option<f64>| x.map_or_else(|| "-".into(), |x| format!("{x:.3}"));
        let mut lines = vec![format!(
            "drafts: {} of {} accepted in {} rounds, {} tokens per round (untrimmed {})",
            self.draft_n_accepted,
            self.draft_n,
            self.draft_rounds,
            number(self.accept_len),
            number(self.accept_len_raw)
        )];
        if !self.drafted_per_position.is_empty() {
            let pairs = self.accepted_per_position.iter().zip(&self.drafted_per_position);
            let shares: Vec<String> =
                pairs.map(|(taken, sent)| format!("{:.0}", share(*taken, *sent))).collect();
            lines.push(format!("        by position {} %", shares.join(" ")));
        }
        lines
    }
}

fn share(taken: usize, sent: usize) -> f64 {
    100.0 * taken as f64 / sent.max(1) as f64
}

fn ratio(a: f64, b: f64) -> Option<f64> {
    (b > 0.0).then(|| a / b)
}

/// Says so when the drafter is likely not this target's.
pub(crate) fn warn_of_a_wrong_pair(stats: &DraftStats, streams: &Streams) {
    if stats.is_alarming() {
        streams.note(
            "under 5 % of the first drafts were accepted: this drafter was likely made for another target",
        );
    }
}

/// Whether speculation was on, and why.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct SpecStatus {
    /// `active`, `off`, or `fallback` where it ended on the way.
    pub(crate) state: &'static str,
    pub(crate) reason: String,
}
