//! A drafter's tensors, cut into bands and shared out to workers.
//!
//! Workers take bands in the order of the file and give back one outcome each, so
//! the file is read once, front to back, and hashed on the way; memory is a few
//! bands per worker, and nothing depends on which worker took which band. Of
//! several faults the first in that order is reported: bands are taken in order,
//! and a band that was taken is always finished.

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use formats::dflash2::drafter::{Buffer, Drafter, Tensor};
use formats::q4nx;

use crate::Error;
use crate::digest::Running;
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

    /// Does one unit, whose stored bytes are given.
    fn unit(&mut self, unit: Unit, bytes: &[u8]) -> Result<Self::Outcome, Error>;
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

/// Hands out units with their bytes, in order.
struct Feed<'a> {
    units: std::iter::Enumerate<std::slice::Iter<'a, Unit>>,
    drafter: &'a Drafter,
    /// By file of the drafter.
    digests: Vec<Running<'a>>,
    /// File of each tensor.
    file_of: Vec<usize>,
}

impl<'a> Feed<'a> {
    fn new(drafter: &'a Drafter, units: &'a [Unit]) -> Self {
        let file_of = drafter
            .tensors
            .iter()
            .map(|t| drafter.files.iter().position(|f| f.path() == t.path()).unwrap_or(0))
            .collect();
        Self {
            units: units.iter().enumerate(),
            drafter,
            digests: drafter.files.iter().map(Running::new).collect(),
            file_of,
        }
    }

    /// The next unit and its index; its bytes are the first of `buffer`.
    fn next(&mut self, buffer: &mut Buffer) -> Option<(usize, Unit, Result<usize, Error>)> {
        let (index, unit) = self.units.next()?;
        let tensor = &self.drafter.tensors[unit.tensor];
        let (offset, len) = unit_range(tensor, *unit);
        let read = self.digests[self.file_of[unit.tensor]].read(offset, buffer.at_least(len));
        Some((index, *unit, read.map(|()| len)))
    }
}

/// All units through `threads` workers of the current pool: the SHA-256 of each of
/// the drafter's files, and the outcomes in the order of the files.
pub(crate) fn share<W: Worker>(
    drafter: &Drafter,
    threads: usize,
    observer: &dyn Observer,
    new_worker: impl Fn() -> W + Sync,
) -> Result<(Vec<String>, Outcomes<W>), Error> {
    let units = units(drafter);
    let feed = Mutex::new(Feed::new(drafter, &units));
    let outcomes: Vec<Mutex<Option<W::Outcome>>> = units.iter().map(|_| Mutex::default()).collect();
    let failure: Mutex<Option<(usize, Error)>> = Mutex::new(None);
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
        let mut buffer = Buffer::default();
        while !stop.load(Ordering::Relaxed) {
            if observer.cancelled() {
                fail(usize::MAX, Error::Interrupted);
                break;
            }
            let next = lock(&feed).next(&mut buffer);
            let Some((index, unit, read)) = next else { break };
            match read.and_then(|len| worker.unit(unit, buffer.at_least(len))) {
                Ok(outcome) => *lock(&outcomes[index]) = Some(outcome),
                Err(error) => fail(index, error),
            }
            let tensor = &drafter.tensors[unit.tensor];
            let bytes = unit_range(tensor, unit).1 as u64;
            let done = done.fetch_add(bytes, Ordering::Relaxed) + bytes;
            observer.progress(done, total, &tensor.spec.name);
        }
    };
    rayon::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|_| work());
        }
    });
    if let Some((_, error)) = into_inner(failure) {
        return Err(error);
    }
    let digests = into_inner(feed).digests;
    let digests = digests.into_iter().map(Running::finish).collect::<Result<_, _>>()?;
    // Without a failure every unit was taken and finished.
    let outcomes = outcomes.into_iter().filter_map(into_inner);
    Ok((digests, units.iter().copied().zip(outcomes).collect()))
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

/// Where a unit's bytes are: offset in the file, and length. All encodings store
/// rows, and bands of 32 rows, one after the other in equal sizes.
fn unit_range(tensor: &Tensor, unit: Unit) -> (u64, usize) {
    let whole =
        if tensor.spec.role.is_matrix() { tensor.spec.shape[0] } else { tensor.spec.parameters() };
    let bytes = |n: u64| (u128::from(tensor.byte_len()) * u128::from(n) / u128::from(whole)) as u64;
    (tensor.offset() + bytes(unit.first), bytes(unit.count as u64) as usize)
}

/// A panicking worker is propagated by the scope, so a poisoned lock is never seen alive.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn into_inner<T>(mutex: Mutex<T>) -> T {
    mutex.into_inner().unwrap_or_else(PoisonError::into_inner)
}
