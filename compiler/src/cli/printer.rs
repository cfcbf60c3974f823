//! Streams: results on standard output, everything else on standard error.

use std::io::{self, IsTerminal, Write};
use std::sync::Mutex;
use std::sync::atomic::Ordering;

use anstream::ColorChoice;
use anstyle::{AnsiColor, Style};
use anyhow::Context;
use clap::CommandFactory;
use clap_complete::Shell;
use compiler::observer::Observer;
use formats::shown_path;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::Serialize;

use super::args::{Cli, ColorWhen, Common, ProgressHow};
use super::exit::{self, Outcome};
use super::signals;

/// What is done when standard output cannot be written.
pub(crate) const STDOUT: &str = "writing to standard output";

const ERROR: Style = AnsiColor::Red.on_default().bold();
const NOTE: Style = AnsiColor::Yellow.on_default().bold();
const HINT: Style = AnsiColor::Cyan.on_default().bold();

/// What is printed where, and how loudly.
#[derive(Debug)]
pub(crate) struct Printer {
    json: bool,
    quiet: bool,
    verbose: bool,
    progress: ProgressHow,
}

impl Printer {
    pub(crate) fn new(common: &Common) -> Self {
        let choice = match common.color {
            ColorWhen::Auto => ColorChoice::Auto,
            ColorWhen::Always => ColorChoice::Always,
            ColorWhen::Never => ColorChoice::Never,
        };
        choice.write_global();
        Self {
            json: common.json,
            quiet: common.quiet,
            verbose: common.verbose,
            progress: common.progress,
        }
    }

    /// Whether one line per tensor is wanted.
    pub(crate) fn verbose(&self) -> bool {
        self.verbose
    }

    /// Prints a result: the document with `--json`, else the text.
    pub(crate) fn result(
        &self,
        document: &impl Serialize,
        text: impl FnOnce(&mut dyn Write) -> io::Result<()>,
    ) -> anyhow::Result<Outcome> {
        let mut out = anstream::stdout().lock();
        let print = || {
            if self.json {
                serde_json::to_writer_pretty(&mut out, document)?;
                writeln!(out)?;
            } else if !self.quiet {
                text(&mut out)?;
            }
            out.flush()
        };
        print().context(STDOUT)?;
        Ok(Outcome::Done)
    }

    /// Prints a remark.
    pub(crate) fn note(&self, text: &str) {
        if !self.quiet {
            let _ = writeln!(anstream::stderr(), "{NOTE}note:{NOTE:#} {}", one_line(text));
        }
    }

    /// Prints what happened to one tensor, or what is about to happen.
    pub(crate) fn status(&self, text: &str) {
        if !self.quiet && !self.json {
            let _ = writeln!(anstream::stderr(), "{}", one_line(text));
        }
    }

    /// Prints an error; with `--json` as a document too.
    pub(crate) fn error(&self, error: &anyhow::Error, code: u8) {
        let message = one_line(&causes(error));
        let hint = exit::hint(error).map(one_line);
        let mut err = anstream::stderr();
        let _ = writeln!(err, "{ERROR}ternarize:{ERROR:#} {message}");
        if let Some(hint) = &hint {
            let _ = writeln!(err, "{HINT}hint:{HINT:#} {hint}");
        }
        if self.json {
            let document = serde_json::json!({
                "schema": compiler::report::SCHEMA,
                "error": { "message": message, "hint": hint, "exit_code": code },
            });
            let _ = writeln!(anstream::stdout(), "{document:#}");
        }
    }

    /// Prints a completion script.
    pub(crate) fn completions(&self, shell: Shell) -> anyhow::Result<Outcome> {
        let mut script = Vec::new();
        clap_complete::generate(shell, &mut Cli::command(), "ternarize", &mut script);
        let mut out = io::stdout().lock();
        out.write_all(&script).and_then(|()| out.flush()).context(STDOUT)?;
        Ok(Outcome::Done)
    }

    /// Watches a run of `total` bytes, in the way that was asked for.
    pub(crate) fn watch(&self, total: u64) -> Watcher {
        let silent = self.quiet || self.json || self.verbose;
        let show = match self.progress {
            ProgressHow::Auto if !silent && io::stderr().is_terminal() => {
                let bar = ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::stderr());
                if let Ok(style) = ProgressStyle::with_template(
                    "{bar:32} {bytes}/{total_bytes} {bytes_per_sec} eta {eta} {msg}",
                ) {
                    bar.set_style(style);
                }
                Show::Bar(bar)
            }
            ProgressHow::Plain => Show::Lines(Mutex::default()),
            ProgressHow::Auto | ProgressHow::None => Show::Nothing,
        };
        Watcher(show)
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
    let lines: Vec<_> = text.split('\n').map(str::trim).filter(|part| !part.is_empty()).collect();
    // What is a path's was escaped where the message was made.
    shown_path(lines.join(": "))
}

/// Shows progress and passes Ctrl-C on.
#[derive(Debug)]
pub(crate) struct Watcher(Show);

#[derive(Debug)]
enum Show {
    Nothing,
    Bar(ProgressBar),
    /// The tensor whose line was printed last.
    Lines(Mutex<String>),
}

impl Observer for Watcher {
    fn progress(&self, done: u64, total: u64, tensor: &str) {
        match &self.0 {
            Show::Nothing => {}
            Show::Bar(bar) => {
                bar.set_position(done);
                if bar.message() != tensor {
                    bar.set_message(tensor.to_owned());
                }
            }
            Show::Lines(last) => {
                let mut last = last.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
                if *last != tensor {
                    tensor.clone_into(&mut last);
                    let percent = 100.0 * done as f64 / total.max(1) as f64;
                    let _ = writeln!(anstream::stderr(), "{percent:5.1} % {tensor}");
                }
            }
        }
    }

    fn cancelled(&self) -> bool {
        signals::RECEIVED.load(Ordering::Relaxed) != 0
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        if let Show::Bar(bar) = &self.0 {
            bar.finish_and_clear();
        }
    }
}
