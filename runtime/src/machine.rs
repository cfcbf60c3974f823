//! What this machine can do at most, measured: the yardstick beside every figure of speed.
//!
//! Two limits bound the ternary matrices: how many products the dot instruction makes per second, with
//! all operands in registers, and how fast memory is read front to back. Both are measured here with
//! the threads of the current rayon pool, all at once, because clock and memory are shared. A
//! virtual machine has neighbours, so limits and figures belong together only if they are from one run.

#[cfg(target_arch = "x86_64")]
#[expect(unsafe_code, reason = "instructions beyond the baseline, and loads through pointers")]
mod x86;

mod last_level;

use std::hint::black_box;
use std::time::Instant;

use crate::Error;
use crate::backend::{Dot, Memory};
pub use last_level::last_level_cache;

/// The limits of the threads of a pool together.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Limits {
    /// The number of threads.
    pub threads: usize,
    /// Operations per second of the dot of four bytes, a product and its addition being two.
    pub dot_i8: f64,
    /// Operations per second of the dot of two 16-bit integers.
    pub dot_i16: f64,
    /// Bytes read per second.
    pub read: f64,
}

/// Repetitions, of which the best counts: what disturbs makes it slower only.
const TRIALS: usize = 5;

/// Measures the limits of the current rayon pool, within a few seconds.
///
/// `dot` is the instruction of the kernels. The read bandwidth is that of adding up 64-bit words in 4
/// times [`last_level_cache`], shared by the threads, on pages of 2 MiB where the system gives them.
///
/// # Errors
/// [`Error::Memory`] when there is no memory to read.
pub fn measure(dot: Dot) -> Result<Limits, Error> {
    let threads = rayon::current_num_threads();
    let part = (4 * last_level_cache()).div_ceil(threads).next_multiple_of(64);
    let bytes = threads * part;
    let mut memory = Memory::zeroed(bytes).map_err(|source| Error::Memory { bytes, source })?;
    memory.chunks_mut(part).for_each(|part| part.fill(1));
    let parts: Vec<&[u8]> = memory.chunks(part).collect();
    let read = best(|thread| {
        black_box(sum(dot, parts[thread]));
        parts[thread].len() as f64
    });
    Ok(Limits {
        threads,
        dot_i8: best(|_| dots(dot, Operand::Bytes)),
        dot_i16: best(|_| dots(dot, Operand::Words)),
        read,
    })
}

/// What is multiplied.
#[derive(Debug, Clone, Copy)]
enum Operand {
    Bytes,
    Words,
}

/// The best rate of all threads together; `work` does one thread's share and says how much it was.
fn best(work: impl Fn(usize) -> f64 + Sync) -> f64 {
    let trial = || {
        let begin = Instant::now();
        let done: f64 = rayon::broadcast(|context| work(context.index())).iter().sum();
        done / begin.elapsed().as_secs_f64()
    };
    (0..TRIALS).map(|_| trial()).fold(0.0, f64::max)
}

const ROUNDS: usize = 4_000_000;

/// Issues dots from registers to registers; the number of operations.
fn dots(dot: Dot, operand: Operand) -> f64 {
    #[cfg(target_arch = "x86_64")]
    if let Some(done) = x86::dots(dot, operand, ROUNDS) {
        return done;
    }
    let _ = (dot, operand);
    // Whatever the compiler makes of the plain loop.
    let (a, b) = (black_box([3i16; 64]), black_box([5i16; 64]));
    let mut sums = [0i32; 64];
    for _ in 0..ROUNDS / 16 {
        for ((sum, a), b) in sums.iter_mut().zip(&a).zip(&b) {
            *sum = sum.wrapping_add(i32::from(*a) * i32::from(*b));
        }
        black_box(&mut sums);
    }
    (ROUNDS / 16 * 64 * 2) as f64
}

/// Adds up the words of `bytes`.
fn sum(dot: Dot, bytes: &[u8]) -> u64 {
    #[cfg(target_arch = "x86_64")]
    if let Some(sum) = x86::sum(dot, bytes) {
        return sum;
    }
    let _ = dot;
    let words = bytes.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word));
    words.fold(0, u64::wrapping_add)
}

#[cfg(test)]
mod tests {
    use super::*;
    use hadamard::Isa;

    #[test]
    fn every_instruction_reads_what_is_there() {
        let bytes: Vec<u8> = (0..8192u32).map(|i| i.wrapping_mul(2_654_435_761) as u8).collect();
        let expected = sum(Dot::portable(), &bytes);
        for dot in Dot::available(Isa::detect()) {
            assert_eq!(sum(dot, &bytes), expected, "{dot}");
        }
    }

    #[test]
    fn limits_are_positive() {
        for dot in Dot::available(Isa::detect()) {
            assert!(dots(dot, Operand::Bytes) > 0.0 && dots(dot, Operand::Words) > 0.0);
        }
    }
}
