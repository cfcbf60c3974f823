//! What every prompt gave, for whoever wants to count again: one JSON object per line.

use runtime::round::Finish;
use serde::Serialize;

use super::Run;

#[derive(Debug, Serialize)]
struct Record<'a> {
    prompt: usize,
    class: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<&'a str>,
    prompt_ids: &'a [u32],
    ids: &'a [u32],
    finish_reason: &'static str,
    rounds: Vec<Rounds<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    plain_ms: Option<f64>,
}

#[derive(Debug, Serialize)]
struct Rounds<'a> {
    drafter: &'a str,
    draft_max: usize,
    /// Per round: drafted, accepted, agreed, delivered.
    rounds: Vec<[usize; 4]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ms: Option<f64>,
}

/// The lines.
pub(crate) fn lines(run: &Run) -> anyhow::Result<Vec<u8>> {
    let mut out = Vec::new();
    for (n, (measured, prompt)) in run.measured.iter().zip(&run.suites.prompts).enumerate() {
        let mut rounds = Vec::new();
        for (d, arm) in run.arms.iter().enumerate() {
            for (l, length) in run.lengths.iter().enumerate() {
                let of = measured.rounds[d][l].iter();
                rounds.push(Rounds {
                    drafter: &arm.name,
                    draft_max: *length,
                    rounds: of.map(|r| [r.drafted, r.accepted, r.agreed, r.delivered]).collect(),
                    ms: measured.seconds.as_ref().map(|s| s.drafting[d][l] * 1e3 / s.runs as f64),
                });
            }
        }
        let record = Record {
            prompt: n,
            class: &run.suites.classes[prompt.class],
            name: prompt.name.as_deref(),
            prompt_ids: &prompt.ids,
            ids: &measured.ids,
            finish_reason: if measured.finish == Finish::Stop { "stop" } else { "length" },
            rounds,
            plain_ms: measured.seconds.as_ref().map(|s| s.plain * 1e3 / s.runs as f64),
        };
        serde_json::to_writer(&mut out, &record)?;
        out.push(b'\n');
    }
    Ok(out)
}
