//! Streams: results on standard output, everything else on standard error.

use std::io::{self, IsTerminal, Write};

use anstream::ColorChoice;
use anstyle::{AnsiColor, Style};
use clap::CommandFactory;
use clap_complete::Shell;
use serde::Serialize;

use super::args::{Cli, ColorWhen, Common};
use super::exit::{self, Outcome};

const ERROR: Style = AnsiColor::Red.on_default().bold();
const NOTE: Style = AnsiColor::Yellow.on_default().bold();
const HINT: Style = AnsiColor::Cyan.on_default().bold();

/// What is printed where, and how loudly.
#[derive(Debug)]
pub(crate) struct Printer {
    json: bool,
    quiet: bool,
}

impl Printer {
    pub(crate) fn new(common: &Common) -> Self {
        let choice = match common.color {
            ColorWhen::Auto => ColorChoice::Auto,
            ColorWhen::Always => ColorChoice::Always,
            ColorWhen::Never => ColorChoice::Never,
        };
        choice.write_global();
        Self { json: common.json, quiet: common.quiet }
    }

    /// Whether a document is printed in the place of text.
    pub(crate) fn json(&self) -> bool {
        self.json
    }

    /// Prints a document.
    pub(crate) fn document(&self, document: &impl Serialize) -> io::Result<()> {
        let mut out = io::stdout().lock();
        serde_json::to_writer_pretty(&mut out, document)?;
        writeln!(out)?;
        out.flush()
    }

    /// Prints a piece of text at once.
    pub(crate) fn piece(&self, text: &str) -> io::Result<()> {
        let mut out = io::stdout().lock();
        out.write_all(text.as_bytes())?;
        out.flush()
    }

    /// Prints a remark.
    pub(crate) fn note(&self, text: &str) {
        if !self.quiet {
            let _ = writeln!(anstream::stderr(), "{NOTE}note:{NOTE:#} {}", one_line(text));
        }
    }

    /// Prints what is going on.
    pub(crate) fn status(&self, text: &str) {
        if !self.quiet {
            let _ = writeln!(anstream::stderr(), "{text}");
        }
    }

    /// Prints progress that the next one replaces; on terminals only.
    pub(crate) fn progress(&self, text: &str) {
        if !self.quiet && io::stderr().is_terminal() {
            let _ = write!(anstream::stderr(), "\r\x1b[K{text}");
        }
    }

    /// Prints an error; with `--json` as a document too.
    pub(crate) fn error(&self, error: &anyhow::Error, code: u8) {
        let message = one_line(&causes(error));
        let hint = exit::hint(error).map(one_line);
        let mut err = anstream::stderr();
        let _ = writeln!(err, "{ERROR}drafter:{ERROR:#} {message}");
        if let Some(hint) = &hint {
            let _ = writeln!(err, "{HINT}hint:{HINT:#} {hint}");
        }
        if self.json {
            let document = serde_json::json!({
                "error": { "message": message, "hint": hint, "exit_code": code },
            });
            let _ = writeln!(io::stdout(), "{document:#}");
        }
    }

    /// Prints a completion script.
    pub(crate) fn completions(&self, shell: Shell) -> anyhow::Result<Outcome> {
        let mut script = Vec::new();
        clap_complete::generate(shell, &mut Cli::command(), "drafter", &mut script);
        io::stdout().write_all(&script)?;
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

/// Messages stay on one line whatever a file name or a system says.
fn one_line(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}
