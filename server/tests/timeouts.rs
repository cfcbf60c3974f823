//! Connections that stand still are ended.

#![allow(clippy::unwrap_used, reason = "tests, which clippy does not see in helpers")]

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::time::{Duration, Instant};

use formats::Source;
use formats::gguf::File;
use hadamard::Isa;
use runtime::backend::Cpu;
use runtime::engine::{Engine, Models, Options};
use runtime::quant::ActQuant;
use runtime::target::Target;
use runtime::text::{SamplingDefaults, StopSources, Tokenizer, stop_set};
use server::{App, Model, Settings};

/// A server with these settings, without drafter.
fn serve(settings: Settings) -> SocketAddr {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/pair/target.gguf");
    let target = Target::open(&path, ActQuant::A8, Isa::detect(), &Cpu::default()).unwrap();
    let file = File::open(Source::open(&path).unwrap()).unwrap();
    let tokenizer = Tokenizer::from_gguf(&file).unwrap();
    let sources = StopSources { gguf: Some(&file), ..StopSources::default() };
    let stops = stop_set(&tokenizer, &sources).unwrap();
    let models = Models { target, drafter: None, tokenizer: tokenizer.clone(), stops };
    let (engine, mut worker) = Engine::new(models, Options::default());
    let model = Model {
        id: "pair".into(),
        tokenizer,
        template: Err("none".into()),
        defaults: SamplingDefaults::default(),
        trained_context: 4096,
        about: serde_json::Value::Null,
    };
    let app = App::new(engine, model, settings);
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || worker.run());
    std::thread::spawn(move || {
        let http = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
        http.block_on(async {
            let listener = tokio::net::TcpListener::from_std(listener).unwrap();
            server::serve(listener, app, std::future::pending()).await;
        });
    });
    address
}

/// Sends `bytes`, then waits until the server closes: what it said, and after how long.
fn silent(address: SocketAddr, bytes: &[u8]) -> (String, Duration) {
    let begin = Instant::now();
    let mut socket = TcpStream::connect(address).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    socket.write_all(bytes).unwrap();
    let mut answer = Vec::new();
    // The end of the stream, or a reset: both are an end, a timeout is none.
    if let Err(error) = socket.read_to_end(&mut answer) {
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
    }
    (String::from_utf8(answer).unwrap(), begin.elapsed())
}

const HEAD: &str =
    "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n";

#[test]
fn heads_and_bodies_must_arrive() {
    let time = Duration::from_millis(300);
    let address =
        serve(Settings { header_timeout: time, body_timeout: time, ..Settings::default() });
    for bytes in ["", "P", HEAD] {
        let (_, took) = silent(address, bytes.as_bytes());
        assert!(took >= time && took < Duration::from_secs(10), "{took:?}");
    }
    let half = format!("{HEAD}Connection: close\r\nContent-Length: 50\r\n\r\n{{\"prompt\"");
    let (answer, took) = silent(address, half.as_bytes());
    assert!(answer.starts_with("HTTP/1.1 408"), "{answer}");
    assert!(took >= time && took < Duration::from_secs(10), "{took:?}");
}

/// A client that asks for much and reads nothing loses its connection.
#[test]
fn answers_must_be_read() {
    let settings = Settings { write_timeout: Duration::from_millis(300), ..Settings::default() };
    let address = serve(settings);
    let metric = |name: &str| -> f64 {
        let request = "GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
        let (text, _) = silent(address, request.as_bytes());
        let line = text.lines().find(|line| line.starts_with(&format!("{name} "))).unwrap();
        line.rsplit(' ').next().unwrap().parse().unwrap()
    };
    // An answer of tens of megabytes: more than the buffers of two sockets hold.
    let text = "a b ".repeat(500_000);
    let body = format!("{{\"content\": \"{text}\", \"with_pieces\": true}}");
    let mut socket = TcpStream::connect(address).unwrap();
    let head = HEAD.replace("/v1/completions", "/tokenize");
    write!(socket, "{head}Content-Length: {}\r\n\r\n{body}", body.len()).unwrap();
    // Its beginning is there.
    socket.read_exact(&mut [0; 12]).unwrap();
    assert_eq!(metric("drafter:connections"), 2.0);
    let begin = Instant::now();
    while metric("drafter:connections") > 1.0 {
        assert!(begin.elapsed() < Duration::from_secs(30), "connections that nobody reads");
        std::thread::sleep(Duration::from_millis(100));
    }
    // Nothing but the write timeout is as short as this.
    assert!(begin.elapsed() < Settings::default().header_timeout / 2);
}
