//! The documents of an answer: chunks of a stream, or one whole. The names are OpenAI's; `timings` are
//! llama-server's, `spec` and `x_drafter` are ours.

use runtime::engine::{Answer, Ending, Logprobs};
use runtime::stats::{SpecStatus, Timings};
use runtime::text::{Controls, Tokenizer};
use serde_json::{Map, Value, json};

use crate::Drafts;
use crate::answer::Delta;
use crate::reply;
use crate::tagged::Part;

/// The interface that was asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Chat,
    Text,
}

/// What all documents of an answer share.
#[derive(Debug)]
pub(crate) struct Shape {
    pub(crate) kind: Kind,
    pub(crate) id: String,
    pub(crate) created: u64,
    pub(crate) model: String,
    /// Whether chunks say where their text came from.
    pub(crate) trace: bool,
    pub(crate) stream: bool,
    /// Whether a last chunk has the usage.
    pub(crate) usage: bool,
    pub(crate) tokenizer: Tokenizer,
    pub(crate) prompt_tokens: usize,
    /// How it speculates, or why it does not.
    pub(crate) drafts: Result<Drafts, SpecStatus>,
    pub(crate) drafter_positions: usize,
}

/// The end of an answer.
#[derive(Debug)]
pub(crate) struct End {
    pub(crate) finish: &'static str,
    pub(crate) timings: Timings,
    pub(crate) spec: SpecStatus,
    pub(crate) usage: Value,
}

/// Text of parts.
pub(crate) fn text(parts: &[Part]) -> String {
    parts.iter().map(|part| part.text.as_str()).collect()
}

impl Shape {
    fn object(&self) -> &'static str {
        match (self.kind, self.stream) {
            (Kind::Chat, true) => "chat.completion.chunk",
            (Kind::Chat, false) => "chat.completion",
            (Kind::Text, _) => "text_completion",
        }
    }

    /// A document with these choices.
    fn document(&self, choices: &Value) -> Map<String, Value> {
        let document = json!({
            "id": self.id, "object": self.object(), "created": self.created, "model": self.model,
            "system_fingerprint": concat!("drafter-", env!("CARGO_PKG_VERSION")),
            "choices": choices,
        });
        match document {
            Value::Object(map) => map,
            _ => Map::new(),
        }
    }

    fn choice(&self, delta: &Value, logprobs: &Value, finish: &Value) -> Value {
        match self.kind {
            Kind::Chat => json!([{
                "index": 0, "delta": delta, "logprobs": logprobs, "finish_reason": finish,
            }]),
            Kind::Text => json!([{
                "index": 0, "text": delta["content"].as_str().unwrap_or(""), "logprobs": logprobs,
                "finish_reason": finish,
            }]),
        }
    }

    /// The first chunk of a chat: whose turn it is.
    pub(crate) fn role(&self) -> Option<Value> {
        let delta = json!({"role": "assistant", "content": ""});
        (self.kind == Kind::Chat)
            .then(|| self.document(&self.choice(&delta, &Value::Null, &Value::Null)).into())
    }

    /// A chunk that says nothing, to keep a connection alive.
    pub(crate) fn nothing(&self) -> Value {
        self.document(&self.choice(&json!({}), &Value::Null, &Value::Null)).into()
    }

    /// A chunk of a stream.
    pub(crate) fn chunk(&self, delta: &Delta, round: usize, logprobs: &Value) -> Value {
        let (parts, body) = match delta {
            Delta::Reasoning(parts) => {
                (parts.as_slice(), json!({"reasoning_content": text(parts)}))
            }
            Delta::Content(parts) => (parts.as_slice(), json!({"content": text(parts)})),
            Delta::Call { index, name } => {
                let id = reply::id("call_");
                let function = json!({"name": name, "arguments": ""});
                let call =
                    json!({"index": index, "id": id, "type": "function", "function": function});
                (&[][..], json!({"tool_calls": [call]}))
            }
            Delta::Arguments { index, json } => {
                let call = json!({"index": index, "function": {"arguments": json}});
                (&[][..], json!({"tool_calls": [call]}))
            }
        };
        let mut document = self.document(&self.choice(&body, logprobs, &Value::Null));
        if self.trace && !parts.is_empty() {
            let piece = |part: &Part| json!({"text": part.text, "from": part.from.name()});
            let pieces: Vec<Value> = parts.iter().map(piece).collect();
            document.insert("x_drafter".into(), json!({"round": round, "pieces": pieces}));
        }
        document.into()
    }

    /// The last chunks of a stream.
    pub(crate) fn last(&self, end: &End, logprobs: &Value) -> Vec<Value> {
        let mut last = self.document(&self.choice(&json!({}), logprobs, &end.finish.into()));
        last.insert("timings".into(), json!(end.timings));
        last.insert("spec".into(), json!(end.spec));
        let mut all = vec![last.into()];
        if self.usage {
            let mut usage = self.document(&json!([]));
            usage.insert("usage".into(), end.usage.clone());
            all.push(usage.into());
        }
        all
    }

    /// A whole answer.
    pub(crate) fn whole(&self, whole: &Whole, end: &End, logprobs: &Value) -> Value {
        let choice = match self.kind {
            Kind::Chat => {
                json!([{"index": 0, "message": whole.message(), "logprobs": logprobs,
                    "finish_reason": end.finish}])
            }
            Kind::Text => json!([{"index": 0, "text": whole.content, "logprobs": logprobs,
                "finish_reason": end.finish}]),
        };
        let mut document = self.document(&choice);
        document.insert("usage".into(), end.usage.clone());
        document.insert("timings".into(), json!(end.timings));
        document.insert("spec".into(), json!(end.spec));
        if self.trace {
            let pieces = whole.pieces.iter().map(|(round, part)| {
                json!({"round": round, "text": part.text, "from": part.from.name()})
            });
            let pieces: Vec<Value> = pieces.collect();
            document.insert("x_drafter".into(), json!({"pieces": pieces}));
        }
        document.into()
    }

    /// What an answer amounts to. `calls`: whether it ends with a whole call of a tool.
    pub(crate) fn end(&self, answer: &Answer, calls: bool, reasoning: usize) -> End {
        let finish = match answer.ending {
            Ending::Stop | Ending::StopText if calls => "tool_calls",
            Ending::Stop | Ending::StopText => "stop",
            Ending::Length | Ending::Context | Ending::Cancelled => "length",
        };
        let taken_in = self.prompt_tokens - answer.cached;
        let times = (taken_in, answer.prompt_ms);
        let timings =
            Timings::new(times, answer.predicted_ms, &answer.generated, self.drafts.is_ok());
        let predicted = answer.generated.ids.len();
        let spec = match &self.drafts {
            Err(status) => status.clone(),
            Ok(drafts) => drafts.status(self.prompt_tokens + predicted, self.drafter_positions),
        };
        let usage = json!({
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": predicted,
            "total_tokens": self.prompt_tokens + predicted,
            "prompt_tokens_details": {"cached_tokens": answer.cached},
            "completion_tokens_details": {"reasoning_tokens": reasoning},
        });
        End { finish, timings: Timings { cache_n: Some(answer.cached), ..timings }, spec, usage }
    }

    /// The log-probabilities of tokens, in the form of the interface; null if there are none.
    pub(crate) fn logprobs(&self, tokens: &[(u32, Logprobs)], offset: usize) -> Value {
        if tokens.is_empty() {
            return Value::Null;
        }
        match self.kind {
            Kind::Chat => {
                let content = tokens.iter().map(|(id, of)| {
                    let top: Vec<Value> =
                        of.top.iter().map(|(id, p)| self.token(*id, *p)).collect();
                    let mut token = self.token(*id, of.logprob);
                    token["top_logprobs"] = top.into();
                    token
                });
                json!({"content": content.collect::<Vec<_>>()})
            }
            Kind::Text => {
                let name = |id: u32| self.name(id);
                let mut at = offset;
                let offsets = tokens.iter().map(|(id, _)| {
                    let here = at;
                    at += name(*id).chars().count();
                    here
                });
                let offsets: Vec<usize> = offsets.collect();
                let top = tokens.iter().map(|(id, of)| {
                    let mut top: Map<_, _> =
                        of.top.iter().map(|(id, p)| (name(*id), json!(p))).collect();
                    // The token itself is always there.
                    top.insert(name(*id), json!(of.logprob));
                    top
                });
                json!({
                    "tokens": tokens.iter().map(|(id, _)| name(*id)).collect::<Vec<_>>(),
                    "token_logprobs": tokens.iter().map(|(_, of)| of.logprob).collect::<Vec<_>>(),
                    "top_logprobs": top.collect::<Vec<_>>(),
                    "text_offset": offsets,
                })
            }
        }
    }

    fn token(&self, id: u32, logprob: f64) -> Value {
        let bytes = self.tokenizer.bytes(id, Controls::Shown).unwrap_or_default();
        json!({"token": self.name(id), "logprob": logprob, "bytes": bytes})
    }

    fn name(&self, id: u32) -> String {
        self.tokenizer.decode(&[id], Controls::Shown).unwrap_or_default()
    }
}

/// An answer as it is put together.
#[derive(Debug, Default)]
pub(crate) struct Whole {
    pub(crate) reasoning: String,
    pub(crate) content: String,
    calls: Vec<(String, String)>,
    /// Parts of the content, with their rounds.
    pieces: Vec<(usize, Part)>,
}

impl Whole {
    pub(crate) fn add(&mut self, round: usize, delta: Delta) {
        match delta {
            Delta::Reasoning(parts) => self.reasoning += &text(&parts),
            Delta::Content(parts) => {
                self.content += &text(&parts);
                self.pieces.extend(parts.into_iter().map(|part| (round, part)));
            }
            Delta::Call { name, .. } => self.calls.push((name, String::new())),
            Delta::Arguments { json, .. } => {
                if let Some((_, arguments)) = self.calls.last_mut() {
                    *arguments += &json;
                }
            }
        }
    }

    fn message(&self) -> Value {
        let mut message = json!({"role": "assistant", "content": self.content, "refusal": null});
        if !self.reasoning.is_empty() {
            message["reasoning_content"] = self.reasoning.as_str().into();
        }
        if !self.calls.is_empty() {
            if self.content.is_empty() {
                message["content"] = Value::Null;
            }
            let calls = self.calls.iter().map(|(name, arguments)| {
                let id = reply::id("call_");
                json!({"id": id, "type": "function",
                    "function": {"name": name, "arguments": arguments}})
            });
            message["tool_calls"] = calls.collect();
        }
        message
    }
}
