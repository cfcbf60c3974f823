//! Requests of `/v1/chat/completions`: messages, tools, and how they become a prompt.

use runtime::text::{Chat, Message};
use serde_json::{Map, Value};

use crate::App;
use crate::answer::Splitter;
use crate::error::ApiError;
use crate::fields::{Fields, kind, wrong};
use crate::generate::{Asked, Common};
use crate::reply::now;
use crate::shape::Kind;
use crate::tools::Tools;

/// Reads a request.
pub(crate) fn read(app: &App, body: &Value) -> Result<Asked, ApiError> {
    let fields = Fields::of(body)?;
    let common = Common::read(app, &fields)?;
    let logprobs = match (fields.boolean("logprobs")?, fields.integer("top_logprobs", 0..=20)?) {
        (Some(true), top) => Some(top.unwrap_or(0) as usize),
        (_, Some(1..)) => {
            return Err(ApiError::field("top_logprobs", "`top_logprobs`: needs `logprobs: true`"));
        }
        _ => None,
    };
    fields.lacks("response_format", |format| format["type"] == "text")?;
    fields.lacks("tool_choice", |choice| choice == "auto" || choice == "none")?;
    for old in ["functions", "function_call"] {
        fields
            .lacks(old, |value| value.as_array().is_some_and(Vec::is_empty) || value == "none")?;
    }
    for lacking in ["audio", "prediction", "web_search_options"] {
        fields.lacks(lacking, |_| false)?;
    }
    fields.lacks("modalities", |value| *value == serde_json::json!(["text"]))?;

    let chat = conversation(&fields)?;
    let offered = Tools::read(&chat.tools)?;
    let prompt = Prompt::of(app, &chat)?;
    let splitter = Splitter::new(offered, prompt.thinking);
    Ok(Asked {
        common,
        kind: Kind::Chat,
        prompt: prompt.ids,
        marks: prompt.marks,
        logprobs,
        splitter,
    })
}

/// The conversation of a request.
pub(crate) fn conversation(fields: &Fields<'_>) -> Result<Chat, ApiError> {
    let Some(messages) = fields.array("messages")? else {
        return Err(ApiError::field("messages", "`messages`: missing"));
    };
    if messages.is_empty() {
        return Err(ApiError::field("messages", "`messages`: empty; a conversation needs one"));
    }
    let mut chat = Chat::new(self::messages(messages)?);
    if fields.string("tool_choice")? != Some("none") {
        chat.tools = fields.array("tools")?.unwrap_or_default().to_vec();
    }
    if let Some(extra) = fields.object("chat_template_kwargs")? {
        let mut extra = extra.clone();
        let path = "chat_template_kwargs.enable_thinking";
        match extra.remove("enable_thinking") {
            None | Some(Value::Null) => {}
            Some(Value::Bool(on)) => chat.enable_thinking = Some(on),
            Some(other) => return Err(wrong(path, "true or false", &other)),
        }
        chat.extra = extra;
    }
    effort(fields, &mut chat)?;
    // The template's clock; the server has no time zone.
    chat.local_time = i64::try_from(now()).ok();
    Ok(chat)
}

/// `reasoning_effort` in the words of the target's template.
fn effort(fields: &Fields<'_>, chat: &mut Chat) -> Result<(), ApiError> {
    let effort = match fields.string("reasoning_effort")? {
        None => return Ok(()),
        Some("none") => {
            chat.enable_thinking = Some(false);
            return Ok(());
        }
        Some("minimal" | "low") => "low",
        Some("medium") => "medium",
        Some("high" | "xhigh") => "xhigh",
        Some(other) => {
            let expected = "none, minimal, low, medium, high or xhigh";
            return Err(wrong("reasoning_effort", expected, &other.into()));
        }
    };
    chat.reasoning_effort = Some(effort.into());
    Ok(())
}

/// Messages as the template takes them: one system message in front, texts as strings, arguments of
/// calls as objects.
fn messages(all: &[Value]) -> Result<Vec<Message>, ApiError> {
    let (mut system, mut rest) = (Vec::new(), Vec::new());
    for (i, message) in all.iter().enumerate() {
        let path = format!("messages[{i}]");
        let fields = Fields::inside(message, &path)?;
        let role = fields.string("role")?;
        let content = fields.get("content").map(|content| text(content, &fields.name("content")));
        let content = content.transpose()?;
        match role {
            Some("system" | "developer") => system.extend(content),
            Some(role @ ("user" | "assistant" | "tool")) => {
                rest.push(read_message(message, &fields, role, content)?);
            }
            other => {
                let expected = "system, developer, user, assistant or tool";
                let found = other.map_or(Value::Null, Value::from);
                return Err(wrong(&fields.name("role"), expected, &found));
            }
        }
    }
    if !system.is_empty() {
        rest.insert(0, Message::new("system", system.join("\n\n")));
    }
    Ok(rest)
}

fn read_message(
    message: &Value,
    fields: &Fields<'_>,
    role: &str,
    content: Option<String>,
) -> Result<Message, ApiError> {
    let mut out = Message { role: role.into(), ..Message::default() };
    if role == "assistant" {
        out.reasoning_content = fields.string("reasoning_content")?.map(str::to_owned);
        let calls = fields.array("tool_calls")?.unwrap_or_default();
        out.tool_calls =
            calls.iter().enumerate().map(|(i, c)| call(c, fields, i)).collect::<Result<_, _>>()?;
    }
    if content.is_none() && out.tool_calls.is_empty() {
        return Err(ApiError::field(
            fields.name("content"),
            format!("`{}`: missing", fields.name("content")),
        ));
    }
    out.content = Value::String(content.unwrap_or_default());
    const READ: [&str; 4] = ["role", "content", "reasoning_content", "tool_calls"];
    let extra = message.as_object().into_iter().flatten();
    out.extra = extra
        .filter(|(key, value)| !READ.contains(&key.as_str()) && !value.is_null())
        .map(|(key, value)| (key.clone(), value.clone()))
        .collect();
    Ok(out)
}

/// A call with its arguments as an object.
fn call(call: &Value, message: &Fields<'_>, i: usize) -> Result<Value, ApiError> {
    let path = message.name(&format!("tool_calls[{i}]"));
    Fields::inside(call, &path)?;
    let path = format!("{path}.function");
    let function = Fields::inside(&call["function"], &path)?;
    let name = function.string("name")?;
    let name = name.ok_or_else(|| wrong(&function.name("name"), "a name", &Value::Null))?;
    let arguments = match function.get("arguments") {
        Some(Value::Object(map)) => map.clone(),
        // What a model wrote badly comes back as it was: there is no key for it.
        Some(Value::String(text)) => serde_json::from_str(text).unwrap_or_else(|_| {
            if text.trim().is_empty() {
                Map::new()
            } else {
                Map::from_iter([("arguments".into(), text.as_str().into())])
            }
        }),
        Some(other) => return Err(wrong(&function.name("arguments"), "JSON in a string", other)),
        None => Map::new(),
    };
    Ok(serde_json::json!({
        "id": call["id"], "type": "function",
        "function": { "name": name, "arguments": arguments },
    }))
}

/// The text of a content: a string, or parts of type `text`.
fn text(content: &Value, path: &str) -> Result<String, ApiError> {
    match content {
        Value::String(text) => Ok(text.clone()),
        Value::Array(parts) => {
            let mut out = String::new();
            for (i, part) in parts.iter().enumerate() {
                let path = format!("{path}[{i}]");
                let fields = Fields::inside(part, &path)?;
                match fields.string("type")? {
                    Some("text" | "input_text" | "output_text") => {
                        let text = fields.string("text")?;
                        out += text
                            .ok_or_else(|| wrong(&fields.name("text"), "a string", &Value::Null))?;
                    }
                    other => {
                        let found = other.unwrap_or("none");
                        let message = format!(
                            "`{path}.type`: {found} is not supported; this model reads text only"
                        );
                        return Err(ApiError::field(format!("{path}.type"), message)
                            .code("unsupported_value"));
                    }
                }
            }
            Ok(out)
        }
        other => Err(ApiError::field(
            path,
            format!("`{path}`: expected a string or an array of parts, found {}", kind(other)),
        )),
    }
}

/// A rendered conversation.
pub(crate) struct Prompt {
    pub(crate) ids: Vec<u32>,
    /// Where later requests are likely to branch off.
    marks: Vec<usize>,
    /// Whether the answer begins inside the reasoning.
    thinking: bool,
}

impl Prompt {
    pub(crate) fn of(app: &App, chat: &Chat) -> Result<Self, ApiError> {
        let template = app.model.template.as_ref().map_err(|why| {
            ApiError::invalid(format!("chats cannot be rendered: {why}; use /v1/completions"))
        })?;
        let tokenizer = &app.model.tokenizer;
        let rendered = template.render(chat)?;
        let ids = tokenizer.encode_rendered(&rendered);
        let thinking = rendered.text().trim_end().ends_with("<think>");
        // The end of the conversation, before the beginning of an answer; and the end of what stands
        // before the first words of a user. What cannot be rendered alone makes no mark.
        let mut begins = vec![Chat { add_generation_prompt: false, ..chat.clone() }];
        let lead = chat.messages.first().filter(|message| message.role == "system");
        if lead.is_some() || !chat.tools.is_empty() {
            let messages =
                lead.cloned().into_iter().chain([Message::new("user", "\u{1}")]).collect();
            begins.push(Chat { messages, ..chat.clone() });
        }
        let marks = begins.iter().filter_map(|chat| {
            let other = tokenizer.encode_rendered(&template.render(chat).ok()?);
            Some(ids.iter().zip(&other).take_while(|(a, b)| a == b).count())
        });
        let marks = marks.collect();
        Ok(Self { ids, marks, thinking })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(messages: &Value) -> Result<Vec<Message>, ApiError> {
        super::messages(messages.as_array().unwrap())
    }

    #[test]
    fn system_messages_come_first_and_are_one() {
        let found = read(&json!([
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
            {"role": "developer", "content": "one"},
            {"role": "system", "content": "two"},
            {"role": "assistant", "content": null, "tool_calls": [
                {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{\"x\": 1}"}}]},
            {"role": "tool", "tool_call_id": "c1", "content": "done"},
        ]))
        .unwrap();
        let roles: Vec<&str> = found.iter().map(|m| m.role.as_str()).collect();
        assert_eq!(roles, ["system", "user", "assistant", "tool"]);
        assert_eq!(found[0].content, "one\n\ntwo");
        assert_eq!(found[1].content, "ab");
        assert_eq!(found[2].tool_calls[0]["function"]["arguments"], json!({"x": 1}));
        assert_eq!(found[3].extra["tool_call_id"], "c1");
    }

    #[test]
    fn what_is_no_message_is_named() {
        for (message, param) in [
            (json!("hello"), "messages[0]"),
            (json!({"role": "robot", "content": "x"}), "messages[0].role"),
            (json!({"content": "x"}), "messages[0].role"),
            (json!({"role": "user"}), "messages[0].content"),
            (json!({"role": "user", "content": null}), "messages[0].content"),
            (json!({"role": "user", "content": {"text": "x"}}), "messages[0].content"),
            (
                json!({"role": "user", "content": [{"type": "image_url", "image_url": {}}]}),
                "messages[0].content[0].type",
            ),
            (
                json!({"role": "assistant", "tool_calls": [{"function": {}}]}),
                "messages[0].tool_calls[0].function.name",
            ),
        ] {
            let error = read(&json!([message])).unwrap_err();
            assert_eq!((error.status.as_u16(), error.param.as_deref()), (400, Some(param)));
        }
    }
}
