//! The figures of a run, for people.

use command_line::Streams;
use runtime::stats::{DraftStats, Drafts, Timings};

/// Times and drafts of a request.
pub(crate) fn lines(timings: &Timings) -> Vec<String> {
    let rate = |per_second: Option<f64>| {
        per_second.map_or_else(String::new, |rate| format!(" ({rate:.2} tok/s)"))
    };
    let mut lines = vec![
        format!(
            "prompt: {} tokens in {:.2} s{}",
            timings.prompt_n,
            timings.prompt_ms / 1e3,
            rate(timings.prompt_per_second)
        ),
        match timings.predicted_n {
            n @ (0 | 1) => format!("answer: {n} tokens"),
            n => format!(
                "answer: {n} tokens, {:.2} s after the first{}",
                timings.predicted_ms / 1e3,
                rate(timings.predicted_per_second)
            ),
        },
    ];
    if let Some(drafts) = &timings.drafts {
        lines.extend(draft_lines(drafts));
    }
    lines
}

/// The drafts.
fn draft_lines(drafts: &Drafts) -> Vec<String> {
    if drafts.draft_rounds == 0 {
        return vec!["drafts: none".into()];
    }
    let number = |x: Option<f64>| x.map_or_else(|| "-".into(), |x| format!("{x:.3}"));
    let mut lines = vec![format!(
        "drafts: {} of {} accepted in {} rounds, {} tokens per round (untrimmed {})",
        drafts.draft_n_accepted,
        drafts.draft_n,
        drafts.draft_rounds,
        number(drafts.accept_len),
        number(drafts.accept_len_raw)
    )];
    if !drafts.drafted_per_position.is_empty() {
        let pairs = drafts.accepted_per_position.iter().zip(&drafts.drafted_per_position);
        let shares: Vec<String> =
            pairs.map(|(taken, sent)| format!("{:.0}", share(*taken, *sent))).collect();
        lines.push(format!("        by position {} %", shares.join(" ")));
    }
    lines
}

fn share(taken: usize, sent: usize) -> f64 {
    100.0 * taken as f64 / sent.max(1) as f64
}

/// Says so when the drafter is likely not this target's.
pub(crate) fn warn_of_a_wrong_pair(stats: &DraftStats, streams: &Streams) {
    if stats.is_alarming() {
        streams.note(
            "under 5 % of the first drafts were accepted: this drafter was likely made for another target",
        );
    }
}
