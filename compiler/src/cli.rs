//! The command line: arguments, streams, exit codes. Everything else is in the library.

mod args;
mod convert;
mod exit;
mod inspect;
mod printer;
mod signals;
mod summary;
mod ternarize;
mod verify;

use std::process::ExitCode;

use clap::Parser;
use clap::error::ErrorKind;

use args::{Cli, Command};
use printer::Printer;

/// Runs the program.
pub(crate) fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            // A reader that went away is no failure of ours.
            let _ = error.print();
            return match error.kind() {
                ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => ExitCode::SUCCESS,
                _ => exit::USAGE.into(),
            };
        }
    };
    let printer = Printer::new(&cli.common);
    let result = match &cli.command {
        None => ternarize::run(&cli.ternarize, &cli.common, &printer),
        Some(Command::Convert(args)) => convert::run(args, &cli.common, &printer),
        Some(Command::Verify(args)) => verify::run(args, &cli.common, &printer),
        Some(Command::Inspect(args)) => inspect::run(args, &printer),
        Some(Command::Completions { shell }) => printer.completions(*shell),
    };
    match result {
        Ok(outcome) => outcome.code().into(),
        Err(error) if exit::is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            let code = exit::code(&error);
            printer.error(&error, code);
            code.into()
        }
    }
}
