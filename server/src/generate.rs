//! A request on its way through the engine, and back as a document or a stream.

use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::sync::Arc;

use axum::Json;
use axum::body::{Body, Bytes};
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use futures_util::stream::unfold;
use runtime::engine::{Answer, Cancel, Delivered, Ending, Event, Job, Logprobs};
use runtime::round::{Sampler, Sampling};
use serde_json::Value;
use tokio::sync::mpsc::{Receiver, channel};
use tokio::time::{Instant, sleep_until};

use crate::App;
use crate::answer::{Delta, Splitter};
use crate::error::ApiError;
use crate::fields::{Fields, integer, wrong};
use crate::reply;
use crate::sampling;
use crate::shape::{Kind, Shape, Whole};

/// Events that may wait for a client. One that falls further behind is dropped.
const EVENTS: usize = 4096;

/// Stop strings of a request.
const STOPS: usize = 16;

/// What both interfaces have in common.
#[derive(Debug)]
pub(crate) struct Common {
    sampling: Sampling,
    max_tokens: Option<usize>,
    stop: Vec<String>,
    stream: bool,
    usage: bool,
    trace: bool,
    draft_max: Option<usize>,
}

impl Common {
    pub(crate) fn read(app: &App, fields: &Fields<'_>) -> Result<Self, ApiError> {
        fields.string("model")?;
        fields.lacks("n", |value| integer(value) == Some(1))?;
        let limit = |name| fields.integer(name, -1..=i128::from(u32::MAX));
        let max_tokens = limit("max_completion_tokens")?.or(limit("max_tokens")?);
        let stop = match fields.get("stop") {
            None => Vec::new(),
            Some(Value::String(stop)) => vec![stop.clone()],
            Some(Value::Array(all)) if all.len() <= STOPS => {
                let text = |stop: &Value| stop.as_str().map(str::to_owned);
                let text = |stop: &Value| text(stop).ok_or_else(|| wrong("stop", "strings", stop));
                all.iter().map(text).collect::<Result<_, _>>()?
            }
            Some(Value::Array(all)) => {
                let message =
                    format!("`stop`: expected at most {STOPS} strings, found {}", all.len());
                return Err(ApiError::field("stop", message));
            }
            Some(other) => return Err(wrong("stop", "a string or an array", other)),
        };
        let stream = fields.boolean("stream")?.unwrap_or(false);
        let options = fields.get("stream_options");
        let options =
            options.map(|options| Fields::inside(options, "stream_options")).transpose()?;
        let usage = options.map_or(Ok(None), |options| options.boolean("include_usage"))?;
        let ours = fields.get("x_drafter").map(|ours| Fields::inside(ours, "x_drafter"));
        let (mut trace, mut draft_max) = (false, None);
        if let Some(ours) = ours.transpose()? {
            trace = ours.boolean("trace")?.unwrap_or(false);
            draft_max = ours.integer("draft_max", 0..=255)?.map(|n| n as usize);
        }
        Ok(Self {
            sampling: sampling::read(fields, &app.model.defaults)?,
            max_tokens: max_tokens.and_then(|n| usize::try_from(n).ok()),
            stop,
            stream,
            usage: usage.unwrap_or(false),
            trace,
            draft_max,
        })
    }
}

/// A request that was understood.
#[derive(Debug)]
pub(crate) struct Asked {
    pub(crate) common: Common,
    pub(crate) kind: Kind,
    pub(crate) prompt: Vec<u32>,
    pub(crate) marks: Vec<usize>,
    pub(crate) logprobs: Option<usize>,
    pub(crate) splitter: Splitter,
}

/// Ends the request when nobody waits for it any more.
#[derive(Debug)]
struct CancelOnDrop(Cancel);

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        self.0.cancel();
    }
}

/// Answers a request.
pub(crate) async fn answer(app: &Arc<App>, asked: Asked) -> Result<Response, ApiError> {
    let Asked { common, kind, prompt, marks, logprobs, splitter } = asked;
    let limit = app.engine.context();
    if prompt.len() >= limit {
        return Err(ApiError::too_long(prompt.len(), limit));
    }
    let drafts = app.drafts(common.draft_max);
    let shape = Shape {
        kind,
        id: reply::id(if kind == Kind::Chat { "chatcmpl-" } else { "cmpl-" }),
        created: reply::now(),
        model: app.model.id.clone(),
        trace: common.trace,
        stream: common.stream,
        usage: common.usage,
        tokenizer: app.model.tokenizer.clone(),
        prompt_tokens: prompt.len(),
        drafts: drafts.clone(),
        drafter_positions: app.engine.drafter_positions().unwrap_or(0),
    };
    let (sender, events) = channel(EVENTS);
    let cancel = Cancel::default();
    app.engine.submit(Job {
        prompt,
        marks,
        verifier: Box::new(Sampler::new(common.sampling)?),
        max_tokens: common.max_tokens,
        stop: common.stop,
        draft_max: drafts.as_ref().map_or(0, |drafts| drafts.most),
        paying: drafts.is_ok_and(|drafts| drafts.paying),
        logprobs,
        cancel: cancel.clone(),
        events: Box::new(move |event| match sender.try_send(event) {
            Ok(()) => ControlFlow::Continue(()),
            // Gone, or so slow that it would take memory from others.
            Err(_) => ControlFlow::Break(()),
        }),
    })?;
    let run = Run {
        shape,
        splitter,
        logprobs: Vec::new(),
        offset: 0,
        reasoning: 0,
        events,
        _cancel: CancelOnDrop(cancel),
    };
    if common.stream { Ok(stream(run, app.settings.keep_alive)) } else { whole(run).await }
}

/// A request that runs.
#[derive(Debug)]
struct Run {
    shape: Shape,
    splitter: Splitter,
    /// Of tokens whose text is not out yet.
    logprobs: Vec<(u32, Logprobs)>,
    /// Characters that are out.
    offset: usize,
    /// Tokens of the reasoning.
    reasoning: usize,
    events: Receiver<Event>,
    _cancel: CancelOnDrop,
}

impl Run {
    /// The parts of what the engine delivered.
    fn split(&mut self, delivered: Delivered) -> Vec<Delta> {
        let mut out = Vec::new();
        for piece in delivered.pieces {
            if piece.first && self.splitter.is_reasoning() {
                self.reasoning += 1;
            }
            if let Some(logprobs) = piece.logprobs {
                self.logprobs.push((piece.id, logprobs));
            }
            self.splitter.push(&piece.text, piece.from, &mut out);
        }
        out
    }

    fn take_logprobs(&mut self) -> Value {
        let value = self.shape.logprobs(&self.logprobs, self.offset);
        self.logprobs.clear();
        value
    }

    /// The end, unless there was none.
    fn end(&mut self, answer: &Answer) -> Result<crate::shape::End, ApiError> {
        if answer.ending == Ending::Cancelled {
            return Err(ApiError::unavailable("the request was ended before its answer was whole"));
        }
        let calls = self.splitter.calls() > 0 && self.splitter.whole;
        Ok(self.shape.end(answer, calls, self.reasoning))
    }
}

/// One document, when all is there.
async fn whole(mut run: Run) -> Result<Response, ApiError> {
    let mut whole = Whole::default();
    let mut last_round = 0;
    while let Some(event) = run.events.recv().await {
        match event {
            Event::Delivered(delivered) => {
                last_round = delivered.round;
                run.split(delivered).into_iter().for_each(|delta| whole.add(last_round, delta));
            }
            Event::Finished(answer) => {
                let mut rest = Vec::new();
                run.splitter.finish(&mut rest);
                rest.into_iter().for_each(|delta| whole.add(last_round, delta));
                let end = run.end(&answer)?;
                let logprobs = run.take_logprobs();
                return Ok(Json(run.shape.whole(&whole, &end, &logprobs)).into_response());
            }
            Event::Failed(failure) => return Err(failure.into()),
            _ => {}
        }
    }
    Err(ApiError::internal("the engine ended without an answer"))
}

/// Server-sent events.
#[derive(Debug)]
struct Stream {
    run: Run,
    ready: VecDeque<Bytes>,
    /// Whether something was said.
    begun: bool,
    done: bool,
    round: usize,
    alive: std::time::Duration,
}

fn data(value: &Value) -> Bytes {
    format!("data: {value}\n\n").into()
}

impl Stream {
    fn take(&mut self, event: Event) {
        match event {
            Event::Delivered(delivered) => {
                self.round = delivered.round;
                let deltas = self.run.split(delivered);
                self.say(&deltas);
            }
            Event::Finished(answer) => {
                let mut rest = Vec::new();
                self.run.splitter.finish(&mut rest);
                self.say(&rest);
                match self.run.end(&answer) {
                    Ok(end) => {
                        self.begin();
                        let logprobs = self.run.take_logprobs();
                        let last = self.run.shape.last(&end, &logprobs);
                        self.ready.extend(last.iter().map(data));
                        self.ready.push_back(Bytes::from_static(b"data: [DONE]\n\n"));
                        self.done = true;
                    }
                    Err(error) => self.fail(&error),
                }
            }
            Event::Failed(failure) => self.fail(&failure.into()),
            _ => {}
        }
    }

    fn begin(&mut self) {
        if !self.begun {
            self.begun = true;
            let role = self.run.shape.role();
            self.ready.extend(role.iter().map(data));
        }
    }

    fn say(&mut self, deltas: &[Delta]) {
        for delta in deltas {
            self.begin();
            let logprobs = self.run.take_logprobs();
            self.ready.push_back(data(&self.run.shape.chunk(delta, self.round, &logprobs)));
            if let Delta::Content(parts) = delta {
                self.run.offset += crate::shape::text(parts).chars().count();
            }
        }
    }

    /// Too late for another status.
    fn fail(&mut self, error: &ApiError) {
        self.ready.push_back(data(&error.body()));
        self.done = true;
    }

    async fn next(mut self) -> Option<(Result<Bytes, std::convert::Infallible>, Self)> {
        loop {
            if let Some(bytes) = self.ready.pop_front() {
                return Some((Ok(bytes), self));
            }
            if self.done {
                return None;
            }
            tokio::select! {
                event = self.run.events.recv() => match event {
                    Some(event) => self.take(event),
                    None => self.fail(&ApiError::unavailable("the client reads too slowly")),
                },
                () = sleep_until(Instant::now() + self.alive) => {
                    let alive = match self.begun {
                        // Clients count from the first chunk, and comments do not.
                        true => data(&self.run.shape.nothing()),
                        false => Bytes::from_static(b": waiting\n\n"),
                    };
                    self.ready.push_back(alive);
                }
            }
        }
    }
}

fn stream(run: Run, alive: std::time::Duration) -> Response {
    let stream = Stream { run, ready: VecDeque::new(), begun: false, done: false, round: 0, alive };
    let mut response = Response::new(Body::from_stream(unfold(stream, Stream::next)));
    for (name, value) in [
        (header::CONTENT_TYPE, "text/event-stream"),
        (header::CACHE_CONTROL, "no-store"),
        (header::HeaderName::from_static("x-accel-buffering"), "no"),
    ] {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    response
}
