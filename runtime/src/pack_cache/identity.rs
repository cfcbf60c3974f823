//! What a model file is known by, so that packed weights are used for the file they are from only.

use std::fs::{self, File, Metadata};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

use formats::Location;
use serde::{Deserialize, Serialize};

/// The first bytes of a file, which hold the header of a container.
const HEAD: u64 = 16 << 20;

/// Pages that are looked at in the rest: a model trained anew has the old one's header and size.
const SAMPLES: u64 = 256;
const SAMPLE: u64 = 4096;

/// A file of a model as it was when it was packed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourceFile {
    /// Absolute, without links.
    pub path: Location,
    /// Its size.
    pub size_bytes: u64,
    /// Time of its last change, in nanoseconds since 1970, by the file system.
    pub modified_ns: i64,
    /// BLAKE3 of the first 16 MiB, and of 256 pages of 4 KiB that are spread over the rest.
    pub fingerprint: String,
}

impl SourceFile {
    /// The file at `path` as it is now.
    ///
    /// # Errors
    /// What the system says.
    pub fn now(path: &Path) -> io::Result<Self> {
        let path = fs::canonicalize(path)?;
        let file = File::open(&path)?;
        let meta = file.metadata()?;
        let fingerprint = fingerprint(&file, meta.len())?;
        let (size_bytes, modified_ns) = (meta.len(), modified(&meta));
        Ok(Self { path: Location(path), size_bytes, modified_ns, fingerprint })
    }

    /// Whether the file is what it was, by size, time and fingerprint.
    #[must_use]
    pub fn is_unchanged(&self) -> bool {
        Self::now(&self.path.0).is_ok_and(|now| now == *self)
    }
}

/// A name for what is made of these files: 16 hexadecimal digits, a hash of their paths.
pub(super) fn key(sources: &[SourceFile]) -> String {
    let mut hasher = blake3::Hasher::new();
    for source in sources {
        let path = source.path.0.as_os_str().as_bytes();
        hasher.update(&(path.len() as u64).to_le_bytes()).update(path);
    }
    hasher.finalize().to_hex()[..16].to_owned()
}

fn modified(meta: &Metadata) -> i64 {
    meta.mtime().saturating_mul(1_000_000_000).saturating_add(meta.mtime_nsec())
}

fn fingerprint(file: &File, len: u64) -> io::Result<String> {
    let mut hasher = blake3::Hasher::new();
    let mut take = |offset: u64, len: u64| {
        let mut bytes = vec![0; len as usize];
        file.read_exact_at(&mut bytes, offset)?;
        hasher.update(&bytes);
        io::Result::Ok(())
    };
    let head = len.min(HEAD);
    take(0, head)?;
    let rest = len - head;
    if rest <= SAMPLES * SAMPLE {
        take(head, rest)?;
    } else {
        (0..SAMPLES).try_for_each(|i| take(head + i * (rest - SAMPLE) / (SAMPLES - 1), SAMPLE))?;
    }
    Ok(hasher.finalize().to_hex().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, SystemTime};

    #[test]
    fn size_time_and_content_each_tell() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("model");
        let time = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
        let write = |bytes: &[u8], time| {
            fs::write(&path, bytes).unwrap();
            File::options().append(true).open(&path).unwrap().set_modified(time).unwrap();
        };
        write(b"weights", time);
        let known = SourceFile::now(&path).unwrap();
        assert!(known.is_unchanged());
        assert_eq!(known.modified_ns, 1_000_000_000_000_000_000);
        write(b"weightz", time);
        assert!(!known.is_unchanged());
        write(b"weights", time + Duration::from_nanos(1));
        assert!(!known.is_unchanged());
        write(b"weights!", time);
        assert!(!known.is_unchanged());
        write(b"weights", time);
        assert!(known.is_unchanged());
        fs::remove_file(&path).unwrap();
        assert!(!known.is_unchanged());
    }

    /// Weights that differ everywhere behind the same header differ in the samples.
    #[test]
    fn the_rest_of_a_large_file_is_sampled() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("large");
        let len = HEAD + 3 * SAMPLES * SAMPLE;
        let of = |fill: u8| {
            let mut bytes = vec![0; HEAD as usize];
            bytes.resize(len as usize, fill);
            fs::write(&path, bytes).unwrap();
            SourceFile::now(&path).unwrap().fingerprint
        };
        assert_ne!(of(1), of(2));
        let bytes = fs::read(&path).unwrap();
        let mut end = bytes.clone();
        *end.last_mut().unwrap() = 9;
        fs::write(&path, end).unwrap();
        let last = SourceFile::now(&path).unwrap().fingerprint;
        fs::write(&path, bytes).unwrap();
        assert_ne!(SourceFile::now(&path).unwrap().fingerprint, last);
    }

    #[test]
    fn a_link_is_the_file_it_leads_to() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("a"), "x").unwrap();
        std::os::unix::fs::symlink("a", dir.path().join("b")).unwrap();
        let of = |name| SourceFile::now(&dir.path().join(name)).unwrap();
        assert_eq!(of("a"), of("b"));
        assert_eq!(key(&[of("a")]), key(&[of("b")]));
        assert_ne!(key(&[of("a")]), key(&[of("a"), of("a")]));
        assert_eq!(key(&[of("a")]).len(), 16);
    }
}
