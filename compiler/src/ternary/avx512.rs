//! [`super::network`] with AVX-512: 16 groups at once.

use std::arch::x86_64::*;

use formats::GROUP;
use hadamard::{Isa, Level};
use half::f16;

use super::network::{self, Lanes};
use super::{GroupFault, Stats};

/// Sixteen 32-bit lanes. Only [`groups`] makes one, after looking at the [`Isa`].
#[derive(Clone, Copy)]
struct Avx512(());

/// [`super::Ternarizer::groups`] for the optimal rule.
///
/// # Panics
/// If `isa` is below AVX-512.
pub(super) fn groups(
    isa: Isa,
    values: &[f32],
    codes: &mut [u8],
    scales: &mut [f16],
    stats: &mut Stats,
) -> Result<(), GroupFault> {
    assert!(isa.level() >= Level::Avx512);
    // SAFETY: an `Isa` of this level exists only where the CPU has AVX-512 F, BW,
    // DQ and VL, and the line above holds it to that level.
    unsafe { with_avx512(values, codes, scales, stats) }
}

#[target_feature(enable = "avx2,avx512f,avx512bw,avx512dq,avx512vl")]
fn with_avx512(
    values: &[f32],
    codes: &mut [u8],
    scales: &mut [f16],
    stats: &mut Stats,
) -> Result<(), GroupFault> {
    network::groups(Avx512(()), values, codes, scales, stats)
}

/// Calls one intrinsic that takes and returns values only.
macro_rules! avx512 {
    ($call:expr) => {
        // SAFETY: an `Avx512` is made only inside `with_avx512`, so the CPU has the
        // instruction; the intrinsic touches no memory.
        unsafe { $call }
    };
}

impl Lanes for Avx512 {
    const N: usize = 16;
    type U = __m512i;
    type D = [__m512d; 2];

    #[inline(always)]
    fn transpose_magnitudes(self, values: &[f32], out: &mut [__m512i; GROUP]) {
        let (rows, _) = values.as_chunks::<GROUP>();
        for (column, out) in out.as_chunks_mut::<16>().0.iter_mut().enumerate() {
            let mut r: [__m512i; 16] = [self.zero_u(); 16];
            for l in 0..16 {
                r[l] = self.magnitudes(&rows[l].as_chunks::<16>().0[column]);
            }
            // Pairs of rows, then quadruples, inside each 128-bit quarter: afterwards
            // quarter c of r[4 p + j] holds column 4 c + j of rows 4 p .. 4 p + 4 ...
            for p in 0..4 {
                let [w, x, y, z] = [r[4 * p], r[4 * p + 1], r[4 * p + 2], r[4 * p + 3]];
                let wx_low = avx512!(_mm512_unpacklo_epi32(w, x));
                let wx_high = avx512!(_mm512_unpackhi_epi32(w, x));
                let yz_low = avx512!(_mm512_unpacklo_epi32(y, z));
                let yz_high = avx512!(_mm512_unpackhi_epi32(y, z));
                r[4 * p] = avx512!(_mm512_unpacklo_epi64(wx_low, yz_low));
                r[4 * p + 1] = avx512!(_mm512_unpackhi_epi64(wx_low, yz_low));
                r[4 * p + 2] = avx512!(_mm512_unpacklo_epi64(wx_high, yz_high));
                r[4 * p + 3] = avx512!(_mm512_unpackhi_epi64(wx_high, yz_high));
            }
            // ... then a 4 x 4 transpose of the quarters.
            for j in 0..4 {
                let [w, x, y, z] = [r[j], r[4 + j], r[8 + j], r[12 + j]];
                let wx_02 = avx512!(_mm512_shuffle_i32x4::<0b10_00_10_00>(w, x));
                let wx_13 = avx512!(_mm512_shuffle_i32x4::<0b11_01_11_01>(w, x));
                let yz_02 = avx512!(_mm512_shuffle_i32x4::<0b10_00_10_00>(y, z));
                let yz_13 = avx512!(_mm512_shuffle_i32x4::<0b11_01_11_01>(y, z));
                out[j] = avx512!(_mm512_shuffle_i32x4::<0b10_00_10_00>(wx_02, yz_02));
                out[4 + j] = avx512!(_mm512_shuffle_i32x4::<0b10_00_10_00>(wx_13, yz_13));
                out[8 + j] = avx512!(_mm512_shuffle_i32x4::<0b11_01_11_01>(wx_02, yz_02));
                out[12 + j] = avx512!(_mm512_shuffle_i32x4::<0b11_01_11_01>(wx_13, yz_13));
            }
        }
    }

    #[inline(always)]
    fn zero_u(self) -> __m512i {
        avx512!(_mm512_setzero_si512())
    }

    #[inline(always)]
    fn splat(self, x: f64) -> [__m512d; 2] {
        let x = avx512!(_mm512_set1_pd(x));
        [x, x]
    }

    #[inline(always)]
    fn max(self, a: __m512i, b: __m512i) -> __m512i {
        avx512!(_mm512_max_epu32(a, b))
    }

    #[inline(always)]
    fn min(self, a: __m512i, b: __m512i) -> __m512i {
        avx512!(_mm512_min_epu32(a, b))
    }

    #[inline(always)]
    fn widen(self, a: __m512i) -> [__m512d; 2] {
        let a = avx512!(_mm512_castsi512_ps(a));
        let low = avx512!(_mm512_castps512_ps256(a));
        let high = avx512!(_mm512_extractf32x8_ps::<1>(a));
        [avx512!(_mm512_cvtps_pd(low)), avx512!(_mm512_cvtps_pd(high))]
    }

    #[inline(always)]
    fn add(self, a: [__m512d; 2], b: [__m512d; 2]) -> [__m512d; 2] {
        [avx512!(_mm512_add_pd(a[0], b[0])), avx512!(_mm512_add_pd(a[1], b[1]))]
    }

    #[inline(always)]
    fn mul(self, a: [__m512d; 2], b: [__m512d; 2]) -> [__m512d; 2] {
        [avx512!(_mm512_mul_pd(a[0], b[0])), avx512!(_mm512_mul_pd(a[1], b[1]))]
    }

    #[inline(always)]
    fn larger(self, a: [__m512d; 2], b: [__m512d; 2]) -> [__m512d; 2] {
        [avx512!(_mm512_max_pd(a[0], b[0])), avx512!(_mm512_max_pd(a[1], b[1]))]
    }

    #[inline(always)]
    fn at_least(self, a: [__m512d; 2], b: [__m512d; 2]) -> u32 {
        let low = avx512!(_mm512_cmp_pd_mask::<_CMP_GE_OQ>(a[0], b[0]));
        let high = avx512!(_mm512_cmp_pd_mask::<_CMP_GE_OQ>(a[1], b[1]));
        u32::from(low) | u32::from(high) << 8
    }

    #[inline(always)]
    fn lanes_u(self, a: __m512i) -> [u32; 16] {
        // SAFETY: both are 64 bytes, and every bit pattern is sixteen u32.
        unsafe { std::mem::transmute(a) }
    }

    #[inline(always)]
    fn lane_d(self, a: &[__m512d; 2], lane: usize) -> f64 {
        // SAFETY: both are 128 bytes, and every bit pattern is sixteen f64.
        let lanes: &[f64; 16] = unsafe { &*std::ptr::from_ref(a).cast() };
        lanes[lane]
    }

    #[inline(always)]
    fn codes(self, w: &[f32; GROUP], threshold: u32, codes: &mut [u8; GROUP / 4]) {
        let threshold = avx512!(_mm512_set1_epi32(threshold as i32));
        for (w, codes) in w.as_chunks::<16>().0.iter().zip(codes.as_chunks_mut::<4>().0) {
            let reached = avx512!(_mm512_cmpge_epu32_mask(self.magnitudes(w), threshold));
            let negative = avx512!(_mm512_movepi32_mask(self.bits(w)));
            let [reached_low, reached_high] = reached.to_le_bytes();
            let [negative_low, negative_high] = negative.to_le_bytes();
            let low = network::codes_of_masks(reached_low, negative_low);
            let high = network::codes_of_masks(reached_high, negative_high);
            *codes = (u32::from(low) | u32::from(high) << 16).to_le_bytes();
        }
    }
}

impl Avx512 {
    #[inline(always)]
    fn bits(self, w: &[f32; 16]) -> __m512i {
        // SAFETY: `w` is 64 readable bytes, and the load needs no alignment.
        unsafe { _mm512_loadu_si512(w.as_ptr().cast()) }
    }

    #[inline(always)]
    fn magnitudes(self, w: &[f32; 16]) -> __m512i {
        let no_sign = avx512!(_mm512_set1_epi32(0x7fff_ffff));
        avx512!(_mm512_and_si512(self.bits(w), no_sign))
    }
}
