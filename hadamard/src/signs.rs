//! The diagonal of random signs that precedes the Hadamard matrix.
//!
//! A sign is stored as the bit pattern to exclusive-or into an `f32`: 0, or the sign bit. That makes
//! the product with ±1 a bit operation for any input, and a SIMD kernel needs no conversion.

use crate::Error;

const SIGN_BIT: u32 = 1 << 31;

/// A vector of signs, each 1 or -1, or "all plus" of some width.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Signs {
    width: usize,
    /// `[width]` of 0 or `SIGN_BIT`; empty where all signs are plus.
    flips: Vec<u32>,
}

impl Signs {
    /// Signs that change nothing, for vectors of `width` elements.
    #[must_use]
    pub const fn plus(width: usize) -> Self {
        Signs { width, flips: Vec::new() }
    }

    /// Takes one sign per element, each 1 or -1.
    ///
    /// # Errors
    ///
    /// [`Error::SignValue`] for the first value that is neither.
    pub fn new(values: Vec<i8>) -> Result<Self, Error> {
        let width = values.len();
        let flips = values
            .into_iter()
            .enumerate()
            .map(|(index, value)| match value {
                1 => Ok(0),
                -1 => Ok(SIGN_BIT),
                found => Err(Error::SignValue { index, found }),
            })
            .collect::<Result<Vec<u32>, Error>>()?;
        if flips.iter().all(|&flip| flip == 0) {
            return Ok(Self::plus(width));
        }
        Ok(Signs { width, flips })
    }

    /// The number of elements the signs are for.
    #[must_use]
    pub const fn width(&self) -> usize {
        self.width
    }

    /// Whether no element changes its sign.
    #[must_use]
    pub const fn is_all_plus(&self) -> bool {
        self.flips.is_empty()
    }

    /// The signs in order, `width` values of 1 or -1.
    pub fn values(&self) -> impl Iterator<Item = i8> + '_ {
        (0..self.width).map(
            |idx| {
                if self.flips.get(idx).is_some_and(|&flip| flip != 0) { -1 } else { 1 }
            },
        )
    }

    /// `[width]` patterns to exclusive-or into `f32` bits, or `None` if nothing changes.
    pub(crate) fn flips(&self) -> Option<&[u32]> {
        if self.is_all_plus() { None } else { Some(&self.flips) }
    }
}

/// Negates each element of `x` whose flip is the sign bit. Same lengths.
#[inline]
pub(crate) fn apply(x: &mut [f32], flips: &[u32]) {
    for (x, &flip) in x.iter_mut().zip(flips) {
        *x = f32::from_bits(x.to_bits() ^ flip);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_survive() {
        let values = vec![1, -1, -1, 1, -1];
        let signs = Signs::new(values.clone()).unwrap();
        assert_eq!(signs.width(), 5);
        assert!(!signs.is_all_plus());
        assert!(signs.values().eq(values));
    }

    #[test]
    fn all_plus_is_recognised() {
        assert_eq!(Signs::new(vec![1; 7]), Ok(Signs::plus(7)));
        assert!(Signs::plus(7).is_all_plus());
        assert!(Signs::plus(3).values().eq([1, 1, 1]));
        assert_eq!(Signs::new(Vec::new()), Ok(Signs::plus(0)));
    }

    #[test]
    fn other_values_are_refused() {
        for found in [0, 2, -2, i8::MIN, i8::MAX] {
            let error = Signs::new(vec![1, -1, found, 0]);
            assert_eq!(error, Err(Error::SignValue { index: 2, found }));
        }
    }

    #[test]
    fn a_minus_flips_the_sign_bit_of_anything() {
        let mut x = [0.0, -0.0, 1.5, f32::from_bits(1), f32::INFINITY];
        apply(&mut x, &[SIGN_BIT; 5]);
        let expected = [-0.0, 0.0, -1.5, -f32::from_bits(1), f32::NEG_INFINITY];
        assert_eq!(x.map(f32::to_bits), expected.map(f32::to_bits));
    }
}
