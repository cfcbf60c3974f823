//! `cargo xtask demo`: the main job on the committed pair, every command shown.

use std::env;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use anyhow::{Context as _, ensure};
use serde_json::Value;

const TARGET: &str = "tests/fixtures/pair/target.gguf";
const INPUT: &str = "tests/fixtures/pair/drafter/model.safetensors";
const Q4NX: &str = "target/demo/model.q4nx";
const GGUF: &str = "target/demo/model.gguf";
const PROMPT: &str = "def read(self, size=-1):\n";
const TOKENS: &str = "96";

/// Builds and runs the programs.
pub(crate) fn run() -> anyhow::Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().context("the workspace's folder")?;
    env::set_current_dir(root).with_context(|| format!("entering `{}`", root.display()))?;
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let built = Command::new(cargo)
        .args(["build", "--release", "--quiet", "--package", "compiler", "--package", "drafter"])
        .args(["--target-dir", "target"])
        .status()
        .context("starting cargo")?;
    ensure!(built.success(), "building the programs failed");
    std::fs::create_dir_all("target/demo").context("making `target/demo`")?;

    // The pair is 256 wide, so its rotation blocks are smaller than the default.
    let block = ["--block", "256", "--tokenizer", TARGET];
    shown("ternarize", &[&[INPUT, "-o", Q4NX, "-o", GGUF, "--force"], &block[..]].concat())?;
    shown("ternarize", &["verify", Q4NX, "--against", INPUT])?;
    shown("ternarize", &["verify", GGUF, "--against", Q4NX])?;

    let prompt = ["--prompt", PROMPT, "-n", TOKENS, "--ignore-eos"];
    let plain = [&["run", "--target", TARGET], &prompt[..]].concat();
    // All drafts, whether they pay here or not, so that the rounds are the same everywhere.
    let all = ["--draft-max", "7"];
    let float = [&plain[..], &["--drafter", INPUT], &all].concat();
    let ternary = [&plain[..], &["--drafter", Q4NX], &all].concat();
    shown("drafter", &plain)?;
    shown("drafter", &ternary)?;
    let ids = document(&plain)?["ids"].clone();
    let mut lines = vec![format!("plain decoding: {TOKENS} tokens in {TOKENS} passes")];
    for (name, arguments) in [("float", &float), ("ternary", &ternary)] {
        let found = document(arguments)?;
        ensure!(found["ids"] == ids, "the {name} drafter changed the tokens");
        let timings = &found["timings"];
        lines.push(format!(
            "with the {name} drafter: the same {TOKENS} ids in {} rounds, {:.2} tokens per round",
            timings["draft_rounds"],
            timings["accept_len"].as_f64().unwrap_or_default()
        ));
    }
    writeln!(std::io::stdout(), "\n{}", lines.join("\n"))?;
    shown("drafter", &["verify-exact", "--target", TARGET, "--drafter", Q4NX, "-n", "32"])?;

    shown("drafter", &["link", Q4NX, "--target", TARGET, "--name", "demo", "--force"])?;
    let text = document(&[&["run", "demo"], &["--prompt", PROMPT, "-n", TOKENS][..]].concat())?;
    let server = Server::start()?;
    for draft_max in ["7", "0"] {
        let streamed = server.completion(draft_max)?;
        ensure!(text["text"] == streamed.as_str(), "the server streamed another text");
    }
    writeln!(
        std::io::stdout(),
        "\nthe same text from `drafter run` and streamed, with and without drafts"
    )?;
    Ok(())
}

/// `drafter serve` of the linked pair, ended with this value.
struct Server {
    child: Child,
    url: String,
}

impl Server {
    fn start() -> anyhow::Result<Self> {
        let arguments = ["serve", "demo", "--port", "0", "--default-temperature", "0"];
        writeln!(std::io::stdout(), "\n$ drafter {}", arguments.join(" "))?;
        let mut child = program("drafter").args(arguments).stdout(Stdio::piped()).spawn()?;
        let mut line = String::new();
        let out = child.stdout.take().context("the server's output")?;
        BufReader::new(out).read_line(&mut line)?;
        write!(std::io::stdout(), "{line}")?;
        let url = line.split_whitespace().find(|word| word.starts_with("http://"));
        let url = url.context("the server did not start")?.to_owned();
        Ok(Self { child, url })
    }

    /// Streams a completion of the prompt and shows it as it comes.
    fn completion(&self, draft_max: &str) -> anyhow::Result<String> {
        let body = format!(
            "{{\"prompt\": {}, \"max_tokens\": {TOKENS}, \"stream\": true, \
             \"x_drafter\": {{\"draft_max\": {draft_max}}}}}",
            Value::from(PROMPT)
        );
        let json = "Content-Type: application/json";
        let url = &self.url;
        writeln!(std::io::stdout(), "\n$ curl {url}/v1/completions -H '{json}' -d '{body}'")?;
        // Version 1.0: the body comes as it is, and ends with the connection.
        let authority = url.strip_prefix("http://").unwrap_or(url);
        let mut socket = TcpStream::connect(authority)?;
        write!(
            socket,
            "POST /v1/completions HTTP/1.0\r\nHost: {authority}\r\n{json}\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        )?;
        let mut text = String::new();
        for line in BufReader::new(socket).lines() {
            let line = line?;
            let Some(data) = line.strip_prefix("data: ").filter(|data| *data != "[DONE]") else {
                continue;
            };
            let chunk: Value = serde_json::from_str(data)?;
            let piece = chunk["choices"][0]["text"].as_str().unwrap_or_default();
            write!(std::io::stdout(), "{piece}")?;
            text += piece;
            if let Some(accepted) = chunk["timings"]["draft_n_accepted"].as_u64() {
                write!(std::io::stdout(), "\n({accepted} tokens from drafts)")?;
            }
        }
        writeln!(std::io::stdout())?;
        Ok(text)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A built program, with a place of its own for links.
fn program(name: &str) -> Command {
    let mut command = Command::new(format!("target/release/{name}"));
    if let Ok(place) = std::path::absolute("target/demo/data") {
        command.env("XDG_DATA_HOME", place);
    }
    command
}

/// Shows and runs one command.
fn shown(program: &str, arguments: &[&str]) -> anyhow::Result<()> {
    let words = arguments.iter().map(|word| match word.contains([' ', '(', '\n']) {
        true => format!("{word:?}"),
        false => (*word).to_owned(),
    });
    let line = words.collect::<Vec<_>>().join(" ");
    writeln!(std::io::stdout(), "\n$ {program} {line}")?;
    let status = self::program(program)
        .args(arguments)
        .status()
        .with_context(|| format!("starting `{program}`"))?;
    ensure!(status.success(), "`{program} {line}` failed: {status}");
    Ok(())
}

/// What `drafter` prints with `--json`.
fn document(arguments: &[&str]) -> anyhow::Result<Value> {
    let output = program("drafter")
        .args(arguments)
        .arg("--json")
        .stderr(Stdio::inherit())
        .output()
        .context("starting `drafter`")?;
    ensure!(output.status.success(), "`drafter {}` failed", arguments.join(" "));
    Ok(serde_json::from_slice(&output.stdout)?)
}
