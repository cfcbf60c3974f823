//! `ternarize INPUT -o OUT`.

use anyhow::Context;
use compiler::calibrated::{Calibration, Moments};
use compiler::plan::{Options, Ternarize};
use compiler::ternary::Rule;
use formats::dflash2::drafter::Drafter;
use formats::shown_path;

use super::args::{Common, Outputs, RunArgs, TernarizeArgs};
use super::printer::Printer;
use super::summary;
use command_line::exit::{Outcome, Usage, reading};

use std::path::{Path, PathBuf};
use std::sync::Arc;

use compiler::output::{Format, Request};
use compiler::plan::Plan;
use compiler::report::Report;

/// Runs the command.
pub(crate) fn run(
    args: &TernarizeArgs,
    common: &Common,
    printer: &Printer,
) -> anyhow::Result<Outcome> {
    let input = args.input.as_deref().unwrap_or_else(|| Path::new(""));
    let outputs = requests(&args.outputs)?;
    if let Some(float) = outputs.iter().find(|o| !o.format.is_ternary()) {
        return Err(Usage(format!(
            "`{}`: {} is a float format; ternarize first, then use `ternarize convert`",
            shown_path(&float.path),
            float.format
        ))
        .into());
    }
    let drafter = Drafter::open(input, args.config.as_deref()).map_err(|e| reading(input, e))?;
    let calibration = calibration(args)?;
    let mut other_inputs = other_inputs(input, args.tokenizer.as_deref());
    if let Some(Calibration { moments: Moments::Captured(file), .. }) = &calibration {
        other_inputs.push(file.path().to_path_buf());
    }
    let options = Options {
        outputs,
        ternarize: Some(Ternarize { rule: args.rule, block: args.block }),
        calibration,
        codebooks: None,
        tokenizer: tokenizer(args.tokenizer.as_deref(), &drafter)?,
        round_scales: false,
        other_inputs,
        report: args.run.report.clone(),
        force: args.run.force,
        isa: common.workers.isa(),
        threads: common.workers.threads(),
    };
    execute(&drafter, options, &args.run, printer)
}

/// What codes and scales are fitted to.
fn calibration(args: &TernarizeArgs) -> anyhow::Result<Option<Calibration>> {
    let Some(source) = &args.calib else { return Ok(None) };
    if args.rule != Rule::Optimal {
        return Err(Usage(format!(
            "--rule {} and --calib exclude each other: calibrated rounding starts from the optimum",
            args.rule
        ))
        .into());
    }
    let moments = if source.as_os_str() == "prior" {
        Moments::Prior
    } else {
        let file = formats::calib::File::open(source).map_err(|e| reading(source, e))?;
        Moments::Captured(Arc::new(file))
    };
    Ok(Some(Calibration { moments, rounds: args.rounds, damping: args.damping }))
}

/// The outputs with their formats.
pub(crate) fn requests(args: &Outputs) -> Result<Vec<Request>, Usage> {
    if args.formats.len() > args.outputs.len() {
        return Err(Usage(format!(
            "{} formats for {} outputs: give --format once per -o",
            args.formats.len(),
            args.outputs.len()
        )));
    }
    args.outputs
        .iter()
        .enumerate()
        .map(|(i, path)| {
            let named = args.formats.get(i).copied();
            let format = named.or_else(|| Format::of_path(path)).ok_or_else(|| {
                Usage(format!(
                    "`{}`: the extension names no format; use .q4nx or .gguf, or give --format",
                    shown_path(path)
                ))
            })?;
            Ok(Request { path: path.clone(), format })
        })
        .collect()
}

/// Tokenizer keys, where a file with them is given.
pub(crate) fn tokenizer(
    path: Option<&Path>,
    drafter: &Drafter,
) -> anyhow::Result<Vec<(String, formats::gguf::Value)>> {
    match path {
        None => Ok(Vec::new()),
        Some(path) => formats::tokenizer::gguf_keys(path, drafter.config.vocab_size)
            .map_err(|e| reading(path, e)),
    }
}

/// Files that are read besides weights and configuration: shard indices, and the
/// tokenizer with the configuration beside it.
pub(crate) fn other_inputs(input: &Path, tokenizer: Option<&Path>) -> Vec<PathBuf> {
    let mut files = vec![input.to_path_buf(), input.join("model.safetensors.index.json")];
    if let Some(tokenizer) = tokenizer {
        files.push(tokenizer.to_path_buf());
        files.push(tokenizer.with_file_name("tokenizer_config.json"));
    }
    files
}

/// Plans, runs and reports.
pub(crate) fn execute(
    drafter: &Drafter,
    options: Options,
    args: &RunArgs,
    printer: &Printer,
) -> anyhow::Result<Outcome> {
    let plan = Plan::new(drafter, options)?;
    for note in &plan.notes {
        printer.note(note);
    }
    if args.dry_run {
        return summary::planned(&plan, printer);
    }
    summary::announce(&plan, printer);
    command_line::signals::install().context("installing signal handlers")?;
    let outcome = {
        let watcher = printer.watch(plan.input_bytes());
        plan.run(&watcher)?
    };
    summary::finished(&Report::new(&plan, &outcome), printer)
}
