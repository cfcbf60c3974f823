//! Packed bytes on pages of 2 MiB, where they can be had.
//!
//! Products read weights from front to back, and on pages of 4 KiB half of the machine's bandwidth is
//! lost (see `backend::cpu::memory`). File systems that keep files in large pages map them so; behind
//! others the bytes are copied into memory of large pages, if there is room for it.

use std::fs;
use std::ops::Deref;

use formats::{Source, View};
use rayon::prelude::*;

use crate::backend::Memory;

/// Bytes that are touched to see which pages the system takes; a smaller file is not worth it.
const PROBE: usize = 32 << 20;
const PAGE: usize = 4096;
/// Bytes that a thread copies at a time.
const COPIED: usize = 4 << 20;

/// Packed bytes of a matrix, as products read them.
#[derive(Debug)]
pub struct PackedBytes(Kind);

#[derive(Debug)]
enum Kind {
    Mapped(View),
    Memory(Memory),
}

impl Deref for PackedBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.0 {
            Kind::Mapped(view) => view,
            Kind::Memory(memory) => memory,
        }
    }
}

impl From<View> for PackedBytes {
    fn from(view: View) -> Self {
        Self(Kind::Mapped(view))
    }
}

impl From<Memory> for PackedBytes {
    fn from(memory: Memory) -> Self {
        Self(Kind::Memory(memory))
    }
}

/// Whether the bytes, which are a whole mapping, should be copied: the system does not map them with
/// large pages, and has room for a copy beside the file's own pages.
pub(super) fn should_copy(view: &View) -> bool {
    if view.len() < PROBE {
        return false;
    }
    let touched = view[..PROBE].iter().step_by(PAGE).fold(0u8, |all, byte| all ^ byte);
    std::hint::black_box(touched);
    let text = |name| fs::read_to_string(name).unwrap_or_default();
    let address = view.as_ptr().addr();
    let copies_fit = kilobytes(&text("/proc/meminfo"), "MemAvailable")
        .is_some_and(|free| free / 2 > view.len() as u64 / 1024);
    copies_fit && large_kilobytes(&text("/proc/self/smaps"), address) == Some(0)
}

/// Copies `len` bytes at `offset` into memory.
pub(super) fn copy(
    source: &Source,
    offset: u64,
    len: usize,
) -> Result<PackedBytes, formats::Error> {
    let mut memory = Memory::zeroed(len).map_err(|e| formats::Error::io(source.path(), e))?;
    memory
        .par_chunks_mut(COPIED)
        .enumerate()
        .try_for_each(|(n, part)| source.read_exact_at(offset + (n * COPIED) as u64, part))?;
    Ok(memory.into())
}

/// Kilobytes of file pages of 2 MiB in the mapping that holds `address`, from the text of
/// `/proc/PID/smaps`; nothing where it does not say.
fn large_kilobytes(smaps: &str, address: usize) -> Option<u64> {
    let begins = |line: &str| {
        let (first, end) = line.split_whitespace().next()?.split_once('-')?;
        let number = |text| usize::from_str_radix(text, 16).ok();
        Some((number(first)?..number(end)?).contains(&address))
    };
    let at = smaps.lines().position(|line| begins(line) == Some(true))?;
    let mut of_it = smaps.lines().skip(at + 1).take_while(|line| begins(line).is_none());
    of_it.find_map(|line| kilobytes(line, "FilePmdMapped"))
}

/// The number of a line `name: N kB`.
fn kilobytes(text: &str, name: &str) -> Option<u64> {
    let rest = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    rest.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMAPS: &str = "\
55e0a0000000-55e0a0021000 r-xp 00000000 fe:00 1 /bin/x
Size:                132 kB
FilePmdMapped:      4096 kB
7f0000000000-7f0010000000 r--s 00000000 fe:00 2 /pack
Rss:               32768 kB
FilePmdMapped:     30720 kB
7f0010000000-7f0020000000 r--s 00000000 fe:00 3 /other
FilePmdMapped:         0 kB
7f0030000000-7f0040000000 rw-p 00000000 00:00 0
Size:             262144 kB
";

    #[test]
    fn large_pages_of_a_mapping() {
        assert_eq!(large_kilobytes(SMAPS, 0x7f00_0000_1000), Some(30_720));
        assert_eq!(large_kilobytes(SMAPS, 0x7f00_1000_0000), Some(0));
        assert_eq!(large_kilobytes(SMAPS, 0x7f00_3000_0000), None);
        assert_eq!(large_kilobytes(SMAPS, 0x10), None);
        assert_eq!(kilobytes("MemTotal: 9 kB\nMemAvailable:   7 kB\n", "MemAvailable"), Some(7));
    }

    #[test]
    fn copies_have_the_bytes_of_the_file() {
        let bytes: Vec<u8> = (0..COPIED + 777).map(|i| ((i * 7919) >> 5) as u8).collect();
        let source = Source::from_bytes("x", bytes.clone());
        let copied = copy(&source, 13, bytes.len() - 13).unwrap();
        assert_eq!(copied[..], bytes[13..]);
        assert!(copy(&source, 14, bytes.len()).is_err());
    }
}
