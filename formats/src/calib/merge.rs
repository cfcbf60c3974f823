//! Several calibration files as one.

use std::path::Path;

use super::{Document, File, Input, Texts, Tile, Tiles};
use crate::{Error, Fault, shown_path};

/// The document of the files together, and their tiles for [`super::write()`]. The order of the files does
/// not show in either.
///
/// # Errors
/// [`Error::Key`] when files are of other models, another arithmetic, other weights or inputs, or when
/// two have run the same unit of a text.
///
/// # Panics
/// If there is no file.
pub fn merge(files: &[File]) -> Result<(Document, impl Tiles<Error>), Error> {
    let first = &files[0];
    let mut document = first.document().clone();
    let mut programs: Vec<&str> =
        files.iter().flat_map(|f| f.document().program.split(", ")).collect();
    programs.sort_unstable();
    programs.dedup();
    document.program = programs.join(", ");
    document.texts.sort();
    for file in &files[1..] {
        same_models(first, file)?;
        for texts in &file.document().texts {
            add(&mut document.texts, texts, file.path())?;
        }
        for (name, record) in &mut document.inputs {
            let other = &file.document().inputs[name];
            let sum = |a: u64, b: u64| {
                let full = || Error::key(file.path(), "document.inputs", "sums below 2^64", "more");
                a.checked_add(b).ok_or_else(full)
            };
            record.rows = sum(record.rows, other.rows)?;
            record.weight = sum(record.weight, other.weight)?;
        }
    }
    document.texts.sort();
    Ok((document, Sum { files }))
}

/// The same models, weights and inputs.
fn same_models(first: &File, file: &File) -> Result<(), Error> {
    let (a, b) = (first.document(), file.document());
    let of_first = |what: &str| format!("{what}, as in `{}`", shown_path(first.path()));
    let check = |key: &str, a: &dyn ToString, b: &dyn ToString| {
        let (a, b) = (a.to_string(), b.to_string());
        if a == b { Ok(()) } else { Err(Error::key(file.path(), key, of_first(&a), &b)) }
    };
    let weights = |d: &Document| format!("{:?}", d.models.row_weights);
    check("document.models.target_sha256", &a.models.target_sha256, &b.models.target_sha256)?;
    check("document.models.drafter_sha256", &a.models.drafter_sha256, &b.models.drafter_sha256)?;
    check("document.models.act", &a.models.act, &b.models.act)?;
    check("document.models.kv", &a.models.kv, &b.models.kv)?;
    check("document.models.block", &a.models.block, &b.models.block)?;
    check("document.models.row_weights", &weights(a), &weights(b))?;
    let names = |d: &Document| d.inputs.keys().cloned().collect::<Vec<_>>().join(", ");
    check("document.inputs", &names(a), &names(b))?;
    for (name, record) in &a.inputs {
        let other = &b.inputs[name];
        let key = |part: &str| format!("document.inputs.{name}.{part}");
        check(&key("width"), &record.width, &other.width)?;
        check(&key("exponent"), &record.exponent, &other.exponent)?;
        check(&key("full"), &record.full, &other.full)?;
    }
    Ok(())
}

fn add(all: &mut Vec<Texts>, texts: &Texts, path: &Path) -> Result<(), Error> {
    let Some(same) = all.iter_mut().find(|other| other.same_origin(texts)) else {
        all.push(texts.clone());
        return Ok(());
    };
    let Some(units) = same.units.union(&texts.units) else {
        let expected = "units that no other file has run";
        return Err(Error::key(path, "document.texts.units", expected, "some of them"));
    };
    same.units = units;
    same.positions = same.positions.saturating_add(texts.positions);
    same.rounds = same.rounds.saturating_add(texts.rounds);
    same.context_rows = same.context_rows.saturating_add(texts.context_rows);
    Ok(())
}

struct Sum<'a> {
    files: &'a [File],
}

impl Tiles<Error> for Sum<'_> {
    fn tile(&mut self, input: Input, tile: Tile) -> Result<Vec<i64>, Error> {
        let mut sum = self.files[0].units(input, tile)?;
        for file in &self.files[1..] {
            for (i, value) in file.units(input, tile)?.into_iter().enumerate() {
                let fault = || {
                    let (expected, found) = ("sums that fit 64 bits".into(), "larger ones".into());
                    let fault = Fault { unit: "value", index: i as u64, expected, found };
                    fault.at(file.path(), input.to_string())
                };
                sum[i] = sum[i].checked_add(value).ok_or_else(fault)?;
            }
        }
        Ok(sum)
    }
}
