//! `ternarize calib merge` and `ternarize calib show`.

use std::io::{self, Write};

use anyhow::Context as _;
use command_line::exit::Outcome;
use compiler::merge::{Summary, merge, merged_len, show};
use formats::shown;

use super::args::CalibCommand;
use super::printer::Printer;
use super::summary::size;

/// Runs the command.
pub(crate) fn run(command: &CalibCommand, printer: &Printer) -> anyhow::Result<Outcome> {
    command_line::signals::install().context("installing signal handlers")?;
    let path = match command {
        CalibCommand::Merge { files, output, force } => {
            let watcher = printer.watch(merged_len(files));
            merge(files, output, *force, &watcher)?;
            output
        }
        CalibCommand::Show { file } => file,
    };
    let summary = {
        let bytes = std::fs::metadata(path).map_or(0, |meta| meta.len());
        show(path, &printer.watch(bytes))?
    };
    printer.result(&summary, |out| text(&summary, out))
}

fn text(summary: &Summary, out: &mut dyn Write) -> io::Result<()> {
    let Summary { document, .. } = summary;
    let models = &document.models;
    writeln!(out, "calibration data, {} ({} bytes)", size(summary.size_bytes), summary.size_bytes)?;
    for (name, value) in [
        ("program", shown(&document.program)),
        ("target", models.target_sha256.clone()),
        ("drafter", models.drafter_sha256.clone()),
        ("arithmetic", format!("act {}, kv {}", shown(&models.act), shown(&models.kv))),
        ("rotation block", models.block.to_string()),
    ] {
        writeln!(out, "  {name:<16} {value}")?;
    }
    for texts in &document.texts {
        writeln!(
            out,
            "{} {}, {}: {} of {} units, {} positions in {} rounds",
            shown(&texts.kind),
            shown(&texts.sha256),
            shown(&texts.decoding),
            texts.units.count(),
            texts.n_units,
            texts.positions,
            texts.rounds
        )?;
    }
    writeln!(
        out,
        "\n{:<28} {:>7} {:>9} {:>12} {:>12} {:>8}",
        "input", "width", "rows", "weight", "mean square", "peak"
    )?;
    let number = |n: Option<f64>| n.map_or_else(|| "-".into(), |n| format!("{n:.4}"));
    for input in &summary.inputs {
        writeln!(
            out,
            "{:<28} {:>7} {:>9} {:>12.1} {:>12} {:>8}{}",
            input.name,
            input.width,
            input.rows,
            input.weight,
            number(input.mean_square),
            number(input.peak),
            if input.full { "  full" } else { "" }
        )?;
    }
    Ok(())
}
