//! `/metrics`, in Prometheus' text form, under the names of llama.cpp and vLLM.
//!
//! The drafts that vLLM's names count as accepted are those the target agreed with, by position, whether
//! delivered or not; llama.cpp's are those that were delivered.

use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use axum::extract::State;
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};

use crate::App;

pub(crate) async fn metrics(State(app): State<Arc<App>>) -> Response {
    let mut response = text(&app).into_response();
    let kind = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    response
}

fn text(app: &App) -> String {
    let totals = app.engine.totals();
    let (running, waiting) = app.engine.load();
    let mut out = String::new();
    let mut metric = |kind: &str, name: &str, help: &str, value: String| {
        let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} {kind}\n{name} {value}");
    };
    let (counter, gauge) = ("counter", "gauge");
    for (kind, names, help, value) in [
        (
            counter,
            &["llamacpp:prompt_tokens_total", "vllm:prompt_tokens_total"][..],
            "Prompt tokens taken in.",
            totals.prompt_tokens.to_string(),
        ),
        (
            counter,
            &["drafter:cached_tokens_total"],
            "Prompt tokens that came from snapshots.",
            totals.cached_tokens.to_string(),
        ),
        (
            counter,
            &["llamacpp:prompt_seconds_total"],
            "Time to first tokens.",
            totals.prompt_seconds.to_string(),
        ),
        (
            counter,
            &["llamacpp:tokens_predicted_total", "vllm:generation_tokens_total"],
            "Tokens delivered.",
            totals.predicted_tokens.to_string(),
        ),
        (
            counter,
            &["llamacpp:tokens_predicted_seconds_total"],
            "Time after first tokens.",
            totals.predicted_seconds.to_string(),
        ),
        (
            gauge,
            &["llamacpp:requests_processing", "vllm:num_requests_running"],
            "Requests that run.",
            running.to_string(),
        ),
        (
            gauge,
            &["llamacpp:requests_deferred", "vllm:num_requests_waiting"],
            "Requests that wait.",
            waiting.to_string(),
        ),
        (
            counter,
            &["drafter:requests_finished_total"],
            "Requests that were answered.",
            totals.finished.to_string(),
        ),
        (
            counter,
            &["drafter:requests_cancelled_total"],
            "Requests that were cancelled.",
            totals.cancelled.to_string(),
        ),
        (
            counter,
            &["drafter:requests_failed_total"],
            "Requests that ended with an error.",
            totals.failed.to_string(),
        ),
        (
            counter,
            &["llamacpp:spec_decode_num_drafts_total", "vllm:spec_decode_num_drafts_total"],
            "Verification passes.",
            totals.rounds.to_string(),
        ),
        (
            counter,
            &[
                "llamacpp:spec_decode_num_draft_tokens_total",
                "vllm:spec_decode_num_draft_tokens_total",
            ],
            "Drafts sent to verification.",
            totals.drafted.to_string(),
        ),
        (
            counter,
            &["llamacpp:spec_decode_num_accepted_tokens_total"],
            "Drafts delivered.",
            totals.accepted.to_string(),
        ),
        (
            counter,
            &["vllm:spec_decode_num_accepted_tokens_total"],
            "Drafts the target agreed with.",
            totals.agreed_per_position.iter().sum::<u64>().to_string(),
        ),
        (gauge, &["drafter:snapshots"], "Snapshots held.", totals.snapshots.to_string()),
        (
            gauge,
            &["drafter:snapshot_bytes"],
            "Bytes of snapshots.",
            totals.snapshot_bytes.to_string(),
        ),
        (
            gauge,
            &["drafter:connections"],
            "Connections.",
            app.connections.load(Ordering::Relaxed).to_string(),
        ),
    ] {
        names.iter().for_each(|name| metric(kind, name, help, value.clone()));
    }
    for engine in ["llamacpp", "vllm"] {
        let name = format!("{engine}:spec_decode_num_accepted_tokens_per_pos_total");
        let help = "Drafts the target agreed with, by position.";
        let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} counter");
        for (position, n) in totals.agreed_per_position.iter().enumerate() {
            let _ = writeln!(out, "{name}{{position=\"{position}\"}} {n}");
        }
    }
    out
}
