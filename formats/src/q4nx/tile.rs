//! Codes of a tile turned from rows to columns, eight rows at a time.
//!
//! In memory a row's codes follow each other; the NPU's chunks keep the codes
//! of one column together. Eight rows of a tile, 64 code bytes each, are an
//! 8 x 8 matrix of `u64`: `m[row][block]` holds bytes `8 * block..` of a row.
//! Turning the bytes of every 8 x 8 block gives `m[i][block]`, whose byte
//! `row` is byte `8 * block + i` of that row: four columns of eight rows. The
//! 2-bit fields are then merged by the codec with shifts and masks.
//!
//! The block index is the inner one everywhere, so that the compiler turns the
//! loops into vector code on every target.

/// Eight rows of 64 code bytes.
pub(crate) type Rows8 = [[u64; 8]; 8];

/// `bytes` in every byte of a word.
pub(crate) const fn splat(byte: u8) -> u64 {
    0x0101_0101_0101_0101 * byte as u64
}

/// Row `row` of an [`Rows8`], from the 64 code bytes of a tile's row.
#[inline]
pub(crate) fn load(row: &mut [u64; 8], bytes: &[u8]) {
    for (word, bytes) in row.iter_mut().zip(bytes.as_chunks::<8>().0) {
        *word = u64::from_le_bytes(*bytes);
    }
}

/// The reverse of [`load`].
#[inline]
pub(crate) fn store(row: &[u64; 8], bytes: &mut [u8]) {
    for (word, bytes) in row.iter().zip(bytes.as_chunks_mut::<8>().0) {
        *bytes = word.to_le_bytes();
    }
}

/// Turns rows into bytes and back: byte `i` of `m[j][block]` trades places with
/// byte `j` of `m[i][block]`.
#[inline]
pub(crate) fn transpose(m: &mut Rows8) {
    swap::<4, 0x0000_0000_FFFF_FFFF>(m);
    swap::<2, 0x0000_FFFF_0000_FFFF>(m);
    swap::<1, 0x00FF_00FF_00FF_00FF>(m);
}

/// Swaps the high part of the words in `row` with the low part (`LOW`) of those
/// `DISTANCE` rows on.
#[inline]
fn swap<const DISTANCE: usize, const LOW: u64>(m: &mut Rows8) {
    let shift = 8 * DISTANCE;
    for pair in m.chunks_exact_mut(2 * DISTANCE) {
        let (upper, lower) = pair.split_at_mut(DISTANCE);
        let words = upper.as_flattened_mut().iter_mut();
        for (a, b) in words.zip(lower.as_flattened_mut()) {
            (*a, *b) = ((*a & LOW) | ((*b & LOW) << shift), ((*a >> shift) & LOW) | (*b & !LOW));
        }
    }
}
