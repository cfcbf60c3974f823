//! A drafter's tensors, cut into bands and shared out to workers.
//!
//! Workers take bands in the order of the file and give back one outcome each, so
//! the file is read front to back, memory is a few bands per worker, and nothing
//! depends on which worker took which band. Of several faults the first in that
//! order is reported: bands are taken in order, and a band that was taken is
//! always finished.

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use formats::dflash2::drafter::{Drafter, Tensor};
use formats::q4nx;

use crate::Error;
use crate::observer::Observer;

/// Rows per band: the row block of a q4nx chunk.
pub(crate) const BAND_ROWS: usize = q4nx::ROW_BLOCK;

/// Values per unit of work of tensors that are no matrix.
const RUN_VALUES: u64 = 1 << 18;

/// A band of rows of a matrix, or a run of values of another tensor.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Unit {
    /// Index of the tensor in [`Drafter::tensors`].
    pub(crate) tensor: usize,
    /// First row, or first value.
    pub(crate) first: u64,
    /// Rows, or values.
    pub(crate) count: usize,
}

/// One thread's part of a job, with its working memory.
pub(crate) trait Worker {
    /// What comes out of one unit.
    type Outcome: Send;

    /// Does one unit.
    fn unit(&mut self, unit: Unit) -> Result<Self::Outcome, Error>;
}

/// Every unit with what came out of it.
pub(crate) type Outcomes<W> = Vec<(Unit, <W as Worker>::Outcome)>;

/// The threads of a job on the file at `path`.
pub(crate) fn pool(threads: usize, path: &Path) -> Result<rayon::ThreadPool, Error> {
    rayon::ThreadPoolBuilder::new()
        .num_threads(threads)
        .build()
        .map_err(|e| Error::write("starting threads for", path, std::io::Error::other(e)))
}

/// All units through `threads` workers of the current pool; outcomes in the order
/// of the file. The first worker does `before` and then joins in; what `before`
/// gives is returned first.
pub(crate) fn share<W: Worker, B: Send>(
    drafter: &Drafter,
    threads: usize,
    observer: &dyn Observer,
    before: impl FnOnce() -> Result<B, Error> + Send,
    new_worker: impl Fn() -> W + Sync,
) -> Result<(B, Outcomes<W>), Error> {
    let units = units(drafter);
    let outcomes: Vec<Mutex<Option<W::Outcome>>> = units.iter().map(|_| Mutex::default()).collect();
    let failure: Mutex<Option<(usize, Error)>> = Mutex::new(None);
    let before_result: Mutex<Option<Result<B, Error>>> = Mutex::new(None);
    let next = AtomicUsize::new(0);
    let stop = AtomicBool::new(false);
    let done = AtomicU64::new(0);
    let total = drafter.tensors.iter().map(Tensor::byte_len).sum();

    let fail = |unit: usize, error: Error| {
        stop.store(true, Ordering::Relaxed);
        let mut failure = lock(&failure);
        if failure.as_ref().is_none_or(|(first, _)| unit < *first) {
            *failure = Some((unit, error));
        }
    };
    let work = || {
        let mut worker = new_worker();
        while !stop.load(Ordering::Relaxed) {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let Some(unit) = units.get(index) else { break };
            if observer.cancelled() {
                fail(usize::MAX, Error::Interrupted);
                break;
            }
            match worker.unit(*unit) {
                Ok(outcome) => *lock(&outcomes[index]) = Some(outcome),
                Err(error) => fail(index, error),
            }
            let tensor = &drafter.tensors[unit.tensor];
            let bytes = unit_bytes(tensor, *unit);
            let done = done.fetch_add(bytes, Ordering::Relaxed) + bytes;
            observer.progress(done, total, &tensor.spec.name);
        }
    };
    rayon::scope(|scope| {
        let mut before = Some(before);
        for _ in 0..threads {
            let before = before.take();
            let (before_result, fail, work) = (&before_result, &fail, &work);
            scope.spawn(move |_| {
                if let Some(before) = before {
                    let result = before();
                    if matches!(result, Err(Error::Interrupted)) {
                        fail(usize::MAX, Error::Interrupted);
                    }
                    *lock(before_result) = Some(result);
                }
                work();
            });
        }
    });
    if let Some((_, error)) = into_inner(failure) {
        return Err(error);
    }
    let before = into_inner(before_result).unwrap_or(Err(Error::Interrupted))?;
    // Without a failure every unit was taken and finished.
    let outcomes = outcomes.into_iter().filter_map(into_inner);
    Ok((before, units.into_iter().zip(outcomes).collect()))
}

/// All units of a drafter, in the order of its files.
fn units(drafter: &Drafter) -> Vec<Unit> {
    let mut order: Vec<usize> = (0..drafter.tensors.len()).collect();
    order.sort_by_key(|i| (drafter.tensors[*i].path(), drafter.tensors[*i].offset()));
    let mut units = Vec::new();
    for tensor in order {
        let spec = &drafter.tensors[tensor].spec;
        let (end, step) = if spec.role.is_matrix() {
            (spec.shape[0], BAND_ROWS as u64)
        } else {
            (spec.parameters(), RUN_VALUES)
        };
        let mut first = 0;
        while first < end {
            let count = step.min(end - first) as usize;
            units.push(Unit { tensor, first, count });
            first += step;
        }
    }
    units
}

/// Stored bytes of one unit.
fn unit_bytes(tensor: &Tensor, unit: Unit) -> u64 {
    let whole =
        if tensor.spec.role.is_matrix() { tensor.spec.shape[0] } else { tensor.spec.parameters() };
    (u128::from(tensor.byte_len()) * unit.count as u128 / u128::from(whole)) as u64
}

/// A panicking worker is propagated by the scope, so a poisoned lock is never seen alive.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn into_inner<T>(mutex: Mutex<T>) -> T {
    mutex.into_inner().unwrap_or_else(PoisonError::into_inner)
}
