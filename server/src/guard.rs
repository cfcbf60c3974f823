//! What stands before every route: names the server answers to, pages that may ask, the key.
//!
//! A browser asks on behalf of any page. A page of another site can reach a server on this machine by
//! a form, by `fetch`, or by a name of its own that resolves here. So the name in `Host` must be one of
//! ours, an `Origin` must be the server's own or allowed, and a body must be `application/json`, which
//! no form can send.

use std::net::IpAddr;
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::header::{self, HeaderName};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, Uri};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use crate::App;
use crate::error::ApiError;
use crate::page;

/// What the page may do: nothing but what this server sends.
const POLICY: &str =
    "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// Lets a request through, or answers it.
pub(crate) async fn guard(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    let origin = request.headers().get(header::ORIGIN).cloned();
    let allowed = origin.filter(|origin| is_listed(&app, origin));
    let mut response = match check(&app, &request, allowed.is_some()) {
        Err(refused) => refused.into_response(),
        Ok(()) if request.method() == Method::OPTIONS => preflight(allowed.is_some()),
        Ok(()) => next.run(request).await,
    };
    let headers = response.headers_mut();
    let mut set = |name: HeaderName, value| headers.insert(name, HeaderValue::from_static(value));
    set(header::CONTENT_SECURITY_POLICY, POLICY);
    set(header::X_CONTENT_TYPE_OPTIONS, "nosniff");
    set(header::X_FRAME_OPTIONS, "DENY");
    set(header::REFERRER_POLICY, "no-referrer");
    set(header::VARY, "Origin");
    if let Some(origin) = allowed {
        headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin);
    }
    response
}

fn check(app: &App, request: &Request, cross: bool) -> Result<(), ApiError> {
    let headers = request.headers();
    let host = host(headers, request.uri())?;
    if !is_ours(app, host) {
        let message =
            format!("this server is not called `{}`; --allowed-host adds a name", shown(host));
        return Err(forbidden(message));
    }
    if let Some(origin) = headers.get(header::ORIGIN)
        && !cross
        && !is_own(origin, headers)
    {
        let origin = shown(origin.to_str().unwrap_or("not text"));
        return Err(forbidden(format!("pages of {origin} may not ask; --cors-origin allows them")));
    }
    if request.method() == Method::OPTIONS {
        return Ok(());
    }
    let path = request.uri().path();
    if !page::is_file(path) && path != "/health" {
        key(app, headers)?;
    }
    if request.method() == Method::POST && !is_json(headers) {
        let message = "expected `Content-Type: application/json`";
        let kind = "invalid_request_error";
        return Err(ApiError::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, kind, message));
    }
    Ok(())
}

fn forbidden(message: String) -> ApiError {
    ApiError::new(StatusCode::FORBIDDEN, "permission_error", message)
}

/// What a stranger sent, in a message.
fn shown(text: &str) -> String {
    text.chars().take(80).map(|c| if c.is_control() || c == '`' { '?' } else { c }).collect()
}

/// The host that is asked, without its port.
fn host<'a>(headers: &'a HeaderMap, uri: &'a Uri) -> Result<&'a str, ApiError> {
    // Whoever stands before this server might go by the other one.
    if headers.get_all(header::HOST).iter().nth(1).is_some() {
        return Err(ApiError::invalid("expected one `Host` header, found several"));
    }
    let named = match uri.authority() {
        Some(authority) => Some(authority.as_str()),
        None => headers.get(header::HOST).and_then(|host| host.to_str().ok()),
    };
    let named = named.ok_or_else(|| ApiError::invalid("the `Host` header is missing"))?;
    // `[::1]:80`, `name:80`, `name`.
    Ok(match (named.strip_prefix('['), named.rsplit_once(':')) {
        (Some(rest), _) => rest.split(']').next().unwrap_or(rest),
        (None, Some((name, _))) => name,
        (None, None) => named,
    })
}

/// Addresses are: a page cannot make one its own by name.
fn is_ours(app: &App, host: &str) -> bool {
    let names = app.settings.hosts.iter().map(String::as_str);
    host.parse::<IpAddr>().is_ok()
        || names.chain(["localhost"]).any(|name| name.eq_ignore_ascii_case(host))
}

/// Whether the origin is this server, as the request names it.
fn is_own(origin: &HeaderValue, headers: &HeaderMap) -> bool {
    let origin = origin.to_str().unwrap_or_default();
    let host = headers.get(header::HOST).and_then(|host| host.to_str().ok());
    host.is_some_and(|host| {
        ["http://", "https://"].iter().any(|s| origin.strip_prefix(s) == Some(host))
    })
}

fn is_listed(app: &App, origin: &HeaderValue) -> bool {
    app.settings.cors_origins.iter().any(|allowed| allowed.as_bytes() == origin.as_bytes())
}

fn is_json(headers: &HeaderMap) -> bool {
    let value = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let kind = value.and_then(|value| value.split(';').next());
    kind.is_some_and(|kind| kind.trim().eq_ignore_ascii_case("application/json"))
}

fn key(app: &App, headers: &HeaderMap) -> Result<(), ApiError> {
    let Some(expected) = &app.settings.api_key else { return Ok(()) };
    let given = headers.get(header::AUTHORIZATION).map_or(&b""[..], HeaderValue::as_bytes);
    let given = match given.split_at_checked(7) {
        Some((scheme, key)) if scheme.eq_ignore_ascii_case(b"bearer ") => key.trim_ascii(),
        _ => b"",
    };
    // Hashes are compared in a time that says nothing about the key.
    if blake3::hash(given) == blake3::hash(expected.as_bytes()) {
        return Ok(());
    }
    let message = "the key is missing or wrong; send `Authorization: Bearer KEY`";
    let error = ApiError::new(StatusCode::UNAUTHORIZED, "authentication_error", message);
    Err(error.code("invalid_api_key"))
}

/// The question of a browser before a request from another origin.
fn preflight(cross: bool) -> Response {
    if !cross {
        let mut response = ApiError::new(
            StatusCode::METHOD_NOT_ALLOWED,
            "invalid_request_error",
            "OPTIONS is answered to allowed origins only",
        )
        .into_response();
        response.headers_mut().insert(header::ALLOW, HeaderValue::from_static("GET, POST"));
        return response;
    }
    let mut response = StatusCode::NO_CONTENT.into_response();
    for (name, value) in [
        (header::ACCESS_CONTROL_ALLOW_METHODS, "GET, POST"),
        (header::ACCESS_CONTROL_ALLOW_HEADERS, "authorization, content-type"),
        (header::ACCESS_CONTROL_MAX_AGE, "600"),
    ] {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    response
}
