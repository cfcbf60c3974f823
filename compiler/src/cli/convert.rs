//! `ternarize convert IN -o OUT`.

use std::path::Path;

use compiler::plan::Options;
use formats::Source;
use formats::dflash2::drafter::{Container, Drafter};
use formats::dflash2::names::Codebooks;
use formats::gguf::File;

use super::args::{CodebookStyle, Common, ConvertArgs};
use super::printer::Printer;
use super::ternarize::{execute, other_inputs, requests, tokenizer};
use command_line::exit::{Outcome, reading};

/// Runs the command.
pub(crate) fn run(
    args: &ConvertArgs,
    common: &Common,
    printer: &Printer,
) -> anyhow::Result<Outcome> {
    let outputs = requests(&args.outputs)?;
    let drafter =
        Drafter::open(&args.input, args.config.as_deref()).map_err(|e| reading(&args.input, e))?;
    let options = Options {
        outputs,
        ternarize: None,
        calibration: None,
        codebooks: Some(match args.codebooks {
            CodebookStyle::Bare => Codebooks::Bare,
            CodebookStyle::Weight => Codebooks::Weight,
        }),
        tokenizer: tokenizer(given_or_own(args, &drafter)?, &drafter)?,
        round_scales: args.round_scales,
        other_inputs: other_inputs(&args.input, args.tokenizer.as_deref()),
        report: args.run.report.clone(),
        force: args.run.force,
        isa: common.workers.isa(),
        threads: common.workers.threads(),
    };
    execute(&drafter, options, &args.run, printer)
}

/// The tokenizer that was named, or the one that the input carries itself.
fn given_or_own<'a>(args: &'a ConvertArgs, drafter: &Drafter) -> anyhow::Result<Option<&'a Path>> {
    if args.tokenizer.is_some() || drafter.container != Container::Gguf {
        return Ok(args.tokenizer.as_deref());
    }
    let file =
        Source::open(&args.input).and_then(File::open).map_err(|e| reading(&args.input, e))?;
    Ok(file.get("tokenizer.ggml.tokens").map(|_| args.input.as_path()))
}
