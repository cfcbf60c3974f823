//! Asking for weights before they are needed.
//!
//! One row of activations takes a tile as fast as memory gives it, and the hardware's own prefetch
//! does not look far enough ahead; distances are those that measured best.

use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};

/// For one or two rows, which memory bounds.
pub(super) const FAR: usize = 4352;
/// For more rows: a cache line takes several times as long to multiply.
pub(super) const NEAR: usize = 2176;

/// Asks for the cache line `AHEAD` bytes after `line`.
#[inline]
pub(super) fn ahead<const AHEAD: usize>(line: &[u8; 64]) {
    // SAFETY: a prefetch is a hint that never faults, whatever the address.
    unsafe { _mm_prefetch::<_MM_HINT_T0>(line.as_ptr().wrapping_add(AHEAD).cast()) }
}
