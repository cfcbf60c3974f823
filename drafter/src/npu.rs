//! The NPU of this machine: what a session needs of it, and what `doctor` looks at.

pub(crate) mod doctor;
pub(crate) mod files;

use std::fs;
use std::sync::OnceLock;

use formats::shown_path;
use runtime::Error;
use runtime::backend::Npu;
use runtime::backend::npu::Options;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use xrt_sim::{Faults, Simulated};
use xrt_sys::{Api, Device};

use files::Files;

/// The simulated device; it stays for as long as the program.
static SIMULATED: OnceLock<Simulated> = OnceLock::new();

fn error(device: &'static str, what: &impl ToString, hint: Option<&str>) -> Error {
    Error::Device { device, what: what.to_string(), hint: hint.map(str::to_owned) }
}

/// The simulated NPU.
pub(crate) fn simulated() -> Result<Npu, Error> {
    let device = SIMULATED.get_or_init(|| Simulated::new(Faults::default()));
    let api = xrt_sim::api().map_err(|e| error("npu-sim", &e, None))?;
    let device = Device::open(&api, device.index()).map_err(|e| error("npu-sim", &e, None))?;
    Npu::open(&device, xrt_sim::image(), &Options::new("npu-sim"))
}

/// The real one, with shim and image of `files`.
pub(crate) fn real(files: &Files) -> Result<Npu, Error> {
    const DOCTOR: Option<&str> = Some("`drafter doctor` looks at everything that is needed");
    let shim = files.shim().map_err(|e| error("npu", &e, DOCTOR))?;
    let image = files.image().map_err(|e| error("npu", &e, DOCTOR))?;
    let bytes = fs::read(&image)
        .map_err(|e| error("npu", &format!("`{}`: {e}", shown_path(&image)), DOCTOR))?;
    // Nothing is lost where it cannot be raised: the driver says so when buffers are made.
    let limit = getrlimit(Resource::Memlock);
    let _ = setrlimit(Resource::Memlock, Rlimit { current: limit.maximum, ..limit });
    let api = Api::open(&shim).map_err(|e| error("npu", &e, DOCTOR))?;
    let device = Device::open(&api, 0).map_err(|e| error("npu", &e, DOCTOR))?;
    Npu::open(&device, bytes, &Options::new("npu"))
}
