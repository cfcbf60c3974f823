//! The NPU backend: every product is a command on the array of [`aie_kernels`], over XRT.
//!
//! Weights stay on the device, a buffer per matrix, from [`Backend::prepare`] on. A product of up to 8
//! rows is one command: send the activations, run, fetch the results. The device is opened by the
//! caller: the real one, or the simulated one of `xrt-sim`, which this code cannot tell apart.
//!
//! A command that does not complete leaves a dead context. Then a new one is made, the image is loaded
//! again and the same command runs once more; the second failure in a row is an error. Results are taken
//! only from a command that completed and wrote every strip: their places hold a pattern before, which
//! no sum gives. So a fault costs time or ends the run, and no token is wrong.

mod need;
mod session;
#[cfg(test)]
mod tests;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use aie_kernels::job::{Job, JobError};
use xrt_sys::Device;

use super::{Backend, Prepared, n16};
use crate::Error;
use crate::quant::Activations;
use crate::weights::TernaryMatrix;

pub use need::Need;
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
        let (rows, k) = (matrix.out_features(), matrix.in_features());
        let job = Job::new(rows, k).map_err(|e| self.shared.job_error(&e))?;
        let weights = n16::outputs(&matrix, 0..rows)?;
        let bytes = job.pack_weights(&weights).map_err(|e| n16::operand(&e))?;
        drop(weights);
        let resident = self.shared.session().load(job, &bytes);
        let resident = Mutex::new(resident.map_err(|fault| self.shared.error(&fault))?);
        Ok(Box::new(OnDevice { shared: Arc::clone(&self.shared), job, rows, k, resident }))
    }
}

/// A matrix whose weights are on the device.
#[derive(Debug)]
struct OnDevice {
    shared: Arc<Shared>,
    job: Job,
    rows: usize,
    k: usize,
    /// Taken before the session.
    resident: Mutex<Resident>,
}

impl Drop for OnDevice {
    fn drop(&mut self) {
        let resident = self.resident.get_mut().unwrap_or_else(PoisonError::into_inner);
        self.shared.session().unload(resident);
    }
}

impl Prepared for OnDevice {
    fn matmul(&self, x: &Activations, out: &mut [f32]) -> Result<(), Error> {
        assert_eq!((x.width(), out.len()), (self.k, x.n() * self.rows));
        let Some(blocks) = x.npu() else {
            let what = format!("it multiplies n16 and n8, not {}", x.act());
            return Err(Error::Device { device: self.shared.name, what, hint: None });
        };
        let mut out = out;
        for block in blocks {
            let inputs = self.job.pack_activations(block).map_err(|e| n16::operand(&e))?;
            let resident = self.resident.lock().unwrap_or_else(PoisonError::into_inner);
            let mut session = self.shared.session();
            let bytes = session.multiply(&resident, &inputs);
            let bytes = bytes.map_err(|fault| self.shared.error(&fault))?;
            let products = self.job.unpack_results(bytes, block.live_rows());
            let products = products.map_err(|e| n16::operand(&e))?;
            let rest;
            (out, rest) = out.split_at_mut(products.len());
            out.copy_from_slice(&products);
            out = rest;
        }
        Ok(())
    }
}
