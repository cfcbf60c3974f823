//! Developer tasks, as a library for tests: the drafters that stand in for a
//! trained one, and targets of the published shape.

#![forbid(unsafe_code)]

pub mod aie;
pub mod fixture;
pub mod synth_target;
