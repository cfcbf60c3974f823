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
    let step = ((s.to_bits() >> MANTISSA_BITS).max(FINEST_STEP + 7) - 7) << MANTISSA_BITS;
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
