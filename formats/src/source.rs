//! Where bytes are read from: a file, or a buffer in memory.
//!
//! Reads are positioned and copy into the caller's buffer. The compiler streams
//! files of several gigabytes with bounded memory, so nothing here maps or
//! loads a whole file, and a file that another process truncates gives an error
//! instead of a signal.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::Error;

/// A readable, sized run of bytes with a name for error messages.
#[derive(Debug, Clone)]
pub struct Source {
    path: PathBuf,
    len: u64,
    bytes: Bytes,
}

#[derive(Debug, Clone)]
enum Bytes {
    File(Arc<File>),
    Memory(Arc<[u8]>),
}

impl Source {
    /// Opens a regular file for positioned reads.
    ///
    /// # Errors
    /// [`Error::Io`] when it cannot be opened, or is a folder.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, Error> {
        let path = path.as_ref();
        // Before opening: that of a pipe would wait for a writer.
        let meta = std::fs::metadata(path).map_err(|e| Error::io(path, e))?;
        if !meta.is_file() {
            return Err(Error::Structure {
                path: path.to_path_buf(),
                part: "the path".into(),
                expected: "a regular file".into(),
                found: if meta.is_dir() { "a folder" } else { "a device, pipe or socket" }.into(),
                hint: None,
            });
        }
        let file = File::open(path).map_err(|e| Error::io(path, e))?;
        let meta = file.metadata().map_err(|e| Error::io(path, e))?;
        Ok(Self { path: path.to_path_buf(), len: meta.len(), bytes: Bytes::File(Arc::new(file)) })
    }

    /// A source over bytes in memory; `name` stands in for the path in messages.
    #[must_use]
    pub fn from_bytes(name: impl AsRef<Path>, bytes: impl Into<Arc<[u8]>>) -> Self {
        let bytes = bytes.into();
        Self {
            path: name.as_ref().to_path_buf(),
            len: bytes.len() as u64,
            bytes: Bytes::Memory(bytes),
        }
    }

    /// The path given at opening.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Size in bytes at opening.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether there are no bytes at all.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Fills `buf` with the bytes from `offset` on.
    ///
    /// # Errors
    /// [`Error::Truncated`] when the range passes the end (also when the file
    /// shrank after opening), [`Error::Io`] when the system cannot read.
    pub fn read_exact_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), Error> {
        let end = offset.checked_add(buf.len() as u64).filter(|end| *end <= self.len);
        let Some(end) = end else {
            return Err(self.truncated(offset.saturating_add(buf.len() as u64), self.len));
        };
        match &self.bytes {
            Bytes::Memory(bytes) => {
                // `end <= len` was checked above, and a slice's length fits usize.
                buf.copy_from_slice(&bytes[offset as usize..end as usize]);
                Ok(())
            }
            Bytes::File(file) => match file.read_exact_at(buf, offset) {
                Ok(()) => Ok(()),
                Err(e) if e.kind() == std::io::ErrorKind::UnexpectedEof => {
                    let now = file.metadata().map_or(0, |m| m.len());
                    Err(self.truncated(end, now))
                }
                Err(e) => Err(Error::io(&self.path, e)),
            },
        }
    }

    /// Reads the range into a new buffer. The range is checked against the size
    /// before anything is allocated.
    ///
    /// # Errors
    /// As [`Source::read_exact_at`].
    pub fn read_vec(&self, offset: u64, len: u64) -> Result<Vec<u8>, Error> {
        let end = offset.saturating_add(len);
        if end > self.len {
            return Err(self.truncated(end, self.len));
        }
        let mut buf = vec![0; len as usize];
        self.read_exact_at(offset, &mut buf)?;
        Ok(buf)
    }

    fn truncated(&self, expected: u64, found: u64) -> Error {
        Error::Truncated { path: self.path.clone(), what: "a read".into(), expected, found }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_asked_range() {
        let source = Source::from_bytes("x", vec![1, 2, 3, 4]);
        assert_eq!(source.read_vec(1, 2).unwrap(), [2, 3]);
        assert_eq!(source.read_vec(4, 0).unwrap(), [0u8; 0]);
    }

    #[test]
    fn refuses_ranges_past_the_end_before_allocating() {
        let source = Source::from_bytes("x", vec![0; 4]);
        for (offset, len) in [(0, 5), (4, 1), (u64::MAX, 1), (1, u64::MAX), (3, 1 << 60)] {
            assert!(matches!(source.read_vec(offset, len), Err(Error::Truncated { .. })));
        }
    }

    #[test]
    fn a_file_that_shrinks_after_opening_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        std::fs::write(&path, [7; 64]).unwrap();
        let source = Source::open(&path).unwrap();
        std::fs::write(&path, [7; 8]).unwrap();
        assert!(matches!(
            source.read_vec(0, 64),
            Err(Error::Truncated { expected: 64, found: 8, .. })
        ));
    }

    #[test]
    fn folders_are_named_as_such() {
        let dir = tempfile::tempdir().unwrap();
        let message = Source::open(dir.path()).unwrap_err().to_string();
        assert!(message.contains("a regular file") && message.contains("a folder"), "{message}");
    }
}
