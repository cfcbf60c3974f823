//! What passes cost, learnt from their times.
//!
//! Times are kept relative to a scale that follows the pace of the machine: as a context grows or
//! another program takes its share, lengths that are not in use keep their ratio to those that are.

/// Samples of one length that count.
const KEPT: usize = 15;

/// With fewer samples a length is taken for cheaper than it looks, the more so the longer ago it was
/// tried, in rounds with drafts: one slow pass must not rule it out for ever.
const FEW: usize = 3;
const HOPE: f64 = 0.9;
const HOPE_PER_ROUND: f64 = 1.0 / 64.0;
const MOST_HOPE: f64 = 0.25;

/// Rows that are taken in at about the cost per row of more of them.
const MANY: usize = 16;

/// How far one sample moves the scale, and the most it may.
const FOLLOW: f64 = 0.1;
const STEP: f64 = 0.3;

/// Relative times of one kind of pass.
#[derive(Debug, Clone, Default)]
struct Samples {
    last: Vec<f64>,
    next: usize,
    /// The round of the last one.
    round: usize,
}

impl Samples {
    fn add(&mut self, x: f64, round: usize) {
        self.round = round;
        if self.last.len() < KEPT {
            self.last.push(x);
        } else {
            self.last[self.next] = x;
        }
        self.next = (self.next + 1) % KEPT;
    }

    /// The median, or something lower while there are few samples.
    fn typical(&self, round: usize) -> Option<f64> {
        let mut sorted = self.last.clone();
        sorted.sort_unstable_by(f64::total_cmp);
        let least = sorted.first()?;
        if sorted.len() < FEW {
            let age = (round - self.round) as f64;
            return Some(least * (HOPE - HOPE_PER_ROUND * age).max(MOST_HOPE));
        }
        sorted.get(sorted.len() / 2).copied()
    }
}

/// Costs in a unit that is the same for all of them.
#[derive(Debug, Clone)]
pub(super) struct Costs {
    /// Seconds of the unit.
    scale: Option<f64>,
    /// Of passes over 1, 2, … rows.
    rows: Vec<Samples>,
    draft: Samples,
    /// Seconds per row of what the drafter took in last, many rows at once.
    take_in: f64,
    /// Rounds with drafts.
    round: usize,
}

impl Costs {
    /// For passes over at most `most` rows.
    pub(super) fn new(most: usize) -> Self {
        Self {
            scale: None,
            rows: vec![Samples::default(); most],
            draft: Samples::default(),
            take_in: 0.0,
            round: 0,
        }
    }

    pub(super) fn add_pass(&mut self, rows: usize, seconds: f64) {
        let Some(samples) = self.rows.get_mut(rows - 1) else { return };
        // A clock may stand still.
        let seconds = seconds.max(1e-9);
        let scale = self.scale.get_or_insert(seconds);
        if samples.last.len() >= FEW
            && let Some(typical) = samples.typical(self.round)
        {
            let off = seconds / (*scale * typical) - 1.0;
            *scale *= 1.0 + FOLLOW * off.clamp(-STEP, STEP);
        }
        samples.add(seconds / *scale, self.round);
    }

    pub(super) fn add_draft(&mut self, seconds: f64) {
        self.round += 1;
        if let Some(scale) = self.scale {
            self.draft.add(seconds.max(0.0) / scale, self.round);
        }
    }

    pub(super) fn add_take_in(&mut self, rows: usize, seconds: f64) {
        if rows >= MANY {
            self.take_in = seconds.max(0.0) / rows as f64;
        }
    }

    /// Taking in a row that waited with many others; 0 while nothing is known.
    pub(super) fn take_in(&self) -> f64 {
        self.scale.map_or(0.0, |scale| self.take_in / scale)
    }

    /// Passes of that many rows that count.
    pub(super) fn samples(&self, rows: usize) -> usize {
        self.rows.get(rows - 1).map_or(0, |samples| samples.last.len())
    }

    /// The most rows that a pass had.
    pub(super) fn longest(&self) -> usize {
        self.rows.iter().rposition(|samples| !samples.last.is_empty()).map_or(0, |i| i + 1)
    }

    /// Drafting; 0 while nothing is known.
    pub(super) fn draft(&self) -> f64 {
        self.draft.typical(self.round).unwrap_or(0.0)
    }

    /// A pass over `rows`: as it was measured, else on a line between its measured neighbours; more
    /// rows than were ever tried might be free. 1 while nothing is known.
    pub(super) fn pass(&self, rows: usize) -> f64 {
        let known = |rows: usize| Some((rows, self.rows.get(rows - 1)?.typical(self.round)?));
        if let Some((_, cost)) = known(rows) {
            return cost;
        }
        let below = (1..rows).rev().find_map(known);
        let above = (rows + 1..=self.rows.len()).find_map(known);
        match (below, above) {
            (Some((a, low)), Some((b, high))) => {
                low + (high - low) * (rows - a) as f64 / (b - a) as f64
            }
            (Some((_, cost)), None) | (None, Some((_, cost))) => cost,
            (None, None) => 1.0,
        }
    }
}
