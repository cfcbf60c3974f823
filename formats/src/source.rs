//! Where bytes are read from: a file, a mapped file, or a buffer in memory.
//!
//! [`Source::open`] reads at positions and copies into the caller's buffer. The
//! compiler streams files of several gigabytes with bounded memory that way, and
//! a file that another process truncates gives an error instead of a signal.
//!
//! [`Source::map`] is for weights that are used in place for as long as a model
//! runs: pages come from the file when they are touched and leave memory when it
//! gets short, so a model may be larger than what is free. A [`View`] of a
//! mapped source, or of one in memory, costs nothing; of a file, it is a copy.

use std::fs::File;
use std::ops::{Deref, Range};
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
    Mapped(Arc<memmap2::Mmap>),
    Memory(Arc<[u8]>),
}

/// A range of a source that stays readable on its own.
#[derive(Debug, Clone)]
pub struct View {
    bytes: Bytes,
    range: Range<usize>,
}

impl Deref for View {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        let bytes: &[u8] = match &self.bytes {
            Bytes::Mapped(map) => map,
            Bytes::Memory(bytes) => bytes,
            Bytes::File(_) => unreachable!("a view of a file is a copy in memory"),
        };
        &bytes[self.range.clone()]
    }
}

impl View {
    /// Asks the system to map the bytes with pages of 2 MiB, where it and the file system can. A hint:
    /// where it is not taken, or the bytes are not mapped, nothing happens.
    pub fn prefer_huge_pages(&self) {
        #[cfg(target_os = "linux")]
        if let Bytes::Mapped(map) = &self.bytes {
            let _ = map.advise_range(memmap2::Advice::HugePage, self.range.start, self.range.len());
        }
    }

    /// Says that the bytes are read soon, so that the system can fetch them from the disk meanwhile. A
    /// hint, as above.
    pub fn will_need(&self) {
        if let Bytes::Mapped(map) = &self.bytes {
            let _ = map.advise_range(memmap2::Advice::WillNeed, self.range.start, self.range.len());
        }
    }

    /// Gives the memory of mapped bytes back; they come from the file again when they are read. A
    /// hint, as above.
    #[expect(unsafe_code, reason = "advice that is not a hint for other kinds of mappings")]
    pub fn release(&self) {
        if let Bytes::Mapped(map) = &self.bytes {
            let (advice, range) = (memmap2::UncheckedAdvice::DontNeed, &self.range);
            // SAFETY: the mapping is shared, read-only and of a file (`Source::mapped` is the only
            // place that makes one), so it has no contents of its own that could be lost: a page that
            // is dropped is read from the file again, with the bytes it had before, as the contract
            // of `Source::mapped` demands. Readers in other threads see nothing but a delay.
            let _ = unsafe { map.unchecked_advise_range(advice, range.start, range.len()) };
        }
    }
}

impl Source {
    /// Opens a regular file for positioned reads.
    ///
    /// # Errors
    /// [`Error::Io`] when it cannot be opened, [`Error::Structure`] when it is no
    /// regular file.
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
        let len = file.metadata().map_err(|e| Error::io(path, e))?.len();
        Ok(Self { path: path.to_path_buf(), len, bytes: Bytes::File(Arc::new(file)) })
    }

    /// Maps a regular file into memory, for reading only. See [`Source::mapped`] for the contract.
    ///
    /// # Errors
    /// As [`Source::open`] and [`Source::mapped`].
    pub fn map(path: impl AsRef<Path>) -> Result<Self, Error> {
        Self::open(path)?.mapped()
    }

    /// The same bytes mapped into memory, for reading only; what is not a file is left as it is.
    ///
    /// # Contract
    /// Nobody changes or truncates the file for as long as the source or a
    /// [`View`] of it lives. No check can enforce this: the operating system lets
    /// other programs write to a mapped file, a read past a new end kills the
    /// process with SIGBUS, and bytes that change under a reader are undefined
    /// behaviour. Files that are replaced by renaming, as all programs here write
    /// them, are safe: the mapping keeps the old file. Where the contract is in
    /// doubt, use [`Source::open`].
    ///
    /// # Errors
    /// [`Error::Io`] when the system cannot map the file, [`Error::Truncated`] when
    /// it shrank after opening.
    #[expect(unsafe_code, reason = "the one mapping call; its contract is the caller's")]
    pub fn mapped(&self) -> Result<Self, Error> {
        let Bytes::File(file) = &self.bytes else {
            return Ok(self.clone());
        };
        // SAFETY: the mapping is private to this type and read-only, so this
        // program cannot write through it; that no other program changes the
        // file meanwhile is the contract of this function, stated above.
        let map = unsafe { memmap2::Mmap::map(&**file) }.map_err(|e| Error::io(&self.path, e))?;
        if (map.len() as u64) < self.len {
            return Err(self.truncated(self.len, map.len() as u64));
        }
        Ok(Self { bytes: Bytes::Mapped(Arc::new(map)), ..self.clone() })
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
        // `end <= len` was checked above, and a slice's length fits usize.
        let range = || offset as usize..end as usize;
        match &self.bytes {
            Bytes::Memory(bytes) => {
                buf.copy_from_slice(&bytes[range()]);
                Ok(())
            }
            Bytes::Mapped(map) => {
                buf.copy_from_slice(&map[range()]);
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

    /// The bytes of a range: in place where the source is mapped or in memory,
    /// otherwise a copy.
    ///
    /// # Errors
    /// As [`Source::read_exact_at`].
    pub fn view(&self, offset: u64, len: u64) -> Result<View, Error> {
        let end = offset.saturating_add(len);
        if end > self.len {
            return Err(self.truncated(end, self.len));
        }
        match &self.bytes {
            // The range lies inside a slice, whose length fits usize.
            Bytes::Mapped(_) | Bytes::Memory(_) => {
                Ok(View { bytes: self.bytes.clone(), range: offset as usize..end as usize })
            }
            Bytes::File(_) => {
                let copy = self.read_vec(offset, len)?;
                Ok(View { range: 0..copy.len(), bytes: Bytes::Memory(copy.into()) })
            }
        }
    }

    fn truncated(&self, expected: u64, found: u64) -> Error {
        Error::Truncated { path: self.path.clone(), what: "a read".into(), expected, found }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_maps_and_memory_read_alike() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        let bytes: Vec<u8> = (0..200).collect();
        std::fs::write(&path, &bytes).unwrap();
        for source in [
            Source::open(&path).unwrap(),
            Source::map(&path).unwrap(),
            Source::from_bytes("f", bytes.clone()),
        ] {
            assert_eq!(source.len(), 200);
            assert_eq!(source.read_vec(7, 90).unwrap(), bytes[7..97]);
            let view = source.view(7, 90).unwrap();
            drop(source.clone());
            assert_eq!(*view, bytes[7..97]);
            assert!(source.view(200, 0).unwrap().is_empty());
            for (offset, len) in [(0, 201), (200, 1), (u64::MAX, 1), (1, u64::MAX)] {
                assert!(matches!(source.view(offset, len), Err(Error::Truncated { .. })));
                assert!(matches!(source.read_vec(offset, len), Err(Error::Truncated { .. })));
            }
        }
    }

    #[test]
    fn a_view_outlives_its_source_and_the_name_of_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        std::fs::write(&path, [7; 64]).unwrap();
        let view = Source::map(&path).unwrap().view(8, 16).unwrap();
        std::fs::write(dir.path().join("g"), [9; 64]).unwrap();
        std::fs::rename(dir.path().join("g"), &path).unwrap();
        assert_eq!(*view, [7; 16]);
    }

    #[test]
    fn advice_changes_no_byte() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        let bytes: Vec<u8> = (0..40_000u32).map(|i| (i % 251) as u8).collect();
        std::fs::write(&path, &bytes).unwrap();
        for source in [Source::map(&path).unwrap(), Source::from_bytes("f", bytes.clone())] {
            for (offset, len) in [(0, 40_000), (4097, 30_000), (39_999, 1), (17, 0)] {
                let view = source.view(offset, len).unwrap();
                view.prefer_huge_pages();
                view.will_need();
                assert_eq!(*view, bytes[offset as usize..(offset + len) as usize]);
                view.release();
                assert_eq!(*view, bytes[offset as usize..(offset + len) as usize]);
            }
        }
    }

    #[test]
    fn an_empty_file_maps() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        std::fs::write(&path, []).unwrap();
        assert!(Source::map(&path).unwrap().is_empty());
        assert!(Source::map(dir.path()).is_err());
    }

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
