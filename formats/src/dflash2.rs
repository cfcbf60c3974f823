//! The DFlash 2 drafter as files describe it: its configuration, its tensors,
//! and the names both carry in each container.
//!
//! A drafter of `L` layers has `15 L + 6` tensors, of which `9 L + 2` are
//! matrices that become ternary. It has no embedding and no head of its own:
//! both are borrowed from the target.

pub mod config;
pub mod drafter;
pub mod gguf_keys;
pub mod names;
