//! Where the time of a request goes.
//!
//! A [`Profile`] is a handle that models carry with their arithmetic and the generation loop takes from
//! the target. A request has [`Part`]s that follow each other, and within a part [`Stage`]s follow each
//! other, each spread over threads inside; so wall-clock times of the one thread that runs the passes
//! add up, and what no stage claims is left over as other. A handle that is off, the default, costs a
//! branch per stage.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// What a request consists of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// The target takes the prompt in.
    Prompt,
    /// The drafter takes tapped states in.
    Context,
    /// The drafter proposes.
    Draft,
    /// The target computes a pass over pending token and proposals.
    Verify,
    /// Tokens are chosen from logits and delivered.
    Choose,
    /// The target's state takes in what was delivered.
    Commit,
}

/// What a part consists of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// Rows of the embedding.
    Embedding,
    /// The norms of the residual stream, and its sums.
    Norm,
    /// The rotation of activations.
    Rotation,
    /// Activations made into integers.
    Quantization,
    /// Products with ternary matrices.
    Ternary,
    /// Products with float matrices.
    Float,
    /// Products with the head.
    Head,
    /// Convolutions, and the norms of a delta net's queries and keys.
    Convolution,
    /// The recurrence of delta nets.
    DeltaNet,
    /// Norms of heads, rotary positions, keys and values, attention.
    Attention,
    /// Gates: SwiGLU, and those of the mixers' outputs.
    Gate,
    /// Candidates and the walk over them.
    Selector,
}

const PARTS: [(Part, &str); 6] = [
    (Part::Prompt, "prompt"),
    (Part::Context, "context"),
    (Part::Draft, "draft"),
    (Part::Verify, "verify"),
    (Part::Choose, "choose"),
    (Part::Commit, "commit"),
];

const STAGES: [(Stage, &str); 12] = [
    (Stage::Embedding, "embedding"),
    (Stage::Norm, "norm"),
    (Stage::Rotation, "rotation"),
    (Stage::Quantization, "quantization"),
    (Stage::Ternary, "ternary"),
    (Stage::Float, "float"),
    (Stage::Head, "head"),
    (Stage::Convolution, "convolution"),
    (Stage::DeltaNet, "delta_net"),
    (Stage::Attention, "attention"),
    (Stage::Gate, "gate"),
    (Stage::Selector, "selector"),
];

impl Part {
    /// Its name in reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        PARTS[self as usize].1
    }
}

impl Stage {
    /// Its name in reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        STAGES[self as usize].1
    }
}

/// A handle on times that are being taken, or not.
#[derive(Debug, Clone, Default)]
pub struct Profile(Option<Arc<Times>>);

#[derive(Debug, Default)]
struct Times {
    /// Of which part stages are.
    part: AtomicUsize,
    parts: [OfPart; PARTS.len()],
}

#[derive(Debug, Default)]
struct OfPart {
    whole: Time,
    stages: [Time; STAGES.len()],
}

#[derive(Debug, Default)]
struct Time {
    nanoseconds: AtomicU64,
    calls: AtomicU64,
}

impl Time {
    fn add(&self, time: Duration) {
        let nanoseconds = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.nanoseconds.fetch_add(nanoseconds, Ordering::Relaxed);
        self.calls.fetch_add(1, Ordering::Relaxed);
    }

    fn taken(&self) -> Taken {
        Taken {
            time: Duration::from_nanos(self.nanoseconds.load(Ordering::Relaxed)),
            calls: self.calls.load(Ordering::Relaxed),
        }
    }
}

/// How long something took.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Taken {
    /// All calls together.
    pub time: Duration,
    /// How often it was called.
    pub calls: u64,
}

/// The times of one part.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PartTimes {
    /// Which.
    pub part: Part,
    /// All of it.
    pub whole: Taken,
    /// Stages that were called.
    pub stages: Vec<(Stage, Taken)>,
    /// What is left of the whole.
    pub other: Duration,
}

impl Profile {
    /// One that takes times, from zero.
    #[must_use]
    pub fn new() -> Self {
        Self(Some(Arc::default()))
    }

    /// Does `work` as a part.
    pub fn part<R>(&self, part: Part, work: impl FnOnce() -> R) -> R {
        let Some(times) = &self.0 else { return work() };
        times.part.store(part as usize, Ordering::Relaxed);
        let begin = Instant::now();
        let result = work();
        times.parts[part as usize].whole.add(begin.elapsed());
        result
    }

    /// Does `work` as a stage of the part that is under way. Stages do not contain each other.
    pub fn stage<R>(&self, stage: Stage, work: impl FnOnce() -> R) -> R {
        let Some(times) = &self.0 else { return work() };
        let begin = Instant::now();
        let result = work();
        let part = &times.parts[times.part.load(Ordering::Relaxed)];
        part.stages[stage as usize].add(begin.elapsed());
        result
    }

    /// The times so far of parts that were called; none when it is off.
    #[must_use]
    pub fn times(&self) -> Vec<PartTimes> {
        let Some(times) = &self.0 else { return Vec::new() };
        let parts = times.parts.iter().zip(PARTS).map(|(of_part, (part, _))| {
            let stages = of_part.stages.iter().zip(STAGES);
            let stages = stages.map(|(time, (stage, _))| (stage, time.taken()));
            let stages: Vec<_> = stages.filter(|(_, taken)| taken.calls > 0).collect();
            let whole = of_part.whole.taken();
            let claimed = stages.iter().map(|(_, taken)| taken.time).sum();
            PartTimes { part, whole, stages, other: whole.time.saturating_sub(claimed) }
        });
        parts.filter(|part| part.whole.calls > 0).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_stand_at_their_place() {
        assert!(PARTS.iter().enumerate().all(|(at, (part, _))| *part as usize == at));
        assert!(STAGES.iter().enumerate().all(|(at, (stage, _))| *stage as usize == at));
    }

    #[test]
    fn stages_belong_to_the_part_under_way() {
        let wait = || std::thread::sleep(Duration::from_millis(2));
        let profile = Profile::new();
        let handle = profile.clone();
        let result = profile.part(Part::Draft, || {
            wait();
            handle.stage(Stage::Head, wait);
            handle.stage(Stage::Head, || 7)
        });
        profile.part(Part::Verify, || ());
        assert_eq!(result, 7);
        let [draft, verify] = &profile.times()[..] else { panic!("two parts") };
        assert_eq!((draft.part, draft.whole.calls, verify.part), (Part::Draft, 1, Part::Verify));
        let [(Stage::Head, head)] = draft.stages[..] else { panic!("one stage") };
        assert_eq!(head.calls, 2);
        assert!(head.time >= Duration::from_millis(2) && draft.other >= Duration::from_millis(2));
        assert_eq!(draft.whole.time, head.time + draft.other);
        assert!(verify.stages.is_empty());
    }

    #[test]
    fn off_it_only_works() {
        let profile = Profile::default();
        assert_eq!(profile.part(Part::Prompt, || profile.stage(Stage::Norm, || 3)), 3);
        assert!(profile.times().is_empty());
    }
}
