//! What passes have to do, counted from the shapes of a model: what is held against the limits of
//! [`crate::machine`].
//!
//! A pass over `n` rows multiplies every weight with `n` inputs, and reads every weight once.

use std::iter::Sum;

/// Bytes of a group of ternary weights as it is packed: two bits per weight, and an f16 scale.
const GROUP_BYTES: usize = 34;
const GROUP: usize = 128;

/// Weights that rows are multiplied with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Work {
    /// Ternary weights: a product and an addition of small integers each, per row.
    pub ternary: usize,
    /// Bytes of the ternary weights as they are packed.
    pub ternary_bytes: usize,
    /// Bytes of the float weights as they are stored.
    pub float_bytes: usize,
}

impl Work {
    /// A ternary matrix.
    #[must_use]
    pub fn ternary(out_features: usize, in_features: usize) -> Self {
        let ternary = out_features * in_features;
        Self { ternary, ternary_bytes: ternary / GROUP * GROUP_BYTES, float_bytes: 0 }
    }

    /// A float matrix of `bytes`.
    #[must_use]
    pub fn float(bytes: usize) -> Self {
        Self { float_bytes: bytes, ..Self::default() }
    }

    /// Operations of the dot instruction for `rows` rows: two per ternary weight and row.
    #[must_use]
    pub fn operations(&self, rows: usize) -> f64 {
        2.0 * self.ternary as f64 * rows as f64
    }

    /// Bytes that a pass reads, however many rows it has.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.ternary_bytes + self.float_bytes
    }
}

impl Sum for Work {
    fn sum<I: Iterator<Item = Self>>(works: I) -> Self {
        works.fold(Self::default(), |sum, work| Self {
            ternary: sum.ternary + work.ternary,
            ternary_bytes: sum.ternary_bytes + work.ternary_bytes,
            float_bytes: sum.float_bytes + work.float_bytes,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_two_matrices() {
        let work: Work = [Work::ternary(32, 256), Work::float(1000)].into_iter().sum();
        assert_eq!(work.operations(3), 2.0 * 3.0 * 8192.0);
        assert_eq!(work.bytes(), 64 * 34 + 1000);
    }
}
