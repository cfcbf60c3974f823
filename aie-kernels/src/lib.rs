//! Ternary matrices on an XDNA2 NPU: the kernels, the array design around them, and what proves both
//! on a machine that has neither the device nor its compiler.
//!
//! | module | what it knows |
//! |---|---|
//! | [`layout`] | bytes of activation slices, weights and results, shared with the kernels |
//! | [`arithmetic`] | `n16` and `n8` in scalar code |
//! | [`host`] | the kernels of `kernels/*.cc`, compiled for this machine |
//!
//! Nothing here has run on silicon.

pub mod arithmetic;
pub mod host;
pub mod layout;
