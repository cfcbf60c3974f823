//! Streams: results on standard output, everything else on standard error.

use std::io::{self, IsTerminal, Write};

use anstream::ColorChoice;
use anstyle::{AnsiColor, Style};
use anyhow::Context;
use clap::CommandFactory;
use clap_complete::Shell;
use formats::shown_path;
use serde::Serialize;

use super::args::{ColorWhen, Output};
use super::exit::Outcome;

/// What is done when standard output cannot be written.
pub const STDOUT: &str = "writing to standard output";

const ERROR: Style = AnsiColor::Red.on_default().bold();
const NOTE: Style = AnsiColor::Yellow.on_default().bold();
const HINT: Style = AnsiColor::Cyan.on_default().bold();

/// What one program prints where, and how loudly.
#[derive(Debug)]
pub struct Streams {
    program: &'static str,
    /// Of JSON documents.
    schema: u32,
    json: bool,
    quiet: bool,
}

impl Streams {
    /// The streams of `program`, whose errors are documents of `schema` with `--json`.
    #[must_use]
    pub fn new(program: &'static str, schema: u32, output: &Output) -> Self {
        let choice = match output.color {
            ColorWhen::Auto => ColorChoice::Auto,
            ColorWhen::Always => ColorChoice::Always,
            ColorWhen::Never => ColorChoice::Never,
        };
        choice.write_global();
        Self { program, schema, json: output.json, quiet: output.quiet }
    }

    /// Whether a document is printed in the place of text.
    #[must_use]
    pub fn json(&self) -> bool {
        self.json
    }

    /// Whether only results and errors are printed.
    #[must_use]
    pub fn quiet(&self) -> bool {
        self.quiet
    }

    /// Prints a document.
    ///
    /// # Errors
    /// When standard output cannot be written.
    pub fn document(&self, document: &impl Serialize) -> anyhow::Result<()> {
        let mut out = anstream::stdout().lock();
        serde_json::to_writer_pretty(&mut out, document)
            .map_err(io::Error::from)
            .and_then(|()| writeln!(out))
            .and_then(|()| out.flush())
            .context(STDOUT)
    }

    /// Prints a part of a result at once.
    ///
    /// # Errors
    /// When standard output cannot be written.
    pub fn text(&self, text: &str) -> anyhow::Result<()> {
        let mut out = anstream::stdout().lock();
        out.write_all(text.as_bytes()).and_then(|()| out.flush()).context(STDOUT)
    }

    /// Prints a remark.
    pub fn note(&self, text: &str) {
        if !self.quiet {
            let _ = writeln!(anstream::stderr(), "{NOTE}note:{NOTE:#} {}", one_line(text));
        }
    }

    /// Prints what is going on.
    pub fn status(&self, text: &str) {
        if !self.quiet && !self.json {
            let _ = writeln!(anstream::stderr(), "{}", one_line(text));
        }
    }

    /// Prints progress that the next one replaces, nothing for an empty text; on terminals only.
    pub fn progress(&self, text: &str) {
        if !self.quiet && !self.json && io::stderr().is_terminal() {
            let _ = write!(io::stderr(), "\r\x1b[K{}", one_line(text));
        }
    }

    /// Prints an error and the next step, if there is one; with `--json` as a document too.
    pub fn error(&self, error: &anyhow::Error, hint: Option<&str>, code: u8) {
        let message = one_line(&causes(error));
        let hint = hint.map(one_line);
        let mut err = anstream::stderr();
        let _ = writeln!(err, "{ERROR}{}:{ERROR:#} {message}", self.program);
        if let Some(hint) = &hint {
            let _ = writeln!(err, "{HINT}hint:{HINT:#} {hint}");
        }
        if self.json {
            let document = serde_json::json!({
                "schema": self.schema,
                "error": { "message": message, "hint": hint, "exit_code": code },
            });
            let _ = writeln!(anstream::stdout(), "{document:#}");
        }
    }

    /// Prints a completion script.
    ///
    /// # Errors
    /// When standard output cannot be written.
    pub fn completions<C: CommandFactory>(&self, shell: Shell) -> anyhow::Result<Outcome> {
        let mut script = Vec::new();
        clap_complete::generate(shell, &mut C::command(), self.program, &mut script);
        let mut out = io::stdout().lock();
        out.write_all(&script).and_then(|()| out.flush()).context(STDOUT)?;
        Ok(Outcome::Done)
    }
}

/// The causes joined by colons. Some messages end with their cause already.
fn causes(error: &anyhow::Error) -> String {
    let mut message = String::new();
    for cause in error.chain().map(ToString::to_string) {
        if message.is_empty() {
            message = cause;
        } else if !message.ends_with(&cause) {
            message = format!("{message}: {cause}");
        }
    }
    message
}

/// A message on one line, whatever a file name or a system says.
#[must_use]
pub fn one_line(text: &str) -> String {
    let lines: Vec<_> = text.split('\n').map(str::trim).filter(|part| !part.is_empty()).collect();
    // What is a path's was escaped where the message was made.
    shown_path(lines.join(": "))
}
