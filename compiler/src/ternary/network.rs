//! The optimal rule for as many groups at once as a vector has 32-bit lanes.
//!
//! Lane l works on group l. The magnitudes are transposed so that vector i holds
//! value i of every group, then a sorting network orders all lanes together:
//! it compares and exchanges the same pairs of vectors whatever the data, so 16
//! groups cost what one does. The order inside a group does not matter to a
//! sort by magnitude; ties by index come back when the codes are written.
//!
//! Prefix sums run down the sorted vectors in f64, in the reference's order.
//! Evaluating all 128 candidates exactly would cost a division each, so they are
//! first ranked by `g_k = N_k^2 / k`. With `q = N_k / k` and `s_k` its rounded
//! value, a candidate's objective is
//!
//! ```text
//! k s_k^2 - 2 s_k N_k = -g_k + k (s_k - q)^2,    |s_k - q| <= 2^-8 q for q >= 2^-16
//! ```
//!
//! so it lies in `[-g_k, -g_k (1 - 2^-16)]`, and no candidate with
//! `g_k < max g (1 - 2^-15)` can win or tie, the rounding of `g` itself included
//! (2^-50). One or two candidates remain and are evaluated as the reference does.
//! Groups whose smallest candidate lies below 2^-14 (the grid's fixed steps), that
//! may overflow, or that hold values that are not finite go to the reference.

use formats::{GROUP, scale};
use half::f16;

use super::{Choice, GroupFault, Stats, reference};

/// The operations of one instruction set. A value of the type is the proof that
/// the CPU has it.
pub(super) trait Lanes: Copy {
    /// Groups per vector: 32-bit lanes.
    const N: usize;
    /// `N` u32.
    type U: Copy;
    /// `N` f64.
    type D: Copy;

    /// Magnitude bits of `N` groups, transposed: lane l of `out[i]` is value i of
    /// group l without its sign. `values` is `[N, 128]`.
    fn transpose_magnitudes(self, values: &[f32], out: &mut [Self::U; GROUP]);
    fn zero_u(self) -> Self::U;
    fn splat(self, x: f64) -> Self::D;
    /// Lane-wise maximum and minimum as unsigned integers.
    fn max(self, a: Self::U, b: Self::U) -> Self::U;
    fn min(self, a: Self::U, b: Self::U) -> Self::U;
    /// The lanes as f32 bits, widened exactly.
    fn widen(self, a: Self::U) -> Self::D;
    fn add(self, a: Self::D, b: Self::D) -> Self::D;
    fn mul(self, a: Self::D, b: Self::D) -> Self::D;
    fn larger(self, a: Self::D, b: Self::D) -> Self::D;
    /// Bit l is set where lane l of `a` is at least lane l of `b`.
    fn at_least(self, a: Self::D, b: Self::D) -> u32;
    /// The lanes one by one; entries from `N` on are 0.
    fn lanes_u(self, a: Self::U) -> [u32; 16];
    fn lane_d(self, a: &Self::D, lane: usize) -> f64;
    /// Codes of one group: non-zero where the magnitude's bits reach `threshold`.
    fn codes(self, w: &[f32; GROUP], threshold: u32, codes: &mut [u8; GROUP / 4]);
}

/// Candidates whose gains are looked at together before they are looked at singly.
const RUN: usize = 4;

/// Working memory: 8 lanes need 14 KiB of it, 16 lanes 28 KiB.
struct Scratch<L: Lanes> {
    sorted: [L::U; GROUP],
    sums: [L::D; GROUP],
    /// The largest gain of each run of candidates.
    run_gains: [L::D; GROUP / RUN],
}

/// `1 / k` for k = 1..=128, at index k - 1.
const RECIPROCALS: [f64; GROUP] = {
    let mut table = [0.0; GROUP];
    let mut i = 0;
    while i < GROUP {
        table[i] = 1.0 / (i + 1) as f64;
        i += 1;
    }
    table
};

/// Bits of +infinity: no finite magnitude reaches it.
const INFINITY: u32 = 0x7f80_0000;
/// Below this sum the smallest candidate scale, `N_128 / 128`, may be under 2^-14.
const SMALL_SUM: f64 = 128.0 / 16_384.0;

/// Ternarizes whole groups, as [`super::Ternarizer::groups`].
#[inline(always)]
pub(super) fn groups<L: Lanes>(
    lanes: L,
    values: &[f32],
    codes: &mut [u8],
    scales: &mut [f16],
    stats: &mut Stats,
) -> Result<(), GroupFault> {
    let mut scratch = Scratch::<L> {
        sorted: [lanes.zero_u(); GROUP],
        sums: [lanes.splat(0.0); GROUP],
        run_gains: [lanes.splat(0.0); GROUP / RUN],
    };
    let mut batches = values.chunks_exact(L::N * GROUP);
    let mut done = 0;
    for batch in batches.by_ref() {
        let end = done + L::N;
        one_batch(
            lanes,
            &mut scratch,
            done,
            batch,
            &mut codes[done * GROUP / 4..end * GROUP / 4],
            &mut scales[done..end],
            stats,
        )?;
        done = end;
    }
    let rest = batches.remainder();
    if !rest.is_empty() {
        // The last, short batch is filled up with zero groups that nobody reads.
        let mut padded = [0.0; 16 * GROUP];
        padded[..rest.len()].copy_from_slice(rest);
        one_batch(
            lanes,
            &mut scratch,
            done,
            &padded[..L::N * GROUP],
            &mut codes[done * GROUP / 4..],
            &mut scales[done..],
            stats,
        )?;
    }
    Ok(())
}

/// One batch of up to `N` groups: as many as `scales` is long. `first` is the
/// index of its first group.
#[inline(always)]
fn one_batch<L: Lanes>(
    lanes: L,
    scratch: &mut Scratch<L>,
    first: usize,
    values: &[f32],
    codes: &mut [u8],
    scales: &mut [f16],
    stats: &mut Stats,
) -> Result<(), GroupFault> {
    lanes.transpose_magnitudes(values, &mut scratch.sorted);
    sort_descending(lanes, &mut scratch.sorted);
    let (energies, best_gains) = prefix_sums(lanes, scratch);
    let mut choices = [Candidate { value: 0.0, scale: 0.0, k: 0 }; 16];
    evaluate(lanes, scratch, best_gains, &mut choices);

    let (values, _) = values.as_chunks::<GROUP>();
    let (codes, _) = codes.as_chunks_mut::<{ GROUP / 4 }>();
    let largest = lanes.lanes_u(scratch.sorted[0]);
    for (lane, ((w, codes), stored)) in values.iter().zip(codes).zip(scales).enumerate() {
        let Candidate { scale, k, .. } = choices[lane];
        let largest = largest[lane];
        let total = lanes.lane_d(&scratch.sums[GROUP - 1], lane);
        // Not finite, not a number, on the grid's fixed steps, or near its end.
        let ordinary = largest < INFINITY
            && total >= SMALL_SUM
            && f64::from(f32::from_bits(largest)) < f64::from(scale::MAX);
        if !ordinary {
            *stored = reference::one_group(reference::optimal, first + lane, w, codes, stats)?;
            continue;
        }
        let sum = lanes.lane_d(&scratch.sums[k - 1], lane);
        let threshold = lanes.lanes_u(scratch.sorted[k - 1])[lane];
        let tied = k < GROUP && lanes.lanes_u(scratch.sorted[k])[lane] == threshold;
        if tied {
            reference::write_codes(w, &first_of_tied(w, threshold, k), codes);
        } else {
            lanes.codes(w, threshold, codes);
        }
        // `scale` is at most `largest`, which is below MAX.
        *stored = scale::round_to_grid(scale).unwrap_or(f16::INFINITY);
        let energy = lanes.lane_d(&energies, lane);
        stats.add(Choice { scale, support: k, sum, energy }, *stored);
    }
    Ok(())
}

/// Prefix sums and gains of all lanes; returns the energies and the largest gains.
#[inline(always)]
fn prefix_sums<L: Lanes>(lanes: L, scratch: &mut Scratch<L>) -> (L::D, L::D) {
    let (mut sum, mut energy, mut best) = (lanes.splat(0.0), lanes.splat(0.0), lanes.splat(0.0));
    for run in 0..GROUP / RUN {
        let mut run_gain = lanes.splat(0.0);
        for k in run * RUN..(run + 1) * RUN {
            let magnitude = lanes.widen(scratch.sorted[k]);
            sum = lanes.add(sum, magnitude);
            energy = lanes.add(energy, lanes.mul(magnitude, magnitude));
            scratch.sums[k] = sum;
            run_gain = lanes.larger(run_gain, gain(lanes, sum, k));
        }
        scratch.run_gains[run] = run_gain;
        best = lanes.larger(best, run_gain);
    }
    (energy, best)
}

/// `N_k^2 / k` for the support of the `index + 1` largest, up to rounding.
#[inline(always)]
fn gain<L: Lanes>(lanes: L, sum: L::D, index: usize) -> L::D {
    lanes.mul(lanes.mul(sum, sum), lanes.splat(RECIPROCALS[index]))
}

/// A support size with its scale and objective.
#[derive(Clone, Copy)]
struct Candidate {
    value: f64,
    scale: f64,
    k: usize,
}

/// Evaluates the candidates that can win, exactly, in ascending order of k.
#[inline(always)]
fn evaluate<L: Lanes>(
    lanes: L,
    scratch: &Scratch<L>,
    best_gains: L::D,
    choices: &mut [Candidate; 16],
) {
    let floor = lanes.mul(best_gains, lanes.splat(1.0 - 1.0 / 32_768.0));
    for run in 0..GROUP / RUN {
        if lanes.at_least(scratch.run_gains[run], floor) == 0 {
            continue;
        }
        for k in run * RUN..(run + 1) * RUN {
            let sum = scratch.sums[k];
            let mut candidates = lanes.at_least(gain(lanes, sum, k), floor);
            while candidates != 0 {
                let lane = candidates.trailing_zeros() as usize;
                candidates &= candidates - 1;
                let (scale, value) = reference::candidate(lanes.lane_d(&sum, lane), k + 1);
                if value < choices[lane].value {
                    choices[lane] = Candidate { value, scale, k: k + 1 };
                }
            }
        }
    }
}

/// Bits of a byte moved to the even places of 16 bits.
const SPREAD: [u16; 256] = {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let mut bit = 0;
        while bit < 8 {
            table[byte] |= ((byte >> bit & 1) << (2 * bit)) as u16;
            bit += 1;
        }
        byte += 1;
    }
    table
};

/// Codes of eight weights, the first in the lowest bits: 1 where the threshold is
/// not reached, else 0 for negative and 2 for positive ones.
#[inline(always)]
pub(super) fn codes_of_masks(reached: u8, negative: u8) -> u16 {
    SPREAD[usize::from(!reached)] | SPREAD[usize::from(reached & !negative)] << 1
}

/// The `k` largest magnitudes when some at the threshold stay outside: those
/// with the lowest indices go in.
fn first_of_tied(w: &[f32; GROUP], threshold: u32, k: usize) -> reference::Support {
    let magnitude = |w: f32| w.to_bits() & 0x7fff_ffff;
    let above = w.iter().filter(|w| magnitude(**w) > threshold).count();
    let mut places = k - above;
    std::array::from_fn(|i| {
        let magnitude = magnitude(w[i]);
        if magnitude == threshold && places > 0 {
            places -= 1;
            return true;
        }
        magnitude > threshold
    })
}

/// Compare-exchanges on the eight vectors held in `r`: the larger goes to the
/// first index of each pair.
macro_rules! exchange {
    ($lanes:ident, $r:ident: $(($i:literal, $j:literal))*) => {
        $(
            let (a, b) = ($r[$i], $r[$j]);
            $r[$i] = $lanes.max(a, b);
            $r[$j] = $lanes.min(a, b);
        )*
    };
}

/// Sorts every lane, largest first: runs of 8 by an optimal network, then bitonic
/// merges to 16, 32, 64 and 128. All passes hold 8 vectors in registers and do
/// up to three levels of the network on them.
#[inline(always)]
fn sort_descending<L: Lanes>(lanes: L, v: &mut [L::U; GROUP]) {
    for r in v.as_chunks_mut::<8>().0 {
        // 19 exchanges, the fewest that sort 8.
        exchange!(lanes, r:
            (0, 2) (1, 3) (4, 6) (5, 7) (0, 4) (1, 5) (2, 6) (3, 7) (0, 1) (2, 3)
            (4, 5) (6, 7) (2, 4) (3, 5) (1, 4) (3, 6) (1, 2) (3, 4) (5, 6));
    }
    merge::<L, 16>(lanes, v);
    half_cleaners_1(lanes, v);
    merge::<L, 32>(lanes, v);
    half_cleaners_2_1(lanes, v);
    merge::<L, 64>(lanes, v);
    half_cleaners_4_2_1(lanes, v);
    merge::<L, 128>(lanes, v);
    half_cleaner_8(lanes, v);
    half_cleaners_4_2_1(lanes, v);
}

/// The first three levels of merging sorted halves of runs of `RUN`: each vector
/// against its mirror image, then at distance `RUN / 4`, then `RUN / 8`.
#[inline(always)]
fn merge<L: Lanes, const RUN: usize>(lanes: L, v: &mut [L::U; GROUP]) {
    let step = RUN / 8;
    for run in v.as_chunks_mut::<RUN>().0 {
        for a in 0..step {
            let at = |j: usize| if j < 4 { a + j * step } else { RUN - 1 - a - (7 - j) * step };
            let mut r: [L::U; 8] = [
                run[at(0)],
                run[at(1)],
                run[at(2)],
                run[at(3)],
                run[at(4)],
                run[at(5)],
                run[at(6)],
                run[at(7)],
            ];
            exchange!(lanes, r:
                (0, 7) (1, 6) (2, 5) (3, 4)
                (0, 2) (1, 3) (4, 6) (5, 7)
                (0, 1) (2, 3) (4, 5) (6, 7));
            for (j, r) in r.into_iter().enumerate() {
                run[at(j)] = r;
            }
        }
    }
}

#[inline(always)]
fn half_cleaners_4_2_1<L: Lanes>(lanes: L, v: &mut [L::U; GROUP]) {
    for r in v.as_chunks_mut::<8>().0 {
        exchange!(lanes, r:
            (0, 4) (1, 5) (2, 6) (3, 7)
            (0, 2) (1, 3) (4, 6) (5, 7)
            (0, 1) (2, 3) (4, 5) (6, 7));
    }
}

#[inline(always)]
fn half_cleaners_2_1<L: Lanes>(lanes: L, v: &mut [L::U; GROUP]) {
    for r in v.as_chunks_mut::<4>().0 {
        exchange!(lanes, r: (0, 2) (1, 3) (0, 1) (2, 3));
    }
}

#[inline(always)]
fn half_cleaners_1<L: Lanes>(lanes: L, v: &mut [L::U; GROUP]) {
    for r in v.as_chunks_mut::<2>().0 {
        exchange!(lanes, r: (0, 1));
    }
}

#[inline(always)]
fn half_cleaner_8<L: Lanes>(lanes: L, v: &mut [L::U; GROUP]) {
    for run in v.as_chunks_mut::<16>().0 {
        let (low, high) = run.split_at_mut(8);
        for (a, b) in low.iter_mut().zip(high) {
            (*a, *b) = (lanes.max(*a, *b), lanes.min(*a, *b));
        }
    }
}
