//! Bytes on one side, typed and checked views on the other.
//!
//! Every file a ternary DFlash 2 drafter meets is read and written here: float
//! safetensors, GGUF v3, q4nx (the NPU engines' safetensors dialect), t2 chunks
//! (the NPU's 2-bit tile), MLX 2-bit packs and the drafter's `config.json`.
//!
//! # Promise to callers
//!
//! A hostile or damaged file leads to an [`Error`] that names the file, the
//! tensor or key, what was expected and what was found. It never leads to
//! undefined behaviour, a panic, recursion driven by file content, or an
//! allocation larger than the file itself justifies: every count and offset is
//! checked against the file's size first.

// Allowed in `source`: the call that maps a file, and the one that gives its pages back.
#![deny(unsafe_code)]

pub mod calib;
pub mod dflash2;
pub mod digest;
mod error;
pub mod gguf;
mod json;
pub mod labels;
mod location;
pub mod mlx;
pub mod pq2_0;
pub mod ptq1_0;
pub mod q4nx;
pub mod safetensors;
pub mod scale;
mod source;
pub mod t2;
mod ternary;
pub mod tokenizer;

pub use error::{Error, Fault, shown, shown_number, shown_path};
pub use json::without_bom;
pub use location::Location;
pub use source::{Source, View};
pub use ternary::{GROUP, TernaryRows};
