//! Eight outputs a vector, by a dot of four on 256 bits: one kernel, three instructions.
//!
//! `vpdpbusd` adds four products to a 32-bit sum. AVX2 alone has `vpmaddubsw`, which makes two sums of
//! two products of 16 bits each. A 16-bit sum takes 64 of a group's 128 products, and they fit: with
//! codes up to 3, `a8` and the upper bytes of `a16` stay within 64 · 3 · 128 = 24576, which is a signed
//! sum; the lower bytes are not negative and stay within 64 · 3 · 255 = 48960, which is an unsigned
//! one. So 16-bit sums are made into 32-bit ones once per group.

use std::arch::x86_64::*;

use super::layout::{Lanes, Tile};
use super::prefetch;
use crate::quant::{Block, Planes};

/// Rows of `a16` at a time: two sums each, and there are 16 registers.
const A16_ROWS: usize = 4;

/// Defines `multiply`, which multiplies a tile with all rows of a block and writes one value per row
/// and output, over the functions of a module that say what a dot of four is.
macro_rules! kernel {
    (#[$enable:meta] $dot:ident) => {
        pub(super) mod $dot {
            use super::*;

            #[$enable]
            pub(in crate::backend::cpu) fn multiply(
                tile: Tile<'_>,
                block: Block<'_>,
                out: &mut [Lanes],
            ) {
                match block.planes {
                    // With few rows both halves of a chunk go side by side: more chains of additions.
                    Planes::One => match block.rows {
                        1 => rows::<1, 1, 2>(tile, block, 0, out),
                        2 => rows::<2, 1, 2>(tile, block, 0, out),
                        3 => rows::<3, 1, 2>(tile, block, 0, out),
                        4 => rows::<4, 1, 1>(tile, block, 0, out),
                        5 => rows::<5, 1, 1>(tile, block, 0, out),
                        6 => rows::<6, 1, 1>(tile, block, 0, out),
                        7 => rows::<7, 1, 1>(tile, block, 0, out),
                        8 => rows::<8, 1, 1>(tile, block, 0, out),
                        _ => unreachable!("blocks have 1 to 8 rows"),
                    },
                    Planes::Two => {
                        for (n, out) in out.chunks_mut(A16_ROWS).enumerate() {
                            let first = n * A16_ROWS;
                            match out.len() {
                                1 => rows::<1, 2, 2>(tile, block, first, out),
                                2 => rows::<2, 2, 1>(tile, block, first, out),
                                3 => rows::<3, 2, 1>(tile, block, first, out),
                                _ => rows::<4, 2, 1>(tile, block, first, out),
                            }
                        }
                    }
                }
            }

            /// `R` rows from row `first` of the block on, `P` planes, `H` halves of a chunk at a time.
            #[$enable]
            fn rows<const R: usize, const P: usize, const H: usize>(
                tile: Tile<'_>,
                block: Block<'_>,
                first: usize,
                out: &mut [Lanes],
            ) {
                let mut acc = [[0.0; 16]; R];
                let stride = block.rows;
                for g in 0..block.d.len() / stride {
                    let (scales, codes) = tile.group(g);
                    let of_plane = |p: usize| -> &[_; R] {
                        let words = &block.words[(g * P + p) * stride + first..][..R];
                        words.try_into().expect("R rows")
                    };
                    let words: [_; P] = std::array::from_fn(of_plane);
                    let d = &block.d[g * stride + first..][..R];
                    let sums = &block.sums[g * stride + first..][..R];
                    for half in (0..2).step_by(H) {
                        let mut dots = [[[_mm256_setzero_si256(); R]; H]; P];
                        for (c, chunk) in codes.iter().enumerate() {
                            if half == 0 {
                                prefetch::ahead::<{ prefetch::NEAR }>(chunk);
                            }
                            let chunk: [_; H] =
                                std::array::from_fn(|h| fields(load(chunk, half + h)));
                            for j in 0..4 {
                                for r in 0..R {
                                    let q = _mm256_set1_epi32(words[0][r][4 * c + j] as i32);
                                    for h in 0..H {
                                        dots[0][h][r] = signed(dots[0][h][r], chunk[h][j], q);
                                    }
                                    if P == 2 {
                                        let q = words[1][r][4 * c + j] as i32;
                                        let q = _mm256_set1_epi32(q);
                                        for h in 0..H {
                                            dots[1][h][r] = unsigned(dots[1][h][r], q, chunk[h][j]);
                                        }
                                    }
                                }
                            }
                        }
                        for h in 0..H {
                            let s = scales_of(scales, half + h);
                            for r in 0..R {
                                let minus = _mm256_set1_epi32(-sums[r]);
                                let mut isum = signed_sum(dots[0][h][r]);
                                if P == 2 {
                                    let lower = unsigned_sum(dots[1][h][r]);
                                    isum = _mm256_add_epi32(_mm256_slli_epi32::<8>(isum), lower);
                                }
                                let isum = _mm256_add_epi32(isum, minus);
                                step(&mut acc[r], half + h, isum, s, d[r]);
                            }
                        }
                    }
                }
                out.copy_from_slice(&acc);
            }

            /// The four codes of each byte.
            #[inline]
            #[$enable]
            fn fields(bytes: __m256i) -> [__m256i; 4] {
                let and = |bytes| _mm256_and_si256(bytes, _mm256_set1_epi8(3));
                [
                    and(bytes),
                    and(_mm256_srli_epi16::<2>(bytes)),
                    and(_mm256_srli_epi16::<4>(bytes)),
                    and(_mm256_srli_epi16::<6>(bytes)),
                ]
            }

            /// `acc + isum · (s · d)` in one half of the lanes, three roundings.
            #[inline]
            #[$enable]
            fn step(acc: &mut Lanes, half: usize, isum: __m256i, s: __m256, d: f32) {
                let factor = _mm256_mul_ps(s, _mm256_set1_ps(d));
                let term = _mm256_mul_ps(_mm256_cvtepi32_ps(isum), factor);
                let acc = &mut acc.as_chunks_mut::<8>().0[half];
                // SAFETY: reads the 32 bytes of a live array; no alignment is asked for.
                let sum = unsafe { _mm256_loadu_ps(acc.as_ptr()) };
                let sum = _mm256_add_ps(sum, term);
                // SAFETY: writes the 32 bytes of a live array; no alignment is asked for.
                unsafe { _mm256_storeu_ps(acc.as_mut_ptr(), sum) }
            }

            #[inline]
            #[$enable]
            fn load(chunk: &[u8; 64], half: usize) -> __m256i {
                let half = &chunk.as_chunks::<32>().0[half];
                // SAFETY: reads the 32 bytes of a live array; no alignment is asked for.
                unsafe { _mm256_loadu_si256(half.as_ptr().cast()) }
            }

            #[inline]
            #[$enable]
            fn scales_of(scales: &[[u8; 2]; 16], half: usize) -> __m256 {
                let half = &scales.as_chunks::<8>().0[half];
                // SAFETY: reads the 16 bytes of a live array; no alignment is asked for.
                let halves = unsafe { _mm_loadu_si128(half.as_ptr().cast()) };
                _mm256_cvtph_ps(halves)
            }

            super::dots!(
                #[$enable]
                $dot
            );
        }
    };
}

/// What a dot of four is: `signed` and `unsigned` add one, of codes with signed integers or of
/// unsigned integers with codes; `signed_sum` and `unsigned_sum` give the 32-bit sums of a group.
macro_rules! dots {
    (#[$enable:meta] maddubs) => {
        #[inline]
        #[$enable]
        fn signed(acc: __m256i, codes: __m256i, q: __m256i) -> __m256i {
            _mm256_add_epi16(acc, _mm256_maddubs_epi16(codes, q))
        }

        #[inline]
        #[$enable]
        fn unsigned(acc: __m256i, q: __m256i, codes: __m256i) -> __m256i {
            _mm256_add_epi16(acc, _mm256_maddubs_epi16(q, codes))
        }

        #[inline]
        #[$enable]
        fn signed_sum(acc: __m256i) -> __m256i {
            _mm256_madd_epi16(acc, _mm256_set1_epi16(1))
        }

        #[inline]
        #[$enable]
        fn unsigned_sum(acc: __m256i) -> __m256i {
            let even = _mm256_and_si256(acc, _mm256_set1_epi32(0xFFFF));
            _mm256_add_epi32(even, _mm256_srli_epi32::<16>(acc))
        }
    };
    (#[$enable:meta] avx_vnni) => {
        super::dots!(
            #[$enable]
            _mm256_dpbusd_avx_epi32
        );
    };
    (#[$enable:meta] avx512_vl) => {
        super::dots!(
            #[$enable]
            _mm256_dpbusd_epi32
        );
    };
    (#[$enable:meta] $vpdpbusd:ident) => {
        #[inline]
        #[$enable]
        fn signed(acc: __m256i, codes: __m256i, q: __m256i) -> __m256i {
            $vpdpbusd(acc, codes, q)
        }

        #[inline]
        #[$enable]
        fn unsigned(acc: __m256i, q: __m256i, codes: __m256i) -> __m256i {
            $vpdpbusd(acc, q, codes)
        }

        #[inline]
        #[$enable]
        fn signed_sum(acc: __m256i) -> __m256i {
            acc
        }

        #[inline]
        #[$enable]
        fn unsigned_sum(acc: __m256i) -> __m256i {
            acc
        }
    };
}

use dots;

kernel! {
    #[target_feature(enable = "avx2,f16c")]
    maddubs
}

kernel! {
    #[target_feature(enable = "avx2,f16c,avxvnni")]
    avx_vnni
}

kernel! {
    #[target_feature(enable = "avx2,f16c,avx512f,avx512vl,avx512vnni")]
    avx512_vl
}
