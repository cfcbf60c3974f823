//! `drafter`: runs a Bonsai 2 target with a DFlash 2 drafter.

mod cli;
mod link;
mod npu;

use std::process::ExitCode;

fn main() -> ExitCode {
    cli::main()
}
