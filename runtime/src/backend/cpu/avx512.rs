//! Sixteen outputs a vector, by `vpdpbusd` on 512 bits.
//!
//! Codes are masked where they lie or shifted down first. Masked in place, the codes of bits 2j and
//! 2j + 1 are `4^j` too large, so they need a sum of their own, which is shifted down once per group:
//! fewer shifts, more registers. One row has registers for four sums and no shift, eight rows shift
//! every chunk. The sums are exact multiples, so the shift loses nothing.
//!
//! Of `a16`, the upper bytes are the signed operand of a dot and the codes the unsigned one; for the
//! lower bytes it is the other way round. Codes up to 3 · 4 are positive as signed bytes as well.

use std::arch::x86_64::*;

use super::layout::{Lanes, Tile};
use super::prefetch;
use crate::quant::{Block, Planes};

/// Multiplies a tile with all rows of `block`; `out`: one value per row and output.
#[target_feature(enable = "avx2,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
pub(super) fn multiply(tile: Tile<'_>, block: Block<'_>, out: &mut [Lanes]) {
    match (block.planes, block.rows) {
        (Planes::One, 1) => a8::<1, 4, { prefetch::FAR }>(tile, block, out),
        (Planes::One, 2) => a8::<2, 4, { prefetch::FAR }>(tile, block, out),
        (Planes::One, 3) => a8::<3, 2, { prefetch::NEAR }>(tile, block, out),
        (Planes::One, 4) => a8::<4, 2, { prefetch::NEAR }>(tile, block, out),
        (Planes::One, 5) => a8::<5, 1, { prefetch::NEAR }>(tile, block, out),
        (Planes::One, 6) => a8::<6, 1, { prefetch::NEAR }>(tile, block, out),
        (Planes::One, 7) => a8::<7, 1, { prefetch::NEAR }>(tile, block, out),
        (Planes::One, 8) => a8::<8, 1, { prefetch::NEAR }>(tile, block, out),
        (Planes::Two, 1) => a16::<1, 2, { prefetch::FAR }>(tile, block, out),
        (Planes::Two, 2) => a16::<2, 2, { prefetch::NEAR }>(tile, block, out),
        (Planes::Two, 3) => a16::<3, 2, { prefetch::NEAR }>(tile, block, out),
        (Planes::Two, 4) => a16::<4, 1, { prefetch::NEAR }>(tile, block, out),
        (Planes::Two, 5) => a16::<5, 1, { prefetch::NEAR }>(tile, block, out),
        (Planes::Two, 6) => a16::<6, 1, { prefetch::NEAR }>(tile, block, out),
        (Planes::Two, 7) => a16::<7, 1, { prefetch::NEAR }>(tile, block, out),
        (Planes::Two, 8) => a16::<8, 1, { prefetch::NEAR }>(tile, block, out),
        _ => unreachable!("blocks have 1 to 8 rows"),
    }
}

/// `R` rows with `F` sums each.
#[target_feature(enable = "avx2,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
fn a8<const R: usize, const F: usize, const AHEAD: usize>(
    tile: Tile<'_>,
    block: Block<'_>,
    out: &mut [Lanes],
) {
    let mut acc = [_mm512_setzero_ps(); R];
    let words = block.words.as_chunks::<R>().0.iter();
    let factors = block.d.as_chunks::<R>().0.iter().zip(block.sums.as_chunks::<R>().0);
    for (g, (words, (d, sums))) in words.zip(factors).enumerate() {
        let (scales, codes) = tile.group(g);
        let mut isum = [[_mm512_setzero_si512(); R]; F];
        isum[0] = std::array::from_fn(|r| _mm512_set1_epi32(-sums[r]));
        for (c, chunk) in codes.iter().enumerate() {
            prefetch::ahead::<AHEAD>(chunk);
            let codes = fields::<F>(load(chunk));
            for j in 0..4 {
                for r in 0..R {
                    let q = _mm512_set1_epi32(words[r][4 * c + j] as i32);
                    isum[j % F][r] = _mm512_dpbusd_epi32(isum[j % F][r], codes[j], q);
                }
            }
        }
        let s = scales_of(scales);
        for r in 0..R {
            let isum = gather(std::array::from_fn::<_, F, _>(|f| isum[f][r]));
            acc[r] = step(acc[r], isum, s, d[r]);
        }
    }
    for r in 0..R {
        out[r] = lanes(acc[r]);
    }
}

/// As [`a8`] with two planes; `F` is 1 or 2.
#[target_feature(enable = "avx2,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
fn a16<const R: usize, const F: usize, const AHEAD: usize>(
    tile: Tile<'_>,
    block: Block<'_>,
    out: &mut [Lanes],
) {
    const { assert!(F <= 2, "codes as signed bytes") }
    let mut acc = [_mm512_setzero_ps(); R];
    let words = block.words.as_chunks::<R>().0.as_chunks::<2>().0.iter();
    let factors = block.d.as_chunks::<R>().0.iter().zip(block.sums.as_chunks::<R>().0);
    for (g, ([upper, lower], (d, sums))) in words.zip(factors).enumerate() {
        let (scales, codes) = tile.group(g);
        let mut isum = [[_mm512_setzero_si512(); R]; F];
        let mut high = [[_mm512_setzero_si512(); R]; F];
        isum[0] = std::array::from_fn(|r| _mm512_set1_epi32(-sums[r]));
        for (c, chunk) in codes.iter().enumerate() {
            prefetch::ahead::<AHEAD>(chunk);
            let codes = fields::<F>(load(chunk));
            for j in 0..4 {
                for r in 0..R {
                    let q = _mm512_set1_epi32(upper[r][4 * c + j] as i32);
                    high[j % F][r] = _mm512_dpbusd_epi32(high[j % F][r], codes[j], q);
                }
                for r in 0..R {
                    let q = _mm512_set1_epi32(lower[r][4 * c + j] as i32);
                    isum[j % F][r] = _mm512_dpbusd_epi32(isum[j % F][r], q, codes[j]);
                }
            }
        }
        let s = scales_of(scales);
        for r in 0..R {
            let isum = gather(std::array::from_fn::<_, F, _>(|f| isum[f][r]));
            let high = gather(std::array::from_fn::<_, F, _>(|f| high[f][r]));
            let isum = _mm512_add_epi32(isum, _mm512_slli_epi32::<8>(high));
            acc[r] = step(acc[r], isum, s, d[r]);
        }
    }
    for r in 0..R {
        out[r] = lanes(acc[r]);
    }
}

/// The four codes of each byte of a chunk, code `j` times `4^(j % F)`.
#[inline]
#[target_feature(enable = "avx2,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
fn fields<const F: usize>(chunk: __m512i) -> [__m512i; 4] {
    let mask = |f: usize| _mm512_set1_epi8((3u8 << (2 * f)) as i8);
    let and = |chunk, f| _mm512_and_si512(chunk, mask(f));
    match F {
        1 => [
            and(chunk, 0),
            and(_mm512_srli_epi16::<2>(chunk), 0),
            and(_mm512_srli_epi16::<4>(chunk), 0),
            and(_mm512_srli_epi16::<6>(chunk), 0),
        ],
        2 => {
            let upper = _mm512_srli_epi16::<4>(chunk);
            [and(chunk, 0), and(chunk, 1), and(upper, 0), and(upper, 1)]
        }
        _ => [and(chunk, 0), and(chunk, 1), and(chunk, 2), and(chunk, 3)],
    }
}

/// The sum of a row from its parts, part `f` being `4^f` too large.
#[inline]
#[target_feature(enable = "avx2,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
fn gather<const F: usize>(isum: [__m512i; F]) -> __m512i {
    match isum.as_slice() {
        [a] => *a,
        [a, b] => _mm512_add_epi32(*a, _mm512_srai_epi32::<2>(*b)),
        [a, b, c, d] => {
            let (b, c) = (_mm512_srai_epi32::<2>(*b), _mm512_srai_epi32::<4>(*c));
            let d = _mm512_srai_epi32::<6>(*d);
            _mm512_add_epi32(_mm512_add_epi32(*a, b), _mm512_add_epi32(c, d))
        }
        _ => unreachable!("one, two or four sums"),
    }
}

/// `acc + isum · (s · d)`, three roundings.
#[inline]
#[target_feature(enable = "avx2,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
fn step(acc: __m512, isum: __m512i, s: __m512, d: f32) -> __m512 {
    let factor = _mm512_mul_ps(s, _mm512_set1_ps(d));
    _mm512_add_ps(acc, _mm512_mul_ps(_mm512_cvtepi32_ps(isum), factor))
}

#[inline]
#[target_feature(enable = "avx2,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
fn load(chunk: &[u8; 64]) -> __m512i {
    // SAFETY: reads the 64 bytes of a live array; the instruction asks for no alignment.
    unsafe { _mm512_loadu_si512(chunk.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "avx2,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
fn scales_of(scales: &[[u8; 2]; 16]) -> __m512 {
    // SAFETY: reads the 32 bytes of a live array; the instruction asks for no alignment.
    let halves = unsafe { _mm256_loadu_si256(scales.as_ptr().cast()) };
    _mm512_cvtph_ps(halves)
}

#[inline]
#[target_feature(enable = "avx2,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
fn lanes(values: __m512) -> Lanes {
    let mut lanes = [0.0; 16];
    // SAFETY: writes the 64 bytes of a live array; the instruction asks for no alignment.
    unsafe { _mm512_storeu_ps(lanes.as_mut_ptr(), values) }
    lanes
}
