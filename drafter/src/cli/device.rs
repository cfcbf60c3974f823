//! Which device multiplies the ternary matrices of a session.

use command_line::Streams;
use command_line::args::Workers;
use command_line::exit::Usage;
use runtime::backend::{ModelOnNpu, Npu};
use runtime::quant::ActQuant;
use serde::Serialize;

use super::args::{Device, DeviceArgs, ModelArgs, NpuArgs};
use super::models::Models;
use super::packs::Packs;
use super::pair::Pair;
use crate::link::places::Places;
use crate::npu;
use crate::npu::files::Files;

/// Where a session multiplies.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Place {
    /// `cpu`, `npu` or `npu-sim`.
    name: &'static str,
    /// Why this one.
    reason: String,
}

/// The device of a session.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Status {
    #[serde(flatten)]
    place: Place,
    /// Commands that failed and were run again with the same result as if they had not.
    replays: u64,
}

/// Models, and what multiplies them.
#[derive(Debug)]
pub(crate) struct Loaded {
    pub(crate) models: Models,
    pub(crate) act: ActQuant,
    place: Place,
    npu: Option<Npu>,
}

impl Loaded {
    /// The device.
    pub(crate) fn place(&self) -> Place {
        self.place.clone()
    }

    /// The device, with what happened so far.
    pub(crate) fn status(&self) -> Status {
        let replays = self.npu.as_ref().map_or(0, Npu::replays);
        Status { place: self.place(), replays }
    }

    /// Says what the NPU had to do twice.
    pub(crate) fn note_replays(&self, streams: &Streams) {
        let Status { place: Place { name, .. }, replays } = self.status();
        if replays > 0 {
            streams.note(&format!("{name}: {replays} commands failed and were run again"));
        }
    }
}

/// Shim and image of the arguments.
pub(crate) fn files(args: &NpuArgs) -> Files {
    let links = Places::of_process().links;
    Files::of_process(args.xrt_shim.as_deref(), args.npu_image.as_deref(), links.as_deref())
}

/// Opens an NPU; `Device::Auto` means the real one.
pub(crate) fn open(args: &DeviceArgs) -> Result<(&'static str, Npu), runtime::Error> {
    match args.device {
        Device::NpuSim => Ok(("npu-sim", npu::simulated()?)),
        _ => Ok(("npu", npu::real(&files(&args.npu))?)),
    }
}

/// Loads a pair for the device of the arguments. Here, and only here, the CPU may take the place of the
/// NPU: later it would be another arithmetic in the midst of an answer.
pub(crate) fn load(
    pair: &Pair,
    models: &ModelArgs,
    args: &DeviceArgs,
    workers: &Workers,
    draft: bool,
    packs: &Packs<'_>,
    streams: &Streams,
) -> anyhow::Result<Loaded> {
    let npu_act = models.act.unwrap_or(ActQuant::N16);
    let reason = match args.device {
        Device::Cpu => "--device cpu".to_owned(),
        Device::Npu | Device::NpuSim if !npu_act.is_npu() => {
            let message = format!("--act {npu_act}: the NPU multiplies n16 and n8");
            return Err(Usage(message).into());
        }
        Device::Auto if !npu_act.is_npu() => format!("--act {npu_act} is the CPU's"),
        Device::Auto => match on_npu(pair, npu_act, args, workers, draft, packs) {
            Ok(loaded) => return Ok(loaded),
            Err(error) if is_device(&error) => {
                let reason = format!("{error:#}");
                streams.note(&format!("the CPU takes the place of the NPU: {reason}"));
                reason
            }
            Err(error) => return Err(error),
        },
        Device::Npu | Device::NpuSim => return on_npu(pair, npu_act, args, workers, draft, packs),
    };
    let act = models.act();
    let models = Models::load(pair, act, workers, draft, packs)?;
    Ok(Loaded { models, act, place: Place { name: "cpu", reason }, npu: None })
}

/// Whether the device is what failed.
fn is_device(error: &anyhow::Error) -> bool {
    let mut causes = error.chain().filter_map(|cause| cause.downcast_ref());
    causes.any(|error| matches!(error, runtime::Error::Device { .. }))
}

fn on_npu(
    pair: &Pair,
    act: ActQuant,
    args: &DeviceArgs,
    workers: &Workers,
    draft: bool,
    packs: &Packs<'_>,
) -> anyhow::Result<Loaded> {
    let (name, npu) = open(args)?;
    let backend = || ModelOnNpu::new(&npu);
    let models = Models::load_on(&backend, pair, act, workers, draft, Some(packs))?;
    let place = Place { name, reason: format!("--device {}", args.device.name()) };
    Ok(Loaded { models, act, place, npu: Some(npu) })
}
