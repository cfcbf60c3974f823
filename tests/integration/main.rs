//! Cross-crate properties, and runs of the program from end to end.
//!
//! Tests called `up_NNN_…` are failures that users of other projects met, tried
//! on this one.

#![allow(clippy::unwrap_used, reason = "helpers of tests are parts of tests")]

mod calib;
mod command_line;
mod config_text;
mod conversion;
mod crate_graph;
mod exact;
mod harness;
mod input_files;
mod interrupted;
mod model_rules;
mod numerics;
mod other_engines;
mod outputs;
mod paths;
mod report;
mod rotation;
mod verify;
