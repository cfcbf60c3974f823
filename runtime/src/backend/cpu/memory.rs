//! Memory for packed weights: pages of 2 MiB where the system has them.
//!
//! Weights are read from front to back once per pass. On pages of 4 KiB the hardware's prefetch stops
//! every 64 lines and half of the bandwidth is lost to it and to address translation.

use std::ops::{Deref, DerefMut};

use memmap2::MmapMut;

/// Zeroed memory. It is not touched before it is written, so that the pages come from near the
/// thread that does.
#[derive(Debug)]
pub(crate) struct Memory(MmapMut);

impl Memory {
    /// `len` bytes.
    ///
    /// # Errors
    /// What the system says when it has no address space left.
    pub(crate) fn zeroed(len: usize) -> std::io::Result<Self> {
        let map = MmapMut::map_anon(len)?;
        // A hint: without it, or where pages of 2 MiB are turned off, all works, slower.
        #[cfg(target_os = "linux")]
        let _ = map.advise(memmap2::Advice::HugePage);
        Ok(Self(map))
    }
}

impl Deref for Memory {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl DerefMut for Memory {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.0
    }
}
