//! Sine and cosine of an angle in f64.
//!
//! The angle minus the nearest multiple of π/2, taken off in three parts so that no bits are lost,
//! is at most π/4; there the Taylor polynomials of degree 17 and 16 serve.

use super::exp::TO_INTEGER;

/// π/2 in three parts of 33 bits; products with integers below 2^20 are exact.
const PI_2: [f64; 3] = [
    f64::from_bits(0x3FF9_21FB_5440_0000),
    f64::from_bits(0x3DD0_B461_1A60_0000),
    f64::from_bits(0x3BA3_198A_2E00_0000),
];

/// `(-1)^k / (2k + 1)!` and `(-1)^k / (2k)!`.
const SIN: [f64; 9] = coefficients(1);
const COS: [f64; 9] = coefficients(0);

const fn coefficients(first: u32) -> [f64; 9] {
    let mut table = [1.0; 9];
    let (mut k, mut power, mut value) = (1, first as f64, 1.0);
    while k < table.len() {
        value = -value / ((power + 1.0) * (power + 2.0));
        power += 2.0;
        table[k] = value;
        k += 1;
    }
    table
}

/// Sine and cosine. Absolute error of each below 2^-50 for `|x| <= 2^20`; beyond, it grows with the
/// angle. NaN and infinities give NaN.
#[must_use]
pub fn sin_cos(x: f64) -> (f64, f64) {
    let n = (x * std::f64::consts::FRAC_2_PI + TO_INTEGER) - TO_INTEGER;
    let r = PI_2.iter().fold(x, |r, part| r - n * part);
    let r2 = r * r;
    let series = |table: &[f64; 9]| table.iter().rev().fold(0.0, |sum, c| sum * r2 + c);
    let (sin, cos) = (r * series(&SIN), series(&COS));
    match n as i64 & 3 {
        0 => (sin, cos),
        1 => (cos, -sin),
        2 => (-sin, -cos),
        _ => (-cos, sin),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn check(x: f64) -> Result<(), TestCaseError> {
        let (sin, cos) = sin_cos(x);
        let bound = 2.0f64.powi(-50);
        prop_assert!((sin - x.sin()).abs() <= bound, "sin {x}");
        prop_assert!((cos - x.cos()).abs() <= bound, "cos {x}");
        Ok(())
    }

    proptest! {
        #[test]
        fn small_angles(x in -10.0..10.0f64) {
            check(x)?;
        }

        #[test]
        fn angles_of_long_contexts(x in -1_048_576.0..1_048_576.0f64) {
            check(x)?;
        }

        #[test]
        fn whole_radians(x in 0..1_048_576u32) {
            check(f64::from(x))?;
        }
    }

    #[test]
    fn extremes_are_defined() {
        assert_eq!(sin_cos(0.0), (0.0, 1.0));
        for x in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
            let (sin, cos) = sin_cos(x);
            assert!(sin.is_nan() && cos.is_nan());
        }
    }
}
