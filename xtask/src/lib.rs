//! Developer tasks, as a library for tests: the drafters that stand in for a
//! trained one.

#![forbid(unsafe_code)]

pub mod fixture;
