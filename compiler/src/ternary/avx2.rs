//! [`super::network`] with AVX2: 8 groups at once.

use std::arch::x86_64::*;

use formats::GROUP;
use hadamard::{Isa, Level};
use half::f16;

use super::network::{self, Lanes};
use super::{GroupFault, Stats};

/// Eight 32-bit lanes. Only [`groups`] makes one, after looking at the [`Isa`].
#[derive(Clone, Copy)]
struct Avx2(());

/// [`super::Ternarizer::groups`] for the optimal rule.
///
/// # Panics
/// If `isa` is below AVX2.
pub(super) fn groups(
    isa: Isa,
    values: &[f32],
    codes: &mut [u8],
    scales: &mut [f16],
    stats: &mut Stats,
) -> Result<(), GroupFault> {
    assert!(isa.level() >= Level::Avx2);
    // SAFETY: an `Isa` of this level exists only where the CPU has AVX2, and the
    // line above holds it to that level.
    unsafe { with_avx2(values, codes, scales, stats) }
}

#[target_feature(enable = "avx2")]
fn with_avx2(
    values: &[f32],
    codes: &mut [u8],
    scales: &mut [f16],
    stats: &mut Stats,
) -> Result<(), GroupFault> {
    network::groups(Avx2(()), values, codes, scales, stats)
}

/// Calls one intrinsic that takes and returns values only.
macro_rules! avx2 {
    ($call:expr) => {
        // SAFETY: an `Avx2` is made only inside `with_avx2`, so the CPU has the
        // instruction; the intrinsic touches no memory.
        unsafe { $call }
    };
}

impl Lanes for Avx2 {
    const N: usize = 8;
    type U = __m256i;
    type D = [__m256d; 2];

    #[inline(always)]
    fn transpose_magnitudes(self, values: &[f32], out: &mut [__m256i; GROUP]) {
        let (rows, _) = values.as_chunks::<GROUP>();
        for (column, out) in out.as_chunks_mut::<8>().0.iter_mut().enumerate() {
            let row = |l: usize| -> __m256i {
                let eight = &rows[l].as_chunks::<8>().0[column];
                self.magnitudes(eight)
            };
            let r = [row(0), row(1), row(2), row(3), row(4), row(5), row(6), row(7)];
            // Pairs of rows, then quadruples, inside each 128-bit half ...
            let a = |i: usize| avx2!(_mm256_unpacklo_epi32(r[i], r[i + 1]));
            let b = |i: usize| avx2!(_mm256_unpackhi_epi32(r[i], r[i + 1]));
            let t = [a(0), b(0), a(2), b(2), a(4), b(4), a(6), b(6)];
            let c = |i: usize, j: usize| avx2!(_mm256_unpacklo_epi64(t[i], t[j]));
            let d = |i: usize, j: usize| avx2!(_mm256_unpackhi_epi64(t[i], t[j]));
            let q = [c(0, 2), d(0, 2), c(1, 3), d(1, 3), c(4, 6), d(4, 6), c(5, 7), d(5, 7)];
            // ... then the halves.
            for i in 0..4 {
                out[i] = avx2!(_mm256_permute2x128_si256::<0x20>(q[i], q[i + 4]));
                out[i + 4] = avx2!(_mm256_permute2x128_si256::<0x31>(q[i], q[i + 4]));
            }
        }
    }

    #[inline(always)]
    fn zero_u(self) -> __m256i {
        avx2!(_mm256_setzero_si256())
    }

    #[inline(always)]
    fn splat(self, x: f64) -> [__m256d; 2] {
        let x = avx2!(_mm256_set1_pd(x));
        [x, x]
    }

    #[inline(always)]
    fn max(self, a: __m256i, b: __m256i) -> __m256i {
        avx2!(_mm256_max_epu32(a, b))
    }

    #[inline(always)]
    fn min(self, a: __m256i, b: __m256i) -> __m256i {
        avx2!(_mm256_min_epu32(a, b))
    }

    #[inline(always)]
    fn widen(self, a: __m256i) -> [__m256d; 2] {
        let a = avx2!(_mm256_castsi256_ps(a));
        let low = avx2!(_mm256_castps256_ps128(a));
        let high = avx2!(_mm256_extractf128_ps::<1>(a));
        [avx2!(_mm256_cvtps_pd(low)), avx2!(_mm256_cvtps_pd(high))]
    }

    #[inline(always)]
    fn add(self, a: [__m256d; 2], b: [__m256d; 2]) -> [__m256d; 2] {
        [avx2!(_mm256_add_pd(a[0], b[0])), avx2!(_mm256_add_pd(a[1], b[1]))]
    }

    #[inline(always)]
    fn mul(self, a: [__m256d; 2], b: [__m256d; 2]) -> [__m256d; 2] {
        [avx2!(_mm256_mul_pd(a[0], b[0])), avx2!(_mm256_mul_pd(a[1], b[1]))]
    }

    #[inline(always)]
    fn larger(self, a: [__m256d; 2], b: [__m256d; 2]) -> [__m256d; 2] {
        [avx2!(_mm256_max_pd(a[0], b[0])), avx2!(_mm256_max_pd(a[1], b[1]))]
    }

    #[inline(always)]
    fn at_least(self, a: [__m256d; 2], b: [__m256d; 2]) -> u32 {
        let low = avx2!(_mm256_cmp_pd::<_CMP_GE_OQ>(a[0], b[0]));
        let high = avx2!(_mm256_cmp_pd::<_CMP_GE_OQ>(a[1], b[1]));
        let low = avx2!(_mm256_movemask_pd(low)) as u32;
        let high = avx2!(_mm256_movemask_pd(high)) as u32;
        low | high << 4
    }

    #[inline(always)]
    fn lanes_u(self, a: __m256i) -> [u32; 16] {
        let mut all = [0; 16];
        // SAFETY: both are 32 bytes, and every bit pattern is eight u32.
        let lanes: [u32; 8] = unsafe { std::mem::transmute(a) };
        all[..8].copy_from_slice(&lanes);
        all
    }

    #[inline(always)]
    fn lane_d(self, a: &[__m256d; 2], lane: usize) -> f64 {
        // SAFETY: both are 64 bytes, and every bit pattern is eight f64.
        let lanes: &[f64; 8] = unsafe { &*std::ptr::from_ref(a).cast() };
        lanes[lane]
    }

    #[inline(always)]
    fn codes(self, w: &[f32; GROUP], threshold: u32, codes: &mut [u8; GROUP / 4]) {
        // Magnitudes are below 2^31, so the signed comparison is the unsigned one.
        let below = avx2!(_mm256_set1_epi32(threshold as i32 - 1));
        let (one, no_sign) = (avx2!(_mm256_set1_epi32(1)), avx2!(_mm256_set1_epi32(MAGNITUDE)));
        let mut quads = [self.zero_u(); 4];
        for (quads, w) in quads.iter_mut().zip(w.as_chunks::<32>().0) {
            let w = w.as_chunks::<8>().0;
            let ternary = |i: usize| {
                let bits = self.bits(&w[i]);
                let reached = avx2!(_mm256_cmpgt_epi32(_mm256_and_si256(bits, no_sign), below));
                avx2!(_mm256_and_si256(_mm256_sign_epi32(one, bits), reached))
            };
            let low = avx2!(_mm256_packs_epi32(ternary(0), ternary(1)));
            let high = avx2!(_mm256_packs_epi32(ternary(2), ternary(3)));
            let bytes = avx2!(_mm256_add_epi8(_mm256_packs_epi16(low, high), _mm256_set1_epi8(1)));
            // c0 + 4 c1 in 16 bits, then with 16 (c2 + 4 c3) in 32.
            let pairs = avx2!(_mm256_maddubs_epi16(bytes, _mm256_set1_epi16(0x0401)));
            *quads = avx2!(_mm256_madd_epi16(pairs, _mm256_set1_epi32(0x0010_0001)));
        }
        // Each 32-bit number is one byte of codes: the low halves hold the first,
        // third, ... byte of every eight weights, the high halves the others.
        let low = avx2!(_mm256_packus_epi32(quads[0], quads[1]));
        let high = avx2!(_mm256_packus_epi32(quads[2], quads[3]));
        let bytes = avx2!(_mm256_packus_epi16(low, high));
        let first = avx2!(_mm256_castsi256_si128(bytes));
        let second = avx2!(_mm256_extracti128_si256::<1>(bytes));
        let (out, _) = codes.as_chunks_mut::<16>();
        out[0] = to_bytes(avx2!(_mm_unpacklo_epi8(first, second)));
        out[1] = to_bytes(avx2!(_mm_unpackhi_epi8(first, second)));
    }
}

#[inline(always)]
fn to_bytes(a: __m128i) -> [u8; 16] {
    // SAFETY: both are 16 bytes, and every bit pattern is sixteen u8.
    unsafe { std::mem::transmute::<__m128i, [u8; 16]>(a) }
}

/// All bits of an f32 but its sign.
const MAGNITUDE: i32 = 0x7fff_ffff;

impl Avx2 {
    #[inline(always)]
    fn bits(self, w: &[f32; 8]) -> __m256i {
        // SAFETY: `w` is 32 readable bytes, and the load needs no alignment.
        unsafe { _mm256_loadu_si256(w.as_ptr().cast()) }
    }

    #[inline(always)]
    fn magnitudes(self, w: &[f32; 8]) -> __m256i {
        let no_sign = avx2!(_mm256_set1_epi32(MAGNITUDE));
        avx2!(_mm256_and_si256(self.bits(w), no_sign))
    }
}
