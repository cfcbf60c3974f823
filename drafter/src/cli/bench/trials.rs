//! Repeated measurements, and what is told of them.

use command_line::{Streams, signals};
use serde::Serialize;

/// A signal asked for the end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Interrupted;

/// Times of the same thing, in milliseconds.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Times {
    pub(crate) median_ms: f64,
    pub(crate) min_ms: f64,
    pub(crate) max_ms: f64,
    trials_ms: Vec<f64>,
}

impl Times {
    /// Of one trial at least.
    pub(crate) fn new(trials_ms: Vec<f64>) -> Self {
        let least = |a: f64, b: &f64| a.min(*b);
        let most = |a: f64, b: &f64| a.max(*b);
        Self {
            median_ms: median(&trials_ms),
            min_ms: trials_ms.iter().fold(f64::INFINITY, least),
            max_ms: trials_ms.iter().fold(0.0, most),
            trials_ms,
        }
    }
}

/// The median; between the two in the middle of an even number.
pub(crate) fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => 0.0,
        n if n % 2 == 0 => f64::midpoint(sorted[middle - 1], sorted[middle]),
        _ => sorted[middle],
    }
}

/// How often things are measured.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Trials<'a> {
    pub(crate) streams: &'a Streams,
    pub(crate) warmup: usize,
    pub(crate) trials: usize,
}

impl Trials<'_> {
    /// Runs warm-ups and trials of `trial`, which gives its milliseconds.
    pub(crate) fn run(
        &self,
        name: &str,
        mut trial: impl FnMut() -> anyhow::Result<f64>,
    ) -> anyhow::Result<Result<Times, Interrupted>> {
        let mut times = Vec::with_capacity(self.trials);
        for n in 0..self.warmup + self.trials {
            if self.interrupted(name, n) {
                return Ok(Err(Interrupted));
            }
            let ms = trial()?;
            if n >= self.warmup {
                times.push(ms);
            }
        }
        self.streams.progress("");
        Ok(Ok(Times::new(times)))
    }

    /// Says what is about to run; whether it must not.
    pub(crate) fn interrupted(&self, name: &str, n: usize) -> bool {
        let Self { streams, warmup, trials } = self;
        if signals::received() {
            streams.progress("");
            return true;
        }
        streams.progress(&match n.checked_sub(*warmup) {
            None => format!("{name}: warm-up {} of {warmup}", n + 1),
            Some(n) => format!("{name}: trial {} of {trials}", n + 1),
        });
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 3.0, 2.0]), 2.5);
        let times = Times::new(vec![5.0, 2.0, 9.0]);
        assert_eq!((times.min_ms, times.median_ms, times.max_ms), (2.0, 5.0, 9.0));
    }
}
