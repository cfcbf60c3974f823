//! Runs a Bonsai 2 target with a DFlash 2 drafter.
//!
//! The promise of this library is that speculation changes nothing: ids, logits and state are
//! bit-identical to plain decoding, for any draft length, prefill chunking, thread count and
//! instruction set. It holds by construction: every result row depends on its own inputs only, and
//! every sum has one order. The code here is plain and scalar where it can be; it is the reference
//! that faster paths are compared with, bit for bit.
//!
//! No arithmetic is left to the platform: [`math`] has its own exponentials and angles, nothing uses
//! a fused multiply-add, and [`fpenv`] refuses a floating-point environment that was changed.

// Allowed where a module says so: reading the control register in `fpenv`, instructions in `simd`.
#![deny(unsafe_code)]

pub mod attention;
pub mod backend;
pub mod capture;
pub mod draft_length;
pub mod drafter;
pub mod embedding;
pub mod engine;
mod error;
pub mod exact;
pub mod fpenv;
pub mod gdn;
pub mod kv;
pub mod linear;
pub mod machine;
pub mod math;
pub mod moments;
pub mod norm;
pub mod pack_cache;
mod parallel;
pub mod profile;
pub mod quant;
pub mod rope;
pub mod rotation;
pub mod round;
pub mod rows;
mod simd;
mod spread;
pub mod stats;
pub mod swiglu;
pub mod target;
pub mod text;
pub mod walk;
pub mod weights;
pub mod work;

pub use error::Error;
