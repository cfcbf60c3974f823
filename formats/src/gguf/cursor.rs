//! A forward reader over the front of a file.
//!
//! The size of a GGUF header is only known at its end, so bytes are fetched in
//! pieces. Nothing is fetched, or allocated, that the file does not have.

use crate::{Error, Source};

/// Bytes fetched at a time.
const PIECE: u64 = 64 << 10;

/// Reads forward from the start of a source.
pub(super) struct Cursor<'a> {
    source: &'a Source,
    /// Fetched bytes.
    buf: Vec<u8>,
    /// First byte of `buf` that is not consumed.
    at: usize,
    /// Where in the file that byte is.
    pos: u64,
}

/// Why there are no more bytes.
pub(super) enum Short {
    /// The file should have had this many.
    End { expected: u64 },
    /// The system could not read.
    Io(Box<Error>),
}

impl<'a> Cursor<'a> {
    pub(super) fn new(source: &'a Source) -> Self {
        Self {
            source,
            buf: Vec::new(),
            at: 0,
            pos: 0,
        }
    }

    /// Bytes consumed so far.
    pub(super) fn position(&self) -> u64 {
        self.pos
    }

    /// Checks that `n` more bytes exist.
    pub(super) fn check(&self, n: u64) -> Result<(), Short> {
        if n > self.source.len() - self.pos {
            return Err(Short::End {
                expected: self.pos.saturating_add(n),
            });
        }
        Ok(())
    }

    /// The next `n` bytes.
    pub(super) fn take(&mut self, n: u64) -> Result<&[u8], Short> {
        self.check(n)?;
        if n > (self.buf.len() - self.at) as u64 {
            let piece = n.max(PIECE.min(self.source.len() - self.pos));
            self.at = 0;
            self.buf = self
                .source
                .read_vec(self.pos, piece)
                .map_err(|e| Short::Io(Box::new(e)))?;
        }
        // Now `n` bytes are in memory, so it fits.
        let from = self.at;
        self.at += n as usize;
        self.pos += n;
        Ok(&self.buf[from..self.at])
    }

    /// The next `N` bytes, by value.
    pub(super) fn array<const N: usize>(&mut self) -> Result<[u8; N], Short> {
        let mut out = [0; N];
        out.copy_from_slice(self.take(N as u64)?);
        Ok(out)
    }

    pub(super) fn u32(&mut self) -> Result<u32, Short> {
        self.array().map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self) -> Result<u64, Short> {
        self.array().map(u64::from_le_bytes)
    }
}
