//! Work on the parts of one buffer, spread over threads.
//!
//! The threads are those of the current rayon pool. A part is computed by one thread from inputs that
//! do not depend on the others, so who computes it changes nothing.

use rayon::prelude::*;

use crate::{Error, fpenv};

/// Cost below which one thread is done before another is awake: about a nanosecond each.
const SMALL: usize = 20_000;

/// Calls `work` with the number of every part of `part` values of `data`, and the part.
///
/// `cost`: of one part, in about a nanosecond of one thread.
///
/// # Errors
/// What `work` says; [`Error::FloatEnvironment`] when a worker thread has other modes.
pub(crate) fn parts<T: Send>(
    data: &mut [T],
    part: usize,
    cost: usize,
    work: impl Fn(usize, &mut [T]) -> Result<(), Error> + Sync,
) -> Result<(), Error> {
    let nothing = &mut vec![(); data.len().div_ceil(part)][..];
    parts2((data, part), (nothing, 1), cost, |i, part, _| work(i, part))
}

/// As [`parts`], with the parts of two buffers that have equally many.
///
/// # Errors
/// As [`parts`].
pub(crate) fn parts2<T: Send, U: Send>(
    a: (&mut [T], usize),
    b: (&mut [U], usize),
    cost: usize,
    work: impl Fn(usize, &mut [T], &mut [U]) -> Result<(), Error> + Sync,
) -> Result<(), Error> {
    let nothing = &mut vec![(); a.0.len().div_ceil(a.1)][..];
    parts3(a, b, (nothing, 1), cost, |i, a, b, _| work(i, a, b))
}

/// As [`parts`], with the parts of three buffers that have equally many.
///
/// # Errors
/// As [`parts`].
pub(crate) fn parts3<T: Send, U: Send, V: Send>(
    (a, part_a): (&mut [T], usize),
    (b, part_b): (&mut [U], usize),
    (c, part_c): (&mut [V], usize),
    cost: usize,
    work: impl Fn(usize, &mut [T], &mut [U], &mut [V]) -> Result<(), Error> + Sync,
) -> Result<(), Error> {
    let n = a.len().div_ceil(part_a);
    if is_small(n, cost) {
        let both = a.chunks_mut(part_a).zip(b.chunks_mut(part_b));
        let mut all = both.zip(c.chunks_mut(part_c)).enumerate();
        return all.try_for_each(|(i, ((a, b), c))| work(i, a, b, c));
    }
    let both = a.par_chunks_mut(part_a).zip(b.par_chunks_mut(part_b));
    let all = both.zip(c.par_chunks_mut(part_c)).enumerate();
    all.with_min_len(least(cost)).try_for_each(|(i, ((a, b), c))| {
        fpenv::check()?;
        work(i, a, b, c)
    })
}

fn is_small(n: usize, cost: usize) -> bool {
    n < 2 || n.saturating_mul(cost) < SMALL || rayon::current_num_threads() == 1
}

/// Parts that are worth a task of their own.
fn least(cost: usize) -> usize {
    (SMALL / 4).div_ceil(cost.max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_part_is_done_once() {
        for (len, part, cost) in
            [(10, 3, 1), (10, 3, SMALL), (1, 1, SMALL), (0, 4, 1), (999, 1, 99)]
        {
            let mut data = vec![0; len];
            let mut twice = vec![0; 2 * len];
            parts(&mut data, part, cost, |i, part| {
                part.iter_mut().for_each(|x| *x += i + 1);
                Ok(())
            })
            .unwrap();
            parts2((&mut data, part), (&mut twice, 2 * part), cost, |i, a, b| {
                assert_eq!(2 * a.len(), b.len());
                a.iter_mut().chain(b).for_each(|x| *x += i + 1);
                Ok(())
            })
            .unwrap();
            assert!(data.iter().enumerate().all(|(at, x)| *x == 2 * (at / part + 1)));
            assert!(twice.iter().enumerate().all(|(at, x)| *x == at / (2 * part) + 1));
        }
    }

    #[test]
    fn an_error_of_any_part_arrives() {
        for cost in [1, SMALL] {
            let result = parts(&mut [0; 64], 1, cost, |i, _| match i {
                40 => Err(Error::EmptyPrompt),
                _ => Ok(()),
            });
            assert!(matches!(result, Err(Error::EmptyPrompt)));
        }
    }
}
