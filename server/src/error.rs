//! Errors in OpenAI's form: `{"error": {"message", "type", "param", "code"}}`.

use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use runtime::Error;
use runtime::engine::{Failure, Refused};
use serde_json::{Map, Value, json};

/// What a client is told when there is no answer.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ApiError {
    pub(crate) status: StatusCode,
    pub(crate) kind: &'static str,
    pub(crate) code: Option<&'static str>,
    pub(crate) param: Option<String>,
    pub(crate) message: String,
    /// Further fields of the object.
    pub(crate) extra: Map<String, Value>,
    /// Seconds after which to try again.
    pub(crate) retry_after: Option<u32>,
}

impl ApiError {
    pub(crate) fn new(status: StatusCode, kind: &'static str, message: impl Into<String>) -> Self {
        Self {
            status,
            kind,
            code: None,
            param: None,
            message: message.into(),
            extra: Map::new(),
            retry_after: None,
        }
    }

    /// A request that makes no sense, or asks for what there is not.
    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "invalid_request_error", message)
    }

    /// The same about the field `param`.
    pub(crate) fn field(param: impl Into<String>, message: impl Into<String>) -> Self {
        Self { param: Some(param.into()), ..Self::invalid(message) }
    }

    pub(crate) fn code(self, code: &'static str) -> Self {
        Self { code: Some(code), ..self }
    }

    /// A prompt that does not fit. Clients look for these words and numbers to shorten it.
    pub(crate) fn too_long(n_prompt: usize, n_ctx: usize) -> Self {
        let message = format!(
            "prompt is too long: {n_prompt} tokens, and the context length is {n_ctx} tokens"
        );
        let kind = "exceed_context_size_error";
        let mut error =
            Self::new(StatusCode::BAD_REQUEST, kind, message).code("context_length_exceeded");
        error.extra.insert("n_prompt_tokens".into(), n_prompt.into());
        error.extra.insert("n_ctx".into(), n_ctx.into());
        error
    }

    pub(crate) fn unavailable(message: impl Into<String>) -> Self {
        let error = Self::new(StatusCode::SERVICE_UNAVAILABLE, "unavailable_error", message);
        Self { retry_after: Some(1), ..error }
    }

    /// A defect of ours, or a computation that failed.
    pub(crate) fn internal(message: impl Into<String>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "server_error", message)
    }

    /// The JSON document.
    pub(crate) fn body(&self) -> Value {
        let mut error = self.extra.clone();
        error.insert("message".into(), self.message.clone().into());
        error.insert("type".into(), self.kind.into());
        error.insert("param".into(), json!(self.param));
        error.insert("code".into(), json!(self.code));
        json!({ "error": error })
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = (self.status, Json(self.body())).into_response();
        if let Some(seconds) = self.retry_after {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        if self.status == StatusCode::UNAUTHORIZED {
            let challenge = HeaderValue::from_static("Bearer");
            response.headers_mut().insert(header::WWW_AUTHENTICATE, challenge);
        }
        response
    }
}

impl From<Refused> for ApiError {
    fn from(refused: Refused) -> Self {
        Self::unavailable(refused.to_string())
    }
}

impl From<Failure> for ApiError {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Runtime(error) => error.into(),
            other => Self::internal(other.to_string()),
        }
    }
}

impl From<Error> for ApiError {
    fn from(error: Error) -> Self {
        match error {
            Error::ContextFull { needed, limit } => Self::too_long(needed, limit),
            Error::EmptyPrompt => Self::invalid("the prompt is empty"),
            // The template's own words about the conversation.
            Error::Conversation { .. } | Error::Template { .. } | Error::ControlText { .. } => {
                Self::field("messages", without_path(&error))
            }
            Error::TokenId { .. } => Self::field("prompt", error.to_string()),
            Error::Sampling { name, .. } => Self::field(name, error.to_string()),
            other => Self::internal(other.to_string()),
        }
    }
}

/// Where the model lies is nothing a client needs to know.
fn without_path(error: &Error) -> String {
    let text = error.to_string();
    match text.split_once("`: ") {
        Some((path, rest)) if path.starts_with('`') => rest.to_owned(),
        _ => text,
    }
}
