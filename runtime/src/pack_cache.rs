//! Packed weights on disk: made once per model, mapped at later starts.
//!
//! A [`PackCache`] is a folder. Each model has one file there ([`file`] has its bytes), named after the
//! paths of the model's files and the kind of the pack. It holds what the model's files were when it was
//! made, and is used only while they still are that; otherwise it is made anew.
//!
//! A pack appears under its name whole: it is written beside it, synced and renamed, under the lock of
//! the folder. Who holds the lock is the only one that writes, so what another writer left behind when
//! it died is removed by the next one. Readers take no lock: a file under its name is never changed,
//! and one that is replaced or removed lives as long as it is mapped.

mod file;
mod identity;
mod pages;
#[cfg(test)]
mod tests;
mod writer;

use std::fs::{self, File, TryLockError};
use std::io;
use std::ops::ControlFlow;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use formats::shown_path;

use crate::Error;
pub use file::{Fault, Header, PackFile, Section};
pub use identity::SourceFile;
pub use pages::PackedBytes;
use writer::Failure;

const LOCK: &str = ".lock";
const PACK: &str = "pack";
/// What the name of a pack ends with that is not whole yet.
const PARTIAL: &str = "partial";

/// How often is looked whether the lock is free.
const LOOK: Duration = Duration::from_millis(50);

/// Bytes that stay free on the disk.
const RESERVE: u64 = 256 << 20;

/// A matrix that has a packed form.
pub trait Packable: std::fmt::Debug + Send + Sync {
    /// Name, shape and packed size.
    fn section(&self) -> Section;

    /// Bytes that [`Packable::pack`] makes at a time, not 0.
    fn part_bytes(&self) -> usize;

    /// Writes part number `part`, which is shorter at the end.
    ///
    /// # Errors
    /// [`Error::Formats`] where the weights are damaged.
    fn pack(&self, part: usize, out: &mut [u8]) -> Result<(), Error>;

    /// Says that it is packed soon. A hint.
    fn will_pack(&self);

    /// Says that all of it is packed, and its unpacked form is not read again soon. A hint.
    fn packed(&self);

    /// Takes its packed bytes: as many as its section has.
    fn take(&self, bytes: PackedBytes);
}

/// The matrices of a model and how they are packed.
#[derive(Debug, Clone)]
pub struct Pack {
    /// The order of the packed bytes and its version, such as `cpu-tiles/1`.
    pub kind: &'static str,
    /// In the order of the file.
    pub items: Vec<Arc<dyn Packable>>,
    /// Whether products read the packed bytes where they are, so that they should be on large pages.
    pub read_in_place: bool,
}

impl Pack {
    /// The size of all packed matrices.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.items.iter().map(|item| item.section().bytes).sum()
    }
}

/// What happens while a model gets its packed weights.
#[derive(Debug, Clone, Copy)]
pub enum Event<'a> {
    /// Another program is writing to the cache.
    Waiting,
    /// Packing begins.
    Begin {
        /// What the file will take.
        bytes: u64,
        /// Where it will be.
        path: &'a Path,
        /// Why the pack that was there is not used, if there was one.
        replaced: Option<&'a str>,
    },
    /// Bytes that were packed.
    Progress {
        /// So many.
        done: u64,
        /// Of so many.
        total: u64,
    },
}

/// How a model got its packed weights.
#[derive(Debug)]
pub enum Attached {
    /// From a pack that was there.
    Found,
    /// From one that was made for it.
    Made,
    /// Not at all: the cache cannot be used. The model packs in memory.
    Unusable(Unusable),
    /// Not at all: the observer ended it. Nothing is left behind.
    Interrupted,
}

/// Why a cache cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Unusable {
    /// The disk is too full.
    #[error("`{}`: {needed} bytes are needed, {free} are free", shown_path(dir))]
    Space {
        /// The folder.
        dir: PathBuf,
        /// What a pack takes, and what stays free.
        needed: u64,
        /// What is there.
        free: u64,
    },
    /// The system refuses.
    #[error("`{}`: {error}", shown_path(path))]
    Io {
        /// What was to be read or written.
        path: PathBuf,
        /// What the system said.
        error: io::Error,
    },
    /// The model's files changed while they were packed.
    #[error("`{}`: changed while it was packed", shown_path(path))]
    Changed {
        /// The first of them.
        path: PathBuf,
    },
}

fn io_at(path: &Path) -> impl Fn(io::Error) -> Unusable {
    let path = path.to_path_buf();
    move |error| Unusable::Io { path: path.clone(), error }
}

/// A pack that lies in the folder.
#[derive(Debug)]
pub struct Entry {
    /// Its name, without extensions.
    pub name: String,
    /// Its file.
    pub path: PathBuf,
    /// The pack, if it is one.
    pub pack: Result<PackFile, Fault>,
}

impl Entry {
    /// Whether the model's files are still what they were.
    #[must_use]
    pub fn is_current(&self) -> bool {
        let sources = self.pack.as_ref().map(|pack| &pack.header().sources[..]).unwrap_or_default();
        !sources.is_empty() && sources.iter().all(SourceFile::is_unchanged)
    }
}

/// A folder of packs.
#[derive(Debug, Clone)]
pub struct PackCache {
    dir: PathBuf,
}

impl PackCache {
    /// In this folder, which need not be there yet.
    #[must_use]
    pub fn in_dir(dir: PathBuf) -> Self {
        Self { dir }
    }

    /// The folder.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Where the pack of a model is.
    #[must_use]
    pub fn path_of(&self, kind: &str, sources: &[SourceFile]) -> PathBuf {
        let kind = kind.split('/').next().unwrap_or_default();
        self.dir.join(format!("{}.{kind}.{PACK}", identity::key(sources)))
    }

    /// Gives the matrices of a model their packed bytes, from the pack that is there or from one that
    /// is made now. `sources`: the model's files as they were before it was opened.
    ///
    /// # Errors
    /// [`Error::Formats`] where the weights are damaged. A cache that cannot be used is no error.
    pub fn attach(
        &self,
        pack: &Pack,
        sources: Vec<SourceFile>,
        on: &mut dyn FnMut(Event<'_>) -> ControlFlow<()>,
    ) -> Result<Attached, Error> {
        let path = self.path_of(pack.kind, &sources);
        let sections = pack.items.iter().map(|item| item.section());
        let header = Header::new(pack.kind, sources, sections);
        if let Ok(bytes) = map(&path, &header, pack.read_in_place) {
            // What died while it wrote goes now, if nobody writes.
            if let Ok(Some(_lock)) = self.try_lock() {
                self.sweep();
            }
            pack.hand_out(bytes);
            return Ok(Attached::Found);
        }
        match self.make(&path, &header, pack, on) {
            Ok((how, bytes)) => {
                pack.hand_out(bytes);
                Ok(how)
            }
            Err(NotMade::Interrupted) => Ok(Attached::Interrupted),
            Err(NotMade::Weights(error)) => Err(error),
            Err(NotMade::Unusable(why)) => Ok(Attached::Unusable(why)),
        }
    }

    fn make(
        &self,
        path: &Path,
        header: &Header,
        pack: &Pack,
        on: &mut dyn FnMut(Event<'_>) -> ControlFlow<()>,
    ) -> Result<(Attached, Vec<PackedBytes>), NotMade> {
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&self.dir)
            .map_err(io_at(&self.dir))?;
        let _lock = self.lock(on)?;
        self.sweep();
        // Another program may have made it while this one waited.
        let fault = match map(path, header, pack.read_in_place) {
            Ok(packed) => return Ok((Attached::Found, packed)),
            Err(fault) => fault,
        };
        let bytes = file_bytes(header).map_err(io_at(path))?;
        let replaced = path.exists().then(|| fault.to_string());
        if replaced.is_some() {
            fs::remove_file(path).map_err(io_at(path))?;
        }
        let free = rustix::fs::statvfs(&self.dir).map_err(|e| io_at(&self.dir)(e.into()))?;
        let free = free.f_bavail.saturating_mul(free.f_frsize);
        let needed = bytes.saturating_add(RESERVE);
        if free < needed {
            return Err(Unusable::Space { dir: self.dir.clone(), needed, free }.into());
        }
        if on(Event::Begin { bytes, path, replaced: replaced.as_deref() }).is_break() {
            return Err(NotMade::Interrupted);
        }
        let partial = path.with_added_extension(PARTIAL);
        let result = write(&partial, path, header, pack, on);
        if result.is_err() {
            let _ = fs::remove_file(&partial);
        }
        result?;
        let packed =
            map(path, header, pack.read_in_place).map_err(|e| io_at(path)(io::Error::other(e)))?;
        Ok((Attached::Made, packed))
    }

    /// The lock of writers; `on` hears that it must be waited for.
    fn lock(&self, on: &mut dyn FnMut(Event<'_>) -> ControlFlow<()>) -> Result<File, NotMade> {
        loop {
            if let Some(lock) = self.try_lock()? {
                return Ok(lock);
            }
            if on(Event::Waiting).is_break() {
                return Err(NotMade::Interrupted);
            }
            std::thread::sleep(LOOK);
        }
    }

    /// The lock, unless another program has it. It lasts as long as the file is open, which the system
    /// sees to even when a program is killed.
    fn try_lock(&self) -> Result<Option<File>, Unusable> {
        let path = self.dir.join(LOCK);
        let at = io_at(&path);
        let mut options = File::options();
        let lock = options.create(true).truncate(false).write(true).mode(0o600);
        let lock = lock.open(&path).map_err(&at)?;
        match lock.try_lock() {
            Ok(()) => Ok(Some(lock)),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(error)) => Err(at(error)),
        }
    }

    /// Removes what was not finished. Only for who has the lock.
    fn sweep(&self) {
        for path in self.files(PARTIAL).unwrap_or_default() {
            let _ = fs::remove_file(path);
        }
    }

    /// Files of the folder with this extension, by name; none where there is no folder.
    fn files(&self, extension: &str) -> io::Result<Vec<PathBuf>> {
        let listed = match fs::read_dir(&self.dir) {
            Ok(listed) => listed,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(error),
        };
        let mut paths = Vec::new();
        for entry in listed {
            let path = entry?.path();
            if path.extension().is_some_and(|e| e == extension) {
                paths.push(path);
            }
        }
        paths.sort();
        Ok(paths)
    }

    /// All packs, by name.
    ///
    /// # Errors
    /// When the folder cannot be read; one that is not there is empty.
    pub fn entries(&self) -> io::Result<Vec<Entry>> {
        let entry = |path: PathBuf| {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            let name = name.split('.').next().unwrap_or_default().to_owned();
            Entry { name, pack: PackFile::open(&path), path }
        };
        Ok(self.files(PACK)?.into_iter().map(entry).collect())
    }

    /// Removes a pack. Programs that use it go on.
    ///
    /// # Errors
    /// What the system says.
    pub fn remove(&self, entry: &Entry) -> io::Result<()> {
        fs::remove_file(&entry.path)
    }

    /// Removes what writers left behind that died; the bytes that were freed. Nothing while one is at
    /// work.
    ///
    /// # Errors
    /// What the system says.
    pub fn clean(&self) -> io::Result<u64> {
        let left = self.files(PARTIAL)?;
        if left.is_empty() {
            return Ok(0);
        }
        let lock = self.try_lock().map_err(io::Error::other)?;
        if lock.is_none() {
            return Ok(0);
        }
        let bytes = left.iter().filter_map(|path| Some(fs::metadata(path).ok()?.len())).sum();
        self.sweep();
        Ok(bytes)
    }
}

impl Pack {
    fn hand_out(&self, bytes: Vec<PackedBytes>) {
        self.items.iter().zip(bytes).for_each(|(item, bytes)| item.take(bytes));
    }
}

/// The pack at `path`, mapped, if it is the one that `wanted` describes.
fn map(path: &Path, wanted: &Header, read_in_place: bool) -> Result<Vec<PackedBytes>, Fault> {
    let pack = PackFile::open(path)?;
    let header = pack.header();
    let differs = |part| Err(Fault::differs(part));
    if header.kind != wanted.kind {
        return differs("kind of the pack");
    }
    if header.sources != wanted.sources {
        return differs("model file");
    }
    let mut both = header.sections.iter().zip(&wanted.sections);
    if header.sections.len() != wanted.sections.len() || !both.all(|(a, b)| a.is_at_place_of(b)) {
        return differs("list of matrices");
    }
    Ok(pack.map(read_in_place)?)
}

/// The size of the file.
fn file_bytes(header: &Header) -> io::Result<u64> {
    let start = file::data_start(header.encode()?.len());
    let bytes = header.data_bytes().and_then(|n| n.checked_add(start + file::FOOTER as u64));
    bytes.ok_or_else(|| io::Error::other("more bytes than a file can have"))
}

/// Writes the pack as `partial` and gives it its name.
fn write(
    partial: &Path,
    path: &Path,
    header: &Header,
    pack: &Pack,
    on: &mut dyn FnMut(Event<'_>) -> ControlFlow<()>,
) -> Result<(), NotMade> {
    let mut options = File::options();
    let file = options.create(true).truncate(true).write(true).mode(0o600).open(partial);
    let file = file.map_err(io_at(partial))?;
    let progress = &mut |done, total| on(Event::Progress { done, total });
    writer::write(&file, header.clone(), &pack.items, progress).map_err(
        |failure| match failure {
            Failure::Output(error) => io_at(partial)(error).into(),
            Failure::Weights(error) => NotMade::Weights(error),
            Failure::Interrupted => NotMade::Interrupted,
        },
    )?;
    if let Some(changed) = header.sources.iter().find(|source| !source.is_unchanged()) {
        return Err(Unusable::Changed { path: changed.path.0.clone() }.into());
    }
    fs::rename(partial, path).map_err(io_at(path))?;
    // The new name is on disk only when the folder is.
    let dir = path.parent().unwrap_or(path);
    File::open(dir).and_then(|dir| dir.sync_all()).map_err(io_at(dir))?;
    Ok(())
}

/// Why there is no pack.
enum NotMade {
    Unusable(Unusable),
    Weights(Error),
    Interrupted,
}

impl From<Unusable> for NotMade {
    fn from(why: Unusable) -> Self {
        Self::Unusable(why)
    }
}
