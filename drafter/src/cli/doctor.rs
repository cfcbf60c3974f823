//! `drafter doctor`.

use anyhow::Context as _;
use command_line::Streams;
use command_line::args::Workers;
use command_line::exit::{Outcome, reading};
use formats::shown_path;
use runtime::backend::npu::Need;
use runtime::drafter::Drafter;
use runtime::quant::ActQuant;
use runtime::target::Target;
use serde::Serialize;

use super::SCHEMA;
use super::args::DoctorArgs;
use super::device;
use super::pair::Pair;
use crate::link::places::Places;
use crate::link::store::Store;
use crate::npu::doctor::{Check, Machine, Status};

/// What `--json` prints.
#[derive(Debug, Serialize)]
struct Document {
    schema: u32,
    /// Whether `--device npu` can be expected to work.
    usable: bool,
    /// The pair that the need of memory is that of.
    pair: Option<String>,
    need_locked_bytes: Option<u64>,
    checks: Vec<Check>,
}

/// Runs the command.
pub(crate) fn run(
    args: &DoctorArgs,
    workers: &Workers,
    streams: &Streams,
) -> anyhow::Result<Outcome> {
    let found = need(args, workers)?;
    let need = found.as_ref().map(|pair| (pair.locked_bytes, pair.name.clone()));
    let groups = rustix::process::getgroups().context("reading the groups of this process")?;
    let machine = Machine {
        root: args.root.clone(),
        uid: rustix::process::geteuid().as_raw(),
        groups: groups
            .into_iter()
            .chain([rustix::process::getegid()])
            .map(rustix::process::Gid::as_raw)
            .collect(),
        files: device::files(&args.npu),
        need: need.clone(),
    };
    let mut checks = machine.checks();
    if let Some(Pairing { name, too_large: Some(why), .. }) = &found {
        let found = format!("`{name}` has a matrix that the array cannot take, {why}");
        checks.push(Check::failed("matrices", found, "use --device cpu"));
    }
    let usable = checks.iter().all(|check| check.status != Status::Failed);
    if streams.json() {
        let (need_locked_bytes, pair) = need.unzip();
        let schema = SCHEMA;
        streams.document(&Document { schema, usable, pair, need_locked_bytes, checks })?;
    } else {
        let mut text = String::new();
        for check in &checks {
            let mark = match check.status {
                Status::Ok => "ok     ",
                Status::Failed => "FAILED ",
                Status::Unknown => "unknown",
            };
            text += &format!("{mark} {:<10} {}\n", check.name, check.found);
            if let Some(remedy) = &check.remedy {
                text += &format!("        {:<10} -> {remedy}\n", "");
            }
        }
        text += if usable {
            "the NPU can be used: `drafter selftest --device npu` tries it\n"
        } else {
            "the NPU cannot be used; --device cpu works everywhere\n"
        };
        streams.text(&text)?;
    }
    Ok(if usable { Outcome::Done } else { Outcome::No })
}

/// What a pair asks of the NPU.
struct Pairing {
    name: String,
    locked_bytes: u64,
    too_large: Option<String>,
}

/// What the pair of the arguments needs, or the default link if there is one.
fn need(args: &DoctorArgs, workers: &Workers) -> anyhow::Result<Option<Pairing>> {
    if !args.pair.is_given() {
        let default = Store::in_dir(Places::of_process().links).and_then(|store| store.default());
        if !matches!(default, Ok(Some(_))) {
            return Ok(None);
        }
    }
    let pair = Pair::named(&args.pair)?;
    let (need, isa) = (Need::new(), workers.isa());
    let path = &pair.target;
    let target = Target::open(path, ActQuant::N16, isa, &need).map_err(|e| reading(path, e))?;
    if let Some(path) = &pair.drafter {
        let config = pair.drafter_config.as_deref();
        Drafter::open(path, config, &target, ActQuant::N16, isa, &need)
            .map_err(|e| reading(path, e))?;
    }
    let name = pair.name.unwrap_or_else(|| shown_path(path));
    let (locked_bytes, too_large) = (need.locked_bytes(), need.too_large());
    Ok(Some(Pairing { name, locked_bytes, too_large }))
}
