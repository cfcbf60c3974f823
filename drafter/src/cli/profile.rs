//! The table of `--profile`.

use std::time::Duration;

use runtime::profile::{PartTimes, Taken};
use serde::Serialize;

/// One part of a request in a document.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Part {
    part: &'static str,
    calls: u64,
    ms: f64,
    stages: Vec<Stage>,
    /// What no stage claims.
    other_ms: f64,
}

#[derive(Debug, Clone, Serialize)]
struct Stage {
    stage: &'static str,
    calls: u64,
    ms: f64,
}

/// The times for a document.
pub(crate) fn document(times: &[PartTimes]) -> Vec<Part> {
    let part = |part: &PartTimes| Part {
        part: part.part.name(),
        calls: part.whole.calls,
        ms: ms(part.whole.time),
        stages: part
            .stages
            .iter()
            .map(|(stage, taken)| Stage {
                stage: stage.name(),
                calls: taken.calls,
                ms: ms(taken.time),
            })
            .collect(),
        other_ms: ms(part.other),
    };
    times.iter().map(part).collect()
}

/// The times for people: per part the stages, the longest first.
pub(crate) fn lines(times: &[PartTimes]) -> Vec<String> {
    let mut lines = vec![format!(
        "{:<10}{:<14}{:>8}{:>12}{:>12}{:>8}",
        "part", "stage", "calls", "ms", "ms a pass", "%"
    )];
    for part in times {
        let whole = part.whole;
        let mut line = |name: &str, stage: &str, calls: String, time: Duration| {
            let share = 100.0 * time.as_secs_f64() / whole.time.as_secs_f64().max(1e-9);
            let a_pass = ms(time) / whole.calls as f64;
            lines.push(format!(
                "{name:<10}{stage:<14}{calls:>8}{:>12.3}{a_pass:>12.3}{share:>8.1}",
                ms(time)
            ));
        };
        line(part.part.name(), "", whole.calls.to_string(), whole.time);
        let mut stages = part.stages.clone();
        stages.sort_by_key(|(_, taken)| std::cmp::Reverse(taken.time));
        for (stage, Taken { time, calls }) in stages {
            line("", stage.name(), calls.to_string(), time);
        }
        line("", "other", String::new(), part.other);
    }
    lines
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

#[cfg(test)]
mod tests {
    use super::*;
    use runtime::profile::{Part, Stage};

    #[test]
    fn the_longest_stage_comes_first() {
        let taken = |ms, calls| Taken { time: Duration::from_millis(ms), calls };
        let times = [PartTimes {
            part: Part::Verify,
            whole: taken(200, 2),
            stages: vec![(Stage::Norm, taken(10, 8)), (Stage::Ternary, taken(150, 4))],
            other: Duration::from_millis(40),
        }];
        let lines: Vec<Vec<String>> = lines(&times)[1..]
            .iter()
            .map(|line| line.split_whitespace().map(str::to_owned).collect())
            .collect();
        assert_eq!(lines[0], ["verify", "2", "200.000", "100.000", "100.0"]);
        assert_eq!(lines[1], ["ternary", "4", "150.000", "75.000", "75.0"]);
        assert_eq!(lines[2], ["norm", "8", "10.000", "5.000", "5.0"]);
        assert_eq!(lines[3], ["other", "40.000", "20.000", "20.0"]);
        let document = serde_json::to_value(document(&times)).unwrap();
        assert_eq!(document[0]["stages"][1]["ms"], 150.0);
        assert_eq!(document[0]["other_ms"], 40.0);
    }
}
