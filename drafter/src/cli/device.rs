//! Which device multiplies the ternary matrices of a session.

use command_line::Streams;
use command_line::args::Workers;
use command_line::exit::{Usage, reading};
use runtime::backend::Npu;
use runtime::drafter::Drafter;
use runtime::quant::ActQuant;
use runtime::target::Target;
use serde::Serialize;

use super::args::{Device, DeviceArgs, ModelArgs};
use super::models::Models;
use super::packs::Packs;
use super::pair::Pair;
use crate::link::places::Places;
use crate::npu;
use crate::npu::files::Files;

/// The device of a session.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Status {
    /// `cpu`, `npu` or `npu-sim`.
    name: &'static str,
    /// Why this one.
    reason: String,
    /// Commands that failed and were run again with the same result as if they had not.
    replays: u64,
}

/// Models, and what multiplies them.
#[derive(Debug)]
pub(crate) struct Loaded {
    pub(crate) models: Models,
    pub(crate) act: ActQuant,
    status: Status,
    npu: Option<Npu>,
}

impl Loaded {
    /// The device, with what happened so far.
    pub(crate) fn status(&self) -> Status {
        let replays = self.npu.as_ref().map_or(0, Npu::replays);
        Status { replays, ..self.status.clone() }
    }

    /// Says what the NPU had to do twice.
    pub(crate) fn note_replays(&self, streams: &Streams) {
        let Status { name, replays, .. } = self.status();
        if replays > 0 {
            streams.note(&format!("{name}: {replays} commands failed and were run again"));
        }
    }
}

/// Shim and image of the arguments.
pub(crate) fn files(args: &DeviceArgs) -> Files {
    let links = Places::of_process().links;
    Files::of_process(args.xrt_shim.as_deref(), args.npu_image.as_deref(), links.as_deref())
}

/// Opens an NPU; `Device::Auto` means the real one.
pub(crate) fn open(args: &DeviceArgs) -> Result<(&'static str, Npu), runtime::Error> {
    match args.device {
        Device::NpuSim => Ok(("npu-sim", npu::simulated()?)),
        _ => Ok(("npu", npu::real(&files(args))?)),
    }
}

/// Loads a pair for the device of the arguments. Here, and only here, the CPU may take the place of the
/// NPU.
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
        Device::Auto => match on_npu(pair, npu_act, args, workers, draft) {
            Ok(loaded) => return Ok(loaded),
            Err(error) if is_device(&error) => {
                let reason = format!("{error:#}");
                streams.note(&format!("the CPU takes the place of the NPU: {reason}"));
                reason
            }
            Err(error) => return Err(error),
        },
        Device::Npu | Device::NpuSim => return on_npu(pair, npu_act, args, workers, draft),
    };
    let act = models.act();
    let models = Models::load(pair, act, workers, draft, packs)?;
    Ok(Loaded { models, act, status: Status { name: "cpu", reason, replays: 0 }, npu: None })
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
) -> anyhow::Result<Loaded> {
    let begin = std::time::Instant::now();
    let (name, npu) = open(args)?;
    let isa = workers.isa();
    let target =
        Target::open(&pair.target, act, isa, &npu).map_err(|e| reading(&pair.target, e))?;
    let drafter = match pair.drafter.as_deref().filter(|_| draft) {
        None => None,
        Some(path) => {
            let config = pair.drafter_config.as_deref();
            let drafter = Drafter::open(path, config, &target, act, isa, &npu);
            Some(drafter.map_err(|e| reading(path, e))?)
        }
    };
    let models = Models { target, drafter, load_ms: super::models::milliseconds(begin) };
    let status = Status { name, reason: format!("--device {}", args.device.name()), replays: 0 };
    Ok(Loaded { models, act, status, npu: Some(npu) })
}
