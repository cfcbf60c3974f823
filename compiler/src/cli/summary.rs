//! What a run says before and after.

use std::io::{self, Write};

use compiler::plan::Plan;
use compiler::report::{MatrixCalibration, Quality, Report, SCHEMA};
use formats::shown_path;

use super::printer::Printer;
use command_line::exit::Outcome;

/// Says what is about to be written.
pub(crate) fn announce(plan: &Plan<'_>, printer: &Printer) {
    let matrices = plan.drafter.tensors.iter().filter(|t| t.spec.role.is_matrix()).count();
    let others = plan.drafter.tensors.len() - matrices;
    printer.status(&format!(
        "{} drafter, {} layers, {matrices} matrices and {others} other tensors, {} to read",
        plan.drafter.container.name(),
        plan.drafter.config.num_hidden_layers,
        size(plan.input_bytes()),
    ));
    for output in &plan.outputs {
        printer.status(&format!(
            "writing {} ({}, {})",
            shown_path(&output.path),
            output.format,
            size(output.file_len)
        ));
    }
}

/// The result of a dry run.
pub(crate) fn planned(plan: &Plan<'_>, printer: &Printer) -> anyhow::Result<Outcome> {
    let document = serde_json::json!({
        "schema": SCHEMA,
        "dry_run": true,
        "rule": plan.method(),
        "block": plan.rotation.block,
        "input_bytes": plan.input_bytes(),
        "memory_bytes": plan.memory_bytes(),
        "outputs": plan.outputs.iter().map(|o| serde_json::json!({
            "path": o.path.to_string_lossy(),
            "format": o.format.name(),
            "size_bytes": o.file_len,
            "data_bytes": o.data_len,
            "config": o.config.as_ref().map(|c| c.path.to_string_lossy()),
        })).collect::<Vec<_>>(),
        "tensors": plan.drafter.tensors.iter().map(|t| serde_json::json!({
            "name": t.spec.name,
            "shape": t.spec.shape,
            "from": t.encoding.name(),
            "ternary": t.spec.role.is_matrix(),
        })).collect::<Vec<_>>(),
        "notes": plan.notes,
    });
    printer.result(&document, |out| {
        for output in &plan.outputs {
            writeln!(
                out,
                "would write {} ({}, {})",
                shown_path(&output.path),
                output.format,
                size(output.file_len)
            )?;
            if let Some(config) = &output.config {
                writeln!(out, "would write {}", shown_path(&config.path))?;
            }
        }
        writeln!(out, "memory: at most {}", size(plan.memory_bytes()))
    })
}

/// The result of a run.
pub(crate) fn finished(report: &Report, printer: &Printer) -> anyhow::Result<Outcome> {
    printer.result(report, |out| {
        if printer.verbose() {
            matrices(report, out)?;
        }
        for output in &report.outputs {
            writeln!(
                out,
                "{}  {}  {}  sha256 {}",
                shown_path(&output.path),
                output.format,
                size(output.size_bytes),
                output.sha256
            )?;
            if let Some(config) = &output.config {
                writeln!(out, "{}", shown_path(config))?;
            }
        }
        if let Some(total) = &report.total {
            quality(report, total, out)?;
            calibration(report, out)?;
        }
        let rounded: u64 = report.matrices.iter().map(|m| m.rounded_scales).sum();
        if rounded > 0 {
            writeln!(out, "{rounded} scales rounded")?;
        }
        let rounded: u64 = report.other_tensors.iter().map(|t| t.rounded_values).sum();
        if rounded > 0 {
            writeln!(out, "{rounded} values of norms, base kernels and codebooks rounded")?;
        }
        writeln!(
            out,
            "converted in {}, then hashed in {} while the disk took {}",
            seconds(report.convert_ms),
            seconds(report.hash_ms),
            seconds(report.sync_ms)
        )
    })
}

/// Mean output errors of the matrices that had moments.
fn calibration(report: &Report, out: &mut dyn Write) -> io::Result<()> {
    let with: Vec<_> = report.matrices.iter().filter_map(|m| m.calibration.as_ref()).collect();
    if with.is_empty() {
        return Ok(());
    }
    let mean = |loss: fn(&MatrixCalibration) -> f64| {
        with.iter().map(|m| loss(m)).sum::<f64>() / with.len() as f64
    };
    writeln!(
        out,
        "{} matrices had moments: mean relative squared error of their outputs {:.4}, {:.4} with the \
         optimum of the weights alone",
        with.len(),
        mean(|m| m.loss),
        mean(|m| m.optimal_loss)
    )
}

fn quality(report: &Report, total: &Quality, out: &mut dyn Write) -> io::Result<()> {
    writeln!(
        out,
        "{} matrices, {} weights, rule {}, block {}: relative squared error {:.4}, {:.1} % zeros",
        report.matrices.len(),
        total.weights,
        report.rule.unwrap_or("none"),
        report.block,
        total.relative_error,
        100.0 * total.zero_share
    )?;
    if total.zero_groups > 0 || total.underflow_groups > 0 {
        writeln!(
            out,
            "{} groups are all zero, {} underflow to zero",
            total.zero_groups, total.underflow_groups
        )?;
    }
    Ok(())
}

fn matrices(report: &Report, out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, "{:<44} {:>16} {:>9} {:>8}", "matrix", "[out, in]", "error", "zeros")?;
    for matrix in &report.matrices {
        let shape = format!("{:?}", matrix.shape);
        match &matrix.quality {
            Some(q) => writeln!(
                out,
                "{:<44} {shape:>16} {:>9.5} {:>6.2} %",
                matrix.name,
                q.relative_error,
                100.0 * q.zero_share
            )?,
            None => writeln!(out, "{:<44} {shape:>16} from {}", matrix.name, matrix.from)?,
        }
    }
    Ok(())
}

/// A size for people.
pub(crate) fn size(bytes: u64) -> String {
    let bytes = bytes as f64;
    match bytes {
        b if b >= 1e9 => format!("{:.2} GB", b / 1e9),
        b if b >= 1e6 => format!("{:.1} MB", b / 1e6),
        b if b >= 1e3 => format!("{:.1} kB", b / 1e3),
        b => format!("{b} bytes"),
    }
}

fn seconds(ms: u64) -> String {
    format!("{:.2} s", ms as f64 / 1e3)
}
