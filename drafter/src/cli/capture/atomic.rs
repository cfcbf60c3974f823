//! Files that are there whole or not at all.

use std::ffi::OsString;
use std::fs::{File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use formats::shown_path;

/// `path` with more at its end.
pub(super) fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = OsString::from(path.as_os_str());
    name.push(suffix);
    name.into()
}

/// Writes `path` by way of `<path>.partial`: `fill` puts bytes at offsets.
///
/// What a killed run left of the partial file is replaced; one that another run writes is not.
pub(super) fn write(
    path: &Path,
    fill: impl FnOnce(&mut dyn FnMut(u64, &[u8]) -> io::Result<()>) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let here = || format!("writing `{}`", shown_path(path));
    let partial = beside(path, ".partial");
    let file = create(&partial).with_context(here)?;
    let result = fill(&mut |offset, bytes| file.write_all_at(bytes, offset))
        .and_then(|()| Ok(file.sync_all()?))
        .and_then(|()| Ok(std::fs::rename(&partial, path)?));
    if result.is_err() {
        // The error is what counts.
        let _ = std::fs::remove_file(&partial);
    }
    result.with_context(here)?;
    sync_folder(path).with_context(here)
}

/// Gives a file another name.
pub(super) fn rename(from: &Path, to: &Path) -> anyhow::Result<()> {
    let here = || format!("writing `{}`", shown_path(to));
    std::fs::rename(from, to).with_context(here)?;
    sync_folder(to).with_context(here)
}

fn create(partial: &Path) -> io::Result<File> {
    match File::open(partial) {
        Ok(left) => match left.try_lock() {
            Ok(()) => std::fs::remove_file(partial)?,
            Err(TryLockError::WouldBlock) => return Err(busy()),
            Err(TryLockError::Error(error)) => return Err(error),
        },
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    // A link is not followed: the name must be free.
    let file = OpenOptions::new().write(true).create_new(true).open(partial)?;
    file.try_lock().map_err(|_| busy())?;
    Ok(file)
}

fn busy() -> io::Error {
    io::Error::new(io::ErrorKind::ResourceBusy, "another run is writing it")
}

fn sync_folder(path: &Path) -> io::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    File::open(folder.unwrap_or(Path::new(".")))?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_appears_with_whole_contents() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x");
        std::fs::write(beside(&path, ".partial"), "left by a killed run").unwrap();
        write(&path, |put| Ok(put(2, b"cd").and_then(|()| put(0, b"ab"))?)).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"abcd");
        let error = write(&path, |put| {
            put(0, b"half")?;
            anyhow::bail!("no more")
        });
        assert!(error.is_err());
        assert_eq!(std::fs::read(&path).unwrap(), b"abcd");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
        let held = File::create(beside(&path, ".partial")).unwrap();
        held.try_lock().unwrap();
        let error = write(&path, |_| Ok(())).unwrap_err();
        assert!(format!("{error:#}").contains("another run"), "{error:#}");
    }
}
