//! What the compiler prints: results, and progress of a run.

use std::io::{self, IsTerminal, Write};
use std::sync::Mutex;

use anyhow::Context;
use clap_complete::Shell;
use command_line::exit::Outcome;
use command_line::{STDOUT, Streams, signals};
use compiler::observer::Observer;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::Serialize;

use super::args::{Cli, Common, ProgressHow};
use super::exit;

/// What is printed where, and how loudly.
#[derive(Debug)]
pub(crate) struct Printer {
    streams: Streams,
    verbose: bool,
    progress: ProgressHow,
}

impl Printer {
    pub(crate) fn new(common: &Common) -> Self {
        Self {
            streams: Streams::new("ternarize", compiler::report::SCHEMA, &common.output),
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
        if self.streams.json() {
            self.streams.document(document)?;
        } else if !self.streams.quiet() {
            let mut out = anstream::stdout().lock();
            text(&mut out).and_then(|()| out.flush()).context(STDOUT)?;
        }
        Ok(Outcome::Done)
    }

    /// Prints a remark.
    pub(crate) fn note(&self, text: &str) {
        self.streams.note(text);
    }

    /// Prints what happened to one tensor, or what is about to happen.
    pub(crate) fn status(&self, text: &str) {
        self.streams.status(text);
    }

    /// Prints an error; with `--json` as a document too.
    pub(crate) fn error(&self, error: &anyhow::Error, code: u8) {
        self.streams.error(error, exit::hint(error), code);
    }

    /// Prints a completion script.
    pub(crate) fn completions(&self, shell: Shell) -> anyhow::Result<Outcome> {
        self.streams.completions::<Cli>(shell)
    }

    /// Watches a run of `total` bytes, in the way that was asked for.
    pub(crate) fn watch(&self, total: u64) -> Watcher {
        let silent = self.streams.quiet() || self.streams.json() || self.verbose;
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
        signals::received()
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        if let Show::Bar(bar) = &self.0 {
            bar.finish_and_clear();
        }
    }
}
