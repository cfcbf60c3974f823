//! Prepared moments, made when the first worker needs them and dropped after the last.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use formats::dflash2::drafter::Drafter;
use hadamard::Isa;

use super::hessian::Hessian;
use super::moments::{Calibration, Feed, Moments, damping, refused, unit_columns};
use crate::Error;
use crate::bands::BAND_ROWS;

/// Damping of the prior, which is no measurement.
const PRIOR_DAMPING: f64 = 0.1;

/// The feeds of a drafter's matrices.
#[derive(Debug)]
pub(crate) struct Bank {
    calibration: Calibration,
    block: usize,
    feeds: Vec<Feed>,
    /// Feed of each tensor.
    of_tensor: Vec<Option<usize>>,
}

/// What a report says of a matrix's moments.
#[derive(Debug, Clone)]
pub(crate) struct Facts {
    pub(crate) inputs: Vec<String>,
    pub(crate) rows: Option<u64>,
    pub(crate) damping: f64,
}

impl Bank {
    /// Checks the moments against the drafter.
    ///
    /// # Errors
    /// A file of another drafter or block, or without what a matrix needs.
    pub(crate) fn new(
        drafter: &Drafter,
        calibration: &Calibration,
        block: usize,
    ) -> Result<Self, Error> {
        if let Moments::Captured(file) = &calibration.moments {
            let captured = file.document().models.block;
            if captured != block {
                return Err(Error::Input(formats::Error::Key {
                    path: file.path().to_path_buf(),
                    key: "document.models.block".into(),
                    expected: format!("{block}, the rotation block of this run"),
                    found: captured.to_string(),
                    hint: Some(format!("use --block {captured}")),
                }));
            }
            if let Some(sha256) = formats::digest::of_files(&drafter.files, &mut |_| true)? {
                file.check_drafter(&sha256)?;
            }
        }
        let mut feeds: Vec<Feed> = Vec::new();
        let mut of_tensor = Vec::new();
        for tensor in &drafter.tensors {
            let feed = match tensor.spec.role.is_matrix() {
                true => Feed::of(&calibration.moments, drafter, &tensor.spec)?,
                false => None,
            };
            of_tensor.push(feed.map(|feed| {
                feeds.iter().position(|known| known.parts == feed.parts).unwrap_or_else(|| {
                    feeds.push(feed);
                    feeds.len() - 1
                })
            }));
        }
        if let (Moments::Captured(file), true) = (&calibration.moments, feeds.is_empty()) {
            let expected = "inputs of this drafter's matrices".into();
            return Err(refused(file, "document.inputs", expected, "none".into()));
        }
        Ok(Self { calibration: calibration.clone(), block, feeds, of_tensor })
    }

    /// What was asked for.
    pub(crate) fn calibration(&self) -> &Calibration {
        &self.calibration
    }

    /// Columns that are solved together.
    pub(crate) fn unit_columns(&self) -> usize {
        unit_columns(self.block)
    }

    /// What feeds a tensor, where there are moments for it.
    pub(crate) fn feed(&self, tensor: usize) -> Option<usize> {
        self.of_tensor[tensor]
    }

    /// What there is for a tensor.
    pub(crate) fn facts(&self, drafter: &Drafter, tensor: usize) -> Option<Facts> {
        let feed = &self.feeds[self.of_tensor[tensor]?];
        Some(Facts { inputs: feed.names(drafter), rows: feed.samples, damping: self.damping(feed) })
    }

    fn damping(&self, feed: &Feed) -> f64 {
        let by_rows = || feed.samples.map_or(PRIOR_DAMPING, |n| damping(n, self.unit_columns()));
        self.calibration.damping.unwrap_or_else(by_rows)
    }

    /// An upper bound of the memory of prepared moments and of the work on them.
    pub(crate) fn memory_bytes(&self, drafter: &Drafter, threads: usize) -> usize {
        let n = self.unit_columns();
        let mut order: Vec<usize> = (0..drafter.tensors.len()).collect();
        order.sort_by_key(|i| (drafter.tensors[*i].path(), drafter.tensors[*i].offset()));
        let used: Vec<Option<usize>> = order.iter().map(|tensor| self.of_tensor[*tensor]).collect();
        let spans: Vec<Range<usize>> = (0..self.feeds.len())
            .map(|feed| {
                let first = used.iter().position(|f| *f == Some(feed)).unwrap_or(0);
                // Workers are at most a tensor apart per thread.
                let last = used.iter().rposition(|f| *f == Some(feed)).unwrap_or(0);
                first..last + threads.max(1)
            })
            .collect();
        let live = |at: usize| -> usize {
            let feeds = self.feeds.iter().zip(&spans).filter(|(_, span)| span.contains(&at));
            feeds.map(|(feed, _)| feed.width / n * (12 * n * n)).sum()
        };
        let prepared = (0..used.len()).map(live).max().unwrap_or(0);
        // Two factorizations in f64 beside the moments; products of every group.
        let work = 24 * n * n + 4 * BAND_ROWS * n * (n / formats::GROUP + 10);
        let widest = self.feeds.iter().map(|f| f.width).max().unwrap_or(0);
        prepared + threads * (work + 4 * BAND_ROWS * widest)
    }

    /// The stores of one run. `bands` are the numbers of bands of each tensor.
    pub(crate) fn open(&self, bands: impl Iterator<Item = usize>) -> Vec<Store> {
        let mut stores: Vec<Store> = self.feeds.iter().map(|_| Store::default()).collect();
        let n = self.unit_columns();
        for (store, feed) in stores.iter_mut().zip(&self.feeds) {
            store.units = (0..feed.width / n).map(|_| Mutex::default()).collect();
        }
        for (feed, bands) in self.of_tensor.iter().zip(bands) {
            if let Some(feed) = feed {
                *stores[*feed].left.get_mut() += bands;
            }
        }
        stores
    }

    /// The prepared moments of one run of columns of a feed.
    ///
    /// # Errors
    /// What reading says, and moments that are none.
    pub(crate) fn hessian(
        &self,
        stores: &[Store],
        drafter: &Drafter,
        index: usize,
        unit: usize,
        isa: Isa,
    ) -> Result<Arc<Hessian>, Error> {
        let feed = &self.feeds[index];
        let mut slot = stores[index].units[unit].lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(hessian) = &*slot {
            return Ok(Arc::clone(hessian));
        }
        let n = self.unit_columns();
        let moments = &self.calibration.moments;
        let h = feed.moments(moments, drafter, self.block, n, unit)?;
        let hessian = Hessian::new(isa, n, &h, self.damping(feed))
            .map_err(|fault| feed.fault(moments, drafter, fault))?;
        Ok(Arc::clone(slot.insert(Arc::new(hessian))))
    }

    /// One band of a tensor with this feed is through.
    pub(crate) fn done(stores: &[Store], index: usize) {
        if stores[index].left.fetch_sub(1, Ordering::AcqRel) == 1 {
            for unit in &stores[index].units {
                *unit.lock().unwrap_or_else(PoisonError::into_inner) = None;
            }
        }
    }
}

/// Prepared moments of one feed.
#[derive(Debug, Default)]
pub(crate) struct Store {
    units: Vec<Mutex<Option<Arc<Hessian>>>>,
    /// Bands that still need it.
    left: AtomicUsize,
}
