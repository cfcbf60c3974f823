//! Requests of `/v1/completions`: a prompt as it stands.

use serde_json::Value;

use crate::App;
use crate::answer::Splitter;
use crate::error::ApiError;
use crate::fields::{Fields, integer, wrong};
use crate::generate::{Asked, Common};
use crate::shape::Kind;

/// Reads a request.
pub(crate) fn read(app: &App, body: &Value) -> Result<Asked, ApiError> {
    let fields = Fields::of(body)?;
    let common = Common::read(app, &fields)?;
    fields.lacks("echo", |value| value == false)?;
    fields.lacks("best_of", |value| integer(value) == Some(1))?;
    fields.lacks("suffix", |value| value == "")?;
    let logprobs = fields.integer("logprobs", 0..=20)?.map(|top| top as usize);
    let Some(prompt) = fields.get("prompt") else {
        return Err(ApiError::field("prompt", "`prompt`: missing"));
    };
    Ok(Asked {
        common,
        kind: Kind::Text,
        prompt: self::prompt(app, prompt)?,
        marks: Vec::new(),
        logprobs,
        splitter: Splitter::plain(),
    })
}

/// The ids of a text, of ids, or of a list of one of them.
pub(crate) fn prompt(app: &App, prompt: &Value) -> Result<Vec<u32>, ApiError> {
    let vocab = app.model.tokenizer.vocab();
    let ids = match prompt {
        Value::String(text) => app.model.tokenizer.encode(text),
        Value::Array(one) if matches!(one.as_slice(), [Value::String(_) | Value::Array(_)]) => {
            return self::prompt(app, &one[0]);
        }
        Value::Array(ids) if ids.iter().all(Value::is_number) => {
            let id = |value: &Value| {
                integer(value)
                    .filter(|id| (0..vocab as i128).contains(id))
                    .map(|id| id as u32)
                    .ok_or_else(|| wrong("prompt", &format!("token ids below {vocab}"), value))
            };
            ids.iter().map(id).collect::<Result<_, _>>()?
        }
        Value::Array(_) => {
            let message = "`prompt`: expected one text or one list of token ids; several prompts are not supported";
            return Err(ApiError::field("prompt", message).code("unsupported_value"));
        }
        other => return Err(wrong("prompt", "a string or an array", other)),
    };
    if ids.is_empty() {
        return Err(ApiError::field(
            "prompt",
            "`prompt`: empty; an answer needs something to follow",
        ));
    }
    Ok(ids)
}
