//! Natural logarithms and powers, in f64.
//!
//! `ln(2^k · m) = k ln 2 + ln m` with `m` between `√½` and `√2`, and `ln m = 2 artanh s` with
//! `s = (m - 1) / (m + 1)`, whose series in `s²` is cut after 11 terms.

use super::exp::exp_f64;

const LN_2_HI: f64 = f64::from_bits(0x3FE6_2E42_FEE0_0000);
const LN_2_LO: f64 = f64::from_bits(0x3DEA_39EF_3579_3C76);

const MANTISSA_BITS: u32 = f64::MANTISSA_DIGITS - 1;

/// `2 artanh(s)` for `|s| <= 0.172`, which is `ln((1 + s) / (1 - s))`.
fn ln_ratio(s: f64) -> f64 {
    let s2 = s * s;
    // 1/3 + s²/5 + s⁴/7 + ...
    let tail = (1..=11).rev().fold(0.0, |sum, k| sum * s2 + 1.0 / f64::from(2 * k + 1));
    2.0 * s + 2.0 * s * (s2 * tail)
}

/// The natural logarithm. Error below 2^-51 of the larger of the result and `2^-52`.
///
/// -∞ at 0, +∞ at +∞; NaN for NaN and negative numbers.
#[must_use]
pub fn ln(x: f64) -> f64 {
    if x.is_nan() || x < 0.0 {
        return f64::NAN;
    }
    if x == 0.0 {
        return f64::NEG_INFINITY;
    }
    if x == f64::INFINITY {
        return x;
    }
    // Subnormals have no exponent to read.
    let (x, shift) = if x < f64::MIN_POSITIVE { (x * TWO_54, -54.0) } else { (x, 0.0) };
    let exponent = (x.to_bits() >> MANTISSA_BITS) as i32 - 1023;
    let m = f64::from_bits(x.to_bits() & ((1 << MANTISSA_BITS) - 1) | (1023 << MANTISSA_BITS));
    let (m, k) = if m > std::f64::consts::SQRT_2 {
        (m * 0.5, f64::from(exponent) + 1.0)
    } else {
        (m, f64::from(exponent))
    };
    let k = k + shift;
    k * LN_2_HI + (ln_ratio((m - 1.0) / (m + 1.0)) + k * LN_2_LO)
}

const TWO_54: f64 = 18_014_398_509_481_984.0;

/// `ln(1 + y)` for `y >= 0`, without loss where `y` is small. NaN gives NaN.
pub(super) fn ln_1p(y: f64) -> f64 {
    // (1 + s) / (1 - s) = 1 + y for s = y / (2 + y).
    if y < 0.4 { ln_ratio(y / (2.0 + y)) } else { ln(1.0 + y) }
}

/// `base^exponent` for a positive `base`. Relative error below `2^-50` times the larger of 1 and
/// `|exponent · ln base|`; results outside `e^±708` count as the nearest of the two.
#[must_use]
pub fn pow(base: f64, exponent: f64) -> f64 {
    exp_f64(exponent * ln(base))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn logarithms_have_their_stated_error(bits in 1..f64::INFINITY.to_bits()) {
            let x = f64::from_bits(bits);
            let exact = x.ln();
            prop_assert!((ln(x) - exact).abs() <= exact.abs() * 2.0f64.powi(-51));
        }

        #[test]
        fn logarithms_near_one(x in 0.5..2.0f64) {
            let exact = x.ln();
            prop_assert!((ln(x) - exact).abs() <= exact.abs().max(2.0f64.powi(-52)) * 2.0f64.powi(-51));
        }

        #[test]
        fn logarithms_of_one_plus(e in -700.0..20.0f64) {
            let y = e.exp();
            let exact = y.ln_1p();
            prop_assert!((ln_1p(y) - exact).abs() <= exact * 2.0f64.powi(-50));
        }

        #[test]
        fn powers(base in 1e-3..1e8f64, exponent in -4.0..4.0f64) {
            let exact = base.powf(exponent);
            let size = (exponent * base.ln()).abs().max(1.0);
            prop_assert!((pow(base, exponent) - exact).abs() <= exact * size * 2.0f64.powi(-50));
        }
    }

    #[test]
    fn extremes_are_defined() {
        assert_eq!(ln(1.0), 0.0);
        assert_eq!((ln(0.0), ln(f64::INFINITY)), (f64::NEG_INFINITY, f64::INFINITY));
        assert!(ln(-1.0).is_nan() && ln(f64::NAN).is_nan() && ln(f64::NEG_INFINITY).is_nan());
        assert!(ln_1p(f64::NAN).is_nan());
        assert_eq!((pow(1e7, 0.0), pow(1.0, 5.0)), (1.0, 1.0));
    }
}
