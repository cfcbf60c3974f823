//! An XRT without a device: XRT's C++ classes, as far as the shim of [`xrt_sys`] uses them, over the
//! simulated array of [`aie_kernels`].
//!
//! The shim is compiled unchanged against the headers in `include/`; what lies above it cannot tell the
//! difference. Demands of XRT and the firmware are kept: the opcode, the kinds and the order of
//! arguments, at most five buffers, memory groups (a buffer in the wrong one is not reached, and the
//! command completes), contexts that die with a failed command. Host and device each have a copy of a
//! buffer, so that a missing synchronisation shows as stale data.
//!
//! [`device`] makes devices, also ones on which a chosen thing goes wrong.

pub mod device;

pub use device::{Faults, Simulated, image};

use xrt_sys::sys::drafter_xrt_api;
use xrt_sys::{Api, OpenError};

unsafe extern "C" {
    fn drafter_xrt_sim() -> *const drafter_xrt_api;
}

/// The functions of the shim over the simulated XRT, a constant of the program.
#[must_use]
pub fn table() -> *const drafter_xrt_api {
    // SAFETY: the function takes nothing and returns the address of a constant of the shim.
    unsafe { drafter_xrt_sim() }
}

/// The shim over the simulated XRT, linked into the program.
///
/// # Errors
/// [`OpenError`] if shim and program were not built together.
pub fn api() -> Result<Api, OpenError> {
    // SAFETY: a constant of the program; the shim is the one that drafter_xrt.h documents.
    unsafe { Api::linked(table(), "the simulator's shim") }
}
