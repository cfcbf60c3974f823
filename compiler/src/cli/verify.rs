//! `ternarize verify FILE`.

use std::io::{self, Write};

use anyhow::Context;
use compiler::verify::{Comparison, Figures, Options, Verdict, Verification, shown_error, verify};
use formats::dflash2::drafter::Drafter;
use formats::shown_path;

use super::args::{Common, VerifyArgs};
use super::printer::Printer;
use super::summary::size;
use command_line::exit::{Outcome, Usage, is_broken_pipe, reading};

/// Runs the command.
pub(crate) fn run(
    args: &VerifyArgs,
    common: &Common,
    printer: &Printer,
) -> anyhow::Result<Outcome> {
    if args.against.is_none() && (args.max_error.is_some() || args.against_config.is_some()) {
        let flag = if args.max_error.is_some() { "--max-error" } else { "--against-config" };
        return Err(Usage(format!("{flag} needs --against")).into());
    }
    let file =
        Drafter::open(&args.file, args.config.as_deref()).map_err(|e| reading(&args.file, e))?;
    let against = match &args.against {
        None => None,
        Some(path) => Some(
            Drafter::open(path, args.against_config.as_deref()).map_err(|e| reading(path, e))?,
        ),
    };
    let options = Options {
        against: against.as_ref(),
        max_error: args.max_error.unwrap_or(compiler::verify::DEFAULT_MAX_ERROR),
        isa: common.workers.isa(),
        threads: common.workers.threads(),
    };
    command_line::signals::install().context("installing signal handlers")?;
    let verification = {
        let bytes = file.tensors.iter().map(formats::dflash2::drafter::Tensor::byte_len).sum();
        let watcher = printer.watch(bytes);
        verify(&file, &options, &watcher)?
    };
    for note in &verification.notes {
        printer.note(note);
    }
    let shown = printer.result(&verification, |out| text(&verification, printer.verbose(), out));
    match shown {
        // The answer stays the same when nobody reads the details.
        Err(error) if !is_broken_pipe(&error) => return Err(error),
        Ok(_) | Err(_) => {}
    }
    Ok(match verification.verdict {
        Verdict::Ok => Outcome::Done,
        Verdict::No => Outcome::No,
    })
}

fn text(v: &Verification, verbose: bool, out: &mut dyn Write) -> io::Result<()> {
    if verbose {
        table(v, out)?;
    }
    for file in &v.file.files {
        writeln!(
            out,
            "{}  {}  sha256 {}",
            shown_path(&file.path),
            size(file.size_bytes),
            file.sha256
        )?;
    }
    writeln!(
        out,
        "{} drafter, {} matrices and {} other tensors, rotation block {}, {}",
        v.file.container,
        v.matrices.len(),
        v.other_tensors.len(),
        v.block,
        match v.negative_signs {
            0 => "all signs +1".to_owned(),
            n => format!("{n} signs of -1"),
        }
    )?;
    let total = &v.total.figures;
    writeln!(
        out,
        "{} weights, {:.1} % zeros, {} groups with scale 0, {} with a negative scale",
        total.weights,
        100.0 * total.zero_share,
        total.zero_scales,
        total.negative_scales
    )?;
    if let Some(against) = &v.against {
        write!(out, "against {} ({}): ", shown_path(&against.path), against.container)?;
        let other: u64 = v.other_tensors.iter().filter_map(|t| t.comparison.differing).sum();
        match &v.total.comparison {
            Comparison { relative_error: Some(error), .. } => writeln!(
                out,
                "relative squared error {}, {other} values of other tensors differ",
                shown_error(*error)
            )?,
            Comparison { differing: Some(weights), .. } => {
                writeln!(out, "{weights} weights and {other} values of other tensors differ")?;
            }
            _ => writeln!(out, "not comparable")?,
        }
    }
    match &v.reason {
        None => writeln!(out, "verdict: ok"),
        Some(reason) => writeln!(out, "verdict: no ({reason})"),
    }
}

fn table(v: &Verification, out: &mut dyn Write) -> io::Result<()> {
    writeln!(
        out,
        "{:<48} {:>16} {:>13} {:>8} {:>9} {:>9} {:>12} {:>9}",
        "matrix", "[out, in]", "bytes", "zeros", "scale 0", "scale < 0", "exponents", "error"
    )?;
    for m in &v.matrices {
        let shape = format!("{:?}", m.shape);
        writeln!(
            out,
            "{:<48} {shape:>16} {:>13} {:>6.2} % {:>9} {:>9} {:>12} {:>9}",
            m.name,
            m.stored_bytes,
            100.0 * m.figures.zero_share,
            m.figures.zero_scales,
            m.figures.negative_scales,
            exponents(&m.figures),
            comparison(&m.comparison)
        )?;
    }
    for t in &v.other_tensors {
        let shape = format!("{:?}", t.shape);
        writeln!(
            out,
            "{:<48} {shape:>16} {:>13} {:>52} {:>9}",
            t.name,
            t.stored_bytes,
            t.encoding,
            comparison(&t.comparison)
        )?;
    }
    Ok(())
}

/// The range of the scales' binary exponents.
fn exponents(figures: &Figures) -> String {
    let of = &figures.scale_exponents;
    match (of.first_key_value(), of.last_key_value()) {
        (Some((first, _)), Some((last, _))) => format!("{first}..{last}"),
        _ => "-".into(),
    }
}

fn comparison(c: &Comparison) -> String {
    match (c.relative_error, c.differing) {
        (Some(error), _) => shown_error(error),
        (None, Some(0)) => "equal".into(),
        (None, Some(n)) => format!("{n} differ"),
        (None, None) => "-".into(),
    }
}
