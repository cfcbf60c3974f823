//! Codes and scales that fit what a matrix does with its inputs.
//!
//! The optimum of [`crate::ternary`] makes the error of every weight small. What counts
//! is the error of the outputs: with `e` the errors of a row and `H` the second moments
//! of the inputs, `e H e^T`. Inputs that go together let one error make up for another,
//! and that is what happens here, for every row and every rotation block by itself:
//!
//! 1. `ldlq`: columns are rounded in turn, each making up for the errors before it,
//!    after a factorization of `H` (`factor`);
//! 2. `scales`: the best scales for these codes, on the grid;
//! 3. `descent`: each code becomes the best for all others; then 2 again, until nothing
//!    moves or the rounds are over;
//! 4. a row that gained nothing keeps its optimum.
//!
//! The diagonal of `H` is damped ([`damping`]), so that what few samples say by chance
//! is not fitted. [`Moments`] says where `H` comes from. All additions have one order
//! (`matmul`), rows do not know of each other, so the bytes depend neither on threads
//! nor on the instruction set.

mod band;
mod bank;
mod descent;
mod factor;
mod hessian;
mod ldlq;
mod matmul;
mod moments;
mod scales;
mod solve;

pub(crate) use band::{BandFault, Rounded, round};
pub(crate) use bank::{Bank, Facts, Store};
pub use hessian::MomentFault;
pub use moments::{Calibration, Moments, damping};
pub(crate) use solve::{Losses, Solver};

#[cfg(test)]
mod tests;
