//! The integers of [`Activations`](super::Activations), in the order kernels read them.
//!
//! Rows are cut into blocks of at most 8, as equal as can be. A block holds, group by group:
//!
//! ```text
//! plane 0, row 0: 32 words   word w, byte t: column 4w + t of the group's 128
//! plane 0, row 1: 32 words
//! ...
//! plane 1, row 0: 32 words   (a16 only)
//! ...
//! ```
//!
//! so that all a kernel needs for one group of a matrix lies in one run, and a word is the operand of
//! a dot of four. `a8` has one plane, the value as a signed byte. `a16` has two: the upper byte,
//! signed, then the lower one, unsigned; `q = 256 · upper + lower`. Beside them lie the scale `d` and
//! the sum of the 128 integers, `[group, row]` in each block: kernels multiply with codes, which are
//! one more than the weights, and take the sum off.

use std::ops::Range;

use formats::GROUP;
use rayon::prelude::*;

use super::SIGN;
use crate::rows::{Rotated, Rows};

/// Most rows of a block.
pub(crate) const BLOCK_ROWS: usize = 8;

/// 2^-100: groups whose largest value is below are zero.
pub(super) const TINY: f32 = f32::from_bits((127 - 100) << 23);

/// Values below which one thread is faster than waking others.
const SMALL: usize = 1 << 16;

/// One row of one plane of a group.
pub(crate) type Words = [u32; GROUP / 4];

/// How many bytes an integer has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Planes {
    /// One signed byte: `a8`.
    One,
    /// A signed upper and an unsigned lower byte: `a16`.
    Two,
}

impl Planes {
    pub(crate) fn count(self) -> usize {
        match self {
            Self::One => 1,
            Self::Two => 2,
        }
    }
}

/// Rows of integers with their scales.
#[derive(Debug, Clone, PartialEq)]
pub struct Integers {
    planes: Planes,
    n: usize,
    groups: usize,
    words: Vec<Words>,
    d: Vec<f32>,
    sums: Vec<i32>,
}

/// Up to 8 rows of [`Integers`]; the layout is that of the module.
#[derive(Debug, Clone, Copy)]
pub struct Block<'a> {
    pub(crate) rows: usize,
    pub(crate) planes: Planes,
    /// `[groups, planes, rows]`.
    pub(crate) words: &'a [Words],
    /// `[groups, rows]`.
    pub(crate) d: &'a [f32],
    /// `[groups, rows]`.
    pub(crate) sums: &'a [i32],
}

impl Integers {
    pub(super) fn new(x: &Rows<Rotated>, planes: Planes) -> Self {
        let (n, width) = (x.n(), x.width());
        let groups = width / GROUP;
        let mut out = Self {
            planes,
            n,
            groups,
            words: vec![[0; GROUP / 4]; n * groups * planes.count()],
            d: vec![0.0; n * groups],
            sums: vec![0; n * groups],
        };
        let (mut words, mut d, mut sums) = (&mut out.words[..], &mut out.d[..], &mut out.sums[..]);
        let mut work = Vec::with_capacity(groups * n.div_ceil(BLOCK_ROWS));
        for rows in blocks(n) {
            for g in 0..groups {
                let (w, d_of, sums_of);
                (w, words) = words.split_at_mut(rows.len() * planes.count());
                (d_of, d) = d.split_at_mut(rows.len());
                (sums_of, sums) = sums.split_at_mut(rows.len());
                work.push((rows.clone(), g, w, d_of, sums_of));
            }
        }
        let fill = |(rows, g, words, d, sums): Group<'_>| {
            let n = rows.len();
            for (at, row) in rows.enumerate() {
                let x = &x.row(row).as_chunks::<GROUP>().0[g];
                (d[at], sums[at]) = match planes {
                    Planes::One => round_a8(x, &mut words[at]),
                    Planes::Two => {
                        let (upper, lower) = words.split_at_mut(n);
                        round_a16(x, &mut upper[at], &mut lower[at])
                    }
                };
            }
        };
        if n * width < SMALL {
            work.into_iter().for_each(fill);
        } else {
            work.into_par_iter().with_min_len(16).for_each(fill);
        }
        out
    }

    /// The bytes of an integer.
    #[must_use]
    pub fn planes(&self) -> Planes {
        self.planes
    }

    /// The blocks in order of rows, and which rows they are.
    pub fn blocks(&self) -> impl Iterator<Item = (Range<usize>, Block<'_>)> {
        blocks(self.n).map(|rows| (rows.clone(), self.block(rows)))
    }

    fn block(&self, rows: Range<usize>) -> Block<'_> {
        let of = rows.start * self.groups..rows.end * self.groups;
        let planes = self.planes.count();
        Block {
            rows: rows.len(),
            planes: self.planes,
            words: &self.words[of.start * planes..of.end * planes],
            d: &self.d[of.clone()],
            sums: &self.sums[of],
        }
    }

    /// The 128 integers of row `i`, group `g`, and their scale.
    ///
    /// # Panics
    /// If there are none such.
    #[must_use]
    pub fn group(&self, i: usize, g: usize) -> ([i16; GROUP], f32) {
        let rows = blocks(self.n).find(|rows| rows.contains(&i)).expect("a row");
        let block = self.block(rows.clone());
        let (at, n, planes) = (i - rows.start, block.rows, self.planes.count());
        let words = &block.words[g * n * planes..][..n * planes];
        let byte = |plane: usize, k: usize| words[plane * n + at][k / 4].to_le_bytes()[k % 4];
        let q = std::array::from_fn(|k| match self.planes {
            Planes::One => i16::from(byte(0, k) as i8),
            Planes::Two => i16::from_be_bytes([byte(0, k), byte(1, k)]),
        });
        (q, block.d[g * n + at])
    }
}

/// Rows of a block, a group, and where its words, scales and sums go.
type Group<'a> = (Range<usize>, usize, &'a mut [Words], &'a mut [f32], &'a mut [i32]);

/// `n` rows in blocks whose sizes differ by at most one.
fn blocks(n: usize) -> impl Iterator<Item = Range<usize>> {
    let count = n.div_ceil(BLOCK_ROWS);
    (0..count).map(move |b| b * n / count..(b + 1) * n / count)
}

/// Writes the integers; gives scale and sum.
fn round_a8(x: &[f32; GROUP], words: &mut Words) -> (f32, i32) {
    let max = max_abs(x);
    if max < TINY {
        *words = [0; GROUP / 4];
        return (0.0, 0);
    }
    let d = max / 127.0;
    let q = round(x, d, 127.0);
    for (word, q) in words.iter_mut().zip(q.as_chunks::<4>().0) {
        *word = u32::from_le_bytes(q.map(|q| q as u8));
    }
    (d, q.iter().sum())
}

/// Writes upper and lower bytes; gives scale and sum.
fn round_a16(x: &[f32; GROUP], upper: &mut Words, lower: &mut Words) -> (f32, i32) {
    let max = max_abs(x);
    if max < TINY {
        (*upper, *lower) = ([0; GROUP / 4], [0; GROUP / 4]);
        return (0.0, 0);
    }
    let d = power_of_two_scale(max);
    let q = round(x, d, 32767.0);
    let words = upper.iter_mut().zip(lower);
    for ((upper, lower), q) in words.zip(q.as_chunks::<4>().0) {
        *upper = u32::from_le_bytes(q.map(|q| (q >> 8) as u8));
        *lower = u32::from_le_bytes(q.map(|q| q as u8));
    }
    (d, q.iter().sum())
}

fn max_abs(x: &[f32; GROUP]) -> f32 {
    // Magnitudes are ordered as their bits are.
    f32::from_bits(x.iter().fold(0, |max, x| max.max(x.to_bits() & !SIGN)))
}

/// `clamp(round_half_even(x / d))`; quotients are below 2^16 in magnitude.
fn round(x: &[f32; GROUP], d: f32, limit: f32) -> [i32; GROUP] {
    // Between 2^23 and 2^24 floats are the integers, so adding this rounds as `round_ties_even` does,
    // and the sum's bits count from those of the constant. It vectorises on every CPU.
    const SHIFT: f32 = 12_582_912.0; // 1.5 · 2^23
    x.map(|x| {
        let whole = (x / d + SHIFT) - SHIFT;
        let whole = whole.max(-limit).min(limit);
        (whole + SHIFT).to_bits() as i32 - SHIFT.to_bits() as i32
    })
}

/// The power of two that puts `max` into `[2^14, 2^15)`; `max` is a normal number of at least 2^-100.
fn power_of_two_scale(max: f32) -> f32 {
    let exponent = max.to_bits() >> 23;
    f32::from_bits((exponent - 14) << 23)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quant::{ActQuant, Activations};
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// The rule as it is written down, one value at a time.
        #[test]
        fn integers_are_those_of_the_rule(
            n in 1usize..20, groups in 1usize..4, shift in -40i32..40,
            x in prop::collection::vec(
                prop_oneof![-1f32..1.0, Just(0.0), Just(-0.0), Just(1.0), Just(-1.0), Just(0.5)],
                20 * 4 * GROUP,
            ),
        ) {
            let width = groups * GROUP;
            let x: Vec<f32> = x[..n * width].iter().map(|x| x * 2f32.powi(shift)).collect();
            let rows = Rows::from_data(width, x);
            for (act, limit) in [(ActQuant::A8, 127.0), (ActQuant::A16, 32767.0)] {
                let found = Activations::new(&rows, act).unwrap();
                let found = found.integers().unwrap();
                for i in 0..n {
                    for g in 0..groups {
                        let x = &rows.row(i)[g * GROUP..(g + 1) * GROUP];
                        let max = x.iter().fold(0f32, |max, x| max.max(x.abs()));
                        let (q, d) = found.group(i, g);
                        if max < TINY {
                            prop_assert_eq!((q, d), ([0; GROUP], 0.0));
                            continue;
                        }
                        prop_assert_eq!(d, match act {
                            ActQuant::A8 => max / 127.0,
                            _ => {
                                let mut powers = (-126..114).map(|p| 2f32.powi(p));
                                powers.find(|d| max < d * 32768.0).unwrap()
                            }
                        });
                        for (q, x) in q.iter().zip(x) {
                            let rule = (x / d).round_ties_even().clamp(-limit, limit);
                            prop_assert_eq!(f32::from(*q), rule);
                        }
                    }
                }
                for (rows, block) in found.blocks() {
                    for g in 0..groups {
                        for (at, i) in rows.clone().enumerate() {
                            let sum: i32 = found.group(i, g).0.iter().map(|q| i32::from(*q)).sum();
                            prop_assert_eq!(block.sums[g * block.rows + at], sum);
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn blocks_are_as_equal_as_can_be() {
        for n in 0..200 {
            let blocks: Vec<_> = blocks(n).collect();
            let mut next = 0;
            for rows in &blocks {
                assert_eq!(rows.start, next);
                next = rows.end;
            }
            assert_eq!((next, blocks.len()), (n, n.div_ceil(8)));
            let sizes = || blocks.iter().map(ExactSizeIterator::len);
            assert!(sizes().max().unwrap_or(0) <= 8.min(sizes().min().unwrap_or(0) + 1));
        }
    }
}
