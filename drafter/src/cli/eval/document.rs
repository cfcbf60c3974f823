//! The result as a document.

use command_line::args::Workers;
use serde::Serialize;

use super::Run;
use super::args::EvalArgs;
use super::arms::{Arm, FileHash};
use super::figures::{Change, Figure, Group, Selection};
use super::suite::Described;
use super::verdict::{self, Verdict};
use crate::cli::SCHEMA;
use crate::cli::args::OnOff;

/// What `--json` prints.
#[derive(Debug, Serialize)]
pub(crate) struct Document<'a> {
    pub(crate) schema: u32,
    pub(crate) version: &'static str,
    pub(crate) target: &'a [FileHash],
    pub(crate) drafters: Vec<NamedFiles<'a>>,
    pub(crate) act: &'static str,
    pub(crate) kv: &'static str,
    pub(crate) isa: String,
    pub(crate) threads: usize,
    /// Of the machine while it was measured: `mains`, `battery`, or null where the system does not say.
    pub(crate) power: Option<&'static str>,
    pub(crate) max_tokens: usize,
    pub(crate) ignore_eos: bool,
    /// Null: as the template says.
    pub(crate) think: Option<bool>,
    pub(crate) chat_template_sha256: Option<&'a str>,
    pub(crate) suite: Described<'a>,
    pub(crate) draft_max: &'a [usize],
    pub(crate) results: Vec<PerDrafter<'a>>,
    pub(crate) comparisons: Vec<Comparison<'a>>,
    pub(crate) identity: Identity<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) speed: Option<Speed<'a>>,
    pub(crate) verdicts: Vec<String>,
}

#[derive(Debug, Serialize)]
pub(crate) struct NamedFiles<'a> {
    pub(crate) name: &'a str,
    pub(crate) files: &'a [FileHash],
}

#[derive(Debug, Serialize)]
pub(crate) struct PerDrafter<'a> {
    pub(crate) drafter: &'a str,
    pub(crate) draft_max: usize,
    pub(crate) groups: Vec<Group>,
}

#[derive(Debug, Serialize)]
pub(crate) struct Comparison<'a> {
    pub(crate) drafter: &'a str,
    pub(crate) against: &'a str,
    pub(crate) draft_max: usize,
    pub(crate) verdict: Verdict,
    pub(crate) groups: Vec<Change>,
}

#[derive(Debug, Serialize)]
pub(crate) struct Identity<'a> {
    /// `identical`, `different`, or `not_checked`.
    pub(crate) verdict: &'static str,
    pub(crate) prompts_served: usize,
    pub(crate) difference: Option<Different<'a>>,
}

#[derive(Debug, Serialize)]
pub(crate) struct Different<'a> {
    /// From 0.
    pub(crate) prompt: usize,
    /// Null: served without a drafter.
    pub(crate) drafter: Option<&'a str>,
    pub(crate) draft_max: usize,
    pub(crate) ids: &'static str,
    /// The first round that is another, from 0.
    pub(crate) round: Option<usize>,
}

#[derive(Debug, Serialize)]
pub(crate) struct Speed<'a> {
    pub(crate) order: &'static str,
    pub(crate) runs_per_prompt: usize,
    pub(crate) plain_per_second: Option<Figure>,
    pub(crate) drafting: Vec<Rate<'a>>,
}

#[derive(Debug, Serialize)]
pub(crate) struct Rate<'a> {
    pub(crate) drafter: &'a str,
    pub(crate) draft_max: usize,
    pub(crate) per_second: Option<Figure>,
    pub(crate) against_plain: Option<Figure>,
    /// Null for the first drafter.
    pub(crate) against_first: Option<Figure>,
}

impl<'a> Document<'a> {
    pub(crate) fn new(args: &EvalArgs, workers: &Workers, run: &'a Run) -> Self {
        let selections = Selection::all(run);
        let places = || run.lengths.iter().copied().enumerate();
        let arms = || run.arms.iter().enumerate();
        let mut results = Vec::new();
        let mut comparisons = Vec::new();
        let silent = run.silent().into_iter();
        let mut verdicts: Vec<String> =
            silent.map(|(n, k)| verdict::silent(&run.arms[n].name, k)).collect();
        let first = run.arms[0].name.as_str();
        for (arm, Arm { name, .. }) in arms() {
            for (place, draft_max) in places() {
                let groups = selections.iter().map(|s| s.group(run, arm, place)).collect();
                results.push(PerDrafter { drafter: name, draft_max, groups });
                if arm == 0 {
                    continue;
                }
                let groups: Vec<Change> =
                    selections.iter().map(|s| s.change(run, arm, place)).collect();
                let all = groups.last().and_then(|change| change.change);
                verdicts.push(verdict::sentence(name, first, draft_max, all));
                let verdict = Verdict::of(all);
                comparisons.push(Comparison {
                    drafter: name,
                    against: first,
                    draft_max,
                    verdict,
                    groups,
                });
            }
        }
        let identity = Identity {
            verdict: match (&run.identity.difference, run.identity.prompts) {
                (Some(_), _) => "different",
                (None, 0) => "not_checked",
                (None, _) => "identical",
            },
            prompts_served: run.identity.prompts,
            difference: run.identity.difference.as_ref().map(|(prompt, found)| Different {
                prompt: *prompt,
                drafter: found.drafter.map(|n| run.arms[n].name.as_str()),
                draft_max: found.draft_max,
                ids: found.identity.name(),
                round: found.round,
            }),
        };
        let speed = args.speed.then(|| speed(run, selections.last()));
        Self {
            schema: SCHEMA,
            version: env!("CARGO_PKG_VERSION"),
            target: &run.files.target,
            drafters: arms()
                .map(|(n, arm)| NamedFiles { name: &arm.name, files: &run.files.drafters[n] })
                .collect(),
            act: args.act.name(),
            kv: args.kv.name(),
            isa: workers.isa().level().to_string(),
            threads: workers.threads(),
            power: run.power,
            max_tokens: args.tokens,
            ignore_eos: args.ignore_eos,
            think: args.think.map(|think| think == OnOff::On),
            chat_template_sha256: run.text.template_sha256(),
            suite: run.suites.described(),
            draft_max: &run.lengths,
            results,
            comparisons,
            identity,
            speed,
            verdicts,
        }
    }
}

fn speed<'a>(run: &'a Run, all: Option<&Selection>) -> Speed<'a> {
    let mut drafting = Vec::new();
    for (d, arm) in run.arms.iter().enumerate() {
        for (l, draft_max) in run.lengths.iter().copied().enumerate() {
            let leg = Some((d, l));
            let first = Some((0, l)).filter(|_| d > 0);
            drafting.push(Rate {
                drafter: &arm.name,
                draft_max,
                per_second: all.and_then(|all| all.rate(run, leg)),
                against_plain: all.and_then(|all| all.rate_change(run, None, leg)),
                against_first: all.and_then(|all| all.rate_change(run, Some(first?), leg)),
            });
        }
    }
    Speed {
        order: "ABBA",
        runs_per_prompt: 2,
        plain_per_second: all.and_then(|all| all.rate(run, None)),
        drafting,
    }
}
