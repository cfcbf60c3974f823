//! `ternarize`: float DFlash 2 drafters to checked ternary files.

mod cli;

use std::process::ExitCode;

fn main() -> ExitCode {
    cli::main()
}
