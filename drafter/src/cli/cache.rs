//! `drafter cache`.

use std::ops::ControlFlow;
use std::path::Path;

use anyhow::Context as _;
use command_line::exit::{Outcome, Usage};
use command_line::{Streams, signals};
use formats::{Location, shown_path};
use runtime::pack_cache::{Entry, PackCache};
use serde::Serialize;

use super::SCHEMA;
use super::args::{CacheArgs, CacheCommand};
use super::packs::gigabytes;
use crate::link::files::{Interrupted, target_files};
use crate::link::places::Places;

/// One pack, in the documents of all three commands.
#[derive(Debug, Serialize)]
struct Row {
    name: String,
    path: Location,
    /// Nothing of a file that is no pack.
    kind: Option<String>,
    sources: Vec<Location>,
    size_bytes: u64,
    state: State,
    /// Why it is damaged.
    problem: Option<String>,
    /// Matrices whose bytes do not have their hash; only where they were read.
    #[serde(skip_serializing_if = "Option::is_none")]
    damaged: Option<Vec<String>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum State {
    /// It is used.
    Current,
    /// The model changed or is gone: it is made anew, or never used again.
    Stale,
    /// It is no whole pack: it is made anew.
    Damaged,
}

/// `drafter cache`.
pub(crate) fn run(args: &CacheArgs, streams: &Streams) -> anyhow::Result<Outcome> {
    signals::install().context("installing signal handlers")?;
    let dir = args.pack_cache.clone().or_else(|| Places::of_process().packs).ok_or_else(|| {
        Usage("packed weights have no place: neither HOME nor XDG_CACHE_HOME is set".into())
    })?;
    let cache = PackCache::in_dir(dir);
    let shown = shown_path(cache.dir());
    let entries = cache.entries().with_context(|| format!("reading `{shown}`"))?;
    match &args.command {
        CacheCommand::List => list(&cache, &entries, streams),
        CacheCommand::Verify { packs } => verify(&cache, &chosen(&entries, packs)?, streams),
        CacheCommand::Remove { packs, all, stale } => {
            let chosen = match (all, stale) {
                (true, _) => entries.iter().collect(),
                (_, true) => entries.iter().filter(|entry| !entry.is_current()).collect(),
                _ => chosen(&entries, packs)?,
            };
            remove(&cache, &chosen, streams)
        }
    }
}

/// The packs that are meant by names or paths of models; all, if none are given.
fn chosen<'a>(entries: &'a [Entry], wanted: &[String]) -> anyhow::Result<Vec<&'a Entry>> {
    if wanted.is_empty() {
        return Ok(entries.iter().collect());
    }
    let mut chosen: Vec<&Entry> = Vec::new();
    for wanted in wanted {
        let mut found = entries.iter().filter(|entry| is_meant(entry, wanted)).peekable();
        if found.peek().is_none() {
            return Err(Usage(format!("no pack is called or made of `{wanted}`")).into());
        }
        chosen.extend(found);
    }
    chosen.sort_by(|a, b| a.path.cmp(&b.path));
    chosen.dedup_by(|a, b| a.path == b.path);
    Ok(chosen)
}

fn is_meant(entry: &Entry, wanted: &str) -> bool {
    if entry.name == wanted {
        return true;
    }
    let Ok(pack) = &entry.pack else { return false };
    let files = target_files(Path::new(wanted)).unwrap_or_default();
    let mut files = files.iter().map(|path| path.canonicalize().unwrap_or_else(|_| path.clone()));
    files.any(|file| pack.header().sources.iter().any(|source| source.path.0 == file))
}

fn row(entry: &Entry) -> Row {
    let file_bytes = || std::fs::metadata(&entry.path).map_or(0, |meta| meta.len());
    let row = Row {
        name: entry.name.clone(),
        path: Location(entry.path.clone()),
        kind: None,
        sources: Vec::new(),
        size_bytes: file_bytes(),
        state: State::Damaged,
        problem: None,
        damaged: None,
    };
    match &entry.pack {
        Err(fault) => Row { problem: Some(fault.to_string()), ..row },
        Ok(pack) => Row {
            kind: Some(pack.header().kind.clone()),
            sources: pack.header().sources.iter().map(|source| source.path.clone()).collect(),
            size_bytes: pack.bytes(),
            state: if entry.is_current() { State::Current } else { State::Stale },
            ..row
        },
    }
}

/// A pack for people.
fn line(row: &Row) -> String {
    let model = match &row.sources[..] {
        [] => shown_path(&row.path.0),
        [file] => shown_path(&file.0),
        [file, ..] => shown_path(file.0.parent().unwrap_or(&file.0)),
    };
    let state = match (row.state, &row.problem) {
        (State::Current, None) => String::new(),
        (State::Stale, None) => "  (stale: the model changed or is gone)".into(),
        (_, problem) => format!("  (damaged: {})", problem.as_deref().unwrap_or_default()),
    };
    let kind = row.kind.as_deref().unwrap_or("-");
    format!("{}  {kind}  {}  {model}{state}\n", row.name, gigabytes(row.size_bytes))
}

fn print(cache: &PackCache, rows: &[Row], streams: &Streams) -> anyhow::Result<()> {
    if streams.json() {
        let dir = Location(cache.dir().to_path_buf());
        return streams.document(&serde_json::json!({
            "schema": SCHEMA, "dir": dir, "packs": rows,
        }));
    }
    streams.text(&rows.iter().map(line).collect::<String>())
}

fn list(cache: &PackCache, entries: &[Entry], streams: &Streams) -> anyhow::Result<Outcome> {
    let rows: Vec<Row> = entries.iter().map(row).collect();
    print(cache, &rows, streams)?;
    let total: u64 = rows.iter().map(|row| row.size_bytes).sum();
    let dir = shown_path(cache.dir());
    streams.status(&format!("{} packs, {} in `{dir}`", rows.len(), gigabytes(total)));
    Ok(Outcome::Done)
}

fn verify(cache: &PackCache, entries: &[&Entry], streams: &Streams) -> anyhow::Result<Outcome> {
    let mut rows = Vec::new();
    for entry in entries {
        let mut row = row(entry);
        if let Ok(pack) = &entry.pack {
            let checked = pack.damaged(&mut |done, total| {
                let percent = 100 * done / total.max(1);
                streams.progress(&format!("{}: {percent} %", entry.name));
                if signals::received() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            });
            streams.progress("");
            let damaged = checked?.ok_or(Interrupted)?;
            if let Some(first) = damaged.first() {
                row.state = State::Damaged;
                let (n, of) = (damaged.len(), pack.header().sections.len());
                row.problem = Some(format!("{n} of {of} matrices, the first is `{first}`"));
            }
            row.damaged = Some(damaged);
        }
        rows.push(row);
    }
    print(cache, &rows, streams)?;
    let damaged = rows.iter().filter(|row| row.state == State::Damaged).count();
    streams.status(&format!("{} packs, {damaged} of them damaged", rows.len()));
    if damaged > 0 {
        streams.note("a damaged pack is made anew once `drafter cache remove NAME` has removed it");
        return Ok(Outcome::No);
    }
    Ok(Outcome::Done)
}

fn remove(cache: &PackCache, entries: &[&Entry], streams: &Streams) -> anyhow::Result<Outcome> {
    let mut rows = Vec::new();
    for entry in entries {
        let row = row(entry);
        let removing = || format!("removing `{}`", shown_path(&entry.path));
        cache.remove(entry).with_context(removing)?;
        rows.push(row);
    }
    let left = cache.clean().with_context(|| format!("reading `{}`", shown_path(cache.dir())))?;
    print(cache, &rows, streams)?;
    let freed = left + rows.iter().map(|row| row.size_bytes).sum::<u64>();
    streams.status(&format!("{} packs removed, {} freed", rows.len(), gigabytes(freed)));
    Ok(Outcome::Done)
}
