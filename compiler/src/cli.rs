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

use std::io::{self, Write};
use std::process::ExitCode;

use args::Command;
use printer::Printer;

/// Prints what stands in the place of a run: a complaint, the help or the version.
fn no_run(message: &clap::Error) -> ExitCode {
    let printed = message.print().and_then(|()| io::stdout().flush());
    match printed {
        _ if message.use_stderr() => exit::USAGE.into(),
        // A reader that went away is no failure of ours.
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            let _ = writeln!(io::stderr(), "ternarize: {}: {error}", printer::STDOUT);
            exit::OUTPUT.into()
        }
        Ok(()) | Err(_) => ExitCode::SUCCESS,
    }
}

/// Runs the program.
pub(crate) fn main() -> ExitCode {
    let cli = match args::parse() {
        Ok(cli) => cli,
        Err(error) => return no_run(&error),
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
