//! Calibration files: several as one, and what is in one.

use std::path::{Path, PathBuf};

use formats::calib::{self, Document, File, Input, Tile, Tiles};
use serde::Serialize;

use crate::Error;
use crate::observer::Observer;
use crate::output::same_file;
use crate::pending::Pending;

/// Writes the sum of `paths` to `out`: the bits of one run over all of their units, in any order of the
/// files. Memory: one tile, whatever their number.
///
/// # Errors
/// [`Error::Input`] when a file was damaged, or is of other models or units than the others;
/// [`Error::OutputPath`] when `out` is one of the inputs, or is there without `force`; [`Error::Write`];
/// [`Error::Interrupted`].
///
/// # Panics
/// If there are no paths.
pub fn merge(
    paths: &[PathBuf],
    out: &Path,
    force: bool,
    observer: &dyn Observer,
) -> Result<Document, Error> {
    let refuse = |problem: &str, hint: Option<&str>| Error::OutputPath {
        path: out.to_path_buf(),
        problem: problem.into(),
        hint: hint.map(Into::into),
    };
    if paths.iter().any(|path| same_file(path, out)) {
        return Err(refuse("this is an input", None));
    }
    if !force && out.exists() {
        return Err(refuse("the file exists", Some("--force replaces it")));
    }
    let files = paths.iter().map(File::open).collect::<Result<Vec<_>, _>>()?;
    let (mut document, tiles) = calib::merge(&files)?;
    let len = calib::file_len(&document);
    let pending = Pending::create(out, len)?;
    let (mut written, mut adapted) = (0, Adapted { tiles, observer });
    calib::write(&mut document, &mut adapted, &mut |offset, bytes: &[u8]| {
        written += bytes.len() as u64;
        observer.progress(written, len, "tiles");
        pending.write_at(offset, bytes)
    })?;
    pending.sync()?;
    pending.publish(force)?;
    Ok(document)
}

/// Bytes of the file that [`merge`] would write; 0 where it would not.
#[must_use]
pub fn merged_len(paths: &[PathBuf]) -> u64 {
    paths.first().and_then(|path| File::open(path).ok()).map_or(0, |file| file.len())
}

struct Adapted<'a, T> {
    tiles: T,
    observer: &'a dyn Observer,
}

impl<T: Tiles<formats::Error>> Tiles<Error> for Adapted<'_, T> {
    fn tile(&mut self, input: Input, tile: Tile) -> Result<Vec<i64>, Error> {
        if self.observer.cancelled() {
            return Err(Error::Interrupted);
        }
        Ok(self.tiles.tile(input, tile)?)
    }
}

/// What a calibration file holds.
#[derive(Debug, Serialize)]
pub struct Summary {
    /// Version of the document.
    pub schema: u32,
    /// What it is known by.
    pub document: Document,
    /// Bytes of the file.
    pub size_bytes: u64,
    /// The inputs, in the order of their names.
    pub inputs: Vec<Spread>,
}

/// How large the values of an input are.
#[derive(Debug, Serialize)]
pub struct Spread {
    /// The input.
    pub name: String,
    /// Values of a row.
    pub width: usize,
    /// Rows.
    pub rows: u64,
    /// The sum of their weights.
    pub weight: f64,
    /// Whether the tiles beside the diagonal are there.
    pub full: bool,
    /// The mean square of a value in the rotated basis; none without rows.
    pub mean_square: Option<f64>,
    /// The largest mean square of a coordinate, relative to that; none for an input of zeros.
    pub peak: Option<f64>,
}

/// Reads all of a calibration file.
///
/// # Errors
/// [`Error::Input`] when it is none or was damaged, [`Error::Undecided`] when `observer` ended it.
pub fn show(path: &Path, observer: &dyn Observer) -> Result<Summary, Error> {
    let file = File::open(path)?;
    let document = file.document().clone();
    let (block, mut inputs) = (document.models.block, Vec::new());
    let mut done = 0;
    for (name, record) in &document.inputs {
        let Some(input) = Input::parse(name) else { continue };
        let (mut sum, mut peak) = (0.0, 0.0_f64);
        for tile in record.tiles(block) {
            if observer.cancelled() {
                return Err(Error::Undecided);
            }
            let units = file.units(input, tile)?;
            done += 8 * units.len() as u64;
            observer.progress(done, file.len(), name);
            if let Tile::Diagonal(_) = tile {
                let mut at = 0;
                for i in 0..block {
                    sum += units[at] as f64;
                    peak = peak.max(units[at] as f64);
                    at += block - i;
                }
            }
        }
        let mean = sum / record.width as f64;
        let unit = f64::from(record.exponent).exp2();
        inputs.push(Spread {
            name: name.clone(),
            width: record.width,
            rows: record.rows,
            weight: record.total_weight(),
            full: record.full,
            mean_square: (record.weight > 0).then(|| mean * unit / record.total_weight()),
            peak: (mean > 0.0).then(|| peak / mean),
        });
    }
    Ok(Summary { schema: crate::report::SCHEMA, document, size_bytes: file.len(), inputs })
}
