//! An OpenAI-compatible HTTP interface, and a page, over the runtime's engine.
//!
//! [`serve`] runs an [`App`] on a listener. Requests are read field by field (`fields`), become a job of
//! the [`Engine`], and what the engine tells becomes an answer: at once, or as
//! server-sent events. Both go through the same `answer` and the same `shape`, so they hold the same
//! text. Nothing here prints, and nothing is read from the environment.

mod answer;
mod chat;
mod completion;
mod connection;
mod error;
mod fields;
mod generate;
mod guard;
mod info;
mod metrics;
mod page;
mod reply;
mod routes;
mod sampling;
mod shape;
mod tagged;
mod tools;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::time::Duration;

use runtime::engine::Engine;
use runtime::stats::SpecStatus;
use runtime::text::{ChatTemplate, SamplingDefaults, Tokenizer};
use tokio::sync::Semaphore;

pub use connection::serve;

/// What is served.
#[derive(Debug)]
pub struct Model {
    /// Its name in answers and lists.
    pub id: String,
    /// The target's tokenizer.
    pub tokenizer: Tokenizer,
    /// The target's chat template, or why there is none.
    pub template: Result<ChatTemplate, String>,
    /// How tokens are drawn when a request does not say.
    pub defaults: SamplingDefaults,
    /// The target's training context.
    pub trained_context: usize,
    /// What `/health` says about the files.
    pub about: serde_json::Value,
}

/// Whether requests speculate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Drafting {
    /// With as many drafts a round as pay on this machine, at most so many. A request may say how many
    /// it wants instead.
    Auto(usize),
    /// With at most so many drafts a round, unless a request wants fewer.
    On(usize),
    /// Not, for this reason.
    Off(String),
}

/// How the server behaves.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Whether requests speculate.
    pub drafting: Drafting,
    /// Demanded as a bearer token of everything but `/health` and the page.
    pub api_key: Option<String>,
    /// Origins whose pages may ask, beside the server's own.
    pub cors_origins: Vec<String>,
    /// Names under which the server may be asked, beside `localhost` and addresses.
    pub hosts: Vec<String>,
    /// Largest body of a request, bytes.
    pub max_body: usize,
    /// Connections at a time; further ones wait to be accepted.
    pub max_connections: usize,
    /// Time for the head of a request, also between two of them.
    pub header_timeout: Duration,
    /// Time for the body of a request.
    pub body_timeout: Duration,
    /// Time in which a client must take something of what is sent.
    pub write_timeout: Duration,
    /// Longest silence in a stream.
    pub keep_alive: Duration,
    /// Time that requests get to end when the server does.
    pub grace: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            drafting: Drafting::Off("no drafter".into()),
            api_key: None,
            cors_origins: Vec::new(),
            hosts: Vec::new(),
            max_body: 8 << 20,
            max_connections: 256,
            header_timeout: Duration::from_secs(30),
            body_timeout: Duration::from_secs(30),
            write_timeout: Duration::from_secs(30),
            keep_alive: Duration::from_secs(10),
            grace: Duration::from_secs(10),
        }
    }
}

/// Requests that are read at a time.
const READERS: usize = 2;

/// An engine, what it serves, and how.
#[derive(Debug)]
pub struct App {
    engine: Engine,
    model: Model,
    settings: Settings,
    /// Seconds since 1970 when it was made.
    created: u64,
    /// Places for requests that are being read: JSON and text take many times the bytes of a body.
    readers: Semaphore,
    connections: AtomicUsize,
    closing: AtomicBool,
}

impl App {
    /// An application over `engine`.
    #[must_use]
    pub fn new(engine: Engine, model: Model, settings: Settings) -> Arc<Self> {
        Arc::new(Self {
            engine,
            model,
            settings,
            created: reply::now(),
            readers: Semaphore::new(READERS),
            connections: AtomicUsize::new(0),
            closing: AtomicBool::new(false),
        })
    }

    /// How a request that wants at most `asked` drafts a round speculates, or why it does not.
    fn drafts(&self, asked: Option<usize>) -> Result<Drafts, SpecStatus> {
        match (&self.settings.drafting, asked) {
            (Drafting::Off(reason), _) => Err(SpecStatus::off(reason)),
            (_, Some(0)) => Err(SpecStatus::off("the request asks for no drafts")),
            (Drafting::Auto(most), None) => Ok(Drafts { most: *most, paying: true }),
            (Drafting::Auto(most) | Drafting::On(most), asked) => {
                Ok(Drafts { most: asked.map_or(*most, |asked| asked.min(*most)), paying: false })
            }
        }
    }
}

/// How a request speculates.
#[derive(Debug, Clone, Copy)]
struct Drafts {
    most: usize,
    /// Whether fewer are verified where more do not pay.
    paying: bool,
}

impl Drafts {
    /// What an answer says of a request that ended after `tokens` tokens with its prompt.
    fn status(self, tokens: usize, end: usize) -> SpecStatus {
        let status = SpecStatus::of(self.most, tokens, end);
        if !self.paying || status.state != "active" {
            return status;
        }
        SpecStatus {
            reason: format!("as many drafts a round as pay, at most {}", self.most),
            ..status
        }
    }
}
