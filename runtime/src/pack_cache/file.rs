//! The file of a pack.
//!
//! ```text
//! magic `DRFTPACK`, version u32, length of the header u32
//! the header: JSON, a [`Header`]
//! zeros to a multiple of 4096: the data begin here
//! sections in the header's order, each followed by zeros to a multiple of 4096
//! footer: BLAKE3 of everything before the zeros, 32 bytes; length of the file u64; magic
//! ```
//!
//! Little-endian. The footer is written with the header, after the data and before the file gets its
//! name, so a file that has both is whole. What a start checks is cheap: header, length, footer. Sections have hashes of
//! their own, which [`PackFile::damaged`] compares.

use std::io;
use std::path::Path;

use formats::Source;
use serde::{Deserialize, Serialize};

use super::identity::SourceFile;
use super::pages::{self, PackedBytes};

pub(super) const MAGIC: &[u8; 8] = b"DRFTPACK";
/// Version of what is around the sections; how their bytes are ordered is the kind's.
pub(super) const VERSION: u32 = 1;
/// Where sections begin: pages.
pub(super) const ALIGN: u64 = 4096;
/// Bytes before the header.
pub(super) const PREFIX: usize = 16;
pub(super) const FOOTER: usize = 48;
/// The longest header that is read: a section of a 27 B target takes 200 bytes.
const MAX_HEADER: u32 = 16 << 20;
/// Bytes that are read at a time to check hashes.
const CHECKED: usize = 8 << 20;

/// What a pack is of.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Header {
    /// The order of the packed bytes and its version, such as `cpu-tiles/1`.
    pub kind: String,
    /// The files of the model.
    pub sources: Vec<SourceFile>,
    /// What is packed, in order.
    pub sections: Vec<Section>,
}

/// One matrix.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Section {
    /// The name of its tensor.
    pub name: String,
    /// Outputs and inputs.
    pub shape: [usize; 2],
    /// Where it begins in the data.
    pub offset: u64,
    /// Its length.
    pub bytes: u64,
    /// Of its bytes, hexadecimal.
    pub blake3: String,
}

impl Section {
    /// A section whose place and hash are not known yet.
    #[must_use]
    pub fn new(name: &str, shape: [usize; 2], bytes: u64) -> Self {
        let blake3 = "0".repeat(2 * blake3::OUT_LEN);
        Self { name: name.to_owned(), shape, offset: 0, bytes, blake3 }
    }

    /// Whether it is the same matrix at the same place; the hash is not compared.
    pub(super) fn is_at_place_of(&self, other: &Self) -> bool {
        let of = |s: &Self| (s.name.clone(), s.shape, s.offset, s.bytes);
        of(self) == of(other)
    }
}

impl Header {
    /// Places sections one after the other.
    pub(super) fn new(
        kind: &str,
        sources: Vec<SourceFile>,
        sections: impl IntoIterator<Item = Section>,
    ) -> Self {
        let mut end = 0;
        let place = |section: Section| {
            let section = Section { offset: end, ..section };
            end = (section.offset + section.bytes).next_multiple_of(ALIGN);
            section
        };
        let sections = sections.into_iter().map(place).collect();
        Self { kind: kind.to_owned(), sources, sections }
    }

    /// Magic, version and header, without the zeros after them.
    pub(super) fn encode(&self) -> io::Result<Vec<u8>> {
        let json = serde_json::to_vec(self)?;
        let len = u32::try_from(json.len()).ok().filter(|len| *len <= MAX_HEADER);
        let len = len.ok_or_else(|| io::Error::other("the header is too long"))?;
        let mut bytes = MAGIC.to_vec();
        bytes.extend(VERSION.to_le_bytes());
        bytes.extend(len.to_le_bytes());
        bytes.extend(json);
        Ok(bytes)
    }

    /// The length of the data; none where it would be no length.
    pub(super) fn data_bytes(&self) -> Option<u64> {
        let Some(last) = self.sections.last() else { return Some(0) };
        last.offset.checked_add(last.bytes)?.checked_next_multiple_of(ALIGN)
    }

    /// Bytes of the sections alone.
    #[must_use]
    pub fn packed_bytes(&self) -> u64 {
        self.sections.iter().fold(0, |sum, section| sum.saturating_add(section.bytes))
    }
}

/// The footer of a file of `len` bytes that begins with `head`.
pub(super) fn footer(head: &[u8], len: u64) -> [u8; FOOTER] {
    let mut footer = [0; FOOTER];
    footer[..32].copy_from_slice(blake3::hash(head).as_bytes());
    footer[32..40].copy_from_slice(&len.to_le_bytes());
    footer[40..].copy_from_slice(MAGIC);
    footer
}

/// Where the data begin after a head of `len` bytes.
pub(super) fn data_start(len: usize) -> u64 {
    (len as u64).next_multiple_of(ALIGN)
}

/// A pack on disk whose header, length and footer agree.
#[derive(Debug, Clone)]
pub struct PackFile {
    source: Source,
    header: Header,
    data_start: u64,
}

/// Why a file is no pack.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Fault {
    /// It cannot be read.
    #[error(transparent)]
    Unreadable(#[from] formats::Error),
    /// A part of it is not what it must be.
    #[error("{part}: expected {expected}, found {found}")]
    Structure {
        /// The part.
        part: &'static str,
        /// What it must be.
        expected: String,
        /// What is there.
        found: String,
    },
}

fn structure(part: &'static str, expected: impl Into<String>, found: impl Into<String>) -> Fault {
    Fault::Structure { part, expected: expected.into(), found: found.into() }
}

impl Fault {
    /// The pack is sound, but of something else.
    pub(super) fn differs(part: &'static str) -> Self {
        structure(part, "the one that is to be packed", "another")
    }
}

impl PackFile {
    /// Opens the pack at `path`; its sections are not read.
    ///
    /// # Errors
    /// Where it cannot be read, or header, length and footer do not agree.
    pub fn open(path: &Path) -> Result<Self, Fault> {
        let source = Source::open(path)?;
        let least = (PREFIX + FOOTER) as u64;
        if source.len() < least {
            let found = format!("{} bytes", source.len());
            return Err(structure("length", format!("at least {least} bytes"), found));
        }
        let prefix = source.read_vec(0, PREFIX as u64)?;
        let number = |at: usize| {
            u32::from_le_bytes([prefix[at], prefix[at + 1], prefix[at + 2], prefix[at + 3]])
        };
        if &prefix[..8] != MAGIC {
            return Err(structure("magic", "DRFTPACK", "something else"));
        }
        if number(8) != VERSION {
            return Err(structure("version", VERSION.to_string(), number(8).to_string()));
        }
        let len = number(12);
        if len > MAX_HEADER || u64::from(len) > source.len() - least {
            return Err(structure(
                "length of the header",
                "one that fits the file",
                len.to_string(),
            ));
        }
        let head = source.read_vec(0, PREFIX as u64 + u64::from(len))?;
        let end = source.read_vec(source.len() - FOOTER as u64, FOOTER as u64)?;
        if end != footer(&head, source.len()) {
            return Err(structure("footer", "the hash of the header and the length", "others"));
        }
        let header: Header = serde_json::from_slice(&head[PREFIX..])
            .map_err(|error| structure("header", "the description of a pack", error.to_string()))?;
        let data_start = data_start(head.len());
        let expected = header.data_bytes().and_then(|n| n.checked_add(data_start + FOOTER as u64));
        if expected != Some(source.len()) {
            let found = format!("{} bytes", source.len());
            return Err(structure("length", "that of all sections", found));
        }
        let sections = header.sections.iter().cloned();
        let placed = Header::new(&header.kind, Vec::new(), sections);
        if placed.sections != header.sections {
            return Err(structure("sections", "one after the other", "gaps or overlaps"));
        }
        Ok(Self { source, header, data_start })
    }

    /// What it is of.
    #[must_use]
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// The size of the file.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.source.len()
    }

    /// Maps the file, or, if its bytes are `read_in_place` by products, copies it where that gives larger
    /// pages; gives its sections.
    ///
    /// # Errors
    /// When the system cannot map it. Nobody may change the file while a view lives: see
    /// [`Source::mapped`]; packs are replaced by renaming only.
    pub fn map(&self, read_in_place: bool) -> Result<Vec<PackedBytes>, formats::Error> {
        let source = self.source.mapped()?;
        let whole = source.view(0, source.len())?;
        whole.prefer_huge_pages();
        if read_in_place && pages::should_copy(&whole) {
            return self.copied();
        }
        let view = |s: &Section| Ok(source.view(self.data_start + s.offset, s.bytes)?.into());
        self.header.sections.iter().map(view).collect()
    }

    /// Copies of its sections in memory.
    fn copied(&self) -> Result<Vec<PackedBytes>, formats::Error> {
        // A section is in memory, so its length is one that memory can have.
        let copy =
            |s: &Section| pages::copy(&self.source, self.data_start + s.offset, s.bytes as usize);
        self.header.sections.iter().map(copy).collect()
    }

    /// Reads all sections and gives the names of those that do not have their hash. `progress` hears
    /// how many bytes of all were read, and says whether to go on.
    ///
    /// # Errors
    /// When the file cannot be read; nothing where `progress` ended it.
    pub fn damaged(
        &self,
        progress: &mut dyn FnMut(u64, u64) -> std::ops::ControlFlow<()>,
    ) -> Result<Option<Vec<String>>, formats::Error> {
        let total = self.header.packed_bytes();
        let (mut done, mut damaged) = (0, Vec::new());
        let mut buffer = vec![0; CHECKED];
        for section in &self.header.sections {
            let mut hasher = blake3::Hasher::new();
            let mut at = 0;
            while at < section.bytes {
                let len = (section.bytes - at).min(CHECKED as u64);
                let part = &mut buffer[..len as usize];
                self.source.read_exact_at(self.data_start + section.offset + at, part)?;
                hasher.update_rayon(part);
                at += len;
                done += len;
                if progress(done, total).is_break() {
                    return Ok(None);
                }
            }
            if hasher.finalize().to_hex().as_str() != section.blake3 {
                damaged.push(section.name.clone());
            }
        }
        Ok(Some(damaged))
    }
}
