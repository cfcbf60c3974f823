//! Watching what a drafter's matrices are multiplied with.

use formats::calib;

use super::load::Drafter;
use crate::Error;
use crate::rows::{Primal, Rows};

/// Is shown the inputs of a drafter's matrices, in the order of the forward pass.
///
/// A drafter without an observer asks one pointer per input and does nothing else.
pub trait InputObserver: std::fmt::Debug + Send + Sync {
    /// `rows`, `[n, width]`, are about to meet the matrices of `input`. Of inputs of a block, the first
    /// is row `first` of it; of context rows `first` is 0.
    ///
    /// # Errors
    /// What its own work says; the pass ends with it.
    fn rows(&self, input: calib::Input, first: usize, rows: &Rows<Primal>) -> Result<(), Error>;
}

impl Drafter {
    /// Shows `observer` the inputs of what follows; nothing ends that.
    pub fn set_inputs(&mut self, observer: Option<std::sync::Arc<dyn InputObserver>>) {
        self.inputs = observer;
    }

    /// Shows the observer rows, if there is one.
    #[inline]
    pub(super) fn show(
        &self,
        input: calib::Input,
        first: usize,
        rows: &Rows<Primal>,
    ) -> Result<(), Error> {
        match &self.inputs {
            None => Ok(()),
            Some(observer) => observer.rows(input, first, rows),
        }
    }
}
