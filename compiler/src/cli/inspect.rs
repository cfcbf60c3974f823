//! `ternarize inspect FILE`.

use std::io::{self, Write};

use compiler::inspect::{Inspection, Kind, inspect};
use formats::{shown, shown_path};

use super::args::InspectArgs;
use super::printer::Printer;
use super::summary::size;
use command_line::exit::{Outcome, reading};

/// Runs the command.
pub(crate) fn run(args: &InspectArgs, printer: &Printer) -> anyhow::Result<Outcome> {
    let inspection =
        inspect(&args.file, args.config.as_deref()).map_err(|e| reading(&args.file, e))?;
    for note in &inspection.notes {
        printer.note(note);
    }
    printer.result(&inspection, |out| text(&inspection, printer.verbose(), out))
}

fn text(i: &Inspection, verbose: bool, out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, "{}", i.what)?;
    for file in &i.files {
        writeln!(
            out,
            "{}  {} ({} bytes)",
            shown_path(&file.path),
            size(file.size_bytes),
            file.size_bytes
        )?;
    }
    if let Some(config) = &i.config {
        match &i.config_path {
            Some(path) => writeln!(out, "\nconfiguration, {}", shown_path(path))?,
            None => writeln!(out, "\nconfiguration")?,
        }
        for (name, value) in config {
            writeln!(out, "  {name:<24} {value}")?;
        }
    }
    if let Some(rotation) = &i.rotation {
        writeln!(out, "\nrotation")?;
        writeln!(out, "  {:<24} {}", "block", rotation.block)?;
        for signs in &rotation.widths {
            let what = match signs.negative {
                0 => "all +1".to_owned(),
                n => format!("{n} of {} are -1", signs.width),
            };
            writeln!(out, "  {:<24} {what}", format!("signs of width {}", signs.width))?;
        }
    }
    if !i.lineage.is_empty() {
        writeln!(out, "\nlineage")?;
        for (key, value) in &i.lineage {
            writeln!(out, "  {:<24} {}", shown(key), shown(value))?;
        }
    }
    // A drafter's keys are told above.
    if !i.metadata.is_empty() && (verbose || i.kind != Kind::Drafter) {
        writeln!(out, "\nmetadata")?;
        for entry in &i.metadata {
            writeln!(
                out,
                "  {:<44} {:<7} {}",
                shown(&entry.key),
                entry.kind,
                shown(&entry.text())
            )?;
        }
    }
    if !i.modules.is_empty() {
        writeln!(out, "\n{:<48} {:>16} {:>6}  scales", "module", "[out, in]", "block")?;
        for module in &i.modules {
            writeln!(
                out,
                "{:<48} {:>16} {:>6}  {}{}",
                shown(&module.path),
                module.shape.map_or_else(|| "-".into(), |shape| format!("{shape:?}")),
                module.block,
                module.scale_type,
                if module.embedding { ", embedding" } else { "" }
            )?;
        }
    }
    if !i.tensors.is_empty() {
        tensors(i, out)?;
    }
    Ok(())
}

fn tensors(i: &Inspection, out: &mut dyn Write) -> io::Result<()> {
    writeln!(
        out,
        "\n{:<48} {:<18} {:>20} {:>13} {:>14}",
        "tensor", "encoding", "shape", "bytes", "offset"
    )?;
    let mut file = None;
    for tensor in &i.tensors {
        if i.files.len() > 1 && file != Some(tensor.file) {
            file = Some(tensor.file);
            writeln!(out, "{}", shown_path(&i.files[tensor.file].path))?;
        }
        writeln!(
            out,
            "{:<48} {:<18} {:>20} {:>13} {:>14}",
            shown(&tensor.name),
            tensor.encoding,
            shape(&tensor.shape),
            tensor.size_bytes,
            tensor.offset_bytes
        )?;
    }
    writeln!(out)?;
    for total in &i.totals {
        writeln!(
            out,
            "{:<18} {:>5} tensors {:>14} bytes",
            total.encoding, total.tensors, total.size_bytes
        )?;
    }
    let bytes: u64 = i.totals.iter().map(|t| t.size_bytes).sum();
    writeln!(out, "{:<18} {:>5} tensors {bytes:>14} bytes", "all", i.tensors.len())
}

/// A shape; a hostile file may give a million extents.
fn shape(extents: &[u64]) -> String {
    match extents {
        [first, .., last] if extents.len() > 6 => {
            format!("[{first}, ... {} ..., {last}]", extents.len())
        }
        extents => format!("{extents:?}"),
    }
}
