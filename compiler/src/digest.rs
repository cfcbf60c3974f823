//! SHA-256 of files, streamed.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use formats::Source;
use formats::digest::hex;
use sha2::{Digest, Sha256};

use crate::Error;
use crate::observer::Observer;

/// Bytes hashed per read.
const RUN: usize = 1 << 17;

/// SHA-256 of a source whose bytes pass through in ascending order anyway.
#[derive(Debug)]
pub(crate) struct Running<'a> {
    source: &'a Source,
    hash: Sha256,
    /// Bytes hashed so far.
    at: u64,
}

impl<'a> Running<'a> {
    pub(crate) fn new(source: &'a Source) -> Self {
        Self { source, hash: Sha256::new(), at: 0 }
    }

    /// Reads the bytes from `offset` on into `bytes` and hashes them, and before
    /// them those that nobody asked for.
    pub(crate) fn read(&mut self, offset: u64, bytes: &mut [u8]) -> Result<(), Error> {
        self.skip_to(offset)?;
        self.source.read_exact_at(offset, bytes)?;
        self.hash.update(&*bytes);
        self.at = offset + bytes.len() as u64;
        Ok(())
    }

    /// The digest of the whole source, in lower-case hex.
    pub(crate) fn finish(mut self) -> Result<String, Error> {
        self.skip_to(self.source.len())?;
        Ok(hex(&self.hash.finalize()))
    }

    fn skip_to(&mut self, offset: u64) -> Result<(), Error> {
        if self.at >= offset {
            return Ok(());
        }
        let mut buffer = [0; 1 << 14];
        while self.at < offset {
            let n = buffer.len().min(usize::try_from(offset - self.at).unwrap_or(buffer.len()));
            self.source.read_exact_at(self.at, &mut buffer[..n])?;
            self.hash.update(&buffer[..n]);
            self.at += n as u64;
        }
        Ok(())
    }
}

/// SHA-256 of a file that was just written.
pub(crate) fn of_output(
    path: &Path,
    file: &File,
    len: u64,
    observer: &dyn Observer,
) -> Result<String, Error> {
    let mut hash = Sha256::new();
    let mut buffer = vec![0; RUN.min(usize::try_from(len).unwrap_or(RUN))];
    let mut offset = 0;
    while offset < len {
        if observer.cancelled() {
            return Err(Error::Interrupted);
        }
        let n = buffer.len().min(usize::try_from(len - offset).unwrap_or(RUN));
        file.read_exact_at(&mut buffer[..n], offset)
            .map_err(|e| Error::write("reading back", path, e))?;
        hash.update(&buffer[..n]);
        offset += n as u64;
    }
    Ok(hex(&hash.finalize()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ABC: &str = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

    #[test]
    fn known_digests() {
        let empty = Source::from_bytes("x", vec![]);
        assert_eq!(
            Running::new(&empty).finish().unwrap(),
            "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
        );
        assert_eq!(Running::new(&Source::from_bytes("x", *b"abc")).finish().unwrap(), ABC);
    }

    #[test]
    fn what_is_read_and_what_is_skipped_does_not_show() {
        let bytes: Vec<u8> = (0..100_000u32).map(|i| i as u8).collect();
        let source = Source::from_bytes("x", bytes.clone());
        let mut running = Running::new(&source);
        let mut band = [0; 777];
        for offset in [5, 782, 40_000] {
            running.read(offset, &mut band).unwrap();
            assert_eq!(band, bytes[offset as usize..offset as usize + 777]);
        }
        assert_eq!(running.finish().unwrap(), hex(&Sha256::digest(&bytes)));
    }

    #[test]
    fn an_output_is_hashed_as_it_stands() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x");
        std::fs::write(&path, b"abc").unwrap();
        let digest = of_output(&path, &File::open(&path).unwrap(), 3, &crate::observer::Unobserved);
        assert_eq!(digest.unwrap(), ABC);
    }
}
