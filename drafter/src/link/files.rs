//! What the files of a model are known by.

use std::fs::{self, File, Metadata};
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use command_line::signals;
use formats::dflash2::drafter::Drafter;
use formats::digest::hex;
use formats::{Location, Source, gguf, safetensors, shown_path};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::cli::exit::Input;

/// The largest file that counts as header as a whole: a configuration or a tokenizer.
const MAX_WHOLE: u64 = 64 << 20;

/// One file as it was when a link was made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Known {
    pub(crate) path: Location,
    pub(crate) size_bytes: u64,
    /// Since 1970, by the file system.
    pub(crate) modified_ns: i128,
    /// Of a container the bytes before the data, of any other file all bytes.
    pub(crate) header_sha256: String,
    /// Of all bytes, where it was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) sha256: Option<String>,
}

impl Known {
    /// The file at `path` as it is now; with `whole`, all of it is read. `progress` hears how many
    /// bytes are hashed.
    pub(crate) fn now(
        path: &Path,
        whole: bool,
        progress: &mut dyn FnMut(u64, u64),
    ) -> anyhow::Result<Self> {
        let path = std::path::absolute(path).map_err(|e| unreadable(path, &e))?;
        let meta = fs::metadata(&path).map_err(|e| unreadable(&path, &e))?;
        let sha256 = match whole {
            true => Some(hash(&path, meta.len(), progress)?),
            false => None,
        };
        Ok(Self {
            size_bytes: meta.len(),
            modified_ns: modified(&meta),
            header_sha256: hash(&path, header_len(&path)?, &mut |_, _| {})?,
            sha256,
            path: Location(path),
        })
    }

    /// Refuses a file that is not what it was.
    ///
    /// The time alone may differ, as after a copy: then the header decides.
    pub(crate) fn check(&self) -> anyhow::Result<()> {
        let path = &self.path.0;
        let meta = fs::metadata(path).map_err(|e| unreadable(path, &e))?;
        let changed = |what: &str, expected: String, found: String| {
            Err(Input(format!(
                "`{}`: changed since it was linked: {what}: expected {expected}, found {found}",
                shown_path(path)
            ))
            .into())
        };
        if meta.len() != self.size_bytes {
            return changed("bytes", self.size_bytes.to_string(), meta.len().to_string());
        }
        if modified(&meta) != self.modified_ns {
            let found = hash(path, header_len(path)?, &mut |_, _| {})?;
            if found != self.header_sha256 {
                return changed("SHA-256 of its header", self.header_sha256.clone(), found);
            }
        }
        Ok(())
    }

    /// Reads the whole file and refuses it if any byte changed.
    pub(crate) fn check_whole(&self, progress: &mut dyn FnMut(u64, u64)) -> anyhow::Result<()> {
        self.check()?;
        let path = &self.path.0;
        let (len, expected) = match &self.sha256 {
            Some(sha256) => (self.size_bytes, sha256),
            None => (header_len(path)?, &self.header_sha256),
        };
        let found = hash(path, len, progress)?;
        if found != *expected {
            let path = shown_path(path);
            return Err(Input(format!(
                "`{path}`: changed since it was linked: SHA-256: expected {expected}, found {found}"
            ))
            .into());
        }
        Ok(())
    }
}

/// All files of a target: one, or those of a pack.
pub(crate) fn target_files(path: &Path) -> anyhow::Result<Vec<PathBuf>> {
    if !path.is_dir() {
        return Ok(vec![path.to_path_buf()]);
    }
    let mut files: Vec<PathBuf> = fs::read_dir(path)
        .with_context(|| format!("reading `{}`", shown_path(path)))?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| {
            let extension = path.extension().and_then(|e| e.to_str()).unwrap_or_default();
            ["json", "jinja", "safetensors"].contains(&extension) && path.is_file()
        })
        .collect();
    files.sort();
    Ok(files)
}

/// All files that belong to an opened drafter.
pub(crate) fn drafter_files(opened: &Drafter) -> Vec<PathBuf> {
    let files = opened.files.iter().map(|source| source.path().to_path_buf());
    files.chain(opened.config_path.clone()).collect()
}

fn modified(meta: &Metadata) -> i128 {
    i128::from(meta.mtime()) * 1_000_000_000 + i128::from(meta.mtime_nsec())
}

fn unreadable(path: &Path, error: &io::Error) -> Input {
    Input(format!("`{}`: {error}", shown_path(path)))
}

/// Bytes before the data of a container, all bytes of another file.
fn header_len(path: &Path) -> anyhow::Result<u64> {
    let source = Source::open(path)?;
    let mut magic = [0; 4];
    if source.len() >= 4 {
        source.read_exact_at(0, &mut magic)?;
    }
    if &magic == b"GGUF" {
        return Ok(gguf::File::open(source)?.data_start());
    }
    let extension = path.extension().and_then(|e| e.to_str()).unwrap_or_default();
    if ["safetensors", "q4nx"].contains(&extension) || source.len() > MAX_WHOLE {
        return Ok(safetensors::File::open(source)?.data_start());
    }
    Ok(source.len())
}

/// SHA-256 of the first `len` bytes.
fn hash(path: &Path, len: u64, progress: &mut dyn FnMut(u64, u64)) -> anyhow::Result<String> {
    let file = File::open(path).map_err(|e| unreadable(path, &e))?;
    let mut reader = file.take(len);
    let mut hasher = Sha256::new();
    let mut buffer = vec![0; 1 << 20];
    let mut done = 0;
    loop {
        anyhow::ensure!(!signals::received(), Interrupted);
        let n = reader.read(&mut buffer).map_err(|e| unreadable(path, &e)).context("hashing")?;
        if n == 0 {
            break;
        }
        hasher.update(&buffer[..n]);
        done += n as u64;
        progress(done, len);
    }
    Ok(hex(&hasher.finalize()))
}

/// A signal ended the reading of a file.
#[derive(Debug, thiserror::Error)]
#[error("interrupted")]
pub(crate) struct Interrupted;

#[cfg(test)]
mod tests {
    use super::*;

    fn now(path: &Path, whole: bool) -> Known {
        Known::now(path, whole, &mut |_, _| {}).unwrap()
    }

    #[test]
    fn a_file_is_known_again_until_it_changes() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("config.json");
        fs::write(&path, "{}").unwrap();
        let known = now(&path, true);
        assert_eq!(known.size_bytes, 2);
        // printf '{}' | sha256sum
        let sha256 = "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a";
        assert_eq!((known.header_sha256.as_str(), known.sha256.as_deref()), (sha256, Some(sha256)));
        known.check().unwrap();

        // Another time alone changes nothing.
        let other = Known { modified_ns: 0, ..known.clone() };
        other.check().unwrap();
        fs::write(&path, "[]").unwrap();
        let error = other.check().unwrap_err().to_string();
        assert!(error.contains("config.json") && error.contains("SHA-256"), "{error}");
        fs::write(&path, "{ }").unwrap();
        let error = known.check().unwrap_err().to_string();
        assert!(error.contains("expected 2, found 3"), "{error}");
    }

    #[test]
    fn the_header_of_a_container_ends_before_its_data() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("model.safetensors");
        let header = r#"{"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}}"#;
        let bytes = |data: &[u8]| {
            [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), data].concat()
        };
        fs::write(&path, bytes(b"ab")).unwrap();
        let known = now(&path, false);
        fs::write(&path, bytes(b"xy")).unwrap();
        assert_eq!(now(&path, false).header_sha256, known.header_sha256);
        fs::write(&path, bytes(b"ab")).unwrap();
        assert_eq!(now(&path, true).header_sha256, known.header_sha256);
        assert_ne!(now(&path, true).sha256, Some(known.header_sha256));
    }
}
