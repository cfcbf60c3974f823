//! Prompts from command lines and files.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;

use anyhow::Context as _;
use formats::shown_path;
use runtime::text::Message;
use serde::Deserialize;
use serde_json::Value;

use super::args::PromptSource;
use super::exit::Input;

/// Longest prompt file.
const MAX_BYTES: u64 = 64 << 20;

/// A prompt as it was given.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Prompt {
    Text(String),
    Ids(Vec<u32>),
    Messages(Vec<Message>),
}

impl Prompt {
    /// The one of the command line.
    pub(crate) fn read(source: &PromptSource) -> anyhow::Result<Self> {
        if let Some(ids) = &source.ids {
            return Ok(Self::Ids(ids.clone()));
        }
        if let Some(text) = &source.prompt {
            return Ok(Self::Text(text.clone()));
        }
        let path = source.file.as_deref().unwrap_or(Path::new("-"));
        let bytes = if path == Path::new("-") {
            bounded(io::stdin().lock(), path)
        } else {
            let file = File::open(path).map_err(|e| unreadable(path, &e))?;
            bounded(file, path)
        }?;
        match String::from_utf8(bytes) {
            Ok(text) => Ok(Self::Text(text)),
            Err(error) => {
                let at = error.utf8_error().valid_up_to();
                let path = shown_path(path);
                Err(Input(format!("`{path}`: expected UTF-8, found another byte at {at}")).into())
            }
        }
    }
}

fn unreadable(path: &Path, error: &io::Error) -> Input {
    Input(format!("`{}`: {error}", shown_path(path)))
}

fn bounded(reader: impl Read, path: &Path) -> anyhow::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    reader.take(MAX_BYTES + 1).read_to_end(&mut bytes).map_err(|e| unreadable(path, &e))?;
    if bytes.len() as u64 > MAX_BYTES {
        let path = shown_path(path);
        return Err(Input(format!("`{path}`: expected at most {MAX_BYTES} bytes")).into());
    }
    Ok(bytes)
}

/// A line of a file of prompts.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    prompt: Option<String>,
    ids: Option<Vec<u32>>,
    messages: Option<Vec<Value>>,
    class: Option<String>,
    name: Option<String>,
}

/// A prompt of a file, what it is called, and the kind it is counted with.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Entry {
    pub(crate) class: Option<String>,
    pub(crate) name: Option<String>,
    pub(crate) prompt: Prompt,
}

/// The prompts of a JSONL file. Empty lines are skipped.
pub(crate) fn read_file(path: &Path) -> anyhow::Result<Vec<Prompt>> {
    Ok(read_entries(path)?.into_iter().map(|entry| entry.prompt).collect())
}

/// The prompts of a JSONL file with their names and classes.
pub(crate) fn read_entries(path: &Path) -> anyhow::Result<Vec<Entry>> {
    let file = File::open(path).map_err(|e| unreadable(path, &e))?;
    entries(file.take(MAX_BYTES), path)
}

/// As [`read_entries`], of lines from anywhere; `path` names them in messages.
pub(crate) fn entries(lines: impl Read, path: &Path) -> anyhow::Result<Vec<Entry>> {
    let mut entries = Vec::new();
    for (n, line) in BufReader::new(lines).lines().enumerate() {
        let at = || format!("`{}`: line {}", shown_path(path), n + 1);
        let line = line.map_err(|e| Input(format!("{}: {e}", at())))?;
        if line.trim().is_empty() {
            continue;
        }
        let line: Line = serde_json::from_str(&line)
            .map_err(|e| Input(format!("{}: {e}", at())))
            .context("reading prompts")?;
        let prompt = match (line.prompt, line.ids, line.messages) {
            (Some(text), None, None) => Prompt::Text(text),
            (None, Some(ids), None) => Prompt::Ids(ids),
            (None, None, Some(messages)) => {
                let messages = messages.into_iter().map(message).collect::<Option<_>>();
                let expected = "expected messages with a `role`";
                Prompt::Messages(messages.ok_or_else(|| Input(format!("{}: {expected}", at())))?)
            }
            _ => {
                let expected = "expected one of `prompt`, `ids` and `messages`";
                return Err(Input(format!("{}: {expected}", at())).into());
            }
        };
        entries.push(Entry { class: line.class, name: line.name, prompt });
    }
    if entries.is_empty() {
        return Err(
            Input(format!("`{}`: expected prompts, found nothing", shown_path(path))).into()
        );
    }
    Ok(entries)
}

/// A message of the OpenAI interface.
fn message(fields: Value) -> Option<Message> {
    let Value::Object(mut extra) = fields else { return None };
    let role = extra.remove("role")?.as_str()?.to_owned();
    let content = extra.remove("content").unwrap_or_default();
    let reasoning = extra.remove("reasoning_content");
    let tool_calls = extra.remove("tool_calls");
    Some(Message {
        role,
        content,
        reasoning_content: reasoning.and_then(|text| text.as_str().map(str::to_owned)),
        tool_calls: tool_calls.and_then(|calls| calls.as_array().cloned()).unwrap_or_default(),
        extra,
    })
}

/// What is decoded when no prompts are given.
pub(crate) fn built_in() -> Vec<Prompt> {
    [
        "def fibonacci(n):\n    \"\"\"Return the n-th Fibonacci number.\"\"\"\n",
        "The following paragraphs describe how a list is sorted in place.",
        "import os\nimport sys\n\n\nclass Reader:\n    def __init__(self, path):\n",
        "1, 2, 4, 8, 16, ",
    ]
    .map(|text| Prompt::Text(text.into()))
    .into()
}
