//! The page at `/`: files inside the program.

use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};

/// Whether `path` is a file of the page: those need no key, since they say nothing.
pub(crate) fn is_file(path: &str) -> bool {
    ["/", "/page.js", "/page.css", "/icon.svg"].contains(&path)
}

fn file(text: &'static str, kind: &'static str) -> Response {
    let mut response = text.into_response();
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    // The program may be another one tomorrow.
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    response
}

pub(crate) async fn index() -> Response {
    file(include_str!("page/index.html"), "text/html; charset=utf-8")
}

pub(crate) async fn script() -> Response {
    file(include_str!("page/page.js"), "text/javascript; charset=utf-8")
}

pub(crate) async fn style() -> Response {
    file(include_str!("page/page.css"), "text/css; charset=utf-8")
}

pub(crate) async fn icon() -> Response {
    file(include_str!("page/icon.svg"), "image/svg+xml")
}
