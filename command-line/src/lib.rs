//! What the command lines of both programs share: how arguments, streams, signals and exit codes
//! behave.
//!
//! Only the programs use this crate; the libraries beside them never print, exit or read the
//! environment.

#![forbid(unsafe_code)]

pub mod args;
pub mod exit;
pub mod signals;
mod streams;

pub use streams::{STDOUT, Streams, one_line};

use std::io::{self, Write};
use std::process::ExitCode;

use clap::Parser;

/// Parses the command line and gives it to `run`, or prints what stands in the place of a run: a
/// complaint, the help or the version.
pub fn main<C: Parser>(run: impl FnOnce(&C) -> ExitCode) -> ExitCode {
    match args::parse() {
        Ok(cli) => run(&cli),
        Err(message) => no_run::<C>(&message),
    }
}

fn no_run<C: Parser>(message: &clap::Error) -> ExitCode {
    let printed = message.print().and_then(|()| io::stdout().flush());
    match printed {
        _ if message.use_stderr() => exit::USAGE.into(),
        // A reader that went away is no failure of ours.
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            let program = C::command();
            let _ = writeln!(io::stderr(), "{}: {STDOUT}: {error}", program.get_name());
            exit::OUTPUT.into()
        }
        Ok(()) | Err(_) => ExitCode::SUCCESS,
    }
}
