//! Codes and scales that fit what a matrix does with its inputs.

mod descent;
mod factor;
mod hessian;
mod ldlq;
mod matmul;
mod scales;
mod solve;

pub(crate) use hessian::Hessian;
pub use hessian::MomentFault;
pub use solve::Effort;
pub(crate) use solve::{Losses, Solver};

#[cfg(test)]
mod tests;
