//! What the server says about itself.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use axum::Json;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use runtime::stats::SpecStatus;
use runtime::text::Controls;
use serde_json::{Value, json};

use crate::error::ApiError;
use crate::fields::Fields;
use crate::sampling::decimal;
use crate::{App, chat, completion};

/// The interface in OpenAPI's words.
const OPENAPI: &str = include_str!("openapi.json");

pub(crate) async fn openapi() -> Response {
    let mut response = OPENAPI.into_response();
    let kind = HeaderValue::from_static("application/json");
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    response
}

fn spec(app: &App) -> SpecStatus {
    app.drafts(None).map_or_else(|off| off, |drafts| drafts.status(0, 0))
}

pub(crate) async fn health(State(app): State<Arc<App>>) -> Response {
    let closing = app.closing.load(Ordering::Relaxed);
    let (running, waiting) = app.engine.load();
    let defaults = &app.model.defaults;
    let status = if closing { StatusCode::SERVICE_UNAVAILABLE } else { StatusCode::OK };
    let body = json!({
        "status": if closing { "closing" } else { "ok" },
        "version": env!("CARGO_PKG_VERSION"),
        "model": app.model.id,
        "about": app.model.about,
        "context_length": app.engine.context(),
        "spec": spec(&app),
        "sampling_defaults": {
            "temperature": defaults.temperature.map_or(0.0, decimal), "top_k": defaults.top_k.unwrap_or(0),
            "top_p": defaults.top_p.map_or(1.0, decimal), "min_p": defaults.min_p.map_or(0.0, decimal),
        },
        "requests": {"running": running, "waiting": waiting},
    });
    (status, Json(body)).into_response()
}

fn described(app: &App) -> Value {
    json!({
        "id": app.model.id, "object": "model", "created": app.created, "owned_by": "drafter",
        "context_length": app.engine.context(), "max_model_len": app.engine.context(),
        "meta": {
            "n_ctx": app.engine.context(), "n_ctx_train": app.model.trained_context,
            "n_vocab": app.model.tokenizer.vocab(),
        },
    })
}

pub(crate) async fn models(State(app): State<Arc<App>>) -> Json<Value> {
    Json(json!({"object": "list", "data": [described(&app)]}))
}

pub(crate) async fn model(
    State(app): State<Arc<App>>,
    id: Result<Path<String>, PathRejection>,
) -> Result<Json<Value>, ApiError> {
    // What is no text names no model either.
    if id.is_ok_and(|Path(id)| id == app.model.id) {
        return Ok(Json(described(&app)));
    }
    let message = format!("there is one model here: `{}`", app.model.id);
    let error = ApiError::new(StatusCode::NOT_FOUND, "invalid_request_error", message);
    Err(ApiError { param: Some("model".into()), ..error }.code("model_not_found"))
}

/// `content` or `prompt` as text, or `messages` as a rendered conversation.
pub(crate) fn tokenize(app: &App, body: &Value) -> Result<Value, ApiError> {
    let fields = Fields::of(body)?;
    let tokens = if fields.get("messages").is_some() {
        chat::Prompt::of(app, &chat::conversation(&fields)?)?.ids
    } else if let Some(text) = fields.string("content")? {
        // Nothing is as good a text as any here.
        app.model.tokenizer.encode(text)
    } else if let Some(prompt) = fields.get("prompt") {
        completion::prompt(app, prompt)?
    } else {
        let message = "expected `content`, `prompt` or `messages`";
        return Err(ApiError::field("content", message));
    };
    let mut out = json!({
        "tokens": tokens, "count": tokens.len(), "max_model_len": app.engine.context(),
    });
    if fields.boolean("with_pieces")?.unwrap_or(false) {
        let piece = |id: &u32| {
            let text = app.model.tokenizer.decode(&[*id], Controls::Shown);
            text.map(|text| json!({"id": id, "piece": text}))
        };
        out["tokens"] = tokens.iter().map(piece).collect::<Result<_, _>>()?;
    }
    Ok(out)
}
