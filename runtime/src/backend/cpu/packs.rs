//! The matrices of a model as a pack: what a [`PackCache`](crate::pack_cache::PackCache) stores.

use std::sync::{Arc, Mutex, PoisonError};

use formats::View;

use super::layout::{self, BAND};
use super::{Bytes, Dot, Packed};
use crate::Error;
use crate::backend::{Backend, Prepared};
use crate::pack_cache::{Pack, Packable, Section};
use crate::quant::Activations;
use crate::weights::TernaryMatrix;

/// The order of [`layout`], whatever instruction multiplies. A change of the order is a new number.
const KIND: &str = "cpu-tiles/1";

/// The [`Cpu`](super::Cpu) backend for one model, which remembers the model's matrices.
#[derive(Debug)]
pub struct ModelOnCpu {
    dot: Dot,
    matrices: Mutex<Vec<Arc<Packed>>>,
}

impl ModelOnCpu {
    /// A backend that multiplies with `dot`.
    #[must_use]
    pub fn new(dot: Dot) -> Self {
        Self { dot, matrices: Mutex::default() }
    }

    /// The matrices that were taken over until now. They get the bytes of a pack that
    /// [`attach`](crate::pack_cache::PackCache::attach)es it, if they were not multiplied before.
    #[must_use]
    pub fn pack(&self) -> Pack {
        let matrices = self.matrices.lock().unwrap_or_else(PoisonError::into_inner);
        let items = matrices.iter().map(|matrix| Arc::clone(matrix) as Arc<dyn Packable>);
        Pack { kind: KIND, items: items.collect() }
    }
}

impl Backend for ModelOnCpu {
    fn prepare(&self, matrix: TernaryMatrix) -> Result<Box<dyn Prepared>, Error> {
        let packed = Arc::new(Packed::new(matrix, self.dot));
        let mut matrices = self.matrices.lock().unwrap_or_else(PoisonError::into_inner);
        matrices.push(Arc::clone(&packed));
        Ok(Box::new(packed))
    }
}

impl Prepared for Arc<Packed> {
    fn matmul(&self, x: &Activations, out: &mut [f32]) -> Result<(), Error> {
        Packed::matmul(self, x, out)
    }
}

impl Packable for Packed {
    fn section(&self) -> Section {
        let (n, width) = (self.matrix.out_features(), self.matrix.in_features());
        let bytes = layout::packed_bytes(n, width) as u64;
        Section::new(self.matrix.name(), [n, width], bytes)
    }

    fn part_bytes(&self) -> usize {
        layout::packed_bytes(BAND, self.matrix.in_features())
    }

    fn pack(&self, part: usize, out: &mut [u8]) -> Result<(), Error> {
        layout::pack_band(&self.matrix, part, out)
    }

    fn will_pack(&self) {
        self.matrix.will_need();
    }

    fn packed(&self) {
        self.matrix.release();
    }

    fn take(&self, bytes: View) {
        // Bytes that were packed before are the same ones.
        let _ = self.bytes.set(Bytes::Mapped(bytes));
    }
}
