//! `drafter verify-exact`.

use anyhow::Context as _;
use command_line::args::Workers;
use command_line::exit::{Outcome, Usage};
use command_line::{Streams, signals};
use runtime::exact::{Chosen, Difference, Pair, Proof, prove};
use runtime::round::{Finish, Generated, Limits, Sampler, Verifier};
use runtime::stats::{DraftStats, Drafts};
use serde::Serialize;

use super::SCHEMA;
use super::args::VerifyExactArgs;
use super::device;
use super::packs::Packs;
use super::prompt;
use super::summary::warn_of_a_wrong_pair;
use super::text::Text;

/// Tokens of each answer when nothing is said.
const TOKENS: usize = 64;

/// What `--json` prints.
#[derive(Debug, Serialize)]
struct Document {
    schema: u32,
    verdict: &'static str,
    device: device::Status,
    act: &'static str,
    kv: &'static str,
    prompts: usize,
    tokens: usize,
    logits_compared: usize,
    states_compared: usize,
    drafts: Vec<PerLength>,
    difference: Option<Found>,
}

/// The drafts of all prompts at one draft length.
#[derive(Debug, Serialize)]
struct PerLength {
    draft_max: usize,
    #[serde(flatten)]
    drafts: Drafts,
}

#[derive(Debug, Serialize)]
struct Found {
    prompt: usize,
    draft_max: usize,
    what: &'static str,
    token: usize,
    position: usize,
    plain: Option<Token>,
    speculative: Option<Token>,
}

#[derive(Debug, Serialize)]
struct Token {
    id: u32,
    top: [(u32, f32); 2],
    margin: f32,
}

impl From<Chosen> for Token {
    fn from(chosen: Chosen) -> Self {
        let Chosen { id, top } = chosen;
        Self { id, top: [top.first, top.second], margin: top.margin() }
    }
}

/// Runs the command.
pub(crate) fn run(
    args: &VerifyExactArgs,
    workers: &Workers,
    streams: &Streams,
) -> anyhow::Result<Outcome> {
    let paths = super::pair::Pair::of(&args.models)?;
    if paths.drafter.is_none() {
        return Err(Usage("verify-exact needs --drafter".into()).into());
    }
    if args.generation.max_tokens == Some(0) {
        return Err(Usage("--max-tokens 0: nothing to compare".into()).into());
    }
    let sampler = Sampler::new(args.sampling.sampling()).map_err(|e| Usage(e.to_string()))?;
    let prompts =
        args.prompts.as_deref().map_or_else(|| Ok(prompt::built_in()), prompt::read_file)?;
    signals::install().context("installing signal handlers")?;
    let packs = Packs::of(&args.models.packs, streams);
    let loaded = device::load(&paths, &args.models, &args.device, workers, true, &packs, streams)?;
    let models = &loaded.models;
    let Some(drafter) = &models.drafter else { unreachable!("loaded above") };
    let text = Text::load(&paths.target, models.target.vocab())?;

    let most = drafter.config().block_size - 1;
    let drafts = args.draft_max.clone().unwrap_or(0..=most);
    if *drafts.end() > most {
        let message = format!("--draft-max: the drafter's block has at most {most} drafts");
        return Err(Usage(message).into());
    }
    let max_tokens = Some(args.generation.max_tokens.unwrap_or(TOKENS));
    let limits = Limits { max_tokens, ..args.generation.limits(text.stops()) };
    let kv = args.models.kv;
    let coupling = args.sampling.coupling();
    let pair = Pair { target: &models.target, drafter, kv: kv.into(), coupling };
    let mut stats = vec![DraftStats::default(); drafts.clone().count()];
    let mut document = Document {
        schema: SCHEMA,
        verdict: "exact",
        device: loaded.status(),
        act: loaded.act.name(),
        kv: kv.name(),
        prompts: 0,
        tokens: 0,
        logits_compared: 0,
        states_compared: 0,
        drafts: Vec::new(),
        difference: None,
    };
    for (n, prompt) in prompts.iter().enumerate() {
        let here = || format!("prompt {} of {}", n + 1, prompts.len());
        let ids = text.encode_plain(prompt).with_context(here)?;
        let cancelled = |draft_max: Option<usize>| {
            let run = draft_max.map_or_else(|| "plain".into(), |max| format!("{max} drafts"));
            streams.progress(&format!("{}: {run}", here()));
            signals::received()
        };
        let verifier = &mut || -> Box<dyn Verifier> { Box::new(sampler.clone()) };
        let proof =
            prove(&pair, &ids, &limits, drafts.clone(), verifier, &cancelled).with_context(here)?;
        streams.progress("");
        match proof {
            Proof::Cancelled => {
                streams.note(&format!("interrupted in {}", here()));
                return Ok(Outcome::Interrupted);
            }
            Proof::Different(difference) => {
                document.difference = Some(found(n, &difference));
                document.verdict = "different";
                break;
            }
            Proof::Exact(proved) => {
                document.prompts += 1;
                document.tokens += proved.tokens;
                document.logits_compared += proved.logits;
                document.states_compared += proved.states;
                for (stats, (_, rounds)) in stats.iter_mut().zip(proved.rounds) {
                    stats.add(&Generated { ids: Vec::new(), finish: Finish::Length, rounds });
                }
            }
        }
    }
    document.drafts = drafts
        .zip(&stats)
        .map(|(draft_max, stats)| PerLength { draft_max, drafts: Drafts::from(stats) })
        .collect();
    if streams.json() {
        streams.document(&document)?;
    } else {
        streams.text(&text_of(&document))?;
    }
    if let Some(alarming) = stats.iter().find(|stats| stats.is_alarming()) {
        warn_of_a_wrong_pair(alarming, streams);
    }
    Ok(if document.difference.is_none() { Outcome::Done } else { Outcome::No })
}

fn found(prompt: usize, difference: &Difference) -> Found {
    Found {
        prompt,
        draft_max: difference.draft_max,
        what: difference.what.name(),
        token: difference.token,
        position: difference.position,
        plain: difference.plain.map(Token::from),
        speculative: difference.found.map(Token::from),
    }
}

/// The verdict for people, in lines.
fn text_of(document: &Document) -> String {
    let mut lines = Vec::new();
    for per in &document.drafts {
        if let Some(rate) = per.drafts.accept_len {
            let (accepted, sent) = (per.drafts.draft_n_accepted, per.drafts.draft_n);
            lines.push(format!(
                "at most {} drafts: {rate:.3} tokens per round, {accepted} of {sent} accepted",
                per.draft_max
            ));
        }
    }
    lines.push(match &document.difference {
        None => format!(
            "exact: {} tokens of {} prompts; {} rows of logits and {} states have the same bits",
            document.tokens, document.prompts, document.logits_compared, document.states_compared
        ),
        Some(found) => {
            let token = |token: &Option<Token>| match token {
                None => "nothing".to_owned(),
                Some(t) => format!("{} (margin {:e})", t.id, t.margin),
            };
            format!(
                "different: {} of token {} (position {}) of prompt {} at {} drafts: plain {}, \
                 speculative {}",
                found.what,
                found.token,
                found.position,
                found.prompt + 1,
                found.draft_max,
                token(&found.plain),
                token(&found.speculative)
            )
        }
    });
    lines.join("\n") + "\n"
}
