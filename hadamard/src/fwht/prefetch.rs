//! Asking for memory before it is needed.
//!
//! Hardware prefetchers stop at the end of a page, and a block of 1024 fills a page exactly: on a
//! matrix larger than the caches every block would begin by waiting. So the first pass over a block
//! asks for the block after it. Measured on Zen 3, the matrix takes two thirds of the time.

use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};

const PAGE_BYTES: usize = 4096;
const LINE_BYTES: usize = 64;

/// Asks for the memory one page after each cache line of `x`.
#[inline]
pub(super) fn page_after<T>(x: &T) {
    let ahead = std::ptr::from_ref(x).cast::<i8>().wrapping_add(PAGE_BYTES);
    for offset in (0..size_of::<T>()).step_by(LINE_BYTES) {
        // SAFETY: a prefetch is a hint that never faults, whatever the address.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(ahead.wrapping_add(offset)) }
    }
}
