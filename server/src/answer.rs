//! The parts of an answer: reasoning, content, tool calls, as they come.
//!
//! A model writes one text. What it thinks stands before `</think>`; a call of a tool is
//!
//! ```text
//! <tool_call>
//! <function=NAME>
//! <parameter=KEY>
//! value
//! </parameter>
//! </function>
//! </tool_call>
//! ```
//!
//! with values as raw text. Streamed and whole answers go through the same [`Splitter`], so they have
//! the same parts. Markup never shows: what may be the beginning of a marker is held back. A call whose
//! beginning is malformed, or that names a tool that was not offered, is content. Once its name is out
//! a call cannot be taken back: if it breaks off then, its arguments stay unfinished JSON, which no
//! client takes for a call, and the rest is content.

use std::fmt::Write as _;

use runtime::engine::Origin;
use serde_json::Value;

use crate::tagged::{Part, Tagged, begun};
use crate::tools::{Tools, Typed};

const THINK: &str = "<think>";
const END_THINK: &str = "</think>";
const CALL: &str = "<tool_call>";
const END_CALL: &str = "</tool_call>";
const FUNCTION: &str = "<function=";
const END_FUNCTION: &str = "</function>";
const PARAMETER: &str = "<parameter=";
const END_PARAMETER: &str = "</parameter>";
/// Longest name of a function or parameter.
const MAX_NAME: usize = 256;

/// A part of an answer.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Delta {
    Reasoning(Vec<Part>),
    Content(Vec<Part>),
    /// A call begins.
    Call {
        index: usize,
        name: String,
    },
    /// JSON of its arguments.
    Arguments {
        index: usize,
        json: String,
    },
}

#[derive(Debug, Clone, PartialEq)]
enum State {
    /// Whether it thinks is not known yet.
    Start,
    Reasoning,
    Content,
    /// After `<tool_call>`, which is still in the buffer.
    Call,
    /// Between parameters; `n` are there.
    Function {
        name: String,
        n: usize,
    },
    /// In a value.
    Value {
        name: String,
        n: usize,
        key: String,
        typed: Typed,
        begun: bool,
    },
    /// After `</function>`.
    EndCall,
}

/// Splits a text that comes in pieces.
#[derive(Debug)]
pub(crate) struct Splitter {
    tools: Tools,
    text: Tagged,
    state: State,
    /// White space is dropped until something else comes.
    trim: bool,
    calls: usize,
    /// Whether the last call is whole.
    pub(crate) whole: bool,
}

impl Splitter {
    /// `thinking`: the prompt has opened the reasoning already.
    pub(crate) fn new(tools: Tools, thinking: bool) -> Self {
        let state = if thinking { State::Reasoning } else { State::Start };
        Self { tools, text: Tagged::default(), state, trim: thinking, calls: 0, whole: false }
    }

    /// Text that is content as it stands.
    pub(crate) fn plain() -> Self {
        Self { state: State::Content, ..Self::new(Tools::default(), false) }
    }

    /// Whether what comes is reasoning, as far as is known.
    pub(crate) fn is_reasoning(&self) -> bool {
        self.state == State::Reasoning
    }

    /// Calls that were begun.
    pub(crate) fn calls(&self) -> usize {
        self.calls
    }

    pub(crate) fn push(&mut self, text: &str, from: Origin, out: &mut Vec<Delta>) {
        self.text.push(text, from);
        self.advance(false, out);
    }

    /// The text is over.
    pub(crate) fn finish(&mut self, out: &mut Vec<Delta>) {
        self.advance(true, out);
        if matches!(self.state, State::Value { .. }) && !self.whole {
            // What there is of a value; its string stays open.
            self.value(true, out);
        }
        let rest = self.text.as_str().len();
        match self.state {
            State::Reasoning => self.emit(rest, out),
            State::Function { .. } | State::Value { .. } | State::EndCall => self.text.skip(rest),
            _ => {
                self.state = State::Content;
                self.emit(rest, out);
            }
        }
    }

    fn advance(&mut self, last: bool, out: &mut Vec<Delta>) {
        loop {
            let go_on = match &self.state {
                State::Start => self.start(last),
                State::Reasoning => self.reasoning(out),
                State::Content => self.content(out),
                State::Call => self.call(last, out),
                State::Function { .. } => self.function(out),
                State::Value { .. } => self.value(false, out),
                State::EndCall => self.end_call(),
            };
            if !go_on {
                return;
            }
        }
    }

    /// Emits the first `bytes` bytes as what the state says.
    fn emit(&mut self, bytes: usize, out: &mut Vec<Delta>) {
        let mut parts = self.text.take(bytes);
        if self.trim {
            while let Some(part) = parts.first_mut() {
                let trimmed = part.text.trim_start();
                if trimmed.is_empty() {
                    parts.remove(0);
                    continue;
                }
                part.text = trimmed.to_owned();
                self.trim = false;
                break;
            }
        }
        if parts.is_empty() {
            return;
        }
        match (&self.state, out.last_mut()) {
            (State::Reasoning, Some(Delta::Reasoning(before))) => before.extend(parts),
            (State::Reasoning, _) => out.push(Delta::Reasoning(parts)),
            (_, Some(Delta::Content(before))) => before.extend(parts),
            _ => out.push(Delta::Content(parts)),
        }
    }

    fn start(&mut self, last: bool) -> bool {
        let text = self.text.as_str().trim_start();
        if let Some(rest) = text.strip_prefix(THINK) {
            let all = self.text.as_str().len();
            self.text.skip(all - rest.len());
            (self.state, self.trim) = (State::Reasoning, true);
            return true;
        }
        if THINK.starts_with(text) && !last {
            return false;
        }
        self.state = State::Content;
        true
    }

    fn reasoning(&mut self, out: &mut Vec<Delta>) -> bool {
        let text = self.text.as_str();
        if let Some(at) = text.find(END_THINK) {
            let end = text[..at].trim_end().len();
            self.emit(end, out);
            self.text.skip(at - end + END_THINK.len());
            (self.state, self.trim) = (State::Content, true);
            return true;
        }
        let safe = text[..text.len() - begun(text, END_THINK)].trim_end().len();
        self.emit(safe, out);
        false
    }

    fn content(&mut self, out: &mut Vec<Delta>) -> bool {
        let text = self.text.as_str();
        if self.tools.is_empty() {
            self.emit(text.len(), out);
            return false;
        }
        if let Some(at) = text.find(CALL) {
            let end = text[..at].trim_end().len();
            self.emit(end, out);
            // White space before a call is part of its markup, unless it is none.
            self.state = State::Call;
            return true;
        }
        let safe = text[..text.len() - begun(text, CALL)].trim_end().len();
        self.emit(safe, out);
        false
    }

    /// The buffer is white space, `<tool_call>`, white space, `<function=NAME>`, or it is no call.
    fn call(&mut self, last: bool, out: &mut Vec<Delta>) -> bool {
        let text = self.text.as_str();
        let after = text.trim_start().strip_prefix(CALL).map_or("", str::trim_start);
        let open = !last && (FUNCTION.starts_with(after) || after.starts_with(FUNCTION));
        let name = after.strip_prefix(FUNCTION).and_then(|rest| rest.split_once('>'));
        let too_long = after.len() > FUNCTION.len() + MAX_NAME;
        match name {
            Some((name, rest)) if self.tools.has(name.trim()) => {
                let name = name.trim().to_owned();
                self.text.skip(text.len() - rest.len());
                let index = self.calls;
                self.calls += 1;
                self.whole = false;
                out.push(Delta::Call { index, name: name.clone() });
                out.push(Delta::Arguments { index, json: "{".into() });
                self.state = State::Function { name, n: 0 };
                true
            }
            None if open && !too_long => false,
            // No call: the marker is text, and what follows may be anything.
            _ => {
                self.state = State::Content;
                let marker = text.len() - text.trim_start().len() + CALL.len();
                self.emit(marker.min(text.len()), out);
                true
            }
        }
    }

    fn function(&mut self, out: &mut Vec<Delta>) -> bool {
        let State::Function { name, n } = &self.state else { return false };
        let (name, n, index) = (name.clone(), *n, self.calls - 1);
        self.text.trim_start();
        let text = self.text.as_str();
        if text.starts_with(END_FUNCTION) {
            self.text.skip(END_FUNCTION.len());
            out.push(Delta::Arguments { index, json: "}".into() });
            self.whole = true;
            self.state = State::EndCall;
            return true;
        }
        if let Some((key, rest)) = text.strip_prefix(PARAMETER).and_then(|t| t.split_once('>')) {
            let key = key.trim().to_owned();
            self.text.skip(text.len() - rest.len());
            let typed = self.tools.typed(&name, &key);
            self.state = State::Value { name, n, key, typed, begun: false };
            return true;
        }
        let open = END_FUNCTION.starts_with(text)
            || PARAMETER.starts_with(text)
            || (text.starts_with(PARAMETER) && text.len() < PARAMETER.len() + MAX_NAME);
        if !open {
            // Broken off; the arguments stay open.
            self.state = State::Content;
            return true;
        }
        false
    }

    /// In a value: `\nvalue\n</parameter>`. A string goes out as it comes, anything else when it is
    /// whole.
    fn value(&mut self, last: bool, out: &mut Vec<Delta>) -> bool {
        let State::Value { name, n, key, typed, begun: is_begun } = &self.state else {
            return false;
        };
        let (name, n, key, typed, is_begun) =
            (name.clone(), *n, key.clone(), typed.clone(), *is_begun);
        let index = self.calls - 1;
        let text = self.text.as_str();
        let end = text.find(END_PARAMETER);
        let mut json = String::new();
        let head = |json: &mut String| {
            let comma = if n > 0 { ", " } else { "" };
            let _ = write!(json, "{comma}{}: ", Value::from(key.as_str()));
        };
        let go_on = if let Some(end) = end {
            let value = &text[..end];
            let value = if is_begun { value } else { value.strip_prefix('\n').unwrap_or(value) };
            let value = value.strip_suffix('\n').unwrap_or(value);
            match typed {
                Typed::String if is_begun => {
                    json.push_str(&inner(value));
                    json.push('"');
                }
                Typed::String => {
                    head(&mut json);
                    json.push_str(&Value::from(value).to_string());
                }
                _ => {
                    head(&mut json);
                    json.push_str(&typed.read(value).to_string());
                }
            }
            self.text.skip(end + END_PARAMETER.len());
            self.state = State::Function { name, n: n + 1 };
            true
        } else if typed == Typed::String && (text.len() > 1 || last) {
            // A newline at the end may be the one before the marker.
            let held = if last { 0 } else { begun(text, END_PARAMETER) };
            let safe = &text[..text.len() - held];
            let safe = if last { safe } else { safe.strip_suffix('\n').unwrap_or(safe) };
            let bytes = safe.len();
            let value = if is_begun { safe } else { safe.strip_prefix('\n').unwrap_or(safe) };
            if bytes > 0 && (is_begun || !value.is_empty()) {
                if !is_begun {
                    head(&mut json);
                    json.push('"');
                }
                json.push_str(&inner(value));
                self.text.skip(bytes);
                self.state = State::Value { name, n, key, typed, begun: true };
            }
            false
        } else {
            false
        };
        if !json.is_empty() {
            out.push(Delta::Arguments { index, json });
        }
        go_on
    }

    fn end_call(&mut self) -> bool {
        self.text.trim_start();
        let text = self.text.as_str();
        if text.starts_with(END_CALL) {
            self.text.skip(END_CALL.len());
        } else if END_CALL.starts_with(text) {
            return false;
        }
        // Another call may follow; white space before content is markup.
        (self.state, self.trim) = (State::Content, true);
        true
    }
}

/// A text as the inside of a JSON string.
fn inner(text: &str) -> String {
    let quoted = Value::from(text).to_string();
    quoted[1..quoted.len() - 1].to_owned()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn tools() -> Tools {
        let tool = |name: &str, properties: Value| {
            json!({"type": "function", "function": {"name": name, "parameters": {
                "type": "object", "properties": properties}}})
        };
        Tools::read(&[
            tool(
                "write",
                json!({"path": {"type": "string"}, "text": {"type": "string"},
                "n": {"type": "integer"}, "tags": {"type": "array"},
                "mode": {"anyOf": [{"type": "number"}, {"type": "null"}]}}),
            ),
            tool("now", json!({})),
        ])
        .unwrap()
    }

    /// What a client puts together: reasoning, content, calls.
    #[derive(Debug, Default, PartialEq)]
    struct Whole {
        reasoning: String,
        content: String,
        calls: Vec<(String, String)>,
    }

    fn whole(deltas: &[Delta]) -> Whole {
        let mut whole = Whole::default();
        let text = |parts: &[Part]| parts.iter().map(|p| p.text.as_str()).collect::<String>();
        for delta in deltas {
            match delta {
                Delta::Reasoning(parts) => whole.reasoning += &text(parts),
                Delta::Content(parts) => whole.content += &text(parts),
                Delta::Call { index, name } => {
                    assert_eq!(*index, whole.calls.len());
                    whole.calls.push((name.clone(), String::new()));
                }
                Delta::Arguments { index, json } => {
                    assert_eq!(*index + 1, whole.calls.len());
                    whole.calls[*index].1 += json;
                }
            }
        }
        whole
    }

    /// In one piece, split everywhere in two, and character by character: all the same.
    fn split(text: &str, thinking: bool, tools: &Tools) -> Whole {
        let run = |pieces: &[&str]| {
            let mut splitter = Splitter::new(tools.clone(), thinking);
            let mut out = Vec::new();
            pieces.iter().for_each(|piece| splitter.push(piece, Origin::Draft, &mut out));
            splitter.finish(&mut out);
            whole(&out)
        };
        let expected = run(&[text]);
        for (at, _) in text.char_indices() {
            assert_eq!(run(&[&text[..at], &text[at..]]), expected, "cut at {at}");
        }
        let single: Vec<String> = text.chars().map(String::from).collect();
        assert_eq!(run(&single.iter().map(String::as_str).collect::<Vec<_>>()), expected);
        expected
    }

    #[test]
    fn reasoning_stands_before_its_marker() {
        let found = split("I think.\n\n</think>\n\n Hi </b>\n", true, &Tools::default());
        assert_eq!((&*found.reasoning, &*found.content), ("I think.", "Hi </b>\n"));
        let found = split("<think>\nwell\n</think>\n\nyes", false, &Tools::default());
        assert_eq!((&*found.reasoning, &*found.content), ("well", "yes"));
        // It never came to an end.
        let found = split("on and on </thi", true, &Tools::default());
        assert_eq!((&*found.reasoning, &*found.content), ("on and on </thi", ""));
        let found = split("  <thin", false, &Tools::default());
        assert_eq!((&*found.reasoning, &*found.content), ("", "  <thin"));
        for text in ["", " ", "\n\n a", "a</think>b", "a\n"] {
            assert_eq!(split(text, false, &Tools::default()).content, text);
        }
    }

    #[test]
    fn calls_become_json() {
        let text = "Let me.\n\n<tool_call>\n<function=write>\n<parameter=path>\na \"b\".txt\n\
            </parameter>\n<parameter=text>\n\nline </para\n\n</parameter>\n<parameter=n>\n12\n\
            </parameter>\n<parameter=tags>\n[\"x\", 1]\n</parameter>\n<parameter=mode>\nnull\n\
            </parameter>\n<parameter=other>\n7\n</parameter>\n</function>\n</tool_call>\n\
            <tool_call>\n<function=now>\n</function>\n</tool_call>";
        let found = split(text, false, &tools());
        assert_eq!(found.content, "Let me.");
        assert_eq!(found.calls.len(), 2);
        assert_eq!(found.calls[0].0, "write");
        let arguments: Value = serde_json::from_str(&found.calls[0].1).unwrap();
        assert_eq!(
            arguments,
            json!({"path": "a \"b\".txt", "text": "\nline </para\n", "n": 12, "tags": ["x", 1],
                "mode": null, "other": "7"})
        );
        assert_eq!(found.calls[1], ("now".into(), "{}".into()));
        // A value that is not what the schema says is a string, as the model wrote it.
        let found = split(
            "<tool_call><function=write><parameter=n>many</parameter><parameter=path></parameter>\
             </function></tool_call>",
            false,
            &tools(),
        );
        assert_eq!(found.calls[0].1, r#"{"n": "many", "path": ""}"#);
    }

    #[test]
    fn what_is_no_call_is_content() {
        for text in [
            "a <tool_call>\n{\"name\": \"write\"}\n</tool_call> b",
            "<tool_call>\n<function=unknown>\n</function>\n</tool_call>",
            "<tool_call",
            "x <tool_call>\n<functio",
            "<tool_call>\n<function=write",
            "\n\n<tool_call>  ",
        ] {
            let found = split(text, false, &tools());
            assert_eq!((&*found.content, found.calls.len()), (text, 0));
        }
        // Without tools, nothing is a call.
        let text = "<tool_call>\n<function=write>\n</function>\n</tool_call>";
        assert_eq!(split(text, false, &Tools::default()).content, text);
    }

    /// Cut off by the budget: no client takes the arguments for whole.
    #[test]
    fn unfinished_calls_stay_unfinished() {
        let text = "<tool_call>\n<function=write>\n<parameter=path>\na\n</parameter>\n\
                    <parameter=text>\nhello wor";
        let found = split(text, false, &tools());
        assert_eq!(found.calls[0].1, r#"{"path": "a", "text": "hello wor"#);
        let found = split("<tool_call><function=write>\nnonsense", false, &tools());
        assert_eq!(found.calls[0].1, "{");
        assert_eq!(found.content, "nonsense");
    }

    #[test]
    fn parts_keep_their_origin() {
        let mut splitter = Splitter::new(tools(), false);
        let mut out = Vec::new();
        splitter.push("ab ", Origin::Target, &mut out);
        splitter.push("<tool", Origin::Draft, &mut out);
        splitter.push("s> c", Origin::Bonus, &mut out);
        splitter.finish(&mut out);
        let parts: Vec<(String, Origin)> = out
            .iter()
            .flat_map(|delta| match delta {
                Delta::Content(parts) => parts.clone(),
                _ => Vec::new(),
            })
            .map(|part| (part.text, part.from))
            .collect();
        let expected = [
            ("ab", Origin::Target),
            (" ", Origin::Target),
            ("<tool", Origin::Draft),
            ("s> c", Origin::Bonus),
        ];
        assert_eq!(parts, expected.map(|(text, from)| (text.to_owned(), from)));
    }
}
