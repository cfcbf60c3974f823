//! The matrices of a model as a pack in the order that the array reads.

use std::sync::{Arc, Mutex, PoisonError};

use super::{Npu, OnDevice};
use crate::Error;
use crate::backend::{Backend, Prepared};
use crate::pack_cache::{Pack, Packable, PackedBytes, Section};
use crate::quant::Activations;
use crate::weights::TernaryMatrix;

/// The order of [`aie_kernels::job`]. A change of the order is a new number.
const KIND: &str = "npu-pack/1";

/// The [`Npu`] for one model, whose weights go to the device when all of them are known, so that a
/// pack can give them.
#[derive(Debug)]
pub struct ModelOnNpu {
    npu: Npu,
    matrices: Mutex<Vec<Arc<OnDevice>>>,
}

impl ModelOnNpu {
    /// A backend for a model on `npu`.
    #[must_use]
    pub fn new(npu: &Npu) -> Self {
        Self { npu: npu.clone(), matrices: Mutex::default() }
    }

    fn matrices(&self) -> Vec<Arc<OnDevice>> {
        self.matrices.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The matrices that were taken over until now.
    #[must_use]
    pub fn pack(&self) -> Pack {
        let items = self.matrices().into_iter().map(|matrix| matrix as Arc<dyn Packable>);
        // The device gets a copy.
        Pack { kind: KIND, items: items.collect(), read_in_place: false }
    }

    /// Puts the matrices on the device: the bytes of a pack where one was
    /// [`attach`](crate::pack_cache::PackCache::attach)ed, packed now otherwise. Until then the first
    /// product of a matrix does.
    ///
    /// # Errors
    /// [`Error::Device`]; [`Error::Formats`] where the weights are damaged; [`Error::Memory`].
    pub fn load(&self) -> Result<(), Error> {
        let matrices = self.matrices();
        matrices.iter().try_for_each(|matrix| matrix.load()).map_err(|error| match error {
            Error::Device { device, what, hint } => {
                let (n, bytes) = (matrices.len(), self.pack().bytes());
                let what = format!("{what} (the {n} matrices of this model take {bytes} bytes)");
                Error::Device { device, what, hint }
            }
            other => other,
        })
    }
}

impl Backend for ModelOnNpu {
    fn prepare(&self, matrix: TernaryMatrix) -> Result<Box<dyn Prepared>, Error> {
        let matrix = Arc::new(OnDevice::new(&self.npu.shared, matrix)?);
        let mut matrices = self.matrices.lock().unwrap_or_else(PoisonError::into_inner);
        matrices.push(Arc::clone(&matrix));
        Ok(Box::new(matrix))
    }
}

impl Prepared for Arc<OnDevice> {
    fn matmul(&self, x: &Activations, out: &mut [f32]) -> Result<(), Error> {
        OnDevice::matmul(self, x, out)
    }
}

impl Packable for OnDevice {
    fn section(&self) -> Section {
        let shape = [self.matrix.out_features(), self.matrix.in_features()];
        Section::new(self.matrix.name(), shape, self.job.weight_bytes() as u64)
    }

    fn part_bytes(&self) -> usize {
        self.job.column_weight_bytes()
    }

    fn pack(&self, part: usize, out: &mut [u8]) -> Result<(), Error> {
        self.pack_column(part, out)
    }

    fn will_pack(&self) {
        self.matrix.will_need();
    }

    fn packed(&self) {
        self.matrix.release();
    }

    fn take(&self, bytes: PackedBytes) {
        *self.packed.lock().unwrap_or_else(PoisonError::into_inner) = Some(bytes);
    }
}
