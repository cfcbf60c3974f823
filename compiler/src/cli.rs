//! The command line: arguments, streams, exit codes. Everything else is in the library.

mod args;
mod calib;
mod convert;
mod exit;
mod inspect;
mod printer;
mod summary;
mod ternarize;
mod verify;

use std::process::ExitCode;

use args::{Cli, Command};
use printer::Printer;

/// Runs the program.
pub(crate) fn main() -> ExitCode {
    command_line::main(run)
}

fn run(cli: &Cli) -> ExitCode {
    let printer = Printer::new(&cli.common);
    let result = match &cli.command {
        None => ternarize::run(&cli.ternarize, &cli.common, &printer),
        Some(Command::Convert(args)) => convert::run(args, &cli.common, &printer),
        Some(Command::Verify(args)) => verify::run(args, &cli.common, &printer),
        Some(Command::Calib { command }) => calib::run(command, &printer),
        Some(Command::Inspect(args)) => inspect::run(args, &printer),
        Some(Command::Completions { shell }) => printer.completions(*shell),
    };
    match result {
        Ok(outcome) => outcome.code().into(),
        Err(error) if command_line::exit::is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            let code = exit::code(&error);
            printer.error(&error, code);
            code.into()
        }
    }
}
