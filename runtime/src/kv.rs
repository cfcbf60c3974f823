//! Keys and values of past positions, in f16 or f32.
//!
//! What is stored is what is read, by plain and speculative decoding alike: a row is rounded when it
//! is appended, whichever path appends it.

use half::f16;

/// How keys and values are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum KvType {
    /// IEEE half precision, rounded to nearest even.
    #[default]
    F16,
    /// As computed.
    F32,
}

impl KvType {
    /// Bytes of one number.
    #[must_use]
    pub fn bytes(self) -> usize {
        match self {
            Self::F16 => 2,
            Self::F32 => 4,
        }
    }
}

/// One layer's keys and values at consecutive positions.
#[derive(Debug, Clone)]
pub struct KvCache {
    width: usize,
    first: usize,
    keys: Stored,
    values: Stored,
}

#[derive(Debug, Clone)]
enum Stored {
    F16(Vec<f16>),
    F32(Vec<f32>),
}

impl Stored {
    fn new(ty: KvType) -> Self {
        match ty {
            KvType::F16 => Self::F16(Vec::new()),
            KvType::F32 => Self::F32(Vec::new()),
        }
    }

    fn len(&self) -> usize {
        match self {
            Self::F16(v) => v.len(),
            Self::F32(v) => v.len(),
        }
    }

    fn append(&mut self, row: &[f32]) {
        match self {
            Self::F16(v) => v.extend(row.iter().map(|x| f16::from_f32(*x))),
            Self::F32(v) => v.extend_from_slice(row),
        }
    }

    fn truncate(&mut self, len: usize) {
        match self {
            Self::F16(v) => v.truncate(len),
            Self::F32(v) => v.truncate(len),
        }
    }

    fn drop_front(&mut self, len: usize) {
        match self {
            Self::F16(v) => drop(v.drain(..len)),
            Self::F32(v) => drop(v.drain(..len)),
        }
    }

    fn read(&self, start: usize, out: &mut [f32]) {
        let range = start..start + out.len();
        match self {
            Self::F16(v) => {
                for (out, x) in out.iter_mut().zip(&v[range]) {
                    *out = x.to_f32();
                }
            }
            Self::F32(v) => out.copy_from_slice(&v[range]),
        }
    }

    /// Stored bits of a range, little-endian.
    fn hash(&self, range: std::ops::Range<usize>, hasher: &mut blake3::Hasher) {
        match self {
            Self::F16(v) => v[range].iter().for_each(|x| {
                hasher.update(&x.to_le_bytes());
            }),
            Self::F32(v) => v[range].iter().for_each(|x| {
                hasher.update(&x.to_le_bytes());
            }),
        }
    }
}

impl KvCache {
    /// No positions yet; `width`: values of a key row, and of a value row.
    #[must_use]
    pub fn new(width: usize, ty: KvType) -> Self {
        Self { width, first: 0, keys: Stored::new(ty), values: Stored::new(ty) }
    }

    /// The position after the last.
    #[must_use]
    pub fn end(&self) -> usize {
        self.first + self.keys.len() / self.width
    }

    /// The first position that is still held.
    #[must_use]
    pub fn first(&self) -> usize {
        self.first
    }

    /// Appends the next position.
    ///
    /// # Panics
    /// If a row has another width.
    pub fn append(&mut self, key: &[f32], value: &[f32]) {
        assert_eq!((key.len(), value.len()), (self.width, self.width));
        self.keys.append(key);
        self.values.append(value);
    }

    /// Forgets positions from `end` on.
    ///
    /// # Panics
    /// If `end` lies before the first position held.
    pub fn truncate(&mut self, end: usize) {
        let len = (end - self.first) * self.width;
        self.keys.truncate(len);
        self.values.truncate(len);
    }

    /// Forgets positions before `first`, if there are any.
    pub fn forget_before(&mut self, first: usize) {
        let first = first.clamp(self.first, self.end());
        let len = (first - self.first) * self.width;
        self.keys.drop_front(len);
        self.values.drop_front(len);
        self.first = first;
    }

    /// A part of the key at `position`, from value `start` on.
    ///
    /// # Panics
    /// If the position is not held, or the part passes the row.
    pub fn key(&self, position: usize, start: usize, out: &mut [f32]) {
        self.keys.read((position - self.first) * self.width + start, out);
    }

    /// A part of the value row at `position`, as [`KvCache::key`].
    ///
    /// # Panics
    /// As [`KvCache::key`].
    pub fn value(&self, position: usize, start: usize, out: &mut [f32]) {
        self.values.read((position - self.first) * self.width + start, out);
    }

    /// Hashes the stored bits of keys, then values, of positions `from..to`.
    ///
    /// # Panics
    /// If a position is not held.
    pub fn hash(&self, from: usize, to: usize, hasher: &mut blake3::Hasher) {
        let range = (from - self.first) * self.width..(to - self.first) * self.width;
        self.keys.hash(range.clone(), hasher);
        self.values.hash(range, hasher);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_come_back_as_they_were_rounded() {
        for (ty, expected) in [(KvType::F16, f16::from_f32(0.1).to_f32()), (KvType::F32, 0.1)] {
            let mut cache = KvCache::new(2, ty);
            cache.append(&[1.0, 0.1], &[2.0, 3.0]);
            cache.append(&[4.0, 5.0], &[6.0, 0.1]);
            let mut out = [0.0];
            cache.key(0, 1, &mut out);
            assert_eq!(out, [expected]);
            cache.value(1, 1, &mut out);
            assert_eq!(out, [expected]);
            assert_eq!((cache.first(), cache.end()), (0, 2));
        }
    }

    #[test]
    fn both_ends_can_be_cut() {
        let hash = |cache: &KvCache, from, to| {
            let mut hasher = blake3::Hasher::new();
            cache.hash(from, to, &mut hasher);
            hasher.finalize()
        };
        let fill = |n: usize| {
            let mut cache = KvCache::new(1, KvType::F16);
            (0..n).for_each(|i| cache.append(&[i as f32], &[-(i as f32)]));
            cache
        };
        let (mut cut, whole) = (fill(9), fill(6));
        cut.truncate(6);
        assert_eq!(hash(&cut, 0, 6), hash(&whole, 0, 6));
        assert_ne!(hash(&cut, 0, 6), hash(&cut, 0, 5));
        cut.forget_before(2);
        cut.forget_before(1);
        assert_eq!((cut.first(), cut.end()), (2, 6));
        assert_eq!(hash(&cut, 3, 6), hash(&whole, 3, 6));
        let mut out = [0.0];
        cut.value(4, 0, &mut out);
        assert_eq!(out, [-4.0]);
        cut.forget_before(100);
        assert_eq!((cut.first(), cut.end()), (6, 6));
    }
}
