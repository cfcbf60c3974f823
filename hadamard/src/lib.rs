//! Orthonormal block Walsh-Hadamard transforms in `f32`, with sign vectors, bit-equal on every
//! instruction set.
//!
//! A vector is cut into consecutive blocks of `b` elements, `b` a power of two. The rotation of one
//! block is
//!
//! ```text
//! x' = R x = H_b (sigma ⊙ x)        H_b[i][j] = (-1)^popcount(i & j) / sqrt(b)
//! x  = R^-1 x' = sigma ⊙ (H_b x')   (H_b is its own inverse)
//! ```
//!
//! `R` is orthogonal, so a weight matrix stored as `W' = W R^-1` gives `W' (R x) = W x`. Row by row,
//! `W R^-1` is "signs, then H" too, because `R^-1 = diag(sigma) H_b` and `H_b` is symmetric: rotating
//! a matrix is [`BlockHadamard::forward_rows`]. The rotation spreads an outlier over its whole block,
//! which is what lets weights be rounded to three values.
//!
//! # Order of operations
//!
//! The result bits are part of the contract, hence so is the order:
//!
//! 1. the sign of each element is flipped where sigma is -1 (exact; [`inverse`] does it last);
//! 2. each element is multiplied by `1 / sqrt(b)` rounded to `f32`, one rounding;
//! 3. radix-2 butterflies `(u, v) -> (u + v, u - v)` at strides 1, 2, 4, ..., `b / 2`, each add and
//!    subtract rounded once.
//!
//! Every output is thus the root of one fixed tree of additions. Kernels may keep several stages in
//! registers and visit the elements in any order; the tree stays, so [`Level::Scalar`],
//! [`Level::Avx2`] and [`Level::Avx512`] give the same bits, for zeros of both signs, subnormals and
//! infinities too. Where an input is NaN, outputs of its block are NaN with an unspecified payload.
//! The scaling comes first because it keeps the sums inside the range of the inputs: values of a
//! block whose norm is finite do not overflow on the way.
//!
//! The kernels assume the default floating-point environment (round to nearest, no flushing of
//! subnormals), as all Rust code does.
//!
//! # Example
//!
//! ```
//! use hadamard::{BlockHadamard, Isa, Signs};
//!
//! let rotation = BlockHadamard::new(4, Isa::detect())?;
//! let signs = Signs::new(vec![1, -1, 1, 1])?;
//! let mut x = [1.0, 2.0, 3.0, 4.0];
//! rotation.forward(&mut x, &signs)?;
//! assert_eq!(x, [3.0, 1.0, -4.0, 2.0]);
//! rotation.inverse(&mut x, &signs)?;
//! assert_eq!(x, [1.0, 2.0, 3.0, 4.0]);
//! # Ok::<(), hadamard::Error>(())
//! ```
//!
//! [`inverse`]: BlockHadamard::inverse

mod error;
mod fwht;
mod isa;
mod signs;

pub use error::Error;
pub use fwht::BlockHadamard;
pub use isa::{Isa, Level, ParseLevelError};
pub use signs::Signs;
