//! Calibration data: what the matrices of a drafter are multiplied with, as second moments.
//!
//! A file `drafter-calib/1` is a safetensors file. For every distinct input `x` of a drafter's
//! matrices ([`Input`]) it holds `Σ w x' x'ᵀ` over rows of served rounds, where `x' = H x` is the input
//! in the rotated basis and `w` the weight of a row:
//!
//! ```text
//! layers.0.qkv        I64 [width / block, block (block + 1) / 2]   tiles on the diagonal, upper triangle by rows
//! layers.0.qkv.pairs  I64 [tiles i < j, block, block]              the others, where they were asked for
//! __metadata__        format, document (JSON, see [`Document`]), document_sha256
//! ```
//!
//! An element is an integer that counts units of `2^exponent`. Sums of integers do not depend on their
//! order, so [`merge`] of files that share the work has the bits of one run over all of it; the exponent
//! depends on the two models only, never on the texts.
//!
//! Every tile has its SHA-256 in the document, and the document has one beside it: what was damaged is
//! refused, not used.

mod document;
mod file;
mod input;
mod merge;
mod writer;

pub use document::{Document, InputRecord, Models, Texts, Units, WEIGHT_ONE};
pub use file::File;
pub use input::{Input, inputs_of};
pub use merge::merge;
pub use writer::{Tiles, file_len, write};

/// The value of `format` in the metadata.
pub const FORMAT: &str = "drafter-calib/1";

/// One tile of an input's moments.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Tile {
    /// The one at `(i, i)`: its upper triangle, row by row, `block (block + 1) / 2` values.
    Diagonal(usize),
    /// The one at `(i, j)`, `i < j`: all `block * block` values, row by row.
    Pair(usize, usize),
}

impl Tile {
    /// Values of the tile in blocks of `block`.
    #[must_use]
    pub fn len(self, block: usize) -> usize {
        match self {
            Self::Diagonal(_) => triangle(block),
            Self::Pair(..) => block * block,
        }
    }

    /// The tiles of `n` blocks in the order of the file, those on the diagonal first.
    pub fn all(n: usize, full: bool) -> impl Iterator<Item = Self> {
        let pairs = (0..if full { n } else { 0 })
            .flat_map(move |i| (i + 1..n).map(move |j| Self::Pair(i, j)));
        (0..n).map(Self::Diagonal).chain(pairs)
    }

    /// Its number among those of its kind, for `n` blocks.
    #[must_use]
    pub fn place(self, n: usize) -> usize {
        match self {
            Self::Diagonal(i) => i,
            Self::Pair(i, j) => i * n - i * (i + 1) / 2 + (j - i - 1),
        }
    }
}

/// Values of the upper triangle of a square of `block`.
#[must_use]
pub fn triangle(block: usize) -> usize {
    block * (block + 1) / 2
}

/// Bits of an element's integer that a mean square takes: the rest is for sums and outliers.
const MEAN_SQUARE_BITS: i32 = 24;

/// The unit of an input whose elements have this mean square, as a power of two: `2^-25` of it, so that
/// what a rounded sum loses is nothing beside the sum, and `2^38` times as much fits an element.
#[must_use]
pub fn exponent_of(mean_square: f64) -> i32 {
    // Below, a model's numbers are none that matter.
    let floor = power_of_two(-100);
    let bits = if mean_square > floor { mean_square } else { floor }.to_bits();
    (((bits >> 52) & 0x7ff) as i32 - 1023) - MEAN_SQUARE_BITS
}

/// `sum` in units of `2^exponent`, rounded half to even; nothing where it does not fit.
#[must_use]
pub fn to_units(sum: f64, exponent: i32) -> Option<i64> {
    let units = (sum * power_of_two(-exponent)).round_ties_even();
    (units.abs() < power_of_two(62)).then_some(units as i64)
}

/// `2^exponent`, exact for exponents of normal numbers.
fn power_of_two(exponent: i32) -> f64 {
    f64::from_bits(((exponent + 1023) as u64) << 52)
}

#[cfg(test)]
mod tests;
