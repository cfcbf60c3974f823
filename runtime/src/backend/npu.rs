//! The NPU backend: every product is a command on the array of [`aie_kernels`], over XRT.
//!
//! Weights stay on the device, a buffer per matrix, from [`Backend::prepare`] on; with [`ModelOnNpu`]
//! they come from a pack on disk if there is one. A product of up to 8
//! rows is one command: send the activations, run, fetch the results. The device is opened by the
//! caller: the real one, or the simulated one of `xrt-sim`, which this code cannot tell apart.
//!
//! A command that does not complete leaves a dead context. Then a new one is made, the image is loaded
//! again and the same command runs once more; the second failure in a row is an error. Results are taken
//! only from a command that completed and wrote every strip: their places hold a pattern before, which
//! no sum gives. So a fault costs time or ends the run, and no token is wrong.

mod need;
mod packs;
mod session;
#[cfg(test)]
mod tests;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use aie_kernels::arithmetic::OperandError;
use aie_kernels::job::{Job, JobError};
use rayon::prelude::*;
use xrt_sys::Device;

use super::{Backend, Memory, Prepared, n16};
use crate::Error;
use crate::pack_cache::PackedBytes;
use crate::quant::Activations;
use crate::weights::TernaryMatrix;

pub use need::Need;
pub use packs::ModelOnNpu;
pub use session::KERNEL;
use session::{Fault, Resident, Session};

/// How the NPU is used.
#[derive(Debug, Clone)]
pub struct Options {
    /// Its name in messages.
    pub name: &'static str,
    /// How long a command may take.
    pub timeout_ms: u32,
}

impl Options {
    /// The defaults, under this name. The driver itself ends commands after 2 seconds.
    #[must_use]
    pub fn new(name: &'static str) -> Self {
        Self { name, timeout_ms: 5000 }
    }
}

/// The NPU backend. Clones share the device.
#[derive(Debug, Clone)]
pub struct Npu {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    name: &'static str,
    session: Mutex<Session>,
}

impl Shared {
    fn session(&self) -> MutexGuard<'_, Session> {
        // A panic in another thread left a context that may be in any state: it is made anew.
        self.session.lock().unwrap_or_else(|poisoned| {
            let mut session = PoisonError::into_inner(poisoned);
            session.abandon();
            session
        })
    }

    fn error(&self, fault: &Fault) -> Error {
        Error::Device {
            device: self.name,
            what: fault.to_string(),
            hint: fault.hint().map(str::to_owned),
        }
    }

    fn job_error(&self, error: &JobError) -> Error {
        Error::Device { device: self.name, what: error.to_string(), hint: None }
    }
}

impl Npu {
    /// Loads `image`, an xclbin of the design in [`aie_kernels`], on `device`, and lets it multiply a
    /// small matrix whose product is known.
    ///
    /// # Errors
    /// [`Error::Device`], which says what to do where that is known.
    pub fn open(device: &Device, image: Vec<u8>, options: &Options) -> Result<Self, Error> {
        let session = Session::new(device.clone(), image, options.timeout_ms);
        let npu =
            Self { shared: Arc::new(Shared { name: options.name, session: Mutex::new(session) }) };
        npu.shared.session().probe().map_err(|fault| npu.shared.error(&fault))?;
        Ok(npu)
    }

    /// Commands that were run again after a failure.
    #[must_use]
    pub fn replays(&self) -> u64 {
        self.shared.session().replays()
    }
}

impl Backend for Npu {
    fn prepare(&self, matrix: TernaryMatrix) -> Result<Box<dyn Prepared>, Error> {
        let prepared = OnDevice::new(&self.shared, matrix)?;
        prepared.load()?;
        Ok(Box::new(prepared))
    }
}

/// A matrix whose weights are on the device, or soon will be.
#[derive(Debug)]
struct OnDevice {
    shared: Arc<Shared>,
    job: Job,
    matrix: TernaryMatrix,
    /// Its weights in `npu-pack/1`, if a pack has them, until they are on the device.
    packed: Mutex<Option<PackedBytes>>,
    /// Taken before the session.
    resident: Mutex<Option<Resident>>,
}

impl OnDevice {
    fn new(shared: &Arc<Shared>, matrix: TernaryMatrix) -> Result<Self, Error> {
        let job = Job::new(matrix.out_features(), matrix.in_features());
        let job = job.map_err(|e| shared.job_error(&e))?;
        let (packed, resident) = (Mutex::default(), Mutex::default());
        Ok(Self { shared: Arc::clone(shared), job, matrix, packed, resident })
    }

    /// Puts the weights on the device if they are not there.
    fn load(&self) -> Result<(), Error> {
        self.with_resident(|_| Ok(()))
    }

    fn with_resident<T>(&self, f: impl FnOnce(&Resident) -> Result<T, Error>) -> Result<T, Error> {
        let mut resident = self.resident.lock().unwrap_or_else(PoisonError::into_inner);
        let resident = match &mut *resident {
            Some(resident) => resident,
            none => {
                let packed = self.packed.lock().unwrap_or_else(PoisonError::into_inner).take();
                let packed = match packed {
                    Some(packed) => packed,
                    None => self.pack()?.into(),
                };
                let loaded = self.shared.session().load(self.job, &packed);
                none.insert(loaded.map_err(|fault| self.shared.error(&fault))?)
            }
        };
        f(resident)
    }

    /// The weights in `npu-pack/1`, by all threads.
    fn pack(&self) -> Result<Memory, Error> {
        let bytes = self.job.weight_bytes();
        let mut packed = Memory::zeroed(bytes).map_err(|source| Error::Memory { bytes, source })?;
        let columns = packed.par_chunks_mut(self.job.column_weight_bytes()).enumerate();
        columns.try_for_each(|(col, out)| self.pack_column(col, out))?;
        // Packed bytes and pages of the file at once would be twice the model.
        self.matrix.release();
        Ok(packed)
    }

    /// Writes a column of `npu-pack/1`.
    fn pack_column(&self, col: usize, mut out: &mut [u8]) -> Result<(), Error> {
        out.fill(0);
        let mut groups = Vec::new();
        while !out.is_empty() {
            let (group, rest) = out.split_at_mut(self.job.group_weight_bytes(groups.len()));
            groups.push(group);
            out = rest;
        }
        groups.into_par_iter().enumerate().try_for_each(|(group, out)| {
            let strip = |rows| n16::outputs(&self.matrix, rows).map_err(Unpacked);
            self.job.pack_group(col, group, out, strip).map_err(|Unpacked(error)| error)
        })
    }
}

/// Why a matrix cannot be packed.
struct Unpacked(Error);

impl From<OperandError> for Unpacked {
    fn from(error: OperandError) -> Self {
        Self(n16::operand(&error))
    }
}

impl Drop for OnDevice {
    fn drop(&mut self) {
        let resident = self.resident.get_mut().unwrap_or_else(PoisonError::into_inner);
        if let Some(resident) = resident {
            self.shared.session().unload(resident);
        }
    }
}

impl Prepared for OnDevice {
    fn matmul(&self, x: &Activations, out: &mut [f32]) -> Result<(), Error> {
        let (rows, k) = (self.matrix.out_features(), self.matrix.in_features());
        assert_eq!((x.width(), out.len()), (k, x.n() * rows));
        let Some(blocks) = x.npu() else {
            let what = format!("it multiplies n16 and n8, not {}", x.act());
            return Err(Error::Device { device: self.shared.name, what, hint: None });
        };
        let mut out = out;
        for block in blocks {
            let inputs = self.job.pack_activations(block).map_err(|e| n16::operand(&e))?;
            let products = self.with_resident(|resident| {
                let mut session = self.shared.session();
                let bytes = session.multiply(resident, &inputs);
                let bytes = bytes.map_err(|fault| self.shared.error(&fault))?;
                let products = self.job.unpack_results(bytes, block.live_rows());
                products.map_err(|e| n16::operand(&e))
            })?;
            let rest;
            (out, rest) = out.split_at_mut(products.len());
            out.copy_from_slice(&products);
            out = rest;
        }
        Ok(())
    }
}
