//! Which models a command runs: a linked pair, or paths.

use std::path::PathBuf;

use command_line::exit::Usage;

use super::args::{ModelArgs, PairArgs, Spec};
use crate::link::places::Places;
use crate::link::store::{Link, Store};

/// The paths of a target and perhaps a drafter.
#[derive(Debug, Clone)]
pub(crate) struct Pair {
    /// The link, if it is one.
    pub(crate) name: Option<String>,
    pub(crate) target: PathBuf,
    pub(crate) drafter: Option<PathBuf>,
    pub(crate) drafter_config: Option<PathBuf>,
}

impl Pair {
    /// The pair of the arguments: paths, the link that is named, or the default link, whose files
    /// must be what they were.
    pub(crate) fn of(args: &ModelArgs) -> anyhow::Result<Self> {
        Self::named(&args.pair)
    }

    /// [`Pair::of`] where no more than the pair can be given.
    pub(crate) fn named(args: &PairArgs) -> anyhow::Result<Self> {
        if let Some(target) = &args.target {
            return Ok(Self {
                name: None,
                target: target.clone(),
                drafter: args.drafter.clone(),
                drafter_config: args.drafter_config.clone(),
            });
        }
        let store = Store::in_dir(Places::of_process().links);
        let name =
            match &args.link {
                Some(name) => name.clone(),
                None => store.as_ref().ok().map(Store::default).transpose()?.flatten().ok_or_else(
                    || Usage("which models? Give --target PATH, or the name of a link".into()),
                )?,
            };
        let link = store?.load(&name)?;
        link.check()?;
        Ok(Self::of_link(link))
    }

    /// [`Pair::of`], with a drafter where speculation is required.
    pub(crate) fn to_run(args: &ModelArgs, spec: Spec) -> anyhow::Result<Self> {
        let pair = Self::of(args)?;
        if spec == Spec::Required && pair.drafter.is_none() {
            return Err(Usage("--spec required needs --drafter".into()).into());
        }
        Ok(pair)
    }

    fn of_link(link: Link) -> Self {
        Self {
            name: Some(link.name.as_str().to_owned()),
            target: link.target.path.0,
            drafter: Some(link.drafter.path.0),
            drafter_config: link.drafter_config.map(|config| config.0),
        }
    }
}
