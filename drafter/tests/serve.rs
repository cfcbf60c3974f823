//! `drafter serve` over sockets, on the trained pair.

#![allow(clippy::unwrap_used, reason = "tests, which clippy does not see in helpers")]

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

fn fixture() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/pair")
}

/// A server that ends with the test.
struct Server {
    child: Child,
    url: String,
}

impl Server {
    /// With all drafts in every round, whatever they cost: figures are the same in every run.
    fn start(args: &[&str]) -> Self {
        Self::with(&[&["--draft-max", "7"], args].concat())
    }

    fn with(args: &[&str]) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_drafter"))
            .args(["serve", "--port", "0", "--json", "--threads", "2"])
            .arg("--target")
            .arg(fixture().join("target.gguf"))
            .arg("--drafter")
            .arg(fixture().join("drafter"))
            .args(args)
            .env_remove("DRAFTER_API_KEY")
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut document = String::new();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        while serde_json::from_str::<Value>(&document).is_err() {
            document += &lines.next().expect("a document").unwrap();
        }
        let document: Value = serde_json::from_str(&document).unwrap();
        Self { child, url: document["url"].as_str().unwrap().to_owned() }
    }

    fn authority(&self) -> &str {
        self.url.strip_prefix("http://").unwrap()
    }

    fn get(&self, path: &str) -> (u16, String) {
        let mut answer = agent().get(format!("{}{path}", self.url)).call().unwrap();
        (answer.status().as_u16(), answer.body_mut().read_to_string().unwrap())
    }

    fn post_text(&self, path: &str, body: &Value) -> (u16, String) {
        let mut answer = post(&agent(), &format!("{}{path}", self.url), body);
        let status = answer.status().as_u16();
        (status, answer.body_mut().with_config().limit(1 << 30).read_to_string().unwrap())
    }

    fn post(&self, path: &str, body: &Value) -> (u16, Value) {
        let (status, text) = self.post_text(path, body);
        (status, serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {text}")))
    }

    /// A whole answer.
    fn chat(&self, body: &Value) -> Value {
        let (status, answer) = self.post(CHAT, body);
        assert_eq!(status, 200, "{answer}");
        answer
    }

    /// The chunks of a stream.
    fn stream(&self, path: &str, body: &Value) -> Vec<Value> {
        let mut body = body.clone();
        body["stream"] = true.into();
        let (status, text) = self.post_text(path, &body);
        assert_eq!(status, 200, "{text}");
        chunks(&text)
    }

    fn gauge(&self, name: &str) -> f64 {
        let (_, text) = self.get("/metrics");
        let line = text.lines().find(|line| line.starts_with(&format!("{name} "))).unwrap();
        line.rsplit(' ').next().unwrap().parse().unwrap()
    }

    /// Waits until nothing runs or waits.
    fn settle(&self) {
        let begin = Instant::now();
        while self.gauge("llamacpp:requests_processing") + self.gauge("llamacpp:requests_deferred")
            > 0.0
        {
            assert!(begin.elapsed() < Duration::from_secs(20), "requests that nobody waits for");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// What a socket gets for these bytes, until the server closes it.
    fn raw(&self, bytes: &[u8]) -> String {
        let mut socket = TcpStream::connect(self.authority()).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        // The server may close before all is sent.
        let _ = socket.write_all(bytes);
        let mut answer = Vec::new();
        let _ = socket.read_to_end(&mut answer);
        String::from_utf8(answer).unwrap()
    }

    fn request(&self, head: &str, body: &[u8]) -> String {
        let length = body.len();
        let mut bytes =
            format!("{head}Connection: close\r\nContent-Length: {length}\r\n\r\n").into_bytes();
        bytes.extend(body);
        self.raw(&bytes)
    }

    fn signal(&self, signal: &str) {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args(["-s", signal, &pid]).status().unwrap().success());
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn agent() -> ureq::Agent {
    let config = ureq::Agent::config_builder();
    config.http_status_as_error(false).timeout_global(Some(Duration::from_secs(120))).build().into()
}

fn post(agent: &ureq::Agent, url: &str, body: &Value) -> ureq::http::Response<ureq::Body> {
    agent.post(url).content_type("application/json").send(body.to_string()).unwrap()
}

const CHAT: &str = "/v1/chat/completions";
const TEXT: &str = "/v1/completions";

/// The chunks of a whole stream, in the strict form that every client reads.
fn chunks(text: &str) -> Vec<Value> {
    let mut events: Vec<&str> =
        text.split("\n\n").filter(|event| !event.starts_with(':')).collect();
    assert_eq!(events.pop(), Some(""), "the last event is whole");
    assert_eq!(events.pop(), Some("data: [DONE]"));
    let chunk = |event: &&str| {
        let data = event.strip_prefix("data: ").expect("an event of data");
        assert!(!data.contains('\n'));
        serde_json::from_str(data).unwrap()
    };
    events.iter().map(chunk).collect()
}

/// What a client puts together: reasoning, content, finish reason.
fn joined(chunks: &[Value]) -> (String, String, String) {
    let (mut reasoning, mut content, mut finish) = (String::new(), String::new(), String::new());
    for choice in chunks.iter().filter_map(|chunk| chunk["choices"].get(0)) {
        reasoning += choice["delta"]["reasoning_content"].as_str().unwrap_or("");
        content += choice["delta"]["content"].as_str().unwrap_or("");
        content += choice["text"].as_str().unwrap_or("");
        finish += choice["finish_reason"].as_str().unwrap_or("");
    }
    (reasoning, content, finish)
}

fn whole(answer: &Value) -> (String, String, String) {
    let choice = &answer["choices"][0];
    let text = |value: &Value| value.as_str().unwrap_or("").to_owned();
    let content =
        if choice["text"].is_null() { &choice["message"]["content"] } else { &choice["text"] };
    (text(&choice["message"]["reasoning_content"]), text(content), text(&choice["finish_reason"]))
}

fn user(text: &str) -> Value {
    json!({"role": "user", "content": text})
}

#[test]
fn an_answer_is_the_same_however_it_is_asked_for() {
    let server = Server::start(&[]);
    for sampled in [json!({"temperature": 0}), json!({"temperature": 1.0, "top_k": 20, "seed": 5})]
    {
        let mut plain = Vec::new();
        for thinking in [true, false] {
            let mut body = json!({
                "messages": [{"role": "system", "content": "Answer."}, user("Where is the lamp?")],
                "chat_template_kwargs": {"enable_thinking": thinking}, "max_tokens": 60,
                "x_drafter": {"draft_max": 0},
            });
            body.as_object_mut().unwrap().extend(sampled.as_object().unwrap().clone());
            let expected = server.chat(&body);
            assert_eq!(expected["spec"]["state"], "off");
            assert!(expected["timings"].get("draft_n").is_none());
            plain.push(whole(&expected));
            for draft_max in [1, 3, 7, 99] {
                body["x_drafter"] = json!({"draft_max": draft_max});
                let found = server.chat(&body);
                assert_eq!(whole(&found), whole(&expected));
                assert_eq!(
                    found["usage"]["completion_tokens"],
                    expected["usage"]["completion_tokens"]
                );
                assert_eq!(found["spec"]["state"], "active");
                let timings = &found["timings"];
                assert!(timings["draft_n"].as_u64() > Some(0));
                let rounds = timings["draft_rounds"].as_f64().unwrap();
                let later = timings["predicted_n"].as_f64().unwrap() - 1.0;
                assert!((timings["accept_len"].as_f64().unwrap() - later / rounds).abs() < 1e-9);
            }
            body["x_drafter"] = json!({"trace": true});
            let chunks = server.stream(CHAT, &body);
            assert_eq!(joined(&chunks), whole(&expected));
            assert_eq!(chunks[0]["choices"][0]["delta"]["role"], "assistant");
            let mut origins = BTreeSet::new();
            for chunk in &chunks {
                assert_eq!(chunk["object"], "chat.completion.chunk");
                assert_eq!(chunk["id"], chunks[0]["id"]);
                let delta = &chunk["choices"][0]["delta"];
                let text = delta["content"].as_str().filter(|text| !text.is_empty());
                let text = text.or(delta["reasoning_content"].as_str());
                let pieces = chunk["x_drafter"]["pieces"].as_array();
                let of_pieces = pieces.map(|pieces| {
                    origins.extend(pieces.iter().map(|p| p["from"].as_str().unwrap().to_owned()));
                    pieces.iter().map(|p| p["text"].as_str().unwrap()).collect::<String>()
                });
                assert_eq!(of_pieces.as_deref(), text);
            }
            assert!(origins.contains("draft") && origins.contains("target"), "{origins:?}");
        }
        assert_ne!(plain[0], plain[1]);
    }
    // As many drafts as pay, by default: the same text.
    let auto = Server::with(&["--default-temperature", "0"]);
    let body = json!({"messages": [user("Where is the lamp?")], "max_tokens": 60});
    let (expected, found) = (
        server.chat(&json!({"messages": body["messages"], "max_tokens": 60, "temperature": 0})),
        auto.chat(&body),
    );
    assert_eq!(whole(&found), whole(&expected));
    assert!(found["spec"]["reason"].as_str().unwrap().contains("as pay"), "{found}");
    // A prompt as it stands, too.
    let body = json!({"prompt": "def f(x):", "temperature": 0, "max_tokens": 30});
    let (status, answer) = server.post(TEXT, &body);
    assert_eq!((status, &answer["object"]), (200, &json!("text_completion")));
    assert_eq!(joined(&server.stream(TEXT, &body)), whole(&answer));
}

#[test]
fn budgets_are_exact_and_counted() {
    let server = Server::start(&["--ctx", "64", "--default-temperature", "0"]);
    let (_, all) = server.post("/tokenize", &json!({"prompt": "def f(x):"}));
    let prompt = all["count"].as_u64().unwrap();
    for n in [0, 1, 2, 7, 8, 9, 20] {
        for name in ["max_tokens", "max_completion_tokens"] {
            let (_, answer) = server.post(TEXT, &json!({"prompt": "def f(x):", name: n}));
            assert_eq!(answer["usage"]["completion_tokens"], n, "{answer}");
            assert_eq!(answer["usage"]["prompt_tokens"], prompt);
            assert_eq!(answer["choices"][0]["finish_reason"], "length");
            let timings = &answer["timings"];
            let accepted = timings["draft_n_accepted"].as_u64().unwrap();
            assert!(accepted <= n && accepted <= timings["draft_n"].as_u64().unwrap());
        }
    }
    // Until the context is full.
    for body in [json!({"prompt": "def f(x):"}), json!({"prompt": "def f(x):", "max_tokens": -1})] {
        let (_, answer) = server.post(TEXT, &body);
        let total = answer["usage"]["total_tokens"].as_u64().unwrap();
        assert!(
            answer["choices"][0]["finish_reason"] == "stop" || (64..=65).contains(&total),
            "{answer}"
        );
    }
    for n in [json!(-2), json!(1.5), json!("5"), json!(9e30), json!([1])] {
        let (status, answer) = server.post(TEXT, &json!({"prompt": "a", "max_tokens": n}));
        assert_eq!((status, &answer["error"]["param"]), (400, &json!("max_tokens")));
    }
    // Prompts around the length of the context.
    for n in [62, 63] {
        let (status, answer) = server.post(TEXT, &json!({"prompt": vec![300; n], "max_tokens": 1}));
        assert_eq!((status, &answer["usage"]["completion_tokens"]), (200, &json!(1)));
    }
    for n in [64, 65, 1000] {
        let (status, answer) = server.post(TEXT, &json!({"prompt": vec![300; n], "max_tokens": 1}));
        let error = &answer["error"];
        assert_eq!((status, &error["type"]), (400, &json!("exceed_context_size_error")));
        assert_eq!((&error["n_prompt_tokens"], &error["n_ctx"]), (&json!(n), &json!(64)));
        assert!(error["message"].as_str().unwrap().contains("prompt is too long"));
    }
}

#[test]
fn stop_strings_never_show() {
    let server = Server::start(&["--default-temperature", "0"]);
    let body = json!({"prompt": "def f(x):\n", "max_tokens": 40});
    let (_, answer) = server.post(TEXT, &body);
    let (_, text, _) = whole(&answer);
    let chars: Vec<char> = text.chars().collect();
    for begin in (0..chars.len() - 3).step_by(5) {
        let stop: String = chars[begin..begin + 3].iter().collect();
        let at = text.find(&stop).unwrap();
        let body = json!({"prompt": "def f(x):\n", "max_tokens": 40, "stop": [stop, "never seen"]});
        let (_, answer) = server.post(TEXT, &body);
        assert_eq!(whole(&answer), (String::new(), text[..at].to_owned(), "stop".into()));
        assert_eq!(joined(&server.stream(TEXT, &body)), whole(&answer));
    }
}

#[test]
fn log_probabilities_are_those_of_delivered_tokens() {
    let server = Server::start(&["--default-temperature", "0"]);
    let body = json!({"messages": [user("Where is the lamp?")], "max_tokens": 12, "logprobs": true,
        "top_logprobs": 3});
    let answer = server.chat(&body);
    let tokens = answer["choices"][0]["logprobs"]["content"].as_array().unwrap().clone();
    assert_eq!(tokens.len(), 12);
    for token in &tokens {
        let top = token["top_logprobs"].as_array().unwrap();
        assert_eq!((top.len(), &top[0]["token"]), (3, &token["token"]));
        assert_eq!(top[0]["logprob"], token["logprob"]);
        let bytes: Vec<u8> = serde_json::from_value(token["bytes"].clone()).unwrap();
        assert_eq!(String::from_utf8_lossy(&bytes), token["token"].as_str().unwrap());
    }
    let chunks = server.stream(CHAT, &body);
    let streamed = chunks.iter().filter_map(|c| c["choices"][0]["logprobs"]["content"].as_array());
    assert_eq!(streamed.flatten().cloned().collect::<Vec<_>>(), tokens);
    let (status, answer) = server.post(CHAT, &json!({"messages": [user("x")], "top_logprobs": 3}));
    assert_eq!((status, &answer["error"]["param"]), (400, &json!("top_logprobs")));
}

/// The conversations of agents: each is answered, or refused with the field that is at fault; streamed
/// and whole answers are alike.
#[test]
fn requests_of_agents_are_answered() {
    // The pair's own template knows no tools.
    let template = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/tools.jinja");
    let template = template.to_str().unwrap();
    let server = Server::start(&["--default-temperature", "0", "--chat-template", template]);
    let cases =
        fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/agents.jsonl"));
    let cases: Vec<Value> =
        cases.unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(cases.iter().filter(|case| case["status"] == 200).count() >= 30);
    for case in cases {
        let (name, path) = (&case["name"], case["path"].as_str().unwrap());
        let mut body = case["body"].clone();
        body["stream"] = false.into();
        body.as_object_mut().unwrap().remove("stream_options");
        if body["temperature"] != 0 {
            body["seed"] = 1.into();
        }
        let (status, answer) = server.post(path, &body);
        assert_eq!(json!(status), case["status"], "{name}: {answer}");
        if status != 200 {
            assert_eq!(answer["error"]["type"], "invalid_request_error", "{name}");
            assert!(answer["error"]["param"].is_string(), "{name}: {answer}");
            continue;
        }
        assert_eq!(joined(&server.stream(path, &body)), whole(&answer), "{name}");
        if case["body"]["stream"] == true {
            body["stream_options"] = json!({"include_usage": true});
            let chunks = server.stream(path, &body);
            assert_eq!(
                chunks.last().unwrap()["usage"]["completion_tokens"],
                answer["usage"]["completion_tokens"]
            );
        }
    }
}

/// The events of a stream that arrives in these parts.
fn events(parts: &[&[u8]]) -> Vec<String> {
    let (mut rest, mut events) = (Vec::new(), Vec::new());
    for part in parts {
        rest.extend_from_slice(part);
        while let Some(end) = rest.windows(2).position(|two| two == b"\n\n") {
            let event: Vec<u8> = rest.drain(..end + 2).collect();
            events.push(String::from_utf8(event).unwrap());
        }
    }
    assert!(rest.is_empty());
    events
}

/// No event depends on where the network cuts the bytes: each is whole text that ends with an empty
/// line and has none inside.
#[test]
fn streams_can_be_cut_anywhere() {
    let server = Server::start(&["--default-temperature", "0"]);
    let body = json!({"messages": [user("Where is the lamp?")], "max_tokens": 30, "stream": true,
        "stream_options": {"include_usage": true}, "x_drafter": {"trace": true}});
    let (_, text) = server.post_text(CHAT, &body);
    let (bytes, expected) = (text.as_bytes(), events(&[text.as_bytes()]));
    assert!(expected.len() > 5);
    for at in 0..=bytes.len() {
        assert_eq!(events(&[&bytes[..at], &bytes[at..]]), expected);
    }
    let single: Vec<&[u8]> = bytes.chunks(1).collect();
    assert_eq!(events(&single), expected);
}

#[test]
fn what_is_no_request_gets_an_error_that_says_so() {
    let server = Server::start(&[]);
    for (path, body, param) in [
        (CHAT, json!({}), Some("messages")),
        (CHAT, json!([]), None),
        (CHAT, json!("hi"), None),
        (CHAT, json!({"messages": []}), Some("messages")),
        (CHAT, json!({"messages": {}}), Some("messages")),
        (CHAT, json!({"messages": "hi"}), Some("messages")),
        (CHAT, json!({"messages": [user("x")], "temperature": "hot"}), Some("temperature")),
        (CHAT, json!({"messages": [user("x")], "temperature": -1}), Some("temperature")),
        (CHAT, json!({"messages": [user("x")], "top_p": 0}), Some("top_p")),
        (CHAT, json!({"messages": [user("x")], "stop": 5}), Some("stop")),
        (CHAT, json!({"messages": [user("x")], "stream": "yes"}), Some("stream")),
        (
            CHAT,
            json!({"messages": [user("x")], "tools": [{"type": "function"}]}),
            Some("tools[0].function"),
        ),
        (TEXT, json!({}), Some("prompt")),
        (TEXT, json!({"prompt": ""}), Some("prompt")),
        (TEXT, json!({"prompt": []}), Some("prompt")),
        (TEXT, json!({"prompt": [1, 99999]}), Some("prompt")),
        (TEXT, json!({"prompt": [1.5]}), Some("prompt")),
        (TEXT, json!({"prompt": {"a": 1}}), Some("prompt")),
        ("/tokenize", json!({}), Some("content")),
    ] {
        let (status, answer) = server.post(path, &body);
        let error = &answer["error"];
        assert_eq!((status, error["param"].as_str()), (400, param), "{body}: {answer}");
        assert!(
            error["message"].as_str().is_some_and(|m| !m.is_empty() && !m.contains("target.gguf"))
        );
        assert!(error.get("code").is_some());
    }
    let post = "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n";
    let deep = [vec![b'['; 100_000], vec![b']'; 100_000]].concat();
    for (body, status) in [
        (&b""[..], 400),
        (b"{", 400),
        (b"\xff\xfe{}", 400),
        (b"{\"messages\": \"\xc3\x28\"}", 400),
        (&deep, 400),
        (b"{} {}", 400),
        (b"{\"messages\": [{}]}", 400),
    ] {
        let answer = server.request(post, body);
        assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{answer}");
        assert!(answer.contains("\"error\""), "{answer}");
    }
    // More than is read, said before and only found out.
    let answer = server
        .raw(format!("{post}Connection: close\r\nContent-Length: 99999999999\r\n\r\n").as_bytes());
    assert!(answer.starts_with("HTTP/1.1 413"), "{answer}");
    // Too long for a prompt, not for a body.
    let (status, answer) =
        server.post(CHAT, &json!({"messages": [user(&"word ".repeat(200_000))]}));
    assert_eq!((status, &answer["error"]["code"]), (400, &json!("context_length_exceeded")));
    for (head, status) in [
        ("GET /nothing HTTP/1.1\r\nHost: localhost\r\n", 404),
        (
            "POST /v1/responses HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n",
            404,
        ),
        ("GET /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n", 405),
        ("DELETE /v1/models HTTP/1.1\r\nHost: localhost\r\n", 405),
        ("GET /v1/models/other HTTP/1.1\r\nHost: localhost\r\n", 404),
        ("GET /v1/models/%ff HTTP/1.1\r\nHost: localhost\r\n", 404),
        ("GET / HTTP/1.1\r\n", 400),
        ("GET / HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n", 400),
    ] {
        let answer = server.request(head, b"");
        assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{head}: {answer}");
        assert!(answer.contains("\"error\""), "{answer}");
    }
    // It is as well as before.
    assert_eq!(
        server.chat(&json!({"messages": [user("x")], "max_tokens": 2}))["usage"]["completion_tokens"],
        2
    );
}

#[test]
fn pages_of_others_get_nothing() {
    let server =
        Server::start(&["--cors-origin", "https://chat.example/", "--allowed-host", "box.lan"]);
    let body = br#"{"messages": [{"role": "user", "content": "x"}], "max_tokens": 1}"#;
    let own = server.authority().to_owned();
    let json = "Content-Type: application/json\r\n";
    for (host, more, status) in [
        ("localhost", json.to_owned(), 200),
        ("127.0.0.1:1", json.to_owned(), 200),
        ("[::1]:80", json.to_owned(), 200),
        ("BOX.lan:80", json.to_owned(), 200),
        (own.as_str(), format!("{json}Origin: http://{own}\r\n"), 200),
        (own.as_str(), format!("{json}Origin: https://chat.example\r\n"), 200),
        // A name of somebody else that resolves here.
        ("evil.example", json.to_owned(), 403),
        ("localhost.evil.example", json.to_owned(), 403),
        ("box.lan.evil.example", json.to_owned(), 403),
        // Another site's page.
        (own.as_str(), format!("{json}Origin: https://evil.example\r\n"), 403),
        (own.as_str(), format!("{json}Origin: null\r\n"), 403),
        ("evil.example", format!("{json}Origin: http://evil.example\r\n"), 403),
        // What a form can send.
        ("localhost", "Content-Type: text/plain\r\n".into(), 415),
        ("localhost", "Content-Type: application/x-www-form-urlencoded\r\n".into(), 415),
        ("localhost", String::new(), 415),
    ] {
        let head = format!("POST /v1/chat/completions HTTP/1.1\r\nHost: {host}\r\n{more}");
        let answer = server.request(&head, body);
        assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{head}: {answer}");
        let headers = answer.to_lowercase();
        assert!(headers.contains("x-content-type-options: nosniff"));
        assert!(headers.contains("content-security-policy: default-src 'self'"));
        let cross = more.contains("chat.example");
        assert_eq!(headers.contains("access-control-allow-origin: https://chat.example"), cross);
    }
    let options = "OPTIONS /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n";
    for (origin, status) in [
        ("", 405),
        ("Origin: https://chat.example\r\n", 204),
        ("Origin: https://evil.example\r\n", 403),
    ] {
        let answer = server.request(&format!("{options}{origin}"), b"");
        assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{origin}: {answer}");
        assert_eq!(answer.to_lowercase().contains("access-control-allow-methods"), status == 204);
    }
}

#[test]
fn a_key_covers_all_but_health_and_the_page() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("key");
    fs::write(&file, "s3cret\nsecond line").unwrap();
    let server = Server::start(&["--api-key-file", file.to_str().unwrap()]);
    for (path, key, status) in [
        ("/v1/models", "", 401),
        ("/v1/models", "Authorization: Bearer wrong\r\n", 401),
        ("/v1/models", "Authorization: Basic s3cret\r\n", 401),
        ("/metrics", "", 401),
        ("/v1/models?api_key=s3cret", "", 401),
        ("/openapi.json", "", 401),
        ("/v1/models", "Authorization: Bearer s3cret\r\n", 200),
        ("/metrics", "authorization: bearer s3cret\r\n", 200),
        ("/health", "", 200),
        ("/", "", 200),
        ("/page.js", "", 200),
        ("/page.css", "", 200),
    ] {
        let answer =
            server.request(&format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n{key}"), b"");
        assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{path} {key}: {answer}");
        assert!(!answer.contains("s3cret"));
    }
}

/// A conversation goes on from what is remembered, with the drafts of a cold start.
#[test]
fn warm_answers_are_cold_answers() {
    let warm = Server::start(&["--default-temperature", "0"]);
    let cold = Server::start(&["--default-temperature", "0", "--cache-ram", "0"]);
    let ask = |server: &Server, messages: &Value| {
        server.chat(&json!({"messages": messages, "max_tokens": 24, "x_drafter": {"trace": true}}))
    };
    let first = json!([{"role": "system", "content": "You know every object of the house."}, user("Where is the lamp?")]);
    let answer = ask(&warm, &first);
    let message = &answer["choices"][0]["message"];
    let dropped = json!({"role": "assistant", "content": message["content"]});
    let turn = |answer: &Value, question: &str| {
        let mut messages = first.as_array().unwrap().clone();
        messages.extend([answer.clone(), user(question)]);
        Value::from(messages)
    };
    let edited = json!([first[0], user("Where is the door?")]);
    for messages in [
        first.clone(),
        turn(message, "And the key?"),
        turn(&dropped, "And the key?"),
        turn(&dropped, "Who lives there?"),
        edited,
    ] {
        let (expected, found) = (ask(&cold, &messages), ask(&warm, &messages));
        assert_eq!(whole(&found), whole(&expected));
        assert_eq!(expected["usage"]["prompt_tokens_details"]["cached_tokens"], 0);
        let cached = found["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap();
        assert!(cached > 0, "{found}");
        assert_eq!(found["timings"]["cache_n"], cached);
        for drafts in ["draft_n", "draft_rounds", "drafted_per_position", "accepted_per_position"] {
            assert_eq!(found["timings"][drafts], expected["timings"][drafts], "{drafts}");
        }
        assert_eq!(found["x_drafter"], expected["x_drafter"]);
    }
}

#[test]
fn clients_that_leave_free_the_device() {
    let server = Server::start(&["--queue", "64"]);
    let body = json!({"messages": [user("Tell a long story.")], "stream": true}).to_string();
    for i in 0..50 {
        let mut socket = TcpStream::connect(server.authority()).unwrap();
        let head = format!(
            "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
             Content-Length: {}\r\n\r\n",
            body.len()
        );
        socket.write_all(head.as_bytes()).unwrap();
        socket.write_all(body.as_bytes()).unwrap();
        if i % 2 == 0 {
            let mut some = [0; 64];
            let _ = socket.read(&mut some).unwrap();
        }
    }
    server.settle();
    let answer = server.chat(&json!({"messages": [user("x")], "max_tokens": 3}));
    assert_eq!(answer["usage"]["completion_tokens"], 3);
}

/// Answers are one's own, or there is none: 503 with a time to come again.
#[test]
fn many_clients_never_get_each_others_answers() {
    let server = Arc::new(Server::start(&["--queue", "8", "--default-temperature", "0"]));
    let body =
        |i: usize| json!({"prompt": format!("def f{i}(x{i}):"), "max_tokens": 12, "logprobs": 0});
    let expected: Vec<Value> =
        (0..10).map(|i| server.post(TEXT, &body(i)).1["choices"].clone()).collect();
    let refused = Arc::new(AtomicUsize::new(0));
    let clients: Vec<_> = (0..40)
        .map(|client| {
            let (server, expected, refused) = (Arc::clone(&server), expected.clone(), Arc::clone(&refused));
            std::thread::spawn(move || {
                for turn in 0..5 {
                    let i = (client + turn) % 10;
                    if client % 3 == 0 {
                        let body = json!({"prompt": format!("def f{i}(x{i}):"), "max_tokens": 12, "stream": true});
                        let (status, text) = server.post_text(TEXT, &body);
                        if status == 200 {
                            assert_eq!(json!(joined(&chunks(&text)).1), expected[i][0]["text"]);
                            continue;
                        }
                        assert_eq!(status, 503, "{text}");
                    } else {
                        let mut answer = post(&agent(), &format!("{}{TEXT}", server.url), &body(i));
                        if answer.status() == 200 {
                            let answer = answer.body_mut().read_to_string().unwrap();
                            let answer: Value = serde_json::from_str(&answer).unwrap();
                            assert_eq!(answer["choices"], expected[i]);
                            continue;
                        }
                        assert_eq!(answer.status(), 503);
                        assert!(answer.headers().contains_key("retry-after"));
                    }
                    refused.fetch_add(1, Ordering::Relaxed);
                }
            })
        })
        .collect();
    clients.into_iter().for_each(|client| client.join().unwrap());
    assert!(refused.load(Ordering::Relaxed) > 0, "40 clients and a queue of 8");
    server.settle();
}

/// One that sends or reads slowly, or not at all, holds nobody up.
#[test]
fn slow_clients_hold_nobody_up() {
    let server = Server::start(&["--default-temperature", "0"]);
    let mut idle: Vec<TcpStream> =
        (0..20).map(|_| TcpStream::connect(server.authority()).unwrap()).collect();
    for (i, socket) in idle.iter_mut().enumerate() {
        // Half a head, half a body, and an answer that is not read.
        let body = json!({"prompt": "def f(x):", "stream": true, "logprobs": 20}).to_string();
        let head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n";
        let request = format!("{head}Content-Length: {}\r\n\r\n{body}", body.len());
        let part = match i % 3 {
            0 => &request[..head.len() - 4],
            1 => &request[..request.len() - 5],
            _ if i > 6 => &request[..1],
            _ => &request,
        };
        socket.write_all(part.as_bytes()).unwrap();
    }
    let (status, answer) = server.post(TEXT, &json!({"prompt": "a", "max_tokens": 3}));
    assert_eq!((status, &answer["usage"]["completion_tokens"]), (200, &json!(3)));
    drop(idle);
    server.settle();
}

#[test]
fn nothing_is_left_of_thousands_of_requests() {
    let server = Server::start(&["--cache-ram", "20", "--queue", "4"]);
    let pid = server.child.id();
    let status = |key: &str| -> u64 {
        let text = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let line = text.lines().find(|line| line.starts_with(key)).unwrap();
        line.split_whitespace().nth(1).unwrap().parse().unwrap()
    };
    let files = || fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count();
    let agent = agent();
    let round = |n: usize| {
        for i in 0..n {
            let words = "word ".repeat(1 + i * 7 % 90);
            let url = format!("{}{}", server.url, if i % 2 == 0 { CHAT } else { TEXT });
            let body = match i % 8 {
                0 | 2 => {
                    json!({"messages": [user(&words)], "max_tokens": i % 5, "stream": i % 4 == 0})
                }
                4 => json!({"messages": []}),
                6 => json!({"messages": [user(&words)], "n": 2}),
                1 | 3 => json!({"prompt": words, "max_tokens": 1 + i % 3}),
                5 => json!({"prompt": "x", "max_tokens": "?"}),
                _ => {
                    // Leaves without reading.
                    let mut socket = TcpStream::connect(server.authority()).unwrap();
                    let body = json!({"prompt": words, "stream": true}).to_string();
                    let head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n";
                    write!(socket, "{head}Content-Length: {}\r\n\r\n{body}", body.len()).unwrap();
                    continue;
                }
            };
            let mut answer = post(&agent, &url, &body);
            let _ = answer.body_mut().read_to_vec().unwrap();
        }
        server.settle();
    };
    round(400);
    let before = (status("VmRSS"), status("Threads"), files());
    round(1600);
    let after = (status("VmRSS"), status("Threads"), files());
    assert!(after.0 < before.0 + 30_000, "kB of memory: {before:?}, then {after:?}");
    // Threads for blocking work come and go.
    assert!(after.1 <= before.1 + 8 && after.2 <= before.2 + 8, "{before:?}, then {after:?}");
    assert_eq!(server.gauge("llamacpp:requests_processing"), 0.0);
}

/// A signal: what runs ends well, nothing new begins.
#[test]
fn a_server_ends_in_good_order() {
    let mut server = Server::start(&["--default-temperature", "0"]);
    let body = json!({"prompt": "def f(x):\n", "max_tokens": 400});
    let (_, expected) = server.post(TEXT, &body);
    let url = server.url.clone();
    let client = std::thread::spawn(move || {
        let mut answer = post(&agent(), &format!("{url}{TEXT}"), &body);
        serde_json::from_str::<Value>(&answer.body_mut().read_to_string().unwrap()).unwrap()
    });
    while server.gauge("llamacpp:requests_processing") == 0.0 && !client.is_finished() {
        std::thread::sleep(Duration::from_millis(1));
    }
    server.signal("TERM");
    assert_eq!(whole(&client.join().unwrap()), whole(&expected));
    assert_eq!(server.child.wait().unwrap().code(), Some(0));
    assert!(TcpStream::connect(server.authority()).is_err());
}

#[test]
fn what_would_open_the_machine_is_refused() {
    for args in [
        &["--host", "0.0.0.0"][..],
        &["--cors-origin", "chat.example"],
        &["--cors-origin", "https://chat.example/page"],
        &["--ctx", "0"],
        &["--api-key", "two words"],
    ] {
        let output = Command::new(env!("CARGO_BIN_EXE_drafter"))
            .args(["serve", "--port", "0", "--target"])
            .arg(fixture().join("target.gguf"))
            .args(args)
            .output()
            .unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{args:?}: {stderr}");
        assert!(stderr.contains(args[0]), "{stderr}");
    }
}

#[test]
fn a_port_that_is_taken_is_said_to_be() {
    let server = Server::start(&[]);
    let port = server.authority().rsplit(':').next().unwrap().to_owned();
    let output = Command::new(env!("CARGO_BIN_EXE_drafter"))
        .args(["serve", "--port", &port, "--target"])
        .arg(fixture().join("target.gguf"))
        .output()
        .unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(4), "{stderr}");
    assert!(stderr.contains(&port) && stderr.contains("`drafter`"), "{stderr}");
    assert!(stderr.contains("hint: ") && stderr.contains("--port"), "{stderr}");
}

#[test]
fn the_server_says_what_it_is() {
    let server = Server::start(&["--ctx", "100", "--model-name", "bonsai"]);
    let of = |path: &str| serde_json::from_str::<Value>(&server.get(path).1).unwrap();
    let health = of("/health");
    assert_eq!((&health["status"], &health["spec"]["state"]), (&json!("ok"), &json!("active")));
    assert_eq!(health["context_length"], 100);
    let models = of("/v1/models");
    assert_eq!(models["data"][0]["id"], "bonsai");
    assert_eq!(models["data"][0]["context_length"], 100);
    assert_eq!(of("/v1/models/bonsai"), models["data"][0]);
    // Every route of the description is there.
    let described = of("/openapi.json");
    for (path, methods) in described["paths"].as_object().unwrap() {
        let path = path.replace("{id}", "bonsai");
        let status = match methods.get("post") {
            Some(_) => server.post_text(&path, &json!({})).0,
            None => server.get(&path).0,
        };
        assert!(status == 200 || status == 400, "{path}: {status}");
    }
    let (_, found) = server.post("/tokenize", &json!({"content": "a lamp", "with_pieces": true}));
    let pieces: String =
        found["tokens"].as_array().unwrap().iter().map(|t| t["piece"].as_str().unwrap()).collect();
    assert_eq!(pieces, "a lamp");
    let chat = json!({"messages": [user("hi")], "max_tokens": 1});
    let (_, tokens) = server.post("/tokenize", &chat);
    assert_eq!(server.chat(&chat)["usage"]["prompt_tokens"], tokens["count"]);
    // Drafts in every request, not the first only.
    let mut texts = BTreeSet::new();
    for _ in 0..5 {
        let answer =
            server.chat(&json!({"messages": [user("hi")], "max_tokens": 20, "temperature": 0}));
        assert!(answer["timings"]["draft_n"].as_u64() > Some(0));
        texts.insert(whole(&answer));
    }
    assert_eq!(texts.len(), 1);
}
