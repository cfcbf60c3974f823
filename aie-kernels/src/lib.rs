//! Ternary matrices on an XDNA2 NPU: the kernels, the array design around them, and what proves both
//! on a machine that has neither the device nor its compiler.
//!
//! | module | what it knows |
//! |---|---|
//! | [`layout`] | bytes of activation slices, weights and results, shared with the kernels |
//! | [`arithmetic`] | `n16` and `n8` in scalar code |
//! | [`host`] | the kernels of `kernels/*.cc`, compiled for this machine |
//! | [`array`](mod@array) | what an array is configured with, and its binary form |
//! | [`design`] | the configuration: eight columns of four cores |
//! | [`job`] | one matrix product: instructions, `npu-pack/1`, results |
//! | [`txn`] | the words of instructions |
//! | [`mlir`] | configuration and instructions as the text that the vendor's compiler reads |
//! | [`passes`] | bytes of whole passes, and a projection of their time |
//! | [`verifier`] | holds configuration and instructions against the limits of the hardware |
//! | [`simulator`] | runs configuration and instructions on bytes |
//!
//! Nothing here has run on silicon.

pub mod arithmetic;
pub mod array;
pub mod design;
pub mod host;
pub mod job;
pub mod layout;
pub mod mlir;
pub mod passes;
pub mod simulator;
pub mod txn;
pub mod verifier;

/// Files of `kernels/`: what the compiler of the cores gets.
pub const SOURCES: [(&str, &str); 3] = [
    ("hadamard_quantize.cc", include_str!("../kernels/hadamard_quantize.cc")),
    ("layout.h", include_str!("../kernels/layout.h")),
    ("ternary_matmul.cc", include_str!("../kernels/ternary_matmul.cc")),
];
