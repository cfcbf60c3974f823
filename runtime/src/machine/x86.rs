//! The instructions of x86 at full rate: independent chains from registers to registers.

use std::arch::asm;
use std::arch::x86_64::*;
use std::hint::black_box;

use super::Operand;
use crate::backend::Dot;

/// Chains: more than latency times rate of any instruction here, and they fit the registers of AVX2.
const CHAINS: usize = 12;

/// Issues `rounds` times [`CHAINS`] dots; the number of operations, or nothing if `dot` is not of x86.
pub(super) fn dots(dot: Dot, operand: Operand, rounds: usize) -> Option<f64> {
    let lanes = match dot.name() {
        // SAFETY: this `Dot` exists only if the CPU has its features, which the function enables (see
        // the test below).
        "vpdpbusd-512" => unsafe { avx512(operand, rounds) },
        // SAFETY: as above.
        "avx-vpdpbusd-256" => unsafe { avx_vnni(operand, rounds) },
        // SAFETY: as above.
        "vpdpbusd-256" => unsafe { avx512_vl(operand, rounds) },
        // SAFETY: as above.
        "vpmaddubsw-256" => unsafe { avx2(operand, rounds) },
        _ => return None,
    };
    let products = match operand {
        Operand::Bytes => 4,
        Operand::Words => 2,
    };
    Some((rounds * CHAINS * lanes * products * 2) as f64)
}

/// Adds up the words of `bytes`, a multiple of 512; nothing if `dot` is not of x86.
pub(super) fn sum(dot: Dot, bytes: &[u8]) -> Option<u64> {
    match dot.name() {
        // SAFETY: this `Dot` exists only if the CPU has its features, which the function enables.
        "vpdpbusd-512" => Some(unsafe { sum_512(bytes) }),
        // SAFETY: every other one that is not portable proves AVX2.
        name if name != Dot::portable().name() => Some(unsafe { sum_256(bytes) }),
        _ => None,
    }
}

/// Defines a loop of dots; it gives the number of 32-bit lanes of a vector.
macro_rules! dots {
    (
        #[$enable:meta]
        $name:ident, $vector:ty, $zero:ident, $set:ident, $bytes:expr, $words:expr, $lanes:expr
    ) => {
        #[$enable]
        fn $name(operand: Operand, rounds: usize) -> usize {
            let (a, b) = ($set(black_box(3)), $set(black_box(5)));
            let mut sums: [$vector; CHAINS] = [$zero(); CHAINS];
            match operand {
                Operand::Bytes => {
                    for _ in 0..rounds {
                        for sum in &mut sums {
                            *sum = $bytes(*sum, a, b);
                        }
                    }
                }
                Operand::Words => {
                    for _ in 0..rounds {
                        for sum in &mut sums {
                            *sum = $words(*sum, a, b);
                        }
                    }
                }
            }
            black_box(sums);
            $lanes
        }
    };
}

/// One instruction as it is written: the compiler would replace a dot of two by a product, which it
/// makes once outside of the loop, and an addition.
macro_rules! instruction {
    ($text:literal, $register:ident, $vector:ty) => {
        |mut sum: $vector, a: $vector, b: $vector| {
            // SAFETY: the instruction reads and writes registers only, and the function that has this
            // closure enables it.
            unsafe {
                asm!(
                    concat!($text, " {0}, {1}, {2}"),
                    inout($register) sum,
                    in($register) a,
                    in($register) b,
                    options(pure, nomem, nostack, preserves_flags)
                );
            }
            sum
        }
    };
}

dots! {
    #[target_feature(enable = "avx2,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
    avx512, __m512i, _mm512_setzero_si512, _mm512_set1_epi8,
    instruction!("vpdpbusd", zmm_reg, __m512i), instruction!("vpdpwssd", zmm_reg, __m512i), 16
}

dots! {
    #[target_feature(enable = "avx2,f16c,avx512f,avx512vl,avx512vnni")]
    avx512_vl, __m256i, _mm256_setzero_si256, _mm256_set1_epi8,
    instruction!("vpdpbusd", ymm_reg, __m256i), instruction!("vpdpwssd", ymm_reg, __m256i), 8
}

dots! {
    #[target_feature(enable = "avx2,f16c,avxvnni")]
    avx_vnni, __m256i, _mm256_setzero_si256, _mm256_set1_epi8,
    instruction!("{{vex}} vpdpbusd", ymm_reg, __m256i), instruction!("{{vex}} vpdpwssd", ymm_reg, __m256i), 8
}

dots! {
    #[target_feature(enable = "avx2,f16c")]
    avx2, __m256i, _mm256_setzero_si256, _mm256_set1_epi8,
    |sum, a, b| {
        // The integers must change, or the product is made only once; the addition is the kernel's.
        _mm256_add_epi16(sum, _mm256_maddubs_epi16(a, _mm256_xor_si256(sum, b)))
    },
    |sum, a, b| _mm256_add_epi32(sum, _mm256_madd_epi16(a, _mm256_xor_si256(sum, b))),
    8
}

#[target_feature(enable = "avx2,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
fn sum_512(bytes: &[u8]) -> u64 {
    let mut sums = [_mm512_setzero_si512(); 8];
    for lines in bytes.as_chunks::<512>().0 {
        for (sum, line) in sums.iter_mut().zip(lines.as_chunks::<64>().0) {
            // SAFETY: reads the 64 bytes of a live array; no alignment is asked for.
            let line = unsafe { _mm512_loadu_si512(line.as_ptr().cast()) };
            *sum = _mm512_add_epi64(*sum, line);
        }
    }
    let total = sums.into_iter().fold(_mm512_setzero_si512(), |a, b| _mm512_add_epi64(a, b));
    _mm512_reduce_add_epi64(total) as u64
}

#[target_feature(enable = "avx2,f16c")]
fn sum_256(bytes: &[u8]) -> u64 {
    let mut sums = [_mm256_setzero_si256(); 8];
    for lines in bytes.as_chunks::<256>().0 {
        for (sum, line) in sums.iter_mut().zip(lines.as_chunks::<32>().0) {
            // SAFETY: reads the 32 bytes of a live array; no alignment is asked for.
            let line = unsafe { _mm256_loadu_si256(line.as_ptr().cast()) };
            *sum = _mm256_add_epi64(*sum, line);
        }
    }
    let total = sums.into_iter().fold(_mm256_setzero_si256(), |a, b| _mm256_add_epi64(a, b));
    let (high, low) = (_mm256_extracti128_si256::<1>(total), _mm256_castsi256_si128(total));
    let pair = _mm_add_epi64(high, low);
    (_mm_extract_epi64::<0>(pair) as u64).wrapping_add(_mm_extract_epi64::<1>(pair) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use hadamard::Isa;

    /// A function that enables a feature its `Dot` does not prove would be unsound.
    #[test]
    fn functions_enable_features_of_their_instruction() {
        let source = include_str!("x86.rs").lines().map(str::trim);
        let enabled: Vec<&str> = source.filter(|l| l.starts_with("#[target_feature(")).collect();
        let mut proved = Dot::available(Isa::detect());
        proved.retain(|dot| *dot != Dot::portable());
        for dot in proved {
            let list = format!("#[target_feature(enable = \"{}\")]", dot.features().join(","));
            assert!(enabled.contains(&list.as_str()), "{list}");
        }
        assert_eq!(enabled.len(), 6);
    }
}
