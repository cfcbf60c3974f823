//! `drafter serve`.

use std::fs::File;
use std::io::{BufRead as _, BufReader, ErrorKind, Read as _};
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use command_line::args::Workers;
use command_line::exit::{Outcome, Usage, reading};
use command_line::{Streams, signals};
use formats::{Source, shown_path};
use runtime::engine::{self, Engine, Worker};
use runtime::round::{Sampler, Sampling};
use runtime::text::ChatTemplate;
use server::{App, Drafting, Model, Settings};
use tokio::time::sleep;

use super::SCHEMA;
use super::args::{DraftMax, ServeArgs, Spec};
use super::device::{self, Loaded};
use super::exit::{Advised, Input};
use super::memory::Memory;
use super::models;
use super::packs::Packs;
use super::pair::Pair;
use super::port;
use super::text::Text;

/// How often is looked whether a signal arrived.
const LOOK: Duration = Duration::from_millis(50);

/// Threads that read requests and write answers; the work is done by others.
const HTTP_THREADS: usize = 2;

/// Longest key that is read from a file.
const MAX_KEY: u64 = 4096;

/// Serves until a signal arrives.
pub(crate) fn run(
    args: &ServeArgs,
    workers: &Workers,
    streams: &Streams,
) -> anyhow::Result<Outcome> {
    let pair = Pair::to_run(&args.models, args.spec)?;
    if let Some(temperature) = args.default_temperature {
        let sampling = Sampling { temperature: temperature.into(), ..Sampling::default() };
        Sampler::new(sampling).map_err(|e| Usage(format!("--default-temperature: {e}")))?;
    }
    let api_key = key(args)?;
    if !args.host.is_loopback() && api_key.is_none() {
        let message = format!(
            "--host {}: others can reach this address; give a key with --api-key-file",
            args.host
        );
        return Err(Usage(message).into());
    }
    for origin in &args.cors_origin {
        let host = ["http://", "https://"].iter().find_map(|scheme| origin.strip_prefix(scheme));
        if !host.is_some_and(|host| !host.is_empty() && !host.trim_end_matches('/').contains('/')) {
            let message =
                format!("--cors-origin {origin}: expected http:// or https:// and a host");
            return Err(Usage(message).into());
        }
    }
    signals::install().context("installing signal handlers")?;
    // Before the models are read, which takes a while.
    let listener = listen(SocketAddr::new(args.host, args.port))?;
    let address = listener.local_addr().context("reading the address")?;

    let packs = Packs::of(&args.models.packs, streams);
    let draft = args.spec != Spec::Off;
    let loaded = device::load(&pair, &args.models, &args.device, workers, draft, &packs, streams)?;
    let models = &loaded.models;
    let draft_max = models::draft_max(models, args.draft_max.limit(), streams);
    let drafting = match &models.drafter {
        Some(_) if args.draft_max == DraftMax::Auto => Drafting::Auto(draft_max),
        Some(_) if draft_max > 0 => Drafting::On(draft_max),
        Some(_) => Drafting::Off("--draft-max 0".into()),
        None if args.spec == Spec::Off => Drafting::Off("--spec off".into()),
        None => Drafting::Off("no --drafter".into()),
    };
    let memory = Memory::of(models, args.models.kv.into(), args.ctx);
    let (app, worker) = app(args, &pair, loaded, drafting, api_key)?;
    announce(args, &pair, address, memory, streams)?;
    serve(listener, app, worker)?;
    // A signal is how a server ends.
    Ok(Outcome::Done)
}

/// The key of the arguments, or of the file they name.
fn key(args: &ServeArgs) -> anyhow::Result<Option<String>> {
    let (key, of) = match &args.api_key_file {
        None => (args.api_key.clone(), "--api-key".to_owned()),
        Some(path) => (Some(key_in(path)?), format!("`{}`", shown_path(path))),
    };
    if key.as_ref().is_some_and(|key| key.is_empty() || !key.chars().all(|c| c.is_ascii_graphic()))
    {
        return Err(Usage(format!("{of}: expected a key of visible ASCII characters")).into());
    }
    Ok(key)
}

fn key_in(path: &Path) -> anyhow::Result<String> {
    let unreadable = |error| Input(format!("`{}`: {error}", shown_path(path)));
    let file = File::open(path).map_err(unreadable)?;
    let mut line = String::new();
    BufReader::new(file.take(MAX_KEY)).read_line(&mut line).map_err(unreadable)?;
    Ok(line.trim().to_owned())
}

fn listen(address: SocketAddr) -> anyhow::Result<TcpListener> {
    let error = match TcpListener::bind(address) {
        Ok(listener) => {
            listener.set_nonblocking(true).context("setting up the socket")?;
            return Ok(listener);
        }
        Err(error) => error,
    };
    let taken = error.kind() == ErrorKind::AddrInUse;
    let mut error = anyhow::Error::new(error).context(format!("listening on {address}"));
    if !taken {
        return Err(error);
    }
    if let Some(owner) = port::owner(address.port()) {
        error = error.context(format!("port {} is taken by `{owner}`", address.port()));
    }
    let hint = "stop that program, or choose another port with --port".to_owned();
    Err(Advised { error, hint }.into())
}

fn app(
    args: &ServeArgs,
    pair: &Pair,
    loaded: Loaded,
    drafting: Drafting,
    api_key: Option<String>,
) -> anyhow::Result<(Arc<App>, Worker)> {
    let place = loaded.place();
    let (models, act) = (loaded.models, loaded.act);
    let text = Text::load(&pair.target, models.target.vocab())?.into_parts()?;
    let template = match &args.chat_template {
        None => text.template,
        Some(path) => {
            let source = Source::open(path)?;
            Ok(ChatTemplate::read(&source, &text.tokenizer).map_err(|e| reading(path, e))?)
        }
    };
    let mut defaults = text.defaults;
    defaults.temperature = args.default_temperature.or(defaults.temperature);
    let options = engine::Options {
        kv: args.models.kv.into(),
        coupling: args.draft_noise.into(),
        context: args.ctx,
        queue: args.queue,
        snapshot_bytes: args.cache_ram.saturating_mul(1_000_000),
    };
    let trained_context = models.target.config().context_length;
    let (engine, worker) = Engine::new(
        engine::Models {
            target: models.target,
            drafter: models.drafter,
            tokenizer: text.tokenizer.clone(),
            stops: text.stops,
        },
        options,
    );
    let about = serde_json::json!({
        "target": pair.target.to_string_lossy(),
        "drafter": pair.drafter.as_ref().map(|path| path.to_string_lossy()),
        "device": place,
        "act": act.name(),
        "kv": args.models.kv.name(),
    });
    let model = Model {
        id: args.model_name.clone().unwrap_or_else(|| name(pair)),
        tokenizer: text.tokenizer,
        template,
        defaults,
        trained_context,
        about,
    };
    let settings = Settings {
        drafting,
        api_key,
        cors_origins: args.cors_origin.iter().map(|o| o.trim_end_matches('/').to_owned()).collect(),
        hosts: args.allowed_host.clone(),
        ..Settings::default()
    };
    Ok((App::new(engine, model, settings), worker))
}

/// The name of the link, or of the target.
fn name(pair: &Pair) -> String {
    pair.name.clone().unwrap_or_else(|| {
        let stem = pair.target.file_stem().unwrap_or(pair.target.as_os_str());
        stem.to_string_lossy().into_owned()
    })
}

fn announce(
    args: &ServeArgs,
    pair: &Pair,
    address: SocketAddr,
    memory: Memory,
    streams: &Streams,
) -> anyhow::Result<()> {
    let url = format!("http://{address}");
    if streams.json() {
        return streams.document(&serde_json::json!({
            "schema": SCHEMA, "url": url, "model": args.model_name.clone().unwrap_or_else(|| name(pair)),
            "memory": memory,
        }));
    }
    streams.status(&memory.line());
    streams.text(&format!("serving {url} (OpenAI's interface at {url}/v1, a page at {url}/)\n"))
}

/// Runs the worker here, where the work can spread over the pool, and the connections beside it.
fn serve(listener: TcpListener, app: Arc<App>, mut worker: Worker) -> anyhow::Result<()> {
    let http = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(HTTP_THREADS)
        .enable_all()
        .build()
        .context("starting threads")?;
    let listener = {
        let _inside = http.enter();
        tokio::net::TcpListener::from_std(listener).context("setting up the socket")?
    };
    let serving = http.spawn(server::serve(listener, app, async {
        while !signals::received() {
            sleep(LOOK).await;
        }
    }));
    worker.run();
    http.block_on(serving).context("serving")?;
    Ok(())
}
