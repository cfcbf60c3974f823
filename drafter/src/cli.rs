//! The command line: arguments, streams, exit codes. Everything else is in the library.

mod args;
mod bench;
mod cache;
mod capture;
mod eval;
pub(crate) mod exit;
mod link;
mod memory;
mod models;
mod packs;
mod pair;
mod port;
mod profile;
mod prompt;
mod run;
mod serve;
mod summary;
mod text;
mod verify_exact;

use std::process::ExitCode;

use command_line::Streams;
use command_line::exit::Outcome;

use args::{Cli, Command};

use crate::link::files::Interrupted;

/// Version of the layout of JSON documents.
const SCHEMA: u32 = 1;

/// Runs the program.
pub(crate) fn main() -> ExitCode {
    command_line::main(run)
}

fn run(cli: &Cli) -> ExitCode {
    let streams = Streams::new("drafter", SCHEMA, &cli.output);
    let command = || match &cli.command {
        Command::Run(args) => run::run(args, &cli.workers, &streams),
        Command::VerifyExact(args) => verify_exact::run(args, &cli.workers, &streams),
        Command::Bench(args) => bench::run(args, &cli.workers, &streams),
        Command::Eval(args) => eval::run(args, &cli.workers, &streams),
        Command::Serve(args) => serve::run(args, &cli.workers, &streams),
        Command::Link(args) => link::link(args, &cli.workers, &streams),
        Command::List => link::list(&streams),
        Command::Show(args) => link::show(args, &streams),
        Command::Unlink(args) => link::unlink(args, &streams),
        Command::Default(args) => link::default(args, &streams),
        Command::Capture(args) => capture::run(args, &cli.workers, &streams),
        Command::Cache(args) => cache::run(args, &streams),
        Command::Completions { shell } => streams.completions::<Cli>(*shell),
    };
    // The work is spread over a pool of our own; nothing else runs in it.
    let pool = rayon::ThreadPoolBuilder::new().num_threads(cli.workers.threads()).build();
    let result = match pool {
        Ok(pool) => pool.install(command),
        Err(error) => Err(anyhow::Error::new(error).context("starting worker threads")),
    };
    match result {
        Ok(outcome) => outcome.code().into(),
        Err(error) if error.is::<Interrupted>() => Outcome::Interrupted.code().into(),
        Err(error) if command_line::exit::is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            let code = exit::code(&error);
            streams.error(&error, exit::hint(&error), code);
            code.into()
        }
    }
}
