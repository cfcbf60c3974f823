//! Turns a DFlash 2 drafter into a checked ternary file.

pub mod ternary;
