//! What ternarization did to a matrix: the figures of the report.

use std::collections::BTreeMap;

use formats::GROUP;
use half::f16;

use super::Choice;

/// Sums over groups. Adding the same parts in the same order gives the same bits.
#[derive(Debug, Clone, PartialEq)]
pub struct Stats {
    /// Groups seen.
    pub groups: u64,
    /// Weights whose code is the value 0.
    pub zeros: u64,
    /// Sum of w^2.
    pub energy: f64,
    /// Sum of (w - s t)^2.
    pub error: f64,
    /// Groups that were all zero.
    pub zero_groups: u64,
    /// Groups with a non-zero weight whose scale rounds to zero.
    pub underflow_groups: u64,
    /// Stored scales by binary exponent: entry `e` counts scales in
    /// `[2^(e - 24), 2^(e - 23))`, so that entry 0 is the smallest fp16 subnormal.
    pub scale_exponents: [u64; Stats::EXPONENTS],
}

impl Default for Stats {
    fn default() -> Self {
        Self {
            groups: 0,
            zeros: 0,
            energy: 0.0,
            error: 0.0,
            zero_groups: 0,
            underflow_groups: 0,
            scale_exponents: [0; Self::EXPONENTS],
        }
    }
}

impl Stats {
    /// Binary exponents of positive fp16 values: -24 to 15.
    pub const EXPONENTS: usize = 40;
    /// The exponent of entry 0 of [`Stats::scale_exponents`].
    pub const FIRST_EXPONENT: i32 = -24;

    /// Sum of squared errors over sum of squares; 0 for an all-zero matrix.
    #[must_use]
    pub fn relative_error(&self) -> f64 {
        if self.energy > 0.0 { self.error / self.energy } else { 0.0 }
    }

    /// Share of weights whose code is the value 0.
    #[must_use]
    pub fn zero_share(&self) -> f64 {
        if self.groups == 0 {
            return 0.0;
        }
        self.zeros as f64 / (self.groups * GROUP as u64) as f64
    }

    /// Adds what another part of the same matrix counted; call in ascending order of parts.
    pub fn merge(&mut self, part: &Self) {
        self.groups += part.groups;
        self.zeros += part.zeros;
        self.energy += part.energy;
        self.error += part.error;
        self.zero_groups += part.zero_groups;
        self.underflow_groups += part.underflow_groups;
        for (sum, n) in self.scale_exponents.iter_mut().zip(part.scale_exponents) {
            *sum += n;
        }
    }

    /// The entry of [`Stats::scale_exponents`] that counts a finite scale, by its
    /// magnitude; none for zero.
    #[must_use]
    pub fn exponent_entry(scale: f16) -> Option<usize> {
        let bits = scale.to_bits() & 0x7fff;
        let (exponent, fraction) = (usize::from(bits >> 10), bits & 0x3ff);
        match (exponent, fraction) {
            (0, 0) => None,
            // A subnormal is fraction * 2^-24.
            (0, fraction) => Some(fraction.ilog2() as usize),
            (exponent, _) => Some(exponent + 9),
        }
    }

    /// Counts of scales under their binary exponents, without the empty ones.
    #[must_use]
    pub fn by_exponent(counts: &[u64; Self::EXPONENTS]) -> BTreeMap<i32, u64> {
        (Self::FIRST_EXPONENT..).zip(*counts).filter(|(_, n)| *n > 0).collect()
    }

    pub(crate) fn add(&mut self, choice: Choice, stored: f16) {
        let Choice { scale, support, sum, energy } = choice;
        self.groups += 1;
        self.zeros += (GROUP - support) as u64;
        self.energy += energy;
        // (w - s t)^2 summed, with t = sign(w) on the support. Rounding can leave
        // a tiny negative rest where the fit is exact.
        self.error += (energy - 2.0 * scale * sum + support as f64 * scale * scale).max(0.0);
        if let Some(exponent) = Self::exponent_entry(stored) {
            self.scale_exponents[exponent] += 1;
        } else if energy == 0.0 {
            self.zero_groups += 1;
        } else {
            self.underflow_groups += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exponents_count_from_the_smallest_subnormal() {
        for (value, entry) in
            [(2f32.powi(-24), 0), (2f32.powi(-14), 10), (1.0, 24), (1.99, 24), (65280.0, 39)]
        {
            assert_eq!(Stats::exponent_entry(f16::from_f32(value)), Some(entry), "{value}");
            assert_eq!(Stats::exponent_entry(f16::from_f32(-value)), Some(entry), "-{value}");
        }
        assert_eq!(Stats::exponent_entry(f16::ZERO), None);
    }
}
