//! The results for people.

use super::answers::Answers;
use super::limits::Bound;
use super::passes::Measured;

/// A table of passes; each has a bound.
pub(crate) fn passes(measured: &[(Measured, Bound)]) -> Vec<String> {
    let mut lines = vec![format!(
        "{:<8}{:>6}{:>8}{:>11}{:>23}{:>10}{:>11}{:>11}{:>8}",
        "test", "rows", "depth", "ms", "min to max", "tok/s", "dot ms", "read ms", "times"
    )];
    for (pass, bound) in measured {
        let Measured { test, rows, depth, times, .. } = pass;
        let dot = bound.operations_ms.map_or_else(|| "-".into(), |ms| format!("{ms:.3}"));
        lines.push(format!(
            "{test:<8}{rows:>6}{depth:>8}{:>11.3}{:>23}{:>10.2}{dot:>11}{:>11.3}{:>8.2} {}",
            times.median_ms,
            format!("{:.3} to {:.3}", times.min_ms, times.max_ms),
            *rows as f64 / times.median_ms * 1e3,
            bound.bytes_ms,
            bound.ratio,
            bound.by(),
        ));
    }
    lines
}

/// A table of answers.
pub(crate) fn answers(answers: &[Answers]) -> Vec<String> {
    let mut lines = vec![format!(
        "{:<10}{:>10}{:>23}{:>10}{:>9}{:>9}{:>9}{:>12}{:>10}",
        "draft-max",
        "tok/s",
        "ms, min to max",
        "first ms",
        "rounds",
        "drafts",
        "tokens",
        "ms/round",
        "speed-up"
    )];
    for a in answers {
        let speed_up = a.speed_up.map_or_else(|| "-".into(), |x| format!("{x:.3}"));
        lines.push(format!(
            "{:<10}{:>10.2}{:>23}{:>10.1}{:>9}{:>9.2}{:>9.3}{:>12.3}{speed_up:>10}",
            a.draft_max,
            a.tokens_per_second,
            format!("{:.1} to {:.1}", a.times.min_ms, a.times.max_ms),
            a.prompt_ms,
            a.rounds,
            a.drafts_per_round,
            a.tokens_per_round,
            a.ms_per_round,
        ));
    }
    lines
}
