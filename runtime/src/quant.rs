//! Activations made into integers, block by block, before they meet a ternary matrix.
//!
//! | name | integers | scale `d` of a block of 128 |
//! |---|---|---|
//! | `a8` | -127..=127 | `max|x| / 127` |
//! | `a16` | -32767..=32767 | the power of two that puts `max|x|` into `[2^14, 2^15)` |
//! | `n16` | as `a16` | as `a16` |
//! | `n8` | -127..=127 | the power of two that puts `max|x|` into `[2^6, 2^7)` |
//! | `f32` | none | none: the values themselves, for the oracle |
//!
//! `q = round_half_even(x / d)`, a true division, clamped to the range. A block whose `max|x|` is
//! below 2^-100 is all zeros with `d = 0`. Values that are no numbers are an error.

mod integers;

pub(crate) use integers::BLOCK_ROWS;
pub use integers::{Block, Integers, Planes};

use aie_kernels::arithmetic as npu;
use aie_kernels::layout::ROWS;

use crate::Error;
use crate::rows::{Rotated, Rows};
use formats::GROUP;

/// The arithmetic of the ternary matrices.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ActQuant {
    /// 8-bit integers.
    A8,
    /// 16-bit integers.
    A16,
    /// 16-bit integers with the float part of the NPU.
    N16,
    /// 8-bit integers of a power of two, with the float part of the NPU.
    N8,
    /// No integers: f32 activations, f64 sums. Slow; what the others approximate.
    F32,
}

impl ActQuant {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::A8, Self::A16, Self::N16, Self::N8, Self::F32];

    /// Whether it is an arithmetic of the NPU. The CPU computes it too, in plain code.
    #[must_use]
    pub fn is_npu(self) -> bool {
        matches!(self, Self::N16 | Self::N8)
    }

    /// The name on command lines.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::A8 => "a8",
            Self::A16 => "a16",
            Self::N16 => "n16",
            Self::N8 => "n8",
            Self::F32 => "f32",
        }
    }
}

impl std::fmt::Display for ActQuant {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.name())
    }
}

/// The text is not the name of an [`ActQuant`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown arithmetic `{found}`, expected `a8`, `a16`, `n16`, `n8` or `f32`")]
pub struct ParseActQuantError {
    found: String,
}

impl std::str::FromStr for ActQuant {
    type Err = ParseActQuantError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut all = Self::ALL.into_iter();
        let found = all.find(|act| act.name() == text);
        found.ok_or_else(|| ParseActQuantError { found: text.to_owned() })
    }
}

/// Rows ready for a ternary matrix.
#[derive(Debug, Clone, PartialEq)]
pub struct Activations {
    act: ActQuant,
    n: usize,
    width: usize,
    values: Values,
}

#[derive(Debug, Clone, PartialEq)]
enum Values {
    Integers(Integers),
    /// Blocks of at most 8 rows.
    Npu(Vec<npu::Activations>),
    /// `[n, width]`.
    Floats(Vec<f32>),
}

impl Activations {
    /// Makes integers of `x` as `act` says, on the threads of the current rayon pool.
    ///
    /// # Errors
    /// [`Error::NonFinite`] at the first value that is infinite or NaN.
    ///
    /// # Panics
    /// If the rows are not whole blocks of 128; shapes are checked where models are loaded.
    pub fn new(x: &Rows<Rotated>, act: ActQuant) -> Result<Self, Error> {
        let (n, width) = (x.n(), x.width());
        assert!(width.is_multiple_of(GROUP), "whole blocks");
        if let Some(at) = first_non_finite(x.data()) {
            return Err(Error::NonFinite { what: "activation", row: at / width, at: at % width });
        }
        let values = match act {
            ActQuant::F32 => Values::Floats(x.data().to_vec()),
            ActQuant::A8 => Values::Integers(Integers::new(x, Planes::One)),
            ActQuant::A16 => Values::Integers(Integers::new(x, Planes::Two)),
            ActQuant::N16 => Values::Npu(npu_blocks(x, npu::Mode::N16)?),
            ActQuant::N8 => Values::Npu(npu_blocks(x, npu::Mode::N8)?),
        };
        Ok(Self { act, n, width, values })
    }

    /// How they were made.
    #[must_use]
    pub fn act(&self) -> ActQuant {
        self.act
    }

    /// The number of rows.
    #[must_use]
    pub fn n(&self) -> usize {
        self.n
    }

    /// Values per row.
    #[must_use]
    pub fn width(&self) -> usize {
        self.width
    }

    /// The integers; nothing if the arithmetic has none.
    #[must_use]
    pub fn integers(&self) -> Option<&Integers> {
        match &self.values {
            Values::Integers(integers) => Some(integers),
            Values::Npu(_) | Values::Floats(_) => None,
        }
    }

    /// The rows for the NPU, in blocks of at most 8; nothing if the arithmetic is another one.
    #[must_use]
    pub fn npu(&self) -> Option<&[npu::Activations]> {
        match &self.values {
            Values::Npu(blocks) => Some(blocks),
            Values::Integers(_) | Values::Floats(_) => None,
        }
    }

    /// Row `i` where the arithmetic has no integers.
    ///
    /// # Panics
    /// If there is no such row.
    #[must_use]
    pub fn floats(&self, i: usize) -> Option<&[f32]> {
        match &self.values {
            Values::Integers(_) | Values::Npu(_) => None,
            Values::Floats(x) => Some(&x[i * self.width..(i + 1) * self.width]),
        }
    }
}

fn npu_blocks(x: &Rows<Rotated>, mode: npu::Mode) -> Result<Vec<npu::Activations>, Error> {
    let blocks = x.data().chunks(ROWS * x.width());
    let block = |x_of: &[f32]| npu::Activations::new(x_of, x.width(), mode);
    let blocks: Result<_, npu::OperandError> = blocks.map(block).collect();
    blocks.map_err(|e| Error::Device { device: "npu", what: e.to_string(), hint: None })
}

fn first_non_finite(x: &[f32]) -> Option<usize> {
    let largest = |x: &[f32]| x.iter().fold(0, |max, x| max.max(x.to_bits() & !SIGN));
    // Whole chunks first: the search itself stops at every value.
    let bad = x.chunks(4096).position(|x| largest(x) >= f32::INFINITY.to_bits())?;
    x[bad * 4096..].iter().position(|x| !x.is_finite()).map(|at| bad * 4096 + at)
}

const SIGN: u32 = 1 << 31;

#[cfg(test)]
mod tests {
    use super::integers::TINY;
    use super::*;
    use proptest::prelude::*;

    fn block(values: &[f32]) -> Rows<Rotated> {
        let mut data = vec![0.0; GROUP];
        data[..values.len()].copy_from_slice(values);
        Rows::from_data(GROUP, data)
    }

    fn integers(x: &Rows<Rotated>, act: ActQuant) -> (Vec<i16>, Vec<f32>) {
        let x = Activations::new(x, act).unwrap();
        let integers = x.integers().expect("an integer arithmetic");
        let groups = (0..x.n()).flat_map(|i| (0..x.width() / GROUP).map(move |g| (i, g)));
        let (q, d): (Vec<_>, Vec<_>) = groups.map(|(i, g)| integers.group(i, g)).unzip();
        (q.concat(), d)
    }

    #[test]
    fn a8_by_hand() {
        let (q, d) = integers(&block(&[254.0, 1.0, 3.0, 5.0, -1.0, -254.0]), ActQuant::A8);
        assert_eq!(d, [2.0]);
        // Halves go to the even neighbour.
        assert_eq!(q[..7], [127, 0, 2, 2, 0, -127, 0]);
    }

    #[test]
    fn a16_by_hand() {
        let (q, d) = integers(&block(&[1.0, -0.5, 1.99999, 3.0e-5]), ActQuant::A16);
        assert_eq!(d, [1.0 / 16384.0]);
        // 1.99999 lies at the top of its binade and would round up to 32768.
        assert_eq!(q[..4], [16384, -8192, 32767, 0]);
        let (q, d) = integers(&block(&[f32::MAX]), ActQuant::A16);
        assert_eq!((q[0], d[0]), (32767, f32::from_bits((254 - 14) << 23)));
    }

    #[test]
    fn tiny_blocks_are_zero() {
        for act in [ActQuant::A8, ActQuant::A16] {
            let below = f32::from_bits(TINY.to_bits() - 1);
            assert_eq!(integers(&block(&[below, -below]), act), (vec![0; GROUP], vec![0.0]));
            let (q, d) = integers(&block(&[TINY]), act);
            assert!(q[0] > 0 && d[0] > 0.0);
            assert_eq!(integers(&block(&[-0.0]), act), (vec![0; GROUP], vec![0.0]));
        }
    }

    #[test]
    fn values_that_are_no_numbers_are_refused() {
        for act in ActQuant::ALL {
            for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                let mut data = vec![0.0; 2 * GROUP];
                data[GROUP + 3] = bad;
                let error = Activations::new(&Rows::from_data(GROUP, data), act).unwrap_err();
                assert!(matches!(error, Error::NonFinite { row: 1, at: 3, .. }), "{error}");
            }
        }
    }

    #[test]
    fn names_round_trip() {
        for act in ActQuant::ALL {
            assert_eq!(act.to_string().parse(), Ok(act));
        }
        assert!("a4".parse::<ActQuant>().unwrap_err().to_string().contains("`a4`"));
    }

    proptest! {
        #[test]
        fn integers_are_within_half_a_step(
            x in prop::collection::vec(-1e3f32..1e3, GROUP), shift in -20i32..20
        ) {
            let x: Vec<f32> = x.iter().map(|x| x * 2.0f32.powi(shift)).collect();
            for (act, limit) in [(ActQuant::A8, 127), (ActQuant::A16, 32767)] {
                let (q, d) = integers(&Rows::from_data(GROUP, x.clone()), act);
                for (q, x) in q.iter().zip(&x) {
                    prop_assert!(q.abs() <= limit);
                    let error = (f64::from(*q) * f64::from(d[0]) - f64::from(*x)).abs();
                    // The quotient is rounded to f32 before it is rounded to an integer; the clamp at
                    // the top of a binade costs up to one step.
                    let quotient = (f64::from(q.abs()) + 1.0) * 2f64.powi(-24);
                    let steps = if q.abs() == 32767 { 1.0 } else { 0.5 + quotient };
                    prop_assert!(error <= f64::from(d[0]) * steps);
                }
            }
        }
    }
}
