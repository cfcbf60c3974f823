//! Eight lanes a vector, up to sixteen vectors in registers.
//!
//! A block is passed over two or three times, each time with several stages done in registers:
//!
//! ```text
//! pass 1   8 adjacent vectors    strides 1, 2, 4 inside a vector, 8, 16, 32 between vectors
//! pass 2.. 2 to 16 vectors       one to four of the strides from 64 up, between vectors
//! ```
//!
//! Inside a vector a butterfly is `swapped + (x with the upper element of each pair negated)`, where
//! `swapped` has the two elements of each pair exchanged: `v + u` below and `u + (-v)` above, the
//! same bits as `u + v` and `u - v`.

use std::arch::x86_64::*;

use super::prefetch;

/// The least block size pass 1 can work on.
pub(super) const MIN_BLOCK: usize = 64;

type Lanes = [f32; 8];

/// Transforms each block of `x`, signs first if there are any.
///
/// `x`: whole blocks of `block` elements, a power of two from [`MIN_BLOCK`] to 8192; `flips`:
/// `[x.len()]` sign patterns.
#[target_feature(enable = "avx2")]
pub(super) fn transform(x: &mut [f32], block: usize, scale: f32, flips: Option<&[u32]>) {
    let (x, _) = x.as_chunks_mut::<8>();
    let flips = flips.map(|flips| flips.as_chunks::<8>().0);
    let n_vectors = block / 8;
    for (block_idx, x) in x.chunks_exact_mut(n_vectors).enumerate() {
        match flips {
            None => pass1(x, scale),
            Some(flips) => pass1_signed(x, scale, &flips[block_idx * n_vectors..][..n_vectors]),
        }
        // The number is the distance in vectors.
        match n_vectors {
            8 => {}
            16 => radix2_pass::<8>(x),
            32 => radix4_pass::<8>(x),
            64 => radix8_pass::<8>(x),
            128 => radix16_pass::<8>(x),
            256 => {
                radix8_pass::<8>(x);
                radix4_pass::<64>(x);
            }
            512 => {
                radix8_pass::<8>(x);
                radix8_pass::<64>(x);
            }
            1024 => {
                radix16_pass::<8>(x);
                radix8_pass::<128>(x);
            }
            _ => unreachable!("block sizes are powers of two from 64 to 8192"),
        }
    }
}

/// Scales, then strides 1 to 32.
#[target_feature(enable = "avx2")]
fn pass1(x: &mut [Lanes], scale: f32) {
    let scale = _mm256_set1_ps(scale);
    for x in x.as_chunks_mut::<1>().0.as_chunks_mut::<8>().0 {
        prefetch::page_after(x);
        let v = first_stages(gather8(x, 0), scale);
        scatter8(x, 0, v);
    }
}

/// Signs and scales, then strides 1 to 32.
#[target_feature(enable = "avx2")]
fn pass1_signed(x: &mut [Lanes], scale: f32, flips: &[[u32; 8]]) {
    let scale = _mm256_set1_ps(scale);
    let x = x.as_chunks_mut::<1>().0.as_chunks_mut::<8>().0;
    for (x, [f0, f1, f2, f3, f4, f5, f6, f7]) in x.iter_mut().zip(flips.as_chunks::<8>().0) {
        prefetch::page_after(x);
        let [v0, v1, v2, v3, v4, v5, v6, v7] = gather8(x, 0);
        let v = [
            flip(v0, f0),
            flip(v1, f1),
            flip(v2, f2),
            flip(v3, f3),
            flip(v4, f4),
            flip(v5, f5),
            flip(v6, f6),
            flip(v7, f7),
        ];
        scatter8(x, 0, first_stages(v, scale));
    }
}

#[inline]
#[target_feature(enable = "avx2")]
fn first_stages([v0, v1, v2, v3, v4, v5, v6, v7]: [__m256; 8], scale: __m256) -> [__m256; 8] {
    radix8([
        within(_mm256_mul_ps(v0, scale)),
        within(_mm256_mul_ps(v1, scale)),
        within(_mm256_mul_ps(v2, scale)),
        within(_mm256_mul_ps(v3, scale)),
        within(_mm256_mul_ps(v4, scale)),
        within(_mm256_mul_ps(v5, scale)),
        within(_mm256_mul_ps(v6, scale)),
        within(_mm256_mul_ps(v7, scale)),
    ])
}

/// Strides 1, 2 and 4, inside a vector.
#[inline]
#[target_feature(enable = "avx2")]
fn within(x: __m256) -> __m256 {
    let upper1 = _mm256_setr_ps(0.0, -0.0, 0.0, -0.0, 0.0, -0.0, 0.0, -0.0);
    let upper2 = _mm256_setr_ps(0.0, 0.0, -0.0, -0.0, 0.0, 0.0, -0.0, -0.0);
    let upper4 = _mm256_setr_ps(0.0, 0.0, 0.0, 0.0, -0.0, -0.0, -0.0, -0.0);
    let x = _mm256_add_ps(_mm256_permute_ps::<0b10_11_00_01>(x), _mm256_xor_ps(x, upper1));
    let x = _mm256_add_ps(_mm256_permute_ps::<0b01_00_11_10>(x), _mm256_xor_ps(x, upper2));
    _mm256_add_ps(_mm256_permute2f128_ps::<0x01>(x, x), _mm256_xor_ps(x, upper4))
}

/// One stage, at a distance of `STRIDE` vectors.
#[target_feature(enable = "avx2")]
fn radix2_pass<const STRIDE: usize>(x: &mut [Lanes]) {
    for [x0, x1] in x.as_chunks_mut::<STRIDE>().0.as_chunks_mut::<2>().0 {
        for i in 0..STRIDE {
            let (v0, v1) = butterfly(load(&x0[i]), load(&x1[i]));
            store(&mut x0[i], v0);
            store(&mut x1[i], v1);
        }
    }
}

/// Two stages, the first at a distance of `STRIDE` vectors.
#[target_feature(enable = "avx2")]
fn radix4_pass<const STRIDE: usize>(x: &mut [Lanes]) {
    for [x0, x1, x2, x3] in x.as_chunks_mut::<STRIDE>().0.as_chunks_mut::<4>().0 {
        for i in 0..STRIDE {
            let v = [load(&x0[i]), load(&x1[i]), load(&x2[i]), load(&x3[i])];
            let [v0, v1, v2, v3] = radix4(v);
            store(&mut x0[i], v0);
            store(&mut x1[i], v1);
            store(&mut x2[i], v2);
            store(&mut x3[i], v3);
        }
    }
}

/// Three stages, the first at a distance of `STRIDE` vectors.
#[target_feature(enable = "avx2")]
fn radix8_pass<const STRIDE: usize>(x: &mut [Lanes]) {
    for x in x.as_chunks_mut::<STRIDE>().0.as_chunks_mut::<8>().0 {
        for i in 0..STRIDE {
            let v = radix8(gather8(x, i));
            scatter8(x, i, v);
        }
    }
}

/// Four stages, the first at a distance of `STRIDE` vectors.
#[target_feature(enable = "avx2")]
fn radix16_pass<const STRIDE: usize>(x: &mut [Lanes]) {
    for [lower, upper] in
        x.as_chunks_mut::<STRIDE>().0.as_chunks_mut::<8>().0.as_chunks_mut::<2>().0
    {
        for i in 0..STRIDE {
            let [u0, u1, u2, u3, u4, u5, u6, u7] = radix8(gather8(lower, i));
            let [v0, v1, v2, v3, v4, v5, v6, v7] = radix8(gather8(upper, i));
            let (u0, v0) = butterfly(u0, v0);
            let (u1, v1) = butterfly(u1, v1);
            let (u2, v2) = butterfly(u2, v2);
            let (u3, v3) = butterfly(u3, v3);
            let (u4, v4) = butterfly(u4, v4);
            let (u5, v5) = butterfly(u5, v5);
            let (u6, v6) = butterfly(u6, v6);
            let (u7, v7) = butterfly(u7, v7);
            scatter8(lower, i, [u0, u1, u2, u3, u4, u5, u6, u7]);
            scatter8(upper, i, [v0, v1, v2, v3, v4, v5, v6, v7]);
        }
    }
}

/// Three stages between eight vectors.
#[inline]
#[target_feature(enable = "avx2")]
fn radix8([u0, u1, u2, u3, v0, v1, v2, v3]: [__m256; 8]) -> [__m256; 8] {
    let [u0, u1, u2, u3] = radix4([u0, u1, u2, u3]);
    let [v0, v1, v2, v3] = radix4([v0, v1, v2, v3]);
    let (u0, v0) = butterfly(u0, v0);
    let (u1, v1) = butterfly(u1, v1);
    let (u2, v2) = butterfly(u2, v2);
    let (u3, v3) = butterfly(u3, v3);
    [u0, u1, u2, u3, v0, v1, v2, v3]
}

/// Two stages between four vectors.
#[inline]
#[target_feature(enable = "avx2")]
fn radix4([u0, u1, v0, v1]: [__m256; 4]) -> [__m256; 4] {
    let (u0, u1) = butterfly(u0, u1);
    let (v0, v1) = butterfly(v0, v1);
    let (u0, v0) = butterfly(u0, v0);
    let (u1, v1) = butterfly(u1, v1);
    [u0, u1, v0, v1]
}

#[inline]
#[target_feature(enable = "avx2")]
fn butterfly(u: __m256, v: __m256) -> (__m256, __m256) {
    (_mm256_add_ps(u, v), _mm256_sub_ps(u, v))
}

#[inline]
#[target_feature(enable = "avx2")]
fn flip(x: __m256, flips: &[u32; 8]) -> __m256 {
    // SAFETY: the reference covers the 32 bytes read; `loadu` needs no alignment.
    let flips = unsafe { _mm256_loadu_si256(flips.as_ptr().cast()) };
    _mm256_xor_ps(x, _mm256_castsi256_ps(flips))
}

/// Vector `i` of each of eight runs.
#[inline]
#[target_feature(enable = "avx2")]
fn gather8<const STRIDE: usize>(x: &[[Lanes; STRIDE]; 8], i: usize) -> [__m256; 8] {
    let [x0, x1, x2, x3, x4, x5, x6, x7] = x;
    [
        load(&x0[i]),
        load(&x1[i]),
        load(&x2[i]),
        load(&x3[i]),
        load(&x4[i]),
        load(&x5[i]),
        load(&x6[i]),
        load(&x7[i]),
    ]
}

/// Writes vector `i` of each of eight runs.
#[inline]
#[target_feature(enable = "avx2")]
fn scatter8<const STRIDE: usize>(x: &mut [[Lanes; STRIDE]; 8], i: usize, v: [__m256; 8]) {
    let [x0, x1, x2, x3, x4, x5, x6, x7] = x;
    let [v0, v1, v2, v3, v4, v5, v6, v7] = v;
    store(&mut x0[i], v0);
    store(&mut x1[i], v1);
    store(&mut x2[i], v2);
    store(&mut x3[i], v3);
    store(&mut x4[i], v4);
    store(&mut x5[i], v5);
    store(&mut x6[i], v6);
    store(&mut x7[i], v7);
}

#[inline]
#[target_feature(enable = "avx2")]
fn load(x: &Lanes) -> __m256 {
    // SAFETY: the reference covers the 32 bytes read; `loadu` needs no alignment.
    unsafe { _mm256_loadu_ps(x.as_ptr()) }
}

#[inline]
#[target_feature(enable = "avx2")]
fn store(x: &mut Lanes, v: __m256) {
    // SAFETY: the exclusive reference covers the 32 bytes written; `storeu` needs no alignment.
    unsafe { _mm256_storeu_ps(x.as_mut_ptr(), v) }
}
