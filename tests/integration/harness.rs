//! What the cases share: drafters to change and write, runs of the program, and
//! what a refusal must look like.

mod case;
mod decode;
mod exact;
mod model;
mod program;

pub(crate) use case::Case;
pub(crate) use decode::{decode, group_of, patch};
pub(crate) use exact::{BLOCK, exact, rotate_back};
pub(crate) use model::{Model, Stored, dims, mini_config, read};
pub(crate) use program::{Run, program, run, sha256};
