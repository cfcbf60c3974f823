//! Counts of prompts become figures with intervals.

use runtime::round::{Finish, Generated};
use runtime::stats::{Bootstrap, Counts, DraftStats, Estimate};
use serde::Serialize;

use super::{Measured, Run};

/// A figure with its 95 % interval, which is null where there are too few prompts for one.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(crate) struct Figure {
    pub(crate) value: f64,
    pub(crate) low: Option<f64>,
    pub(crate) high: Option<f64>,
}

impl From<Estimate> for Figure {
    fn from(Estimate { value, interval }: Estimate) -> Self {
        let (low, high) = interval.unzip();
        Self { value, low, high }
    }
}

impl Figure {
    /// A share: what is beyond none and all is no more than them.
    fn share(estimate: Estimate) -> Self {
        let figure = Self::from(estimate);
        let clamp = |x: Option<f64>| x.map(|x| x.clamp(0.0, 1.0));
        Self { low: clamp(figure.low), high: clamp(figure.high), ..figure }
    }
}

/// One drafter at one draft length over the prompts of a class, or all.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Group {
    /// The class; null: all.
    pub(crate) class: Option<String>,
    pub(crate) prompts: usize,
    pub(crate) rounds: usize,
    pub(crate) drafted: usize,
    pub(crate) accepted: usize,
    pub(crate) delivered: usize,
    pub(crate) tokens_per_round: Option<Figure>,
    pub(crate) untrimmed_per_round: Option<f64>,
    pub(crate) by_position: Vec<Position>,
}

/// The drafts at one place of the block, from 1.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Position {
    pub(crate) position: usize,
    pub(crate) drafted: usize,
    pub(crate) accepted: usize,
    pub(crate) share: Option<Figure>,
}

/// The change of a figure against the first drafter's, or against plain decoding.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Change {
    /// The class; null: all.
    pub(crate) class: Option<String>,
    pub(crate) change: Option<Figure>,
}

/// The prompts of a class, or all of them.
#[derive(Debug)]
pub(crate) struct Selection {
    pub(crate) class: Option<String>,
    prompts: Vec<usize>,
    bootstrap: Bootstrap,
}

impl Selection {
    /// Each class by itself, then all; all alone where there is one class.
    pub(crate) fn all(run: &Run) -> Vec<Self> {
        let class_of = &run.suites.class_of()[..run.measured.len()];
        let mut selections = Vec::new();
        if run.suites.classes.len() > 1 {
            for (class, name) in run.suites.classes.iter().enumerate() {
                let prompts = (0..class_of.len()).filter(|n| class_of[*n] == class);
                selections.push(Self::new(Some(name.clone()), prompts.collect(), class_of));
            }
        }
        selections.push(Self::new(None, (0..class_of.len()).collect(), class_of));
        selections
    }

    fn new(class: Option<String>, prompts: Vec<usize>, class_of: &[usize]) -> Self {
        let classes: Vec<usize> = prompts.iter().map(|n| class_of[*n]).collect();
        Self { class, bootstrap: Bootstrap::new(&classes), prompts }
    }

    /// The figures of a drafter at the `place`th draft length.
    pub(crate) fn group(&self, run: &Run, arm: usize, place: usize) -> Group {
        let stats = stats(&run.measured, arm, place, |n| self.prompts.binary_search(&n).is_ok());
        let positions = 0..stats.by_position.len();
        Group {
            class: self.class.clone(),
            prompts: self.prompts.len(),
            rounds: stats.rounds,
            drafted: stats.drafted,
            accepted: stats.accepted,
            delivered: stats.delivered,
            tokens_per_round: self.ratio(&self.tokens_per_round(run, arm, place)).map(Figure::from),
            untrimmed_per_round: stats.untrimmed_per_round(),
            by_position: positions
                .map(|i| {
                    let (drafted, accepted) = stats.by_position[i];
                    let counts = self.counts(run, arm, place, |stats| {
                        let (sent, accepted) =
                            stats.by_position.get(i).copied().unwrap_or_default();
                        Counts::new(accepted, sent)
                    });
                    let share = self.ratio(&counts).map(Figure::share);
                    Position { position: i + 1, drafted, accepted, share }
                })
                .collect(),
        }
    }

    /// The change of tokens per round from the first drafter to this one.
    pub(crate) fn change(&self, run: &Run, arm: usize, place: usize) -> Change {
        let base = self.tokens_per_round(run, 0, place);
        let other = self.tokens_per_round(run, arm, place);
        let change = self.bootstrap.change(&base, &other).map(Figure::from);
        Change { class: self.class.clone(), change }
    }

    /// Tokens per second after the first, of a drafter at a draft length; of plain decoding for none.
    pub(crate) fn rate(&self, run: &Run, leg: Option<(usize, usize)>) -> Option<Figure> {
        self.ratio(&self.times(run, leg)?).map(Figure::from)
    }

    /// The relative change of tokens per second from one to the other.
    pub(crate) fn rate_change(
        &self,
        run: &Run,
        base: Option<(usize, usize)>,
        other: Option<(usize, usize)>,
    ) -> Option<Figure> {
        let change = self.bootstrap.change(&self.times(run, base)?, &self.times(run, other)?);
        change.map(Figure::from)
    }

    fn times(&self, run: &Run, leg: Option<(usize, usize)>) -> Option<Vec<Counts>> {
        let time = |n: &usize| {
            let measured = &run.measured[*n];
            let seconds = measured.seconds.as_ref()?;
            let tokens = (measured.ids.len() - 1) * seconds.runs;
            let denominator = leg.map_or(seconds.plain, |(d, l)| seconds.drafting[d][l]);
            Some(Counts { numerator: tokens as f64, denominator })
        };
        self.prompts.iter().map(time).collect()
    }

    fn ratio(&self, counts: &[Counts]) -> Option<Estimate> {
        self.bootstrap.ratio(counts)
    }

    fn tokens_per_round(&self, run: &Run, arm: usize, place: usize) -> Vec<Counts> {
        self.counts(run, arm, place, |stats| Counts::new(stats.delivered, stats.rounds))
    }

    fn counts(
        &self,
        run: &Run,
        arm: usize,
        place: usize,
        of: impl Fn(&DraftStats) -> Counts,
    ) -> Vec<Counts> {
        let of = |n: &usize| of(&stats(&run.measured, arm, place, |other| other == *n));
        self.prompts.iter().map(of).collect()
    }
}

/// The drafts of some prompts.
pub(crate) fn stats(
    measured: &[Measured],
    arm: usize,
    place: usize,
    chosen: impl Fn(usize) -> bool,
) -> DraftStats {
    let mut stats = DraftStats::default();
    for (_, measured) in measured.iter().enumerate().filter(|(n, _)| chosen(*n)) {
        let rounds = measured.rounds[arm][place].clone();
        stats.add(&Generated { ids: Vec::new(), finish: Finish::Length, rounds });
    }
    stats
}
