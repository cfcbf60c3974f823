//! The grid of scales: fp16 numbers that bf16 holds as well.
//!
//! A GGUF block stores its scale in fp16 (11 significant bits, from 2^-24 on),
//! a q4nx chunk in bf16 (8 significant bits). For one drafter to have the same
//! weights in both files, a scale must be exact in both. The grid is therefore
//! every non-negative fp16 value with at most 8 significant bits, fp16's
//! subnormals included: `n * 2^q` with `n` in `0..256` and `q` in `-24..=8`.
//!
//! ```text
//!  0 .. 2^-16       multiples of 2^-24       n = 0..256, spacing fixed
//!  2^e .. 2^(e+1)   multiples of 2^(e-7)     n = 128..256, e = -16..=15
//!  65280            the largest, 255 * 2^8; from 65408 on values round past it
//! ```

use half::{bf16, f16};

/// The largest scale on the grid.
pub const MAX: f32 = 65280.0;

/// The smallest value that rounds past [`MAX`]: midway to 65536, a tie that goes
/// to the even neighbour.
pub const OVERFLOW: f64 = 65408.0;

const MANTISSA_BITS: u32 = f64::MANTISSA_DIGITS - 1;
/// The grid's finest step, 2^-24, as an f64 exponent with its bias.
const FINEST_STEP: u64 = 1023 - 24;

/// Whether the magnitude of `s` is on the grid; the sign does not count.
/// Infinities and NaN are not on it.
#[must_use]
pub fn on_grid(s: f16) -> bool {
    let magnitude = s.to_bits() & 0x7FFF;
    match magnitude >> 10 {
        0 => magnitude == 0 || magnitude >> magnitude.trailing_zeros() < 256,
        0x1F => false,
        // 10 stored bits of which the low 3 lie below 8 significant bits.
        _ => magnitude & 7 == 0,
    }
}

/// The grid value nearest to `s`, half to even; `None` when it lies past
/// [`MAX`] (`s >=` [`OVERFLOW`]). Tiny values round to +0.
///
/// `s` is a finite number that is not negative; for anything else the answer is
/// `None` too.
#[inline]
#[must_use]
pub fn round_to_grid(s: f64) -> Option<f16> {
    if !(0.0..OVERFLOW).contains(&s) {
        return None;
    }
    let bits = nearest(s).to_bits();
    let exponent = (bits >> MANTISSA_BITS) as i32 - 1023;
    Some(f16::from_bits(if exponent >= -14 {
        (((exponent + 15) as u16) << 10) | ((bits >> (MANTISSA_BITS - 10)) as u16 & 0x3FF)
    } else {
        // A subnormal's bits are its value in units of 2^-24.
        (f64::from_bits(bits) * 16_777_216.0) as u16
    }))
}

/// [`round_to_grid`] without the way to fp16 and back: the rounded value itself.
///
/// `s` is at least 0 and below [`OVERFLOW`]; outside, the result is no scale.
/// No branches: a loop over candidates vectorises.
#[inline]
#[must_use]
pub fn nearest(s: f64) -> f64 {
    // The grid's step at `s` has the exponent max(exponent(s) - 7, -24). Adding
    // 1.5 * 2^52 steps leaves no bits below the step, rounded half to even;
    // subtracting the same is exact.
    let exponent = (s.to_bits() >> MANTISSA_BITS) & 0x7FF;
    let step = (exponent.max(FINEST_STEP + 7) - 7) << MANTISSA_BITS;
    let shift = f64::from_bits(step) * 6_755_399_441_055_744.0;
    (s + shift) - shift
}

/// `s` in bf16, when that is exact; `None` when bits would be lost, and for
/// infinities and NaN.
#[inline]
#[must_use]
pub fn to_bf16_exact(s: f16) -> Option<bf16> {
    let bits = s.to_f32().to_bits();
    (bits & 0xFFFF == 0 && s.is_finite()).then(|| bf16::from_bits((bits >> 16) as u16))
}

/// `s` in fp16, when that is exact; `None` when `s` has no fp16 equal, and for
/// infinities and NaN.
#[inline]
#[must_use]
pub fn from_bf16_exact(s: bf16) -> Option<f16> {
    let narrow = f16::from_f32(s.to_f32());
    (narrow.is_finite() && narrow.to_f32().to_bits() == s.to_f32().to_bits()).then_some(narrow)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The grid in ascending order with the first value past it, by definition:
    /// fp16 values whose integer in units of 2^-24 has at most 8 significant bits.
    fn grid() -> Vec<f64> {
        let mut grid: Vec<f64> = (0..0x7C00)
            .map(|bits| f16::from_bits(bits).to_f64())
            .filter(|value| {
                let units = (value * 2f64.powi(24)) as u64;
                units == 0 || units >> units.trailing_zeros() < 256
            })
            .collect();
        grid.push(65536.0);
        grid
    }

    #[test]
    fn membership_of_every_fp16_pattern() {
        let mut positive = 0;
        for bits in 0..=u16::MAX {
            let s = f16::from_bits(bits);
            let units = (s.to_f64().abs() * 2f64.powi(24)) as u64;
            let expected = s.is_finite() && (units == 0 || units >> units.trailing_zeros() < 256);
            assert_eq!(on_grid(s), expected, "{bits:#06X}");
            // On the grid and exact in bf16 is the same.
            assert_eq!(to_bf16_exact(s).is_some(), expected, "{bits:#06X}");
            if let Some(wide) = to_bf16_exact(s) {
                assert_eq!(wide.to_f64(), s.to_f64());
                assert_eq!(from_bf16_exact(wide).map(f16::to_bits), Some(bits));
            }
            positive += u32::from(expected && s > f16::ZERO);
        }
        assert_eq!(positive, 4351);
        assert_eq!(grid().iter().rev().nth(1), Some(&f64::from(MAX)));
    }

    #[test]
    fn bf16_without_an_fp16_equal() {
        for bits in 0..=u16::MAX {
            let s = bf16::from_bits(bits);
            let expected = s.is_finite() && f16::from_f64(s.to_f64()).to_f64() == s.to_f64();
            assert_eq!(from_bf16_exact(s).is_some(), expected, "{bits:#06X}");
        }
    }

    /// The nearest grid value by search; a tie goes to the even place in the
    /// grid, which is the even significand. 65536 stands for overflow.
    fn by_search(grid: &[f64], s: f64) -> f64 {
        let above = grid.partition_point(|g| *g < s).min(grid.len() - 1).max(1);
        let (low, high) = (grid[above - 1], grid[above]);
        let middle = low + (high - low) / 2.0;
        if s < middle || (s == middle && above % 2 == 1) { low } else { high }
    }

    fn check(grid: &[f64], s: f64) {
        let expected = by_search(grid, s);
        let rounded = round_to_grid(s);
        if expected == 65536.0 {
            assert_eq!(rounded, None, "{s:e}");
        } else {
            assert_eq!(rounded.map(f16::to_f64), Some(expected), "{s:e}");
            assert!(rounded.is_some_and(|s| on_grid(s) && s.is_sign_positive()));
            assert_eq!(nearest(s), expected, "{s:e}");
        }
    }

    #[test]
    fn rounds_at_and_beside_every_value_and_midpoint() {
        let grid = grid();
        for pair in grid.windows(2) {
            for s in [pair[0], pair[0] + (pair[1] - pair[0]) / 2.0, pair[1]] {
                check(&grid, s.next_down().max(0.0));
                check(&grid, s);
                check(&grid, s.next_up());
            }
        }
    }

    #[test]
    fn the_ends_of_the_range() {
        assert_eq!(round_to_grid(65407.99).map(f16::to_f32), Some(MAX));
        assert_eq!(round_to_grid(OVERFLOW.next_down()).map(f16::to_f32), Some(MAX));
        for s in [OVERFLOW, 65536.0, f64::MAX, f64::INFINITY, f64::NAN, -1.0, -f64::MIN_POSITIVE] {
            assert_eq!(round_to_grid(s), None, "{s}");
        }
        for s in [0.0, -0.0, f64::MIN_POSITIVE, 5e-324, 2f64.powi(-25)] {
            assert_eq!(round_to_grid(s).map(f16::to_bits), Some(0), "{s:e}");
        }
        assert_eq!(round_to_grid(2f64.powi(-25).next_up()).map(f16::to_bits), Some(1));
    }

    proptest! {
        #[test]
        fn rounds_to_the_nearest(exponent in -40.0..17.0f64) {
            check(&grid(), exponent.exp2());
        }

        #[test]
        fn rounding_is_monotonic(a in 0.0..70000.0f64, b in 0.0..70000.0f64) {
            let of = |s| round_to_grid(s).map_or(f32::INFINITY, f16::to_f32);
            prop_assert!(of(a.min(b)) <= of(a.max(b)));
        }
    }
}
