//! The exponential and what is made of it: sigmoid, SiLU, softplus, tanh.
//!
//! `e^x = 2^n · e^r` with `n` the integer nearest to `x / ln 2` and `|r| <= ln 2 / 2`; `e^r` is its
//! Taylor polynomial of degree 13. Everything is computed in f64 and the f32 result rounded once, so
//! it differs from the correctly rounded one only where the exact value lies within a part in 2^26 of
//! a midpoint between two f32.

use super::log::ln_1p;

/// High and low part of ln 2; products of the high part with integers below 2^20 are exact.
const LN_2_HI: f64 = f64::from_bits(0x3FE6_2E42_FEE0_0000);
const LN_2_LO: f64 = f64::from_bits(0x3DEA_39EF_3579_3C76);

/// 1.5 · 2^52: adding and subtracting it rounds to an integer, half to even. In the sum itself the
/// integer stands in the lowest bits.
pub(super) const TO_INTEGER: f64 = 6_755_399_441_055_744.0;

/// The largest argument of the f64 exponential; its powers of two are all normal numbers.
const LIMIT: f64 = 708.0;

/// `1 / k!`.
const COEFFICIENTS: [f64; 14] = {
    let mut table = [1.0; 14];
    let (mut k, mut factorial) = (1, 1.0);
    while k < table.len() {
        factorial *= k as f64;
        table[k] = 1.0 / factorial;
        k += 1;
    }
    table
};

/// `e^x` in f64 for `|x| <= 708`, relative error below 2^-51; larger arguments count as ±708.
/// NaN gives NaN.
#[must_use]
#[inline(always)]
pub fn exp_f64(x: f64) -> f64 {
    // Comparisons, so that a NaN passes.
    let x = if x > LIMIT { LIMIT } else { x };
    let x = if x < -LIMIT { -LIMIT } else { x };
    let shifted = x * std::f64::consts::LOG2_E + TO_INTEGER;
    let n = shifted - TO_INTEGER;
    let r = (x - n * LN_2_HI) - n * LN_2_LO;
    let [lower @ .., highest] = COEFFICIENTS;
    let e_r = lower.iter().rev().fold(highest, |sum, c| sum * r + c);
    // n is at most 1022 in magnitude, so the 11 bits of an exponent hold n + 1023. No conversion to an
    // integer: AVX2 has none for vectors. Of a NaN, whose bits are anything, e_r is NaN.
    let two_n = f64::from_bits(shifted.to_bits().wrapping_add(1023) << 52);
    e_r * two_n
}

/// `e^x`. Error at most 0.5000001 units in the last place; +∞ above 88.73, 0 below -103.98.
/// NaN gives NaN.
#[must_use]
#[inline(always)]
pub fn exp(x: f32) -> f32 {
    exp_f64(f64::from(x)) as f32
}

/// `1 / (1 + e^-x)`. Error at most 0.5000001 units in the last place, 0 and 1 at the ends.
/// NaN gives NaN.
#[must_use]
#[inline(always)]
pub fn sigmoid(x: f32) -> f32 {
    (1.0 / (1.0 + exp_f64(-f64::from(x)))) as f32
}

/// `x / (1 + e^-x)`. Error at most 0.5000001 units in the last place; -0 at -∞, +∞ at +∞.
/// NaN gives NaN.
#[must_use]
#[inline(always)]
pub fn silu(x: f32) -> f32 {
    let x = f64::from(x);
    // The limit at -∞ is 0, which ∞ / ∞ is not.
    let x = if x < f64::from(f32::MIN) { f64::from(f32::MIN) } else { x };
    (x / (1.0 + exp_f64(-x))) as f32
}

/// `ln(1 + e^x)` up to 20, `x` above. Error at most 0.5000001 units in the last place of that
/// function, 0 at -∞. NaN gives NaN.
#[must_use]
pub fn softplus(x: f32) -> f32 {
    if x > 20.0 { x } else { ln_1p(exp_f64(f64::from(x))) as f32 }
}

/// The hyperbolic tangent, `1 - 2 / (e^2x + 1)`. Absolute error below 2^-24 of 1, ±1 at the ends.
/// NaN gives NaN.
#[must_use]
pub fn tanh(x: f32) -> f32 {
    (1.0 - 2.0 / (exp_f64(2.0 * f64::from(x)) + 1.0)) as f32
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Distance of `found` from `exact` in units of the last place of f32 at `exact`.
    fn ulps(found: f32, exact: f64) -> f64 {
        let near = exact as f32;
        if found.is_infinite() || near.is_infinite() {
            return if found == near { 0.0 } else { f64::INFINITY };
        }
        let above = f32::from_bits(near.abs().to_bits() + 1);
        let unit = if above.is_finite() {
            f64::from(above) - f64::from(near.abs())
        } else {
            f64::from(near.abs()) - f64::from(f32::from_bits(near.abs().to_bits() - 1))
        };
        (f64::from(found) - exact).abs() / unit
    }

    const STATED: f64 = 0.500_000_1;

    /// Every 4001st f32 of the range in which the result is neither 0 nor infinite.
    fn arguments() -> impl Iterator<Item = f32> {
        (0..=f32::to_bits(110.0))
            .step_by(4001)
            .flat_map(|bits| [f32::from_bits(bits), -f32::from_bits(bits)])
    }

    #[test]
    fn stated_errors_hold_over_the_whole_range() {
        for x in arguments() {
            let wide = f64::from(x);
            assert!(ulps(exp(x), wide.exp()) <= STATED, "exp {x}");
            // The platform's f64 results are themselves off by some 2^-53.
            let sigma = 1.0 / (1.0 + (-wide).exp());
            assert!(ulps(sigmoid(x), sigma) <= STATED, "sigmoid {x}");
            assert!(ulps(silu(x), wide * sigma) <= STATED, "silu {x}");
            let plus = if x > 20.0 { wide } else { wide.exp().ln_1p() };
            assert!(ulps(softplus(x), plus) <= STATED, "softplus {x}");
            assert!((f64::from(tanh(x)) - wide.tanh()).abs() <= 2.0f64.powi(-24), "tanh {x}");
        }
    }

    proptest! {
        #[test]
        fn the_f64_exponential_has_its_stated_error(x in -708.0..708.0f64) {
            let exact = x.exp();
            prop_assert!((exp_f64(x) - exact).abs() <= exact * 2.0f64.powi(-51));
        }
    }

    #[test]
    fn extremes_are_defined() {
        let (inf, nan) = (f32::INFINITY, f32::NAN);
        for (x, y) in [(0.0, 1.0), (-0.0, 1.0), (inf, inf), (-inf, 0.0), (89.0, inf), (-104.0, 0.0)]
        {
            assert_eq!(exp(x), y);
        }
        assert_eq!((sigmoid(inf), sigmoid(-inf), sigmoid(0.0)), (1.0, 0.0, 0.5));
        assert_eq!((silu(inf), silu(0.0), silu(-0.0).to_bits()), (inf, 0.0, (-0.0f32).to_bits()));
        assert_eq!(silu(-inf).to_bits(), (-0.0f32).to_bits());
        assert_eq!((silu(f32::MAX), silu(f32::MIN)), (f32::MAX, -0.0));
        assert_eq!((softplus(inf), softplus(-inf), softplus(20.5)), (inf, 0.0, 20.5));
        assert_eq!((tanh(inf), tanh(-inf), tanh(0.0)), (1.0, -1.0, 0.0));
        for f in [exp, sigmoid, silu, softplus, tanh] {
            assert!(f(nan).is_nan());
        }
    }

    /// Fixed bits: a change of the arithmetic, or a platform that differs, shows here.
    #[test]
    fn golden_bits() {
        let bits = [0.1f32, -1.7, 12.5].map(|x| [exp(x), sigmoid(x), silu(x), softplus(x)]);
        assert_eq!(bits.map(|row| row.map(f32::to_bits)), GOLDEN);
    }

    const GOLDEN: [[u32; 4]; 3] = [
        [0x3F8D_763E, 0x3F06_6509, 0x3D57_080F, 0x3F3E_90C8],
        [0x3E3B_1163, 0x3E1E_2C24, 0xBE86_7252, 0x3E2B_D019],
        [0x4883_0629, 0x3F7F_FFC1, 0x4147_FFCF, 0x4148_0004],
    ];
}
