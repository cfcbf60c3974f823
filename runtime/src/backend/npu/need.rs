//! How much memory the NPU would lock for models.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

use aie_kernels::job::Job;

use crate::Error;
use crate::backend::{Backend, Prepared, Reference};
use crate::weights::TernaryMatrix;

/// What XRT and the driver lock besides buffers: the heap of the device.
const HEAP_BYTES: u64 = 64 << 20;

/// A backend that adds up the buffers of the matrices it is shown, and multiplies on the CPU.
#[derive(Debug, Default)]
pub struct Need(Mutex<Sum>);

#[derive(Debug, Default)]
struct Sum {
    matrices: usize,
    weights: u64,
    shapes: BTreeSet<(usize, usize)>,
    too_large: Option<String>,
}

impl Need {
    /// Nothing so far.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    fn with<T>(&self, f: impl FnOnce(&mut Sum) -> T) -> T {
        f(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Matrices so far.
    #[must_use]
    pub fn matrices(&self) -> usize {
        self.with(|sum| sum.matrices)
    }

    /// Bytes that would be locked: weights, activations, results and instructions, and the heap.
    #[must_use]
    pub fn locked_bytes(&self) -> u64 {
        self.with(|sum| {
            let per_shape = sum.shapes.iter().filter_map(|&(rows, k)| {
                let job = Job::new(rows, k).ok()?;
                let words = job.instructions(0).ok()?.len();
                Some((job.activation_bytes() + job.result_bytes() + 4 * words) as u64)
            });
            HEAP_BYTES + sum.weights + per_shape.sum::<u64>()
        })
    }

    /// A matrix that the array cannot take, and why.
    #[must_use]
    pub fn too_large(&self) -> Option<String> {
        self.with(|sum| sum.too_large.clone())
    }
}

impl Backend for Need {
    fn prepare(&self, matrix: TernaryMatrix) -> Result<Box<dyn Prepared>, Error> {
        let shape = (matrix.out_features(), matrix.in_features());
        self.with(|sum| match Job::new(shape.0, shape.1) {
            Ok(job) => {
                sum.matrices += 1;
                sum.weights += job.weight_bytes() as u64;
                sum.shapes.insert(shape);
            }
            Err(error) => {
                sum.too_large.get_or_insert(format!("{} x {}: {error}", shape.0, shape.1));
            }
        });
        Reference.prepare(matrix)
    }
}
