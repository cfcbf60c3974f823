//! Work spread over threads by output feature, so that no sum is ever split.
//!
//! The threads are those of the current rayon pool. Which thread computes an output changes nothing
//! about it.

use std::ops::Range;

use rayon::prelude::*;

use crate::{Error, fpenv};

/// Outputs per task; a multiple of every storage format's rows per band.
const BAND: usize = 64;

/// Multiplications below which one thread is faster than waking others.
const SMALL: usize = 1 << 18;

/// Fills `out`, `[n, n_out]` row-major. `work` computes a range of outputs for all `n` rows, as
/// `[outputs, n]`; `cost` is the number of multiplications per output and row.
///
/// # Errors
/// What `work` says; [`Error::FloatEnvironment`] when a worker thread has other modes.
pub(crate) fn by_output(
    n_out: usize,
    cost: usize,
    out: &mut [f32],
    work: impl Fn(Range<usize>, &mut [f32]) -> Result<(), Error> + Sync,
) -> Result<(), Error> {
    let n = out.len() / n_out;
    if n == 1 {
        return columns(n_out, 1, cost, out, work);
    }
    let mut transposed = vec![0.0; out.len()];
    columns(n_out, n, cost, &mut transposed, work)?;
    for (o, column) in transposed.chunks_exact(n).enumerate() {
        for (i, value) in column.iter().enumerate() {
            out[i * n_out + o] = *value;
        }
    }
    Ok(())
}

/// Fills `out`, `[n, n_out]` row-major, in tasks of `outputs` outputs. `work` gets a range of them and
/// where they lie in each row; `cost` is the number of multiplications per output and row.
///
/// # Errors
/// As [`by_output`].
pub(crate) fn by_rows(
    n_out: usize,
    cost: usize,
    outputs: usize,
    out: &mut [f32],
    work: impl Fn(Range<usize>, &mut [&mut [f32]]) -> Result<(), Error> + Sync,
) -> Result<(), Error> {
    let alone = out.len() * cost < SMALL || rayon::current_num_threads() == 1;
    let mut tasks: Vec<Vec<&mut [f32]>> = Vec::new();
    tasks.resize_with(n_out.div_ceil(outputs), || Vec::with_capacity(out.len() / n_out));
    for row in out.chunks_exact_mut(n_out) {
        tasks.iter_mut().zip(row.chunks_mut(outputs)).for_each(|(task, part)| task.push(part));
    }
    let run = |(task, rows): (usize, &mut Vec<&mut [f32]>)| {
        let first = task * outputs;
        work(first..n_out.min(first + outputs), rows)
    };
    if alone {
        return tasks.iter_mut().enumerate().try_for_each(run);
    }
    tasks.par_iter_mut().enumerate().try_for_each(|task| {
        fpenv::check()?;
        run(task)
    })
}

fn columns(
    n_out: usize,
    n: usize,
    cost: usize,
    out: &mut [f32],
    work: impl Fn(Range<usize>, &mut [f32]) -> Result<(), Error> + Sync,
) -> Result<(), Error> {
    if n_out * n * cost < SMALL || rayon::current_num_threads() == 1 {
        return work(0..n_out, out);
    }
    out.par_chunks_mut(BAND * n).enumerate().try_for_each(|(band, out)| {
        fpenv::check()?;
        let first = band * BAND;
        work(first..first + out.len() / n, out)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_output_lands_in_its_row() {
        for (n, n_out, cost) in [(1, 200, 1), (3, 200, 1), (1, 200, 1 << 18), (3, 130, 1 << 18)] {
            let mut out = vec![f32::NAN; n * n_out];
            by_output(n_out, cost, &mut out, |range, out| {
                for (o, column) in range.zip(out.chunks_exact_mut(n)) {
                    for (i, value) in column.iter_mut().enumerate() {
                        *value = (o * 10 + i) as f32;
                    }
                }
                Ok(())
            })
            .unwrap();
            for i in 0..n {
                for o in 0..n_out {
                    assert_eq!(out[i * n_out + o], (o * 10 + i) as f32);
                }
            }
        }
    }

    #[test]
    fn an_error_of_any_band_arrives() {
        let mut out = vec![0.0; 1000];
        let error = by_output(1000, 1 << 18, &mut out, |range, _| match range.contains(&700) {
            true => Err(Error::EmptyPrompt),
            false => Ok(()),
        });
        assert!(matches!(error, Err(Error::EmptyPrompt)));
    }
}
