//! Models from command lines.

use std::time::Instant;

use anyhow::Context as _;
use runtime::backend::Cpu;
use runtime::drafter::Drafter;
use runtime::target::Target;

use super::args::{Common, ModelArgs};

/// A target and perhaps a drafter, loaded.
#[derive(Debug)]
pub(crate) struct Models {
    pub(crate) target: Target,
    pub(crate) drafter: Option<Drafter>,
    pub(crate) load_ms: f64,
}

impl Models {
    /// Loads the target, and the drafter if there is one and it is wanted.
    pub(crate) fn load(args: &ModelArgs, common: &Common, draft: bool) -> anyhow::Result<Self> {
        let begin = Instant::now();
        let isa = common.isa();
        let target = Target::open(&args.target, args.act, isa, &Cpu)
            .with_context(|| format!("loading the target `{}`", args.target.display()))?;
        let drafter = match args.drafter.as_deref().filter(|_| draft) {
            None => None,
            Some(path) => {
                let config = args.drafter_config.as_deref();
                let drafter = Drafter::open(path, config, &target, args.act, isa, &Cpu);
                let loading = || format!("loading the drafter `{}`", path.display());
                Some(drafter.with_context(loading)?)
            }
        };
        Ok(Self { target, drafter, load_ms: milliseconds(begin) })
    }
}

/// The time since `begin`.
pub(crate) fn milliseconds(begin: Instant) -> f64 {
    begin.elapsed().as_secs_f64() * 1e3
}
