//! SHA-256 as text, and what the files of a model are known by.

use sha2::{Digest, Sha256};

use crate::{Error, Source};

/// Bytes hashed at a time.
const RUN: usize = 1 << 17;

/// Bytes in lower-case hex.
#[must_use]
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// SHA-256 in lower-case hex.
#[must_use]
pub fn sha256(bytes: impl AsRef<[u8]>) -> String {
    hex(&Sha256::digest(bytes))
}

/// The digest of several files as one: the SHA-256 of the lines that `sha256sum` would print for them.
/// `files`: names and digests.
#[must_use]
pub fn of_listing(files: &[(String, String)]) -> String {
    sha256(files.iter().map(|(name, sha256)| format!("{sha256}  {name}\n")).collect::<String>())
}

/// SHA-256 of one file, or [`of_listing`] of several, in their order.
/// `go_on` is told the bytes that were hashed and may end it; then there is none.
///
/// # Errors
/// What the system says.
pub fn of_files(
    files: &[Source],
    go_on: &mut dyn FnMut(u64) -> bool,
) -> Result<Option<String>, Error> {
    let (mut hashes, mut done) = (Vec::new(), 0);
    let mut buffer = vec![0; RUN];
    for file in files {
        let (mut hash, mut at) = (Sha256::new(), 0);
        while at < file.len() {
            let n = RUN.min(usize::try_from(file.len() - at).unwrap_or(RUN));
            file.read_exact_at(at, &mut buffer[..n])?;
            hash.update(&buffer[..n]);
            at += n as u64;
            done += n as u64;
            if !go_on(done) {
                return Ok(None);
            }
        }
        let name = file.path().file_name().unwrap_or_default().to_string_lossy().into_owned();
        hashes.push((name, hex(&hash.finalize())));
    }
    if let [(_, hash)] = hashes.as_slice() {
        return Ok(Some(hash.clone()));
    }
    Ok(Some(of_listing(&hashes)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ABC: &str = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

    #[test]
    fn one_file_and_several() {
        let file = |name: &str| Source::from_bytes(name, *b"abc");
        let mut seen = 0;
        let mut count = |done| {
            seen = done;
            true
        };
        assert_eq!(of_files(&[file("a")], &mut count).unwrap().unwrap(), ABC);
        let both = of_files(&[file("x/a"), file("x/b")], &mut count).unwrap().unwrap();
        assert_eq!(both, hex(&Sha256::digest(format!("{ABC}  a\n{ABC}  b\n"))));
        assert_eq!(seen, 6);
        assert_eq!(of_files(&[file("a")], &mut |_| false).unwrap(), None);
    }
}
