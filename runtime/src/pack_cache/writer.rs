//! Writes a pack: packed by all threads, a piece at a time, so that memory stays small.

use std::fs::File;
use std::io::{self, Write as _};
use std::ops::ControlFlow;
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;

use rayon::prelude::*;

use super::Packable;
use super::file::{ALIGN, FOOTER, Header, data_start, footer};
use crate::{Error, fpenv};

/// Bytes of a call that writes, whole pages of 2 MiB at multiples of 2 MiB: file systems that can then
/// keep the data in such pages, which is how they are mapped later.
const PIECE: usize = 32 << 20;

/// Why nothing was written.
#[derive(Debug)]
pub(super) enum Failure {
    /// The file cannot be written.
    Output(io::Error),
    /// The weights cannot be packed.
    Weights(Error),
    /// Nobody wants it any more.
    Interrupted,
}

/// Writes everything into the empty `file`, and waits until the disk has it.
pub(super) fn write(
    file: &File,
    header: Header,
    items: &[Arc<dyn Packable>],
    progress: &mut dyn FnMut(u64, u64) -> ControlFlow<()>,
) -> Result<(), Failure> {
    write_pieces(file, header, items, PIECE, progress)
}

/// [`write`] with pieces of `size` bytes.
pub(super) fn write_pieces(
    mut file: &File,
    mut header: Header,
    items: &[Arc<dyn Packable>],
    size: usize,
    progress: &mut dyn FnMut(u64, u64) -> ControlFlow<()>,
) -> Result<(), Failure> {
    let start = data_start(header.encode().map_err(Failure::Output)?.len());
    let length = header.data_bytes().map(|n| start + n + FOOTER as u64).ok_or_else(too_long)?;
    let part = items.iter().map(|item| item.part_bytes()).max().unwrap_or(0);
    // The head is written last; until then zeros stand there.
    let mut buffer = vec![0; start as usize + size + part + ALIGN as usize];
    let mut used = start as usize;
    let mut written = 0u64;
    for (n, item) in items.iter().enumerate() {
        let (bytes, part) = (header.sections[n].bytes as usize, item.part_bytes());
        if let Some(next) = items.get(n + 1) {
            next.will_pack();
        }
        let mut hasher = blake3::Hasher::new();
        let mut at = 0;
        while at < bytes {
            // Whole parts until a piece is full.
            let wanted = size.saturating_sub(used).div_ceil(part).max(1) * part;
            let len = wanted.min(bytes - at);
            let target = &mut buffer[used..used + len];
            target
                .par_chunks_mut(part)
                .enumerate()
                .try_for_each(|(i, out)| {
                    fpenv::check().and_then(|()| item.pack(at / part + i, out))
                })
                .map_err(Failure::Weights)?;
            hasher.update_rayon(target);
            (at, used) = (at + len, used + len);
            while used >= size {
                file.write_all(&buffer[..size]).map_err(Failure::Output)?;
                buffer.copy_within(size..used, 0);
                (used, written) = (used - size, written + size as u64);
            }
            if progress(written + used as u64, length).is_break() {
                return Err(Failure::Interrupted);
            }
        }
        item.packed();
        header.sections[n].blake3 = hasher.finalize().to_hex().to_string();
        let end =
            header.sections.get(n + 1).map_or(length - FOOTER as u64, |next| start + next.offset);
        let zeros = (end - written) as usize - used;
        buffer[used..used + zeros].fill(0);
        used += zeros;
    }
    let head = header.encode().map_err(Failure::Output)?;
    let mut finish = || {
        file.write_all(&buffer[..used])?;
        file.write_all(&footer(&head, length))?;
        file.write_all_at(&head, 0)?;
        file.sync_all()
    };
    finish().map_err(Failure::Output)
}

fn too_long() -> Failure {
    Failure::Output(io::Error::other("more bytes than a file can have"))
}
