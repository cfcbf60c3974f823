//! A conversation, as a chat template takes it, and what comes out.

use std::ops::Range;

use serde_json::{Map, Value};

/// One message. The fields are those of the OpenAI interface, which templates are written for.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Message {
    /// `system`, `user`, `assistant`, `tool`; the template decides.
    pub role: String,
    /// A string, null, or a list of content parts if the template takes those.
    pub content: Value,
    /// What an assistant thought before it answered.
    pub reasoning_content: Option<String>,
    /// Calls of an assistant, each an object with a `function`. The template of the targets wants its
    /// `arguments` as an object, not as a string of JSON.
    pub tool_calls: Vec<Value>,
    /// Anything else, such as `name` or `tool_call_id`. The fields above win over equal names.
    pub extra: Map<String, Value>,
}

impl Message {
    /// A message with a text and nothing else.
    #[must_use]
    pub fn new(role: impl Into<String>, content: impl Into<String>) -> Self {
        Self { role: role.into(), content: Value::String(content.into()), ..Self::default() }
    }

    fn to_value(&self) -> Value {
        let mut fields = self.extra.clone();
        fields.insert("role".into(), self.role.clone().into());
        fields.insert("content".into(), self.content.clone());
        if let Some(reasoning) = &self.reasoning_content {
            fields.insert("reasoning_content".into(), reasoning.clone().into());
        }
        if !self.tool_calls.is_empty() {
            fields.insert("tool_calls".into(), self.tool_calls.clone().into());
        }
        Value::Object(fields)
    }
}

/// What a chat template is rendered with. All strings in it are text of callers.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Chat {
    /// The messages, oldest first.
    pub messages: Vec<Message>,
    /// Definitions of tools, as objects; empty is the same as none.
    pub tools: Vec<Value>,
    /// Whether the prompt ends with the beginning of an answer.
    pub add_generation_prompt: bool,
    /// Whether the model is to think; the template has a default.
    pub enable_thinking: Option<bool>,
    /// How much it is to think, in the template's words; the template has a default.
    pub reasoning_effort: Option<String>,
    /// Other variables of the template, such as `preserve_thinking`. The fields above win over equal
    /// names.
    pub extra: Map<String, Value>,
    /// The caller's clock for `strftime_now`: seconds since 1970 in local time. Without it, a template
    /// that asks for the date fails.
    pub local_time: Option<i64>,
}

impl Chat {
    /// A conversation that is to be answered.
    #[must_use]
    pub fn new(messages: Vec<Message>) -> Self {
        Self { messages, add_generation_prompt: true, ..Self::default() }
    }

    /// The template's variables. As elsewhere, `tools` and `documents` are none, not undefined.
    pub(super) fn variables(&self) -> Value {
        let mut variables = self.extra.clone();
        let tools = if self.tools.is_empty() { Value::Null } else { self.tools.clone().into() };
        variables.entry("documents").or_insert(Value::Null);
        variables.insert("tools".into(), tools);
        variables.insert("messages".into(), self.messages.iter().map(Message::to_value).collect());
        variables.insert("add_generation_prompt".into(), self.add_generation_prompt.into());
        if let Some(on) = self.enable_thinking {
            variables.insert("enable_thinking".into(), on.into());
        }
        if let Some(effort) = &self.reasoning_effort {
            variables.insert("reasoning_effort".into(), effort.clone().into());
        }
        Value::Object(variables)
    }
}

/// A rendered conversation: its text, and which parts of it are the template's special tokens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rendered {
    text: String,
    specials: Vec<(Range<usize>, u32)>,
}

impl Rendered {
    /// `specials` are ranges of `text` in ascending order, on borders of characters.
    pub(super) fn new(text: String, specials: Vec<(Range<usize>, u32)>) -> Self {
        Self { text, specials }
    }

    /// The text, special tokens written out: what the template yields in any other engine.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The special tokens, as byte ranges of the text in ascending order, with their ids.
    #[must_use]
    pub fn specials(&self) -> &[(Range<usize>, u32)] {
        &self.specials
    }
}
