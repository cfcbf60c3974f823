//! `drafter link`, `list`, `show`, `unlink` and `default`.

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use command_line::args::Workers;
use command_line::exit::{Outcome, Usage, reading};
use command_line::{Streams, signals};
use formats::dflash2::drafter as file;
use formats::{Location, Source, gguf, shown_path};
use runtime::backend::{Cpu, Dot};
use runtime::drafter::Drafter;
use runtime::quant::ActQuant;
use runtime::target::Target;
use serde::Serialize;

use super::SCHEMA;
use super::args::{DefaultArgs, LinkArgs, ShowArgs, UnlinkArgs};
use super::exit::{Advised, Input, Refused};
use super::text::Text;
use crate::link::files::{Interrupted, Known, drafter_files, target_files};
use crate::link::places::Places;
use crate::link::search::{self, Candidate, Kind};
use crate::link::store::{Facts, Link, Model, Name, Store};

/// The target that is looked for most, for advice.
const PUBLISHED: &str = "Ternary-Bonsai-2-27B-PQ2_0.gguf";

/// How many paths a message lists.
const LISTED: usize = 5;

/// What `link`, `show` and each row of `list` print with `--json`.
#[derive(Debug, Serialize)]
struct Shown<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    schema: Option<u32>,
    default: bool,
    /// Why it cannot be used as it is; null when it can.
    problem: Option<String>,
    link: &'a Link,
}

/// `drafter link`.
pub(crate) fn link(
    args: &LinkArgs,
    workers: &Workers,
    streams: &Streams,
) -> anyhow::Result<Outcome> {
    signals::install().context("installing signal handlers")?;
    let places = Places::of_process();
    let store = Store::in_dir(places.links.clone())?;
    let name = args.name.clone().unwrap_or_else(|| Name::for_drafter(&args.drafter));
    store.refuse_taken(&name, args.force)?;
    let opened = file::Drafter::open(&args.drafter, args.drafter_config.as_deref())
        .map_err(|e| reading(&args.drafter, e))?
        .mapped()?;
    let (target_path, facts) = match &args.target {
        Some(path) if path.exists() => (path.clone(), fits(&opened, path, workers)?),
        Some(name) => {
            let name = name.to_string_lossy();
            installed(&places, Some(&name), &opened, workers)?
        }
        None => installed(&places, None, &opened, workers)?,
    };

    let known = |files: Vec<PathBuf>| -> anyhow::Result<Vec<Known>> {
        files.iter().map(|path| known(path, args.hash, streams)).collect()
    };
    let files = (|| Ok((known(target_files(&target_path)?)?, known(drafter_files(&opened))?)))();
    let (target_files, drafter_files) = match files {
        Err(error) if is_interruption(&error) => return Ok(Outcome::Interrupted),
        other => other?,
    };
    let target = Model { path: Location(absolute(&target_path)?), files: target_files };
    let drafter = Model { path: Location(absolute(&args.drafter)?), files: drafter_files };
    let config = args.drafter_config.as_deref().map(absolute).transpose()?;
    let link = Link::new(name, target, drafter, config, facts);
    store.save(&link, args.force)?;
    if args.default {
        store.choose(&link.name)?;
    }
    let default = store.default()?.as_ref() == Some(&link.name);
    if streams.json() {
        streams.document(&Shown { schema: Some(SCHEMA), default, problem: None, link: &link })?;
    } else {
        let path = shown_path(&link.target.path.0);
        streams.text(&format!("linked `{}` to `{path}`\n", link.name.as_str()))?;
    }
    Ok(Outcome::Done)
}

/// `drafter list`.
pub(crate) fn list(streams: &Streams) -> anyhow::Result<Outcome> {
    let store = Store::in_dir(Places::of_process().links)?;
    let default = store.default()?;
    let mut links = Vec::new();
    for name in store.names()? {
        match store.load(&name) {
            Ok(link) => links.push(link),
            Err(error) => streams.note(&format!("{error:#}")),
        }
    }
    let rows: Vec<Shown<'_>> = links
        .iter()
        .map(|link| Shown {
            schema: None,
            default: default.as_ref() == Some(&link.name),
            problem: link.check().err().map(|error| format!("{error:#}")),
            link,
        })
        .collect();
    if streams.json() {
        streams.document(&serde_json::json!({ "schema": SCHEMA, "links": rows }))?;
        return Ok(Outcome::Done);
    }
    let mut text = String::new();
    for row in &rows {
        let link = row.link;
        text += &format!(
            "{}{}  {}  on {}{}\n",
            link.name.as_str(),
            if row.default { " (default)" } else { "" },
            shown_path(&link.drafter.path.0),
            shown_path(&link.target.path.0),
            row.problem.as_ref().map_or_else(String::new, |problem| format!("  ({problem})"))
        );
    }
    streams.text(&text)?;
    if rows.is_empty() {
        streams.status("no links; `drafter link DRAFTER` makes one");
    }
    Ok(Outcome::Done)
}

/// `drafter show`: fails where the pair cannot be used as it is.
pub(crate) fn show(args: &ShowArgs, streams: &Streams) -> anyhow::Result<Outcome> {
    signals::install().context("installing signal handlers")?;
    let store = Store::in_dir(Places::of_process().links)?;
    let name = match &args.name {
        Some(name) => name.clone(),
        None => store.default()?.ok_or_else(|| Usage("which link? There is no default".into()))?,
    };
    let link = store.load(&name)?;
    let mut files = link.target.files.iter().chain(&link.drafter.files);
    if args.hash && files.clone().any(|file| file.sha256.is_none()) {
        let message = "there are no hashes to compare with: the pair was linked without --hash";
        return Err(Usage(message.into()).into());
    }
    let problem = if args.hash {
        files.try_for_each(|file| file.check_whole(&mut hashing(streams, &file.path.0)))
    } else {
        link.check()
    };
    streams.progress("");
    let problem = match problem {
        Err(error) if is_interruption(&error) => return Ok(Outcome::Interrupted),
        other => other.err(),
    };
    let default = store.default()?.as_ref() == Some(&name);
    let problem_text = problem.as_ref().map(|error| format!("{error:#}"));
    if streams.json() && problem.is_none() {
        let shown = Shown { schema: Some(SCHEMA), default, problem: problem_text, link: &link };
        streams.document(&shown)?;
    } else if !streams.json() {
        streams.text(&text_of(&link, default))?;
    }
    problem.map_or(Ok(Outcome::Done), Err)
}

/// `drafter unlink`.
pub(crate) fn unlink(args: &UnlinkArgs, streams: &Streams) -> anyhow::Result<Outcome> {
    Store::in_dir(Places::of_process().links)?.remove(&args.name)?;
    named(&args.name, streams, "unlinked")
}

/// `drafter default`.
pub(crate) fn default(args: &DefaultArgs, streams: &Streams) -> anyhow::Result<Outcome> {
    let store = Store::in_dir(Places::of_process().links)?;
    if let Some(name) = &args.name {
        store.choose(name)?;
    }
    let name = store.default()?;
    let name = name.ok_or_else(|| Usage("no link is the default; name one".into()))?;
    named(&name, streams, "default")
}

fn named(name: &Name, streams: &Streams, what: &str) -> anyhow::Result<Outcome> {
    if streams.json() {
        streams.document(&serde_json::json!({ "schema": SCHEMA, what: name }))?;
    } else {
        streams.text(&format!("{what} `{}`\n", name.as_str()))?;
    }
    Ok(Outcome::Done)
}

fn text_of(link: &Link, default: bool) -> String {
    let facts = &link.facts;
    let has = |has: bool| if has { "yes" } else { "no" };
    let mut lines = vec![
        format!("{}{}", link.name.as_str(), if default { " (default)" } else { "" }),
        format!("target   {}", shown_path(&link.target.path.0)),
        format!("drafter  {}", shown_path(&link.drafter.path.0)),
        format!(
            "hidden size {}, vocabulary {}, {} layers, taps {:?}, blocks of {}, context {}",
            facts.hidden_size,
            facts.vocab_size,
            facts.target_layers,
            facts.target_layer_ids,
            facts.block_size,
            facts.context_length
        ),
        format!("tokenizer {}, chat template {}", has(facts.tokenizer), has(facts.chat_template)),
    ];
    for file in link.target.files.iter().chain(&link.drafter.files) {
        let (kind, hash) = match &file.sha256 {
            Some(hash) => ("sha256", hash),
            None => ("sha256 of the header", &file.header_sha256),
        };
        let path = shown_path(&file.path.0);
        lines.push(format!("{path}: {} bytes, {kind} {hash}", file.size_bytes));
    }
    lines.join("\n") + "\n"
}

/// The one installed target of this name, or of any name, that the drafter fits.
fn installed(
    places: &Places,
    name: Option<&str>,
    opened: &file::Drafter,
    workers: &Workers,
) -> anyhow::Result<(PathBuf, Facts)> {
    let candidates = search::find(places, name);
    // Drafters and whatever else lies there: not what was asked for, unless by name.
    let (containers, candidates): (Vec<_>, Vec<_>) =
        candidates.into_iter().partition(|candidate| candidate.kind == Kind::Q4nx);
    let mut fitting = Vec::new();
    let mut refused = Vec::new();
    for candidate in candidates {
        match fits(opened, &candidate.path, workers) {
            Ok(facts) => fitting.push((candidate, facts)),
            Err(error) => refused.push((candidate, error)),
        }
    }
    let asked = name.map_or_else(|| "installed targets".into(), |name| format!("target `{name}`"));
    let paths = |candidates: &[&Candidate]| {
        let shown = candidates
            .iter()
            .take(LISTED)
            .map(|candidate| format!("`{}` ({})", shown_path(&candidate.path), candidate.owner));
        let more = candidates.len().saturating_sub(LISTED);
        let more = (more > 0).then(|| format!("{more} more"));
        shown.chain(more).collect::<Vec<_>>().join(", ")
    };
    if fitting.len() > 1 {
        let several: Vec<&Candidate> = fitting.iter().map(|(candidate, _)| candidate).collect();
        let message = format!("{asked}: several fit the drafter: {}", paths(&several));
        return Err(advised(Usage(message).into(), "give one of these paths to --target"));
    }
    if let Some((candidate, facts)) = fitting.pop() {
        return Ok((candidate.path, facts));
    }
    match refused.len() {
        1 => {
            let (_, error) = refused.swap_remove(0);
            return Err(error);
        }
        2.. => {
            let reasons = refused.iter().take(LISTED).map(|(_, error)| format!("{error:#}"));
            let reasons = reasons.collect::<Vec<_>>().join("; ");
            return Err(Refused(format!("{asked}: none fits the drafter: {reasons}")).into());
        }
        0 => {}
    }
    if let Some(container) = containers.iter().find(|_| name.is_some()) {
        let message = format!(
            "{asked}: a q4nx container of a target cannot be read: {}",
            paths(&[container])
        );
        let hint = format!("get {PUBLISHED} and give its path to --target");
        return Err(advised(Input(message).into(), &hint));
    }
    let searched: Vec<String> =
        places.existing().map(|place| format!("`{}`", shown_path(&place.dir))).collect();
    let searched = if searched.is_empty() { "no folder".into() } else { searched.join(", ") };
    let message = format!("{asked}: nothing found in {searched}");
    Err(advised(Input(message).into(), &format!("give the path of {PUBLISHED} to --target")))
}

fn advised(error: anyhow::Error, hint: &str) -> anyhow::Error {
    Advised { error, hint: hint.to_owned() }.into()
}

/// Reads what both files say of themselves, and refuses a pair that does not fit.
fn fits(opened: &file::Drafter, path: &Path, workers: &Workers) -> anyhow::Result<Facts> {
    let (isa, act) = (workers.isa(), ActQuant::A8);
    let backend = Cpu::new(Dot::detect(isa));
    let target = Target::open(path, act, isa, &backend).map_err(|e| reading(path, e))?;
    let refused = |reason: String| {
        Refused(format!(
            "`{}` does not fit `{}`: {reason}",
            shown_path(&opened.path),
            shown_path(path)
        ))
    };
    match Drafter::load(opened, &target, act, isa, &backend) {
        Err(runtime::Error::Mismatch { what, drafter, target }) => {
            let numbers = format!("{what}: {drafter} in the drafter, {target} in the target");
            return Err(refused(numbers).into());
        }
        other => other.map_err(|e| reading(&opened.path, e))?,
    };
    if let Some(difference) = other_tokens(opened, path)? {
        return Err(refused(difference).into());
    }
    let text = Text::load(path, target.vocab())?;
    let (config, of_target) = (&opened.config, target.config());
    Ok(Facts {
        hidden_size: of_target.hidden,
        vocab_size: target.vocab(),
        target_layers: of_target.layers.len(),
        target_layer_ids: config.target_layer_ids.clone(),
        block_size: config.block_size,
        context_length: of_target.context_length,
        tokenizer: text.has_tokenizer(),
        chat_template: text.has_template(),
    })
}

/// Where both files are GGUFs with tokens: the first token that is another one.
fn other_tokens(opened: &file::Drafter, target: &Path) -> anyhow::Result<Option<String>> {
    const KEY: &str = "tokenizer.ggml.tokens";
    if opened.container != file::Container::Gguf || target.is_dir() {
        return Ok(None);
    }
    let tokens = |path: &Path| -> anyhow::Result<Option<Vec<Vec<u8>>>> {
        let file = gguf::File::open(Source::open(path)?)?;
        Ok(match file.get(KEY) {
            Some(gguf::Value::Array(gguf::Array::String(tokens))) => {
                Some(tokens.iter().map(|token| token.as_bytes().to_vec()).collect())
            }
            _ => None,
        })
    };
    let (Some(of_drafter), Some(of_target)) = (tokens(&opened.path)?, tokens(target)?) else {
        return Ok(None);
    };
    let differs = of_drafter.iter().zip(&of_target).position(|(a, b)| a != b);
    Ok(differs.map(|id| format!("token {id} of their tokenizers is another one")))
}

pub(super) fn known(path: &Path, whole: bool, streams: &Streams) -> anyhow::Result<Known> {
    let known = Known::now(path, whole, &mut hashing(streams, path));
    streams.progress("");
    known
}

/// Shows how much of a file is hashed.
fn hashing<'a>(streams: &'a Streams, path: &Path) -> impl FnMut(u64, u64) + use<'a> {
    let path = shown_path(path);
    move |done, total| {
        let percent = 100 * done / total.max(1);
        streams.progress(&format!("hashing `{path}`: {percent} %"));
    }
}

fn absolute(path: &Path) -> anyhow::Result<PathBuf> {
    std::path::absolute(path).with_context(|| format!("resolving `{}`", shown_path(path)))
}

pub(super) fn is_interruption(error: &anyhow::Error) -> bool {
    error.is::<Interrupted>()
}
