//! The units of the moments' integers, from the models alone.
//!
//! Every part of a work that is shared must count in the same units, so they cannot come from its texts. A
//! short run over ids that are spread over the vocabulary shows how large the inputs are.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use formats::calib::{Input, exponent_of};

use crate::Error;
use crate::drafter::{Context, Drafter, InputObserver};
use crate::kv::KvType;
use crate::rows::{Primal, Rows};
use crate::target::{LogitRows, State, Target};

/// Tokens of the run.
const TOKENS: usize = 48;

/// The exponent of each input's units. The drafter's observer is taken away.
///
/// # Errors
/// What target and drafter say.
pub fn exponents(
    target: &Target,
    drafter: &mut Drafter,
    kv: KvType,
) -> Result<BTreeMap<Input, i32>, Error> {
    let n = TOKENS.min(target.config().context_length / 2).max(2);
    let ids: Vec<u32> = (0..n).map(|i| (i * target.vocab() / n) as u32).collect();
    let mut state = State::new(target.config(), kv);
    let taps = drafter.config().target_layer_ids.clone();
    let pass = target.advance(&mut state, &ids[..n - 1], &taps, LogitRows::None)?;
    let squares = Arc::new(Squares::default());
    drafter.set_inputs(Some(squares.clone()));
    let mut context = Context::new(drafter.config(), kv);
    let result = pass
        .taps
        .map_or(Ok(()), |taps| drafter.extend(&mut context, &taps))
        .and_then(|()| drafter.draft(&mut context, target, ids[n - 1]));
    drafter.set_inputs(None);
    result?;
    let sums = squares.0.lock().unwrap_or_else(PoisonError::into_inner);
    Ok(sums.iter().map(|(input, (sum, n))| (*input, exponent_of(sum / *n as f64))).collect())
}

/// Sums of squares, and how many values they are of.
#[derive(Debug, Default)]
struct Squares(Mutex<BTreeMap<Input, (f64, usize)>>);

impl InputObserver for Squares {
    fn rows(&self, input: Input, _: usize, rows: &Rows<Primal>) -> Result<(), Error> {
        let mut sums = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (sum, n) = sums.entry(input).or_default();
        *sum += rows.data().iter().map(|x| f64::from(*x) * f64::from(*x)).sum::<f64>();
        *n += rows.data().len();
        Ok(())
    }
}
