//! Single passes: decoding, verifying, drafting, taking in.

use std::time::Instant;

use anyhow::Context as _;
use command_line::exit::Usage;
use runtime::drafter::{Context, Drafter};
use runtime::kv::KvType;
use runtime::rows::Rows;
use runtime::target::{LogitRows, State, Target};
use runtime::work::Work;
use serde::Serialize;

use super::super::models::milliseconds;
use super::CHUNK;
use super::args::Test;
use super::limits::Need;
use super::trials::{Interrupted, Times, Trials};

/// A trial repeats its pass for so long, to be above what the clock and the system disturb, and so
/// often at most, to stay near its depth.
const TRIAL_MS: f64 = 50.0;
const MOST_PASSES: usize = 16;

/// One measured pass.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Measured {
    pub(crate) test: &'static str,
    /// Tokens of the pass.
    pub(crate) rows: usize,
    /// Positions before it.
    pub(crate) depth: usize,
    #[serde(flatten)]
    pub(crate) times: Times,
    #[serde(skip)]
    pub(crate) need: Need,
}

/// What passes are measured on.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bench<'a> {
    pub(crate) target: &'a Target,
    pub(crate) drafter: Option<&'a Drafter>,
    pub(crate) kv: KvType,
    pub(crate) trials: Trials<'a>,
}

type Outcome = anyhow::Result<Result<Measured, Interrupted>>;

impl Bench<'_> {
    /// A step of plain decoding.
    pub(crate) fn decode(&self, depth: usize) -> Outcome {
        let pass = |state: &mut State| {
            self.target.advance(state, &[self.token(state.len())], &[], LogitRows::Last)?;
            Ok(())
        };
        self.on_states(Test::Decode, 1, depth, self.target_need(1, 1, depth), pass)
    }

    /// A pass over `rows` tokens with the logits of each, and the commit of all.
    pub(crate) fn verify(&self, rows: usize, depth: usize) -> Outcome {
        let taps = self.drafter.map_or(&[][..], |drafter| &drafter.config().target_layer_ids);
        let pass = |state: &mut State| {
            let ids: Vec<u32> = (0..rows).map(|i| self.token(state.len() + i)).collect();
            let (_, verified) = self.target.verify(state, &ids, taps)?;
            state.commit(&verified, rows);
            Ok(())
        };
        self.on_states(Test::Verify, rows, depth, self.target_need(rows, rows, depth), pass)
    }

    /// Taking in a prompt of `rows` tokens, with the logits of the last.
    pub(crate) fn prefill(&self, rows: usize, depth: usize) -> Outcome {
        let passes = rows.div_ceil(CHUNK);
        let need = self.target_need(rows, 1, depth);
        let need = Need { bytes: need.bytes * passes as f64, ..need };
        let pass = |state: &mut State| {
            let ids: Vec<u32> = (0..rows).map(|i| self.token(state.len() + i)).collect();
            for (n, part) in ids.chunks(CHUNK).enumerate() {
                let last = if n + 1 == passes { LogitRows::Last } else { LogitRows::None };
                self.target.advance(state, part, &[], last)?;
                if command_line::signals::received() {
                    break;
                }
            }
            Ok(())
        };
        self.on_states(Test::Prefill, rows, depth, need, pass)
    }

    /// A block of the drafter.
    pub(crate) fn draft(&self, drafter: &Drafter, depth: usize) -> Outcome {
        let block = drafter.config().block_size;
        let work: Work = [drafter.work(), self.target.head_work()].into_iter().sum();
        let mut context = Context::noise(drafter.config(), self.kv, depth);
        let need = Need {
            operations: drafter.work().operations(block)
                + self.target.head_work().operations(block - 1),
            bytes: (work.bytes() + context.held_bytes()) as f64,
        };
        let pass = |context: &mut Context| {
            drafter.draft(context, self.target, self.token(depth))?;
            Ok(())
        };
        self.measure(Test::Draft, block, depth, need, || repeated(&mut context, pass))
    }

    /// Taking `rows` tapped states into the drafter's context.
    pub(crate) fn context(&self, drafter: &Drafter, rows: usize, depth: usize) -> Outcome {
        let (work, width) = (drafter.context_work(), drafter.config().fc_in());
        let need = Need { operations: work.operations(rows), bytes: work.bytes() as f64 };
        let values = (0..rows * width).map(|i| (i * 7919 % 2001) as f32 / 1000.0 - 1.0).collect();
        let taps = Rows::from_vec(width, values);
        let mut context = Context::noise(drafter.config(), self.kv, depth);
        let pass = |context: &mut Context| Ok(drafter.extend(context, &taps)?);
        self.measure(Test::Context, rows, depth, need, || repeated(&mut context, pass))
    }

    /// What the target needs for a pass over `rows` tokens of which `logits` go through the head.
    fn target_need(&self, rows: usize, logits: usize, depth: usize) -> Need {
        let (layers, head) = (self.target.work(), self.target.head_work());
        let config = self.target.config();
        let remembered = config.recurrent_bytes() + depth * config.kv_bytes(self.kv);
        Need {
            operations: layers.operations(rows) + head.operations(logits),
            bytes: (layers.bytes() + head.bytes() + remembered) as f64,
        }
    }

    /// A token that depends on the position only.
    fn token(&self, position: usize) -> u32 {
        (position % self.target.vocab()) as u32
    }

    /// Measures a pass that moves a state on.
    fn on_states(
        &self,
        test: Test,
        rows: usize,
        depth: usize,
        need: Need,
        pass: impl Fn(&mut State) -> anyhow::Result<()>,
    ) -> Outcome {
        let context = self.target.config().context_length;
        if depth.saturating_add(rows) > context {
            let name = test.name();
            let message = format!(
                "--depths {depth}: no room for {name} of {rows} tokens, the target's context has {context} positions"
            );
            return Err(Usage(message).into());
        }
        let fresh = || State::noise(self.target.config(), self.kv, depth);
        let mut state = fresh();
        self.measure(test, rows, depth, need, || {
            // Near its depth, and within the context.
            let end = depth.max(2 * CHUNK) + CHUNK;
            let most = if test == Test::Prefill { 1 } else { MOST_PASSES };
            if test == Test::Prefill || state.len() > end || state.len() + most * rows > context {
                // Two of a great depth need not fit.
                state = State::new(self.target.config(), self.kv);
                state = fresh();
            }
            let most = most.min((context - state.len()) / rows).max(1);
            repeated_up_to(most, &mut state, &pass)
        })
    }

    fn measure(
        &self,
        test: Test,
        rows: usize,
        depth: usize,
        need: Need,
        trial: impl FnMut() -> anyhow::Result<f64>,
    ) -> Outcome {
        let name = format!("{}, {rows} rows at {depth}", test.name());
        let times = self.trials.run(&name, trial).with_context(|| name.clone())?;
        Ok(times.map(|times| Measured { test: test.name(), rows, depth, times, need }))
    }
}

/// Milliseconds of a pass, the mean over as many as make a trial.
fn repeated<T>(on: &mut T, pass: impl Fn(&mut T) -> anyhow::Result<()>) -> anyhow::Result<f64> {
    repeated_up_to(MOST_PASSES, on, pass)
}

fn repeated_up_to<T>(
    most: usize,
    on: &mut T,
    pass: impl Fn(&mut T) -> anyhow::Result<()>,
) -> anyhow::Result<f64> {
    let begin = Instant::now();
    let mut passes = 0;
    loop {
        pass(on)?;
        passes += 1;
        let ms = milliseconds(begin);
        if ms >= TRIAL_MS || passes == most {
            return Ok(ms / passes as f64);
        }
    }
}
