//! Turns a DFlash 2 drafter into a checked ternary file.
//!
//! [`plan::Plan::new`] checks everything that can be checked before the first
//! output byte, [`plan::Plan::run`] streams the tensors through rotation,
//! ternarization and packing into one or several outputs that appear only when
//! they are whole, and [`report::Report`] says what happened. The same input
//! gives the same bytes for any number of threads and any instruction set.

mod bands;
pub mod calibrated;
mod digest;
mod error;
mod facts;
pub mod inspect;
pub mod merge;
pub mod observer;
pub mod output;
mod pending;
pub mod pipeline;
pub mod plan;
pub mod report;
pub mod ternary;
#[cfg(test)]
mod testing;
pub mod verify;

pub use error::{Error, Failure};
