//! Keys and values of past positions, in f16 or f32.
//!
//! What is stored is what is read, by plain and speculative decoding alike: a row is rounded when it
//! is appended, whichever path appends it.
//!
//! Each head has its own memory, so that a pass over one head is a pass over consecutive bytes. Values
//! lie position by position. Keys lie in blocks of 16 consecutive positions, the first of which is a
//! multiple of 16: of each dimension the 16 positions side by side, so that one vector holds a
//! dimension of 16 keys and their scores need no sum across its lanes.

use std::ops::Range;

use half::f16;

use crate::simd::{LANES, Simd};

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

/// A stored number.
pub(crate) trait Element: Copy + Default + Send + Sync + 'static {
    fn of(x: f32) -> Self;
    fn to_f32(self) -> f32;
    /// 16 of them as f32.
    fn load<S: Simd>(simd: S, x: &[Self; LANES]) -> S::F32;
    fn hash(x: &[Self], hasher: &mut blake3::Hasher);
}

impl Element for f16 {
    fn of(x: f32) -> Self {
        Self::from_f32(x)
    }

    fn to_f32(self) -> f32 {
        f16::to_f32(self)
    }

    #[inline(always)]
    fn load<S: Simd>(simd: S, x: &[Self; LANES]) -> S::F32 {
        simd.widen(x)
    }

    fn hash(x: &[Self], hasher: &mut blake3::Hasher) {
        let bytes: Vec<u8> = x.iter().flat_map(|x| x.to_le_bytes()).collect();
        hasher.update(&bytes);
    }
}

impl Element for f32 {
    fn of(x: f32) -> Self {
        x
    }

    fn to_f32(self) -> f32 {
        self
    }

    #[inline(always)]
    fn load<S: Simd>(simd: S, x: &[Self; LANES]) -> S::F32 {
        simd.load(x)
    }

    fn hash(x: &[Self], hasher: &mut blake3::Hasher) {
        let bytes: Vec<u8> = x.iter().flat_map(|x| x.to_le_bytes()).collect();
        hasher.update(&bytes);
    }
}

/// One layer's keys and values at consecutive positions.
#[derive(Debug, Clone)]
pub struct KvCache {
    dim: usize,
    first: usize,
    end: usize,
    heads: Heads,
}

#[derive(Debug, Clone)]
enum Heads {
    F16(Vec<Head<f16>>),
    F32(Vec<Head<f32>>),
}

/// Memory of one head.
#[derive(Debug, Clone, Default)]
pub(crate) struct Head<T> {
    /// The position where it begins, a multiple of 16.
    base: usize,
    /// `[blocks, dim, 16]`. Places after the last position hold anything.
    keys: Vec<T>,
    /// `[positions, dim]`.
    values: Vec<T>,
}

impl<T: Element> Head<T> {
    fn append(&mut self, position: usize, key: &[f32], value: &[f32]) {
        let (dim, at) = (key.len(), position - self.base);
        let block = at / LANES * dim * LANES;
        if self.keys.len() == block {
            grow(&mut self.keys, dim * LANES);
            self.keys.resize(block + dim * LANES, T::default());
        }
        let places = self.keys[block + at % LANES..].iter_mut().step_by(LANES);
        places.zip(key).for_each(|(place, x)| *place = T::of(*x));
        grow(&mut self.values, dim);
        self.values.extend(value.iter().map(|x| T::of(*x)));
    }

    fn truncate(&mut self, end: usize, dim: usize) {
        let len = end - self.base;
        self.keys.truncate(len.next_multiple_of(LANES) * dim);
        self.values.truncate(len * dim);
    }

    fn forget_before(&mut self, first: usize, dim: usize) {
        let base = first / LANES * LANES;
        let len = (base - self.base) * dim;
        self.keys.drain(..len.min(self.keys.len()));
        self.values.drain(..len.min(self.values.len()));
        self.base = base;
    }

    /// A copy of the positions from `first` on.
    fn tail(&self, first: usize, dim: usize) -> Self {
        let base = first / LANES * LANES;
        let start = ((base - self.base) * dim).min(self.keys.len());
        let (keys, values) = (self.keys[start..].to_vec(), &self.values);
        let values = values[((base - self.base) * dim).min(values.len())..].to_vec();
        Self { base, keys, values }
    }

    /// Appends the positions of `tail` from `first` on, which is the end here.
    fn extend(&mut self, tail: &Self, first: usize, dim: usize) {
        let lane = first % LANES;
        let (block, of_tail) = (first - lane - self.base, first - lane - tail.base);
        let (block, mut keys) = (block * dim, &tail.keys[of_tail * dim..]);
        if lane > 0
            && let Some((first, rest)) = keys.split_at_checked(dim * LANES)
        {
            let places = self.keys[block..].chunks_exact_mut(LANES);
            places
                .zip(first.chunks_exact(LANES))
                .for_each(|(place, of_tail)| place[lane..].copy_from_slice(&of_tail[lane..]));
            keys = rest;
        }
        self.keys.extend_from_slice(keys);
        self.values.extend_from_slice(&tail.values[(first - tail.base) * dim..]);
    }

    /// The keys of the 16 positions from `first`, a multiple of 16, on: `[dim, 16]`.
    #[inline(always)]
    pub(crate) fn key_block(&self, first: usize, dim: usize) -> &[[T; LANES]] {
        let at = (first - self.base) * dim;
        self.keys[at..at + dim * LANES].as_chunks().0
    }

    /// `[positions, dim]`.
    #[inline(always)]
    pub(crate) fn values(&self, positions: Range<usize>, dim: usize) -> &[T] {
        &self.values[(positions.start - self.base) * dim..(positions.end - self.base) * dim]
    }

    fn key(&self, position: usize, dim: usize) -> impl Iterator<Item = T> {
        let at = position - self.base;
        let block = &self.keys[at / LANES * dim * LANES..][..dim * LANES];
        block[at % LANES..].iter().step_by(LANES).copied()
    }
}

/// Makes room for `more`, with little to spare: contexts are long, and growing a large buffer is a
/// change of its mapping.
fn grow<T>(buffer: &mut Vec<T>, more: usize) {
    if buffer.capacity() - buffer.len() < more {
        buffer.reserve_exact(more.max(buffer.len() / 8));
    }
}

/// A computation over one head, whatever its numbers are stored as.
pub(crate) trait OnHead {
    type Output;

    fn run<T: Element>(self, head: &Head<T>) -> Self::Output;
}

impl KvCache {
    /// No positions yet; `heads` of `dim` values each, of a key and of a value.
    #[must_use]
    pub fn new(heads: usize, dim: usize, ty: KvType) -> Self {
        let heads = match ty {
            KvType::F16 => Heads::F16(vec![Head::default(); heads]),
            KvType::F32 => Heads::F32(vec![Head::default(); heads]),
        };
        Self { dim, first: 0, end: 0, heads }
    }

    /// The number of heads.
    #[must_use]
    pub fn heads(&self) -> usize {
        match &self.heads {
            Heads::F16(heads) => heads.len(),
            Heads::F32(heads) => heads.len(),
        }
    }

    /// Width of a head.
    #[must_use]
    pub fn dim(&self) -> usize {
        self.dim
    }

    /// The position after the last.
    #[must_use]
    pub fn end(&self) -> usize {
        self.end
    }

    /// The first position that is still held.
    #[must_use]
    pub fn first(&self) -> usize {
        self.first
    }

    /// Appends the next position: `[heads, dim]` each.
    ///
    /// # Panics
    /// If a row has another width.
    pub fn append(&mut self, key: &[f32], value: &[f32]) {
        let (dim, width) = (self.dim, self.heads() * self.dim);
        assert_eq!((key.len(), value.len()), (width, width));
        let rows = key.chunks_exact(dim).zip(value.chunks_exact(dim));
        match &mut self.heads {
            Heads::F16(heads) => {
                heads.iter_mut().zip(rows).for_each(|(head, (k, v))| head.append(self.end, k, v));
            }
            Heads::F32(heads) => {
                heads.iter_mut().zip(rows).for_each(|(head, (k, v))| head.append(self.end, k, v));
            }
        }
        self.end += 1;
    }

    /// Appends `n` positions of noise in [-1, 1]: for measurements at a depth, whose times do not
    /// depend on what was taken in.
    pub fn append_noise(&mut self, n: usize) {
        /// Rows that are different; a prime number, so that blocks of 16 are.
        const ROWS: usize = 61;
        let width = self.heads() * self.dim;
        let of = |i: usize| (i * 7919 % 2001) as f32 / 1000.0 - 1.0;
        let rows: Vec<f32> = (0..(ROWS + 1) * width).map(of).collect();
        for i in 0..n {
            let at = i % ROWS * width;
            self.append(&rows[at..at + width], &rows[at + width..at + 2 * width]);
        }
    }

    /// Forgets positions from `end` on.
    ///
    /// # Panics
    /// If `end` lies before the first position held.
    pub fn truncate(&mut self, end: usize) {
        assert!(end >= self.first, "a position that is held");
        self.end = self.end.min(end);
        let (end, dim) = (self.end, self.dim);
        match &mut self.heads {
            Heads::F16(heads) => heads.iter_mut().for_each(|head| head.truncate(end, dim)),
            Heads::F32(heads) => heads.iter_mut().for_each(|head| head.truncate(end, dim)),
        }
    }

    /// Forgets positions before `first`, if there are any.
    pub fn forget_before(&mut self, first: usize) {
        self.first = first.clamp(self.first, self.end);
        let (first, dim) = (self.first, self.dim);
        match &mut self.heads {
            Heads::F16(heads) => heads.iter_mut().for_each(|head| head.forget_before(first, dim)),
            Heads::F32(heads) => heads.iter_mut().for_each(|head| head.forget_before(first, dim)),
        }
    }

    /// A copy of the positions from `first` on.
    ///
    /// # Panics
    /// If `first` is neither held nor the end.
    #[must_use]
    pub fn tail(&self, first: usize) -> Self {
        assert!((self.first..=self.end).contains(&first), "a position that is held, or the end");
        let dim = self.dim;
        let heads = match &self.heads {
            Heads::F16(heads) => Heads::F16(heads.iter().map(|h| h.tail(first, dim)).collect()),
            Heads::F32(heads) => Heads::F32(heads.iter().map(|h| h.tail(first, dim)).collect()),
        };
        Self { dim, first, end: self.end, heads }
    }

    /// Appends the positions of `tail`, the first of which follows the last one here.
    ///
    /// # Panics
    /// If it does not follow, or is kept in another way.
    pub fn extend(&mut self, tail: &Self) {
        let (end, dim) = (self.end, self.dim);
        assert_eq!((dim, self.heads(), end), (tail.dim, tail.heads(), tail.first));
        match (&mut self.heads, &tail.heads) {
            (Heads::F16(heads), Heads::F16(tail)) => {
                heads.iter_mut().zip(tail).for_each(|(head, tail)| head.extend(tail, end, dim));
            }
            (Heads::F32(heads), Heads::F32(tail)) => {
                heads.iter_mut().zip(tail).for_each(|(head, tail)| head.extend(tail, end, dim));
            }
            _ => panic!("caches of one type"),
        }
        self.end = tail.end;
    }

    /// The size of the positions held.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let of_one = match &self.heads {
            Heads::F16(heads) => heads.len() * KvType::F16.bytes(),
            Heads::F32(heads) => heads.len() * KvType::F32.bytes(),
        };
        (self.end - self.first) * 2 * self.dim * of_one
    }

    /// Does `work` on the memory of head `head`.
    pub(crate) fn on_head<W: OnHead>(&self, head: usize, work: W) -> W::Output {
        match &self.heads {
            Heads::F16(heads) => work.run(&heads[head]),
            Heads::F32(heads) => work.run(&heads[head]),
        }
    }

    /// The key of `head` at `position`.
    ///
    /// # Panics
    /// If the position is not held.
    pub fn key(&self, position: usize, head: usize, out: &mut [f32]) {
        self.on_head(head, Read { position, dim: self.dim, key: true, out });
    }

    /// The value of `head` at `position`.
    ///
    /// # Panics
    /// As [`KvCache::key`].
    pub fn value(&self, position: usize, head: usize, out: &mut [f32]) {
        self.on_head(head, Read { position, dim: self.dim, key: false, out });
    }

    /// Hashes the stored bits of keys, then values, of positions `from..to`, by position and head.
    ///
    /// # Panics
    /// If a position is not held.
    pub fn hash(&self, from: usize, to: usize, hasher: &mut blake3::Hasher) {
        match &self.heads {
            Heads::F16(heads) => hash(heads, self.dim, from..to, hasher),
            Heads::F32(heads) => hash(heads, self.dim, from..to, hasher),
        }
    }
}

struct Read<'a> {
    position: usize,
    dim: usize,
    key: bool,
    out: &'a mut [f32],
}

impl OnHead for Read<'_> {
    type Output = ();

    fn run<T: Element>(self, head: &Head<T>) {
        let Self { position, dim, key, out } = self;
        if key {
            out.iter_mut().zip(head.key(position, dim)).for_each(|(out, x)| *out = x.to_f32());
        } else {
            let value = head.values(position..position + 1, dim);
            out.iter_mut().zip(value).for_each(|(out, x)| *out = x.to_f32());
        }
    }
}

fn hash<T: Element>(
    heads: &[Head<T>],
    dim: usize,
    positions: Range<usize>,
    hasher: &mut blake3::Hasher,
) {
    for position in positions.clone() {
        let row: Vec<T> = heads.iter().flat_map(|head| head.key(position, dim)).collect();
        T::hash(&row, hasher);
    }
    for position in positions {
        heads.iter().for_each(|head| T::hash(head.values(position..position + 1, dim), hasher));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_come_back_as_they_were_rounded() {
        for (ty, expected) in [(KvType::F16, f16::from_f32(0.1).to_f32()), (KvType::F32, 0.1)] {
            let mut cache = KvCache::new(1, 2, ty);
            cache.append(&[1.0, 0.1], &[2.0, 3.0]);
            cache.append(&[4.0, 5.0], &[6.0, 0.1]);
            let mut out = [0.0; 2];
            cache.key(0, 0, &mut out);
            assert_eq!(out, [1.0, expected]);
            cache.value(1, 0, &mut out);
            assert_eq!(out, [6.0, expected]);
            assert_eq!((cache.first(), cache.end()), (0, 2));
        }
    }

    #[test]
    fn a_tail_goes_back_to_its_place() {
        for (ty, len, from, forgotten) in [
            (KvType::F16, 7, 4, 0),
            (KvType::F32, 7, 7, 3),
            (KvType::F16, 70, 32, 20),
            (KvType::F32, 70, 37, 20),
            (KvType::F16, 48, 47, 40),
            (KvType::F16, 48, 48, 47),
        ] {
            let mut whole = KvCache::new(2, 2, ty);
            (0..len).for_each(|i| {
                let i = i as f32;
                whole.append(&[i, 0.5, i + 0.1, 2.0], &[-i, 0.1, 0.0, i + 0.2]);
            });
            whole.forget_before(forgotten);
            let tail = whole.tail(from);
            assert_eq!((tail.first(), tail.end()), (from, len));
            assert_eq!(tail.bytes() * (len - forgotten), whole.bytes() * (len - from));
            let mut joined = whole.clone();
            joined.truncate(from);
            joined.extend(&tail);
            joined.extend(&whole.tail(len));
            let mut longer = whole.clone();
            joined.append(&[1.0; 4], &[2.0; 4]);
            longer.append(&[1.0; 4], &[2.0; 4]);
            assert_eq!((joined.first(), joined.end()), (forgotten, len + 1));
            let hash = |cache: &KvCache| {
                let mut hasher = blake3::Hasher::new();
                cache.hash(forgotten, len + 1, &mut hasher);
                hasher.finalize()
            };
            assert_eq!(hash(&joined), hash(&longer));
        }
    }

    #[test]
    fn both_ends_can_be_cut() {
        // The hash is that of all keys, then all values.
        let mut two = KvCache::new(2, 1, KvType::F32);
        two.append(&[1.0, 2.0], &[5.0, 6.0]);
        two.append(&[3.0, 4.0], &[7.0, 8.0]);
        let mut hasher = blake3::Hasher::new();
        for x in 1..9 {
            hasher.update(&(x as f32).to_le_bytes());
        }
        let expected = hasher.finalize();
        let mut hasher = blake3::Hasher::new();
        two.hash(0, 2, &mut hasher);
        assert_eq!(hasher.finalize(), expected);

        let hash = |cache: &KvCache, from, to| {
            let mut hasher = blake3::Hasher::new();
            cache.hash(from, to, &mut hasher);
            hasher.finalize()
        };
        let fill = |n: usize| {
            let mut cache = KvCache::new(1, 1, KvType::F16);
            (0..n).for_each(|i| cache.append(&[i as f32], &[-(i as f32)]));
            cache
        };
        let (mut cut, whole) = (fill(9), fill(6));
        let (mut long, longer) = (fill(60), fill(70));
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
        long.forget_before(37);
        long.truncate(40);
        (40..70).for_each(|i| long.append(&[i as f32], &[-(i as f32)]));
        assert_eq!(hash(&long, 37, 70), hash(&longer, 37, 70));
        cut.forget_before(100);
        assert_eq!((cut.first(), cut.end()), (6, 6));
    }
}
