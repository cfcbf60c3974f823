//! SHA-256 of files, streamed.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use formats::Source;
use sha2::{Digest, Sha256};

use crate::Error;
use crate::observer::Observer;

/// Bytes hashed per read.
const RUN: usize = 1 << 20;

/// SHA-256 of a whole source, in lower-case hex.
///
/// # Errors
/// [`Error::Input`] when it cannot be read, [`Error::Interrupted`].
pub(crate) fn of_source(source: &Source, observer: &dyn Observer) -> Result<String, Error> {
    of_reads(source.len(), observer, |offset, buf| Ok(source.read_exact_at(offset, buf)?))
}

/// SHA-256 of a file that was just written.
pub(crate) fn of_output(
    path: &Path,
    file: &File,
    len: u64,
    observer: &dyn Observer,
) -> Result<String, Error> {
    of_reads(len, observer, |offset, buf| {
        file.read_exact_at(buf, offset).map_err(|e| Error::write("reading back", path, e))
    })
}

fn of_reads(
    len: u64,
    observer: &dyn Observer,
    mut read: impl FnMut(u64, &mut [u8]) -> Result<(), Error>,
) -> Result<String, Error> {
    let mut hash = Sha256::new();
    let mut buffer = vec![0; RUN.min(usize::try_from(len).unwrap_or(RUN))];
    let mut offset = 0;
    while offset < len {
        if observer.cancelled() {
            return Err(Error::Interrupted);
        }
        let n = buffer.len().min(usize::try_from(len - offset).unwrap_or(RUN));
        read(offset, &mut buffer[..n])?;
        hash.update(&buffer[..n]);
        offset += n as u64;
    }
    Ok(hex(&hash.finalize()))
}

/// The digest of several files as one: the SHA-256 of the lines that `sha256sum`
/// would print for them.
#[must_use]
pub(crate) fn of_listing(files: &[(String, String)]) -> String {
    let mut hash = Sha256::new();
    for (name, sha256) in files {
        hash.update(format!("{sha256}  {name}\n"));
    }
    hex(&hash.finalize())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observer::Unobserved;

    #[test]
    fn known_digests() {
        let empty = of_source(&Source::from_bytes("x", vec![]), &Unobserved).unwrap();
        assert_eq!(empty, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
        let abc = of_source(&Source::from_bytes("x", *b"abc"), &Unobserved).unwrap();
        assert_eq!(abc, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    }

    #[test]
    fn runs_do_not_show() {
        let bytes = vec![7u8; RUN + 5];
        let whole = hex(&Sha256::digest(&bytes));
        assert_eq!(of_source(&Source::from_bytes("x", bytes), &Unobserved).unwrap(), whole);
    }
}
