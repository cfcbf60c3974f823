//! The command line: arguments, streams, exit codes. Everything else is in the library.

mod args;
mod exit;
mod models;
mod printer;
mod prompt;
mod run;
mod signals;
mod summary;
mod text;
mod verify_exact;

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
    let command = || match &cli.command {
        Command::Run(args) => run::run(args, &cli.common, &printer),
        Command::VerifyExact(args) => verify_exact::run(args, &cli.common, &printer),
        Command::Completions { shell } => printer.completions(*shell),
    };
    // The work is spread over a pool of our own; nothing else runs in it.
    let pool = rayon::ThreadPoolBuilder::new().num_threads(cli.common.threads()).build();
    let result = match pool {
        Ok(pool) => pool.install(command),
        Err(error) => Err(anyhow::Error::new(error).context("starting worker threads")),
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
