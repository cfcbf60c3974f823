//! What the files of a model are known by.

use sha2::{Digest, Sha256};

use super::writer::hex;
use crate::{Error, Source};

/// Bytes hashed at a time.
const RUN: usize = 1 << 17;

/// SHA-256 of one file, or of the lines `HASH  NAME` that `sha256sum` prints of several, in their order.
/// `go_on` is told the bytes that were hashed and may end it; then there is none.
///
/// # Errors
/// What the system says.
pub fn sha256_of(
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
    let mut listing = Sha256::new();
    hashes.iter().for_each(|(name, hash)| listing.update(format!("{hash}  {name}\n")));
    Ok(Some(hex(&listing.finalize())))
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
        assert_eq!(sha256_of(&[file("a")], &mut count).unwrap().unwrap(), ABC);
        let both = sha256_of(&[file("x/a"), file("x/b")], &mut count).unwrap().unwrap();
        assert_eq!(both, hex(&Sha256::digest(format!("{ABC}  a\n{ABC}  b\n"))));
        assert_eq!(seen, 6);
        assert_eq!(sha256_of(&[file("a")], &mut |_| false).unwrap(), None);
    }
}
