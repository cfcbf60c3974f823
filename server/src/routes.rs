//! The routes, and how a body becomes JSON.

use std::sync::Arc;

use axum::Router;
use axum::body::{Body, Bytes, to_bytes};
use axum::extract::{Request, State};
use axum::http::{Method, StatusCode, Uri};
use axum::middleware;
use axum::response::Response;
use axum::routing::{get, post};
use serde_json::Value;
use tokio::time::timeout;

use crate::error::ApiError;
use crate::{App, chat, completion, generate, guard, info, metrics, page};

/// All routes.
pub(crate) fn router(app: Arc<App>) -> Router {
    Router::new()
        .route("/", get(page::index))
        .route("/page.js", get(page::script))
        .route("/page.css", get(page::style))
        .route("/icon.svg", get(page::icon))
        .route("/health", get(info::health))
        .route("/metrics", get(metrics::metrics))
        .route("/openapi.json", get(info::openapi))
        .route("/v1/models", get(info::models))
        .route("/v1/models/{*id}", get(info::model))
        .route("/v1/chat/completions", post(chats))
        .route("/v1/completions", post(completions))
        .route("/tokenize", post(tokenize))
        .fallback(unknown)
        .method_not_allowed_fallback(other_method)
        .layer(middleware::from_fn_with_state(Arc::clone(&app), guard::guard))
        .with_state(app)
}

async fn chats(State(app): State<Arc<App>>, request: Request) -> Result<Response, ApiError> {
    let asked = read(&app, request, chat::read).await?;
    generate::answer(&app, asked).await
}

async fn completions(State(app): State<Arc<App>>, request: Request) -> Result<Response, ApiError> {
    let asked = read(&app, request, completion::read).await?;
    generate::answer(&app, asked).await
}

async fn tokenize(
    State(app): State<Arc<App>>,
    request: Request,
) -> Result<axum::Json<Value>, ApiError> {
    read(&app, request, info::tokenize).await.map(axum::Json)
}

/// Reads a request. Rendering and tokenizing a long one takes a while, so it is done where it holds up
/// no connection, and few at a time.
async fn read<T: Send + 'static>(
    app: &Arc<App>,
    request: Request,
    of: fn(&App, &Value) -> Result<T, ApiError>,
) -> Result<T, ApiError> {
    let body = body(app, request).await?;
    let closing = |_| ApiError::unavailable("the server is closing");
    let _place = app.readers.acquire().await.map_err(closing)?;
    let app = Arc::clone(app);
    let work = move || {
        let json = serde_json::from_slice(&body).map_err(|error| {
            ApiError::invalid(format!("the body is no JSON: {error}{}", hint(&error)))
        })?;
        of(&app, &json)
    };
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|_| Err(ApiError::internal("internal error: the request ended in a panic")))
}

/// What to do about an error that clients meet who cut text between the halves of a character.
fn hint(error: &serde_json::Error) -> &'static str {
    let text = error.to_string();
    if text.contains("surrogate") || text.contains("hex escape") {
        "; half of a UTF-16 pair is no character: send both halves, or the character itself"
    } else {
        ""
    }
}

/// The body of a request.
async fn body(app: &App, request: Request) -> Result<Bytes, ApiError> {
    let limit = app.settings.max_body;
    let too_large = || {
        let message = format!("the body is larger than {limit} bytes");
        ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, "invalid_request_error", message)
    };
    let (parts, body) = request.into_parts();
    let length = parts.headers.get("content-length").and_then(|n| n.to_str().ok()?.parse().ok());
    if length.is_some_and(|length: u64| length > limit as u64) {
        return Err(too_large());
    }
    within(body, limit, app.settings.body_timeout).await?.ok_or_else(too_large)
}

/// The bytes of a body; none if there are more than `limit`.
async fn within(
    body: Body,
    limit: usize,
    time: std::time::Duration,
) -> Result<Option<Bytes>, ApiError> {
    let kind = "invalid_request_error";
    match timeout(time, to_bytes(body, limit)).await {
        Err(_) => {
            let message = format!("the body did not arrive within {} s", time.as_secs());
            Err(ApiError::new(StatusCode::REQUEST_TIMEOUT, kind, message))
        }
        Ok(Ok(bytes)) => Ok(Some(bytes)),
        Ok(Err(error)) => {
            let cause = std::error::Error::source(&error);
            if cause.is_some_and(<dyn std::error::Error>::is::<http_body_util::LengthLimitError>) {
                return Ok(None);
            }
            Err(ApiError::invalid(format!("the body broke off: {error}")))
        }
    }
}

async fn unknown(uri: Uri) -> ApiError {
    let path: String = uri.path().chars().take(200).collect();
    let message = format!(
        "nothing is served at {path}; there are /v1/chat/completions, /v1/completions, /v1/models, \
         /tokenize, /health, /metrics and /openapi.json"
    );
    ApiError::new(StatusCode::NOT_FOUND, "invalid_request_error", message).code("unknown_url")
}

async fn other_method(method: Method, uri: Uri) -> ApiError {
    let path: String = uri.path().chars().take(200).collect();
    let message = format!("{path} does not answer to {method}");
    ApiError::new(StatusCode::METHOD_NOT_ALLOWED, "invalid_request_error", message)
}
