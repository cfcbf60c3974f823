//! An output that is not there until it is whole.
//!
//! Bytes go to `<name>.partial` beside the final name (a shorter one where that
//! would be too long), so that the last step is a rename inside one file system.
//! The name is fixed and the file is locked:
//! what a killed run left behind is taken over by the next one, and two runs for
//! the same output cannot mix. Dropping a [`Pending`] removes its file.

use std::ffi::{OsStr, OsString};
use std::fs::{File, Metadata, OpenOptions};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use formats::digest;
use rustix::fs::{FallocateFlags, FlockOperation, OFlags};
use tempfile::NamedTempFile;

use crate::Error;

/// A file on its way to `path`.
#[derive(Debug)]
pub(crate) struct Pending {
    file: NamedTempFile,
    path: PathBuf,
}

impl Pending {
    /// Creates the partial file with room for `len` bytes.
    ///
    /// # Errors
    /// [`Error::Write`] when the folder is missing or not writable, the disk is
    /// full, or another run is writing the same output.
    pub(crate) fn create(path: &Path, len: u64) -> Result<Self, Error> {
        let folder = folder_of(path);
        let partial = partial_path(path);
        let file = tempfile::Builder::new()
            .prefix(partial.file_name().unwrap_or_default())
            .rand_bytes(0)
            .make_in(folder, open_locked)
            .map_err(|e| Error::write("creating", path, told_apart(e, folder)))?;
        let pending = Self { file, path: path.to_path_buf() };
        pending.reserve(len).map_err(|e| Error::write("reserving space for", path, e))?;
        Ok(pending)
    }

    /// Takes the space now, so that a full disk shows before the work is done.
    fn reserve(&self, len: u64) -> io::Result<()> {
        let file = self.file.as_file();
        file.set_len(0)?;
        if len > 0 {
            match rustix::fs::fallocate(file, FallocateFlags::empty(), 0, len) {
                // Some file systems cannot reserve; there, writing will tell.
                Ok(()) | Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::NOSYS) => {}
                Err(e) => return Err(e.into()),
            }
        }
        file.set_len(len)
    }

    /// Writes `bytes` at `offset`.
    pub(crate) fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), Error> {
        self.file
            .as_file()
            .write_all_at(bytes, offset)
            .map_err(|e| Error::write("writing", &self.path, e))
    }

    pub(crate) fn file(&self) -> &File {
        self.file.as_file()
    }

    /// The final path.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Waits until the bytes are on the disk.
    pub(crate) fn sync(&self) -> Result<(), Error> {
        self.file.as_file().sync_all().map_err(|e| Error::write("syncing", &self.path, e))
    }

    /// Gives the file its final name; an existing file is replaced only if `force`.
    pub(crate) fn publish(self, force: bool) -> Result<(), Error> {
        let Self { file, path } = self;
        // Somebody may have removed the partial file and made another.
        let ours = file
            .as_file()
            .metadata()
            .and_then(|ours| Ok(same(&ours, &std::fs::symlink_metadata(file.path())?)))
            .map_err(|e| Error::write("finding again the partial file of", &path, e))?;
        if !ours {
            // What stands there is not ours to remove.
            let _ = file.keep();
            let replaced = io::Error::other("another program has replaced the partial file");
            return Err(Error::write("renaming to", &path, replaced));
        }
        let renamed = if force { file.persist(&path) } else { file.persist_noclobber(&path) };
        renamed.map_err(|e| Error::write("renaming to", &path, e.error))?;
        sync_folder(&path)
    }
}

/// Most bytes of a file name.
const NAME_MAX: usize = 255;

/// Where the bytes are until they are whole. Of a name that leaves no room for the
/// suffix, the end is replaced by its digest.
pub(crate) fn partial_path(path: &Path) -> PathBuf {
    const SUFFIX: &str = ".partial";
    const DIGEST_BYTES: usize = 8;
    let name = path.file_name().unwrap_or_default();
    let mut partial = OsString::from(name);
    if name.len() + SUFFIX.len() > NAME_MAX {
        let mut cut = NAME_MAX - SUFFIX.len() - 2 * DIGEST_BYTES - 1;
        let bytes = name.as_bytes();
        // Not inside a character: some file systems take UTF-8 only.
        while cut > 0 && bytes[cut] & 0xC0 == 0x80 {
            cut -= 1;
        }
        partial = OsString::from(OsStr::from_bytes(&bytes[..cut]));
        partial.push(format!("~{}", &digest::sha256(bytes)[..2 * DIGEST_BYTES]));
    }
    partial.push(SUFFIX);
    path.with_file_name(partial)
}

/// The folder a path is in.
pub(crate) fn folder_of(path: &Path) -> &Path {
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    }
}

/// "No such file" of a folder that is there means that its file system, made by the
/// kernel or another program, takes no files.
fn told_apart(error: io::Error, folder: &Path) -> io::Error {
    if error.kind() == io::ErrorKind::NotFound && folder.is_dir() {
        io::Error::new(io::ErrorKind::Unsupported, "the folder's file system takes no new files")
    } else {
        error
    }
}

/// Makes a rename in the path's folder durable.
fn sync_folder(path: &Path) -> Result<(), Error> {
    let folder = folder_of(path);
    File::open(folder)
        .and_then(|folder| folder.sync_all())
        .map_err(|e| Error::write("syncing the folder", folder, e))
}

fn same(a: &Metadata, b: &Metadata) -> bool {
    (a.dev(), a.ino()) == (b.dev(), b.ino())
}

/// Opens the partial file, new or left over, and locks it. A link is not followed
/// and a file with another name is not touched: they are somebody else's.
fn open_locked(path: &Path) -> io::Result<File> {
    loop {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .custom_flags((OFlags::NOFOLLOW | OFlags::NONBLOCK).bits() as i32)
            .open(path)?;
        let held = file.metadata()?;
        if !held.is_file() || held.nlink() > 1 {
            return Err(io::Error::other("its .partial name is taken by a link, pipe or device"));
        }
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => {
                return Err(io::Error::new(
                    io::ErrorKind::ResourceBusy,
                    "another run is writing this output",
                ));
            }
            Err(e) => return Err(e.into()),
        }
        // Between opening and locking, the run that held it may have renamed or
        // removed it; then the name no longer leads to this file.
        match std::fs::symlink_metadata(path) {
            Ok(named) if same(&named, &held) => return Ok(file),
            Ok(_) => {}
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            Err(e) => return Err(e),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_appears_only_at_the_end() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("Željko 🙂.q4nx");
        let pending = Pending::create(&path, 4).unwrap();
        pending.write_at(0, b"abcd").unwrap();
        assert!(!path.exists());
        pending.publish(false).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"abcd");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_name_without_room_for_the_suffix_has_a_shorter_partial_one() {
        let name = |n: usize| format!("{}.gguf", "n".repeat(n - 5));
        let partial = |name: &str| partial_path(Path::new(name)).into_os_string();
        assert_eq!(partial(&name(247)), *format!("{}.partial", name(247)));
        let short: Vec<_> = (248..=255).map(|n| partial(&name(n))).collect();
        assert!(short.iter().all(|partial| partial.len() == 255));
        // Names of one beginning keep apart.
        assert!(short.windows(2).all(|pair| pair[0] != pair[1]));
        // Neither cut inside a character, nor bothered by bytes that are none.
        let letters = partial(&"\u{17e}".repeat(127));
        assert!(letters.to_str().is_some_and(|name| name.ends_with(".partial")));
        let bytes = partial_path(Path::new(OsStr::from_bytes(&[0x80; 255])));
        assert!(bytes.file_name().is_some_and(|name| name.len() <= 255));

        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(name(255));
        Pending::create(&path, 0).unwrap().publish(false).unwrap();
        assert!(path.exists());
    }

    #[test]
    fn dropping_removes_it() {
        let dir = tempfile::tempdir().unwrap();
        drop(Pending::create(&dir.path().join("x"), 1 << 20).unwrap());
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_left_over_is_taken_over_and_a_live_one_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x");
        std::fs::write(dir.path().join("x.partial"), b"left by a killed run").unwrap();
        let first = Pending::create(&path, 3).unwrap();
        assert_eq!(first.file().metadata().unwrap().len(), 3);
        let second = Pending::create(&path, 3).unwrap_err().to_string();
        assert!(second.contains("another run"), "{second}");
        first.write_at(0, b"abc").unwrap();
        first.publish(false).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"abc");
    }

    #[test]
    fn an_existing_file_is_replaced_only_by_force() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x");
        std::fs::write(&path, b"old").unwrap();
        assert!(Pending::create(&path, 0).unwrap().publish(false).is_err());
        assert_eq!(std::fs::read(&path).unwrap(), b"old");
        Pending::create(&path, 0).unwrap().publish(true).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"");
    }

    #[test]
    fn links_are_neither_followed_nor_removed() {
        let dir = tempfile::tempdir().unwrap();
        let victim = dir.path().join("victim");
        let partial = dir.path().join("x.partial");
        std::fs::write(&victim, b"precious").unwrap();
        std::os::unix::fs::symlink(&victim, &partial).unwrap();
        assert!(Pending::create(&dir.path().join("x"), 3).is_err());
        assert!(partial.is_symlink());
        std::fs::remove_file(&partial).unwrap();
        std::fs::hard_link(&victim, &partial).unwrap();
        assert!(Pending::create(&dir.path().join("x"), 3).is_err());
        assert_eq!(std::fs::read(&victim).unwrap(), b"precious");
    }

    #[test]
    fn only_our_own_bytes_get_the_name() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x");
        let pending = Pending::create(&path, 3).unwrap();
        std::fs::remove_file(dir.path().join("x.partial")).unwrap();
        std::fs::write(dir.path().join("x.partial"), b"half of another").unwrap();
        assert!(pending.publish(false).is_err());
        assert!(!path.exists());
        assert!(dir.path().join("x.partial").exists());
    }
}
