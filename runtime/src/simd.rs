//! Code that is written once and compiled once per instruction set.
//!
//! A [`Kernel`] is generic over the vectors it computes with; [`run`] instantiates it in a function
//! that may use the instructions of the [`Isa`] at hand. Everything a kernel calls must be
//! `#[inline(always)]`, or it is compiled for the baseline of the target instead.
//!
//! A vector has 16 lanes, of which nothing but `+`, `-`, `×` and loads and stores is asked, lane by
//! lane and each rounded once. One register, two of half the size, or an array: the bits are the
//! same. Loops over elements that do not depend on each other need no such vectors; [`per_isa`]
//! compiles them as they stand, and the compiler finds the lanes.

#![expect(unsafe_code, reason = "calls code that is compiled for instructions of the CPU at hand")]

use hadamard::{Isa, Level};
use half::f16;

/// What a vector holds.
pub(crate) const LANES: usize = 16;

/// The operations on vectors of one instruction set. A value proves that the CPU has it.
pub(crate) trait Simd: Copy {
    /// 16 lanes.
    type F32: Copy;

    /// The same number in all lanes.
    fn splat(self, x: f32) -> Self::F32;
    fn load(self, x: &[f32; LANES]) -> Self::F32;
    /// Halves as f32, which is exact.
    fn widen(self, x: &[f16; LANES]) -> Self::F32;
    fn store(self, x: Self::F32, out: &mut [f32; LANES]);
    fn add(self, a: Self::F32, b: Self::F32) -> Self::F32;
    fn sub(self, a: Self::F32, b: Self::F32) -> Self::F32;
    fn mul(self, a: Self::F32, b: Self::F32) -> Self::F32;
    /// Asks for the cache line that lies `ahead` bytes after the first of `x`; there need not be
    /// one. The hardware's own prefetch stops at the ends of pages and of bursts.
    #[inline(always)]
    fn prefetch<T>(self, x: &T, ahead: usize) {
        let _ = (x, ahead);
    }
}

/// A computation that any instruction set can do.
pub(crate) trait Kernel {
    /// Its result.
    type Output;

    /// Does it. Must be `#[inline(always)]`.
    fn run<S: Simd>(self, simd: S) -> Self::Output;
}

/// Runs `kernel` with the instructions of `isa`.
pub(crate) fn run<K: Kernel>(isa: Isa, kernel: K) -> K::Output {
    match isa.level() {
        #[cfg(target_arch = "x86_64")]
        Level::Avx512 => {
            // SAFETY: an `Isa` of this level exists only if the CPU has avx2, avx512f, avx512bw,
            // avx512dq and avx512vl, which are the features the function is compiled for.
            unsafe { x86::avx512(kernel) }
        }
        #[cfg(target_arch = "x86_64")]
        Level::Avx2 if std::arch::is_x86_feature_detected!("f16c") => {
            // SAFETY: an `Isa` of this level exists only if the CPU has avx2; f16c was just asked
            // for. The function is compiled for these two.
            unsafe { x86::avx2(kernel) }
        }
        _ => kernel.run(Arrays),
    }
}

pub(crate) use hadamard::per_isa;

/// Vectors without instructions of their own.
#[derive(Clone, Copy)]
struct Arrays;

impl Simd for Arrays {
    type F32 = [f32; LANES];

    #[inline(always)]
    fn splat(self, x: f32) -> Self::F32 {
        [x; LANES]
    }

    #[inline(always)]
    fn load(self, x: &[f32; LANES]) -> Self::F32 {
        *x
    }

    #[inline(always)]
    fn widen(self, x: &[f16; LANES]) -> Self::F32 {
        x.map(f16::to_f32)
    }

    #[inline(always)]
    fn store(self, x: Self::F32, out: &mut [f32; LANES]) {
        *out = x;
    }

    #[inline(always)]
    fn add(self, a: Self::F32, b: Self::F32) -> Self::F32 {
        std::array::from_fn(|i| a[i] + b[i])
    }

    #[inline(always)]
    fn sub(self, a: Self::F32, b: Self::F32) -> Self::F32 {
        std::array::from_fn(|i| a[i] - b[i])
    }

    #[inline(always)]
    fn mul(self, a: Self::F32, b: Self::F32) -> Self::F32 {
        std::array::from_fn(|i| a[i] * b[i])
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    //! Values of [`Avx2`] and [`Avx512`] are made in the functions of this module only, which are
    //! unsafe to call without the features in their attributes. So wherever a method runs, the CPU
    //! has the features of its type.

    use super::{Kernel, LANES, Simd};
    use half::f16;
    use std::arch::x86_64::*;

    #[target_feature(enable = "avx2,f16c")]
    pub(super) fn avx2<K: Kernel>(kernel: K) -> K::Output {
        kernel.run(Avx2(()))
    }

    #[target_feature(enable = "avx2,avx512f,avx512bw,avx512dq,avx512vl")]
    pub(super) fn avx512<K: Kernel>(kernel: K) -> K::Output {
        kernel.run(Avx512(()))
    }

    #[inline(always)]
    fn line_at(address: *const i8) {
        // SAFETY: a prefetch is a hint that never faults, whatever the address; SSE belongs to
        // x86-64.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(address) }
    }

    /// Proves avx2 and f16c.
    #[derive(Clone, Copy)]
    struct Avx2(());

    impl Avx2 {
        #[inline(always)]
        fn both(self, mut half: impl FnMut(usize) -> __m256) -> [__m256; 2] {
            [half(0), half(1)]
        }
    }

    impl Simd for Avx2 {
        type F32 = [__m256; 2];

        #[inline(always)]
        fn splat(self, x: f32) -> Self::F32 {
            // SAFETY: the CPU has avx2, and so avx (see the module).
            [unsafe { _mm256_set1_ps(x) }; 2]
        }

        #[inline(always)]
        fn load(self, x: &[f32; LANES]) -> Self::F32 {
            let (low, high) = (x[..8].as_ptr(), x[8..].as_ptr());
            // SAFETY: as in `splat`; 8 f32 lie at the address, which need not be aligned.
            let low = unsafe { _mm256_loadu_ps(low) };
            // SAFETY: as above.
            [low, unsafe { _mm256_loadu_ps(high) }]
        }

        #[inline(always)]
        fn widen(self, x: &[f16; LANES]) -> Self::F32 {
            self.both(|i| {
                let halves = x[8 * i..][..8].as_ptr().cast::<__m128i>();
                // SAFETY: 8 halves, 16 bytes, lie at the address, which need not be aligned; SSE2
                // belongs to x86-64.
                let halves = unsafe { _mm_loadu_si128(halves) };
                // SAFETY: the CPU has f16c (see the module).
                unsafe { _mm256_cvtph_ps(halves) }
            })
        }

        #[inline(always)]
        fn store(self, x: Self::F32, out: &mut [f32; LANES]) {
            let (low, high) = out.split_at_mut(8);
            // SAFETY: as in `load`; the 8 f32 are borrowed for writing.
            unsafe { _mm256_storeu_ps(low.as_mut_ptr(), x[0]) };
            // SAFETY: as above.
            unsafe { _mm256_storeu_ps(high.as_mut_ptr(), x[1]) };
        }

        #[inline(always)]
        fn add(self, a: Self::F32, b: Self::F32) -> Self::F32 {
            // SAFETY: the CPU has avx2, and so avx (see the module).
            self.both(|i| unsafe { _mm256_add_ps(a[i], b[i]) })
        }

        #[inline(always)]
        fn sub(self, a: Self::F32, b: Self::F32) -> Self::F32 {
            // SAFETY: the CPU has avx2, and so avx (see the module).
            self.both(|i| unsafe { _mm256_sub_ps(a[i], b[i]) })
        }

        #[inline(always)]
        fn mul(self, a: Self::F32, b: Self::F32) -> Self::F32 {
            // SAFETY: the CPU has avx2, and so avx (see the module).
            self.both(|i| unsafe { _mm256_mul_ps(a[i], b[i]) })
        }

        #[inline(always)]
        fn prefetch<T>(self, x: &T, ahead: usize) {
            line_at(std::ptr::from_ref(x).cast::<i8>().wrapping_add(ahead));
        }
    }

    /// Proves avx512f.
    #[derive(Clone, Copy)]
    struct Avx512(());

    impl Simd for Avx512 {
        type F32 = __m512;

        #[inline(always)]
        fn splat(self, x: f32) -> Self::F32 {
            // SAFETY: the CPU has avx512f (see the module).
            unsafe { _mm512_set1_ps(x) }
        }

        #[inline(always)]
        fn load(self, x: &[f32; LANES]) -> Self::F32 {
            // SAFETY: as in `splat`; 16 f32 lie at the address, which need not be aligned.
            unsafe { _mm512_loadu_ps(x.as_ptr()) }
        }

        #[inline(always)]
        fn widen(self, x: &[f16; LANES]) -> Self::F32 {
            let halves = x.as_ptr().cast::<__m256i>();
            // SAFETY: 16 halves, 32 bytes, lie at the address, which need not be aligned; the CPU
            // has avx512f, and so avx.
            let halves = unsafe { _mm256_loadu_si256(halves) };
            // SAFETY: the CPU has avx512f (see the module).
            unsafe { _mm512_cvtph_ps(halves) }
        }

        #[inline(always)]
        fn store(self, x: Self::F32, out: &mut [f32; LANES]) {
            // SAFETY: as in `load`; the 16 f32 are borrowed for writing.
            unsafe { _mm512_storeu_ps(out.as_mut_ptr(), x) }
        }

        #[inline(always)]
        fn add(self, a: Self::F32, b: Self::F32) -> Self::F32 {
            // SAFETY: the CPU has avx512f (see the module).
            unsafe { _mm512_add_ps(a, b) }
        }

        #[inline(always)]
        fn sub(self, a: Self::F32, b: Self::F32) -> Self::F32 {
            // SAFETY: the CPU has avx512f (see the module).
            unsafe { _mm512_sub_ps(a, b) }
        }

        #[inline(always)]
        fn mul(self, a: Self::F32, b: Self::F32) -> Self::F32 {
            // SAFETY: the CPU has avx512f (see the module).
            unsafe { _mm512_mul_ps(a, b) }
        }

        #[inline(always)]
        fn prefetch<T>(self, x: &T, ahead: usize) {
            line_at(std::ptr::from_ref(x).cast::<i8>().wrapping_add(ahead));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `[a + b, a - b, a · b, splat, widened halves]`.
    struct All<'a>(&'a [f32; LANES], &'a [f32; LANES], &'a [f16; LANES]);

    impl Kernel for All<'_> {
        type Output = [[f32; LANES]; 5];

        #[inline(always)]
        fn run<S: Simd>(self, simd: S) -> Self::Output {
            let (a, b) = (simd.load(self.0), simd.load(self.1));
            let results = [
                simd.add(a, b),
                simd.sub(a, b),
                simd.mul(a, b),
                simd.splat(2.5),
                simd.widen(self.2),
            ];
            results.map(|x| {
                let mut out = [0.0; LANES];
                simd.store(x, &mut out);
                out
            })
        }
    }

    #[test]
    fn all_sets_do_the_same_in_every_lane() {
        let a: [f32; LANES] = std::array::from_fn(|i| (i as f32 - 7.3) * 1.7);
        let b: [f32; LANES] = std::array::from_fn(|i| 0.1 + i as f32 * 31.0);
        let halves: [f16; LANES] = std::array::from_fn(|i| f16::from_bits(0x0151 * i as u16));
        let expected = [
            std::array::from_fn(|i| a[i] + b[i]),
            std::array::from_fn(|i| a[i] - b[i]),
            std::array::from_fn(|i| a[i] * b[i]),
            [2.5; LANES],
            halves.map(f16::to_f32),
        ];
        for isa in Isa::available() {
            assert_eq!(run(isa, All(&a, &b, &halves)), expected, "{}", isa.level());
        }
    }

    /// Every half but NaNs.
    #[test]
    fn halves_are_widened_exactly() {
        for isa in Isa::available() {
            for first in (0..0x1_0000).step_by(LANES) {
                let halves: [f16; LANES] =
                    std::array::from_fn(|i| f16::from_bits(first as u16 + i as u16));
                let [.., found] = run(isa, All(&[0.0; LANES], &[0.0; LANES], &halves));
                for (found, half) in found.iter().zip(halves) {
                    let exact = half::f16::to_f32_const(half);
                    assert!(found.to_bits() == exact.to_bits() || half.is_nan(), "{half}");
                }
            }
        }
    }

    per_isa! {
        fn double(x: &[f32], out: &mut [f32]) -> usize {
            out.iter_mut().zip(x).for_each(|(out, x)| *out = 2.0 * x);
            x.len()
        }
    }

    #[test]
    fn loops_over_elements_are_compiled_for_each_set() {
        for isa in Isa::available() {
            let mut out = [0.0; 3];
            assert_eq!(double(isa, &[1.0, 2.0, 3.0], &mut out), 3);
            assert_eq!(out, [2.0, 4.0, 6.0]);
        }
    }
}
