//! The shim over the simulated XRT as a library of its own, `libdrafter_xrt.so`, with one device: what
//! `drafter --device npu --xrt-shim` opens on a machine without the device.

use std::sync::OnceLock;

use xrt_sim::{Faults, Simulated};
use xrt_sys::sys::drafter_xrt_api;

static DEVICE: OnceLock<Simulated> = OnceLock::new();

/// The only symbol, as `drafter_xrt.h` has it.
// SAFETY: nothing else in the library or in the programs that open it has this name.
#[unsafe(no_mangle)]
pub extern "C" fn drafter_xrt() -> *const drafter_xrt_api {
    DEVICE.get_or_init(|| Simulated::new(Faults::default()));
    xrt_sim::table()
}
