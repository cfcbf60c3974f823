//! The seam under the models: who multiplies the ternary matrices.
//!
//! A [`Backend`] takes a matrix once, in whatever order of bytes the file has, and turns it into
//! something it can multiply with. Shapes are checked above the seam. The result of each row depends
//! on that row only, so a batch gives the bits of single rows:
//!
//! for output `o`: `acc = +0`; per group ascending `acc += isum · (s · d)`, where `isum` is the exact
//! integer sum of `t · q` over the 128 and each of the three operations is rounded once to f32. With
//! [`ActQuant::F32`](crate::quant::ActQuant::F32): `s · t · x` and its sum in f64, ascending, rounded
//! to f32 once. The NPU's arithmetic, [`ActQuant::N16`](crate::quant::ActQuant::N16) and
//! [`ActQuant::N8`](crate::quant::ActQuant::N8), has its own float part, which
//! [`aie_kernels::arithmetic`] writes down; [`Npu`] computes no other, and the others compute it too.

mod cpu;
mod n16;
pub mod npu;
mod reference;

pub(crate) use cpu::Memory;
pub use cpu::{Cpu, Dot, ModelOnCpu};
pub use npu::{ModelOnNpu, Npu};
pub use reference::Reference;

use crate::Error;
use crate::quant::Activations;
use crate::weights::TernaryMatrix;

/// Multiplies ternary matrices.
pub trait Backend: std::fmt::Debug + Send + Sync {
    /// Takes over a matrix.
    ///
    /// # Errors
    /// What the device says; a matrix in memory that the CPU multiplies is always accepted.
    fn prepare(&self, matrix: TernaryMatrix) -> Result<Box<dyn Prepared>, Error>;
}

/// A matrix that a backend has taken over.
pub trait Prepared: std::fmt::Debug + Send + Sync {
    /// Writes `[x.n(), out_features]`. `x` has the matrix's input width.
    ///
    /// # Errors
    /// What the device says; [`Error::Formats`] where stored weights are damaged.
    fn matmul(&self, x: &Activations, out: &mut [f32]) -> Result<(), Error>;
}
