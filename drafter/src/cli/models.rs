//! Models from command lines.

use std::time::Instant;

use command_line::args::Workers;
use command_line::exit::reading;
use runtime::backend::Cpu;
use runtime::drafter::Drafter;
use runtime::target::Target;

use super::args::ModelArgs;

/// A target and perhaps a drafter, loaded.
#[derive(Debug)]
pub(crate) struct Models {
    pub(crate) target: Target,
    pub(crate) drafter: Option<Drafter>,
    pub(crate) load_ms: f64,
}

impl Models {
    /// Loads the target, and the drafter if there is one and it is wanted.
    pub(crate) fn load(args: &ModelArgs, workers: &Workers, draft: bool) -> anyhow::Result<Self> {
        let begin = Instant::now();
        let isa = workers.isa();
        let target = Target::open(&args.target, args.act, isa, &Cpu)
            .map_err(|e| reading(&args.target, e))?;
        let drafter = match args.drafter.as_deref().filter(|_| draft) {
            None => None,
            Some(path) => {
                let config = args.drafter_config.as_deref();
                let drafter = Drafter::open(path, config, &target, args.act, isa, &Cpu);
                Some(drafter.map_err(|e| reading(path, e))?)
            }
        };
        Ok(Self { target, drafter, load_ms: milliseconds(begin) })
    }
}

/// The time since `begin`.
pub(crate) fn milliseconds(begin: Instant) -> f64 {
    begin.elapsed().as_secs_f64() * 1e3
}
