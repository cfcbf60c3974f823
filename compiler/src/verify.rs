//! Reads a ternary drafter again, all of it, and says whether it is what it
//! should be.
//!
//! Opening has checked names, shapes and sizes. Here every group is decoded and
//! every other value looked at; with an INPUT the weights are compared to it.
//! There are two ways to fail. A file that breaks the rules of its encoding is
//! damaged: an [`Error::Input`] that names tensor and place. A file that is sound
//! but is not INPUT's, or stands for it badly, gets the verdict [`Verdict::No`].
//!
//! What is odd but read alike by every reader of the format passes with a note:
//! codes 3 in PQ2_0 (+2 scales by its rule; q4nx and PTQ1_0 cannot say it),
//! scales that another format would have to round, and PTQ1_0 bytes that no
//! encoder writes.

mod compare;
mod counts;

use std::time::Instant;

use formats::dflash2::drafter::{Drafter, Encoding, Tensor};
use formats::{GROUP, TernaryRows, pq2_0, ptq1_0, q4nx, shown_number};
use hadamard::Isa;
use serde::Serialize;

use crate::bands::{self, Unit};
use crate::observer::Observer;
use crate::pipeline::refuse_not_finite;
use crate::report::{Input, SCHEMA};
use crate::{Error, plan};

use compare::{Compared, Comparer, Reference};
pub use compare::{Difference, Place};
use counts::Counts;
pub use counts::Figures;

/// The largest relative squared error of a matrix that passes unless another is
/// asked for. The optimum has 0.19 for Gaussian weights, calibrated ones have more, up
/// to 0.6 where inputs are alike; unrelated weights, or the right ones in the wrong
/// basis, have more than 1.
pub const DEFAULT_MAX_ERROR: f64 = 0.75;

/// What is asked of a verification.
#[derive(Debug, Clone, Copy)]
pub struct Options<'a> {
    /// The INPUT to compare with, float or ternary.
    pub against: Option<&'a Drafter>,
    /// The largest relative squared error of a matrix against a float INPUT.
    pub max_error: f64,
    /// Instruction set at most.
    pub isa: Isa,
    /// Worker threads, at least 1.
    pub threads: usize,
}

/// The answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// The file is sound, and INPUT's where one was given.
    Ok,
    /// It is sound, but not INPUT's, or too far from it.
    No,
}

/// Everything that was found.
#[derive(Debug, Clone, Serialize)]
pub struct Verification {
    /// [`SCHEMA`].
    pub schema: u32,
    /// Version of this program.
    pub version: &'static str,
    /// The answer.
    pub verdict: Verdict,
    /// The first reason for a no, in the order of the model.
    pub reason: Option<String>,
    /// The file.
    pub file: Input,
    /// Inputs per Hadamard transform.
    pub block: usize,
    /// Inputs with a rotation sign of -1, all widths together.
    pub negative_signs: u64,
    /// The INPUT.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub against: Option<Against>,
    /// All matrices together.
    pub total: Total,
    /// Each matrix, in the order of the model.
    pub matrices: Vec<Matrix>,
    /// The tensors that stay float.
    pub other_tensors: Vec<Other>,
    /// What the user should know.
    pub notes: Vec<String>,
    /// Time of it all.
    pub elapsed_ms: u64,
}

/// What was compared with.
#[derive(Debug, Clone, Serialize)]
pub struct Against {
    /// The path that was given.
    pub path: String,
    /// The kind of file.
    pub container: &'static str,
    /// The largest error that passes, where INPUT is float.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_error: Option<f64>,
}

/// All matrices together.
#[derive(Debug, Clone, Serialize)]
pub struct Total {
    /// What they hold.
    #[serde(flatten)]
    pub figures: Figures,
    /// How they compare to INPUT.
    #[serde(flatten)]
    pub comparison: Comparison,
}

/// How a tensor compares to INPUT's; all absent without an INPUT.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Comparison {
    /// Sum of squared errors over sum of squares, in the rotated basis; null where
    /// INPUT is all zero and this is not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub relative_error: Option<f64>,
    /// Weights or values that differ, where equality is demanded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub differing: Option<u64>,
    /// The first of them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first_difference: Option<Difference>,
}

/// One matrix.
#[derive(Debug, Clone, Serialize)]
pub struct Matrix {
    /// Its published name.
    pub name: String,
    /// `[out, in]`.
    pub shape: Vec<u64>,
    /// How it is stored.
    pub encoding: &'static str,
    /// Bytes that its shape needs in this encoding.
    pub expected_bytes: u64,
    /// Bytes that the file has for it.
    pub stored_bytes: u64,
    /// What it holds.
    #[serde(flatten)]
    pub figures: Figures,
    /// How it compares to INPUT's.
    #[serde(flatten)]
    pub comparison: Comparison,
}

/// One tensor that stays float.
#[derive(Debug, Clone, Serialize)]
pub struct Other {
    /// Its published name.
    pub name: String,
    /// Its shape.
    pub shape: Vec<u64>,
    /// How it is stored.
    pub encoding: &'static str,
    /// Bytes that its shape needs in this encoding.
    pub expected_bytes: u64,
    /// Bytes that the file has for it.
    pub stored_bytes: u64,
    /// How it compares to INPUT's.
    #[serde(flatten)]
    pub comparison: Comparison,
}

/// Reads all of `file` and compares it with what `options` name.
///
/// # Errors
/// [`Error::Input`] for the first fault in the order of the file, of `file` or of
/// the INPUT, and for a `file` that is not ternary; [`Error::Undecided`] when the
/// observer asks to stop.
pub fn verify(
    file: &Drafter,
    options: &Options<'_>,
    observer: &dyn Observer,
) -> Result<Verification, Error> {
    let start = Instant::now();
    let Some(rotation) = &file.rotation else { return Err(plan::refuse_float(file)) };
    for tensor in &file.tensors {
        check_size(tensor)?;
    }
    let compared = options.against.map(|input| Reference::new(file, input, options.isa));
    let (reference, mismatch) = match compared.transpose()? {
        None => (None, None),
        Some(Ok(reference)) => (Some(reference), None),
        Some(Err(why)) => (None, Some(why)),
    };
    let pool = bands::pool(options.threads, &file.path)?;
    let read = pool.install(|| {
        bands::share(file, options.threads, observer, || Reader::new(file, reference.as_ref()))
    });
    let (sha256, outcomes) = read.map_err(|error| match error {
        Error::Interrupted => Error::Undecided,
        other => other,
    })?;
    let mut tensors = vec![Found::default(); file.tensors.len()];
    for (unit, found) in outcomes {
        tensors[unit.tensor].merge(&found);
    }

    let is_float = reference.as_ref().map(Reference::is_float);
    let mut verification = Verification {
        schema: SCHEMA,
        version: env!("CARGO_PKG_VERSION"),
        verdict: Verdict::Ok,
        reason: None,
        file: Input::new(file, &sha256),
        block: rotation.block,
        negative_signs: rotation.signs.values().flatten().filter(|s| **s < 0).count() as u64,
        against: options.against.map(|input| Against {
            path: input.path.to_string_lossy().into_owned(),
            container: input.container.name(),
            max_error: input.rotation.is_none().then_some(options.max_error),
        }),
        total: total(file, &tensors, is_float),
        matrices: Vec::new(),
        other_tensors: Vec::new(),
        notes: file.notes.clone(),
        elapsed_ms: 0,
    };
    for (tensor, found) in file.tensors.iter().zip(&tensors) {
        verification.add(tensor, found, is_float);
    }
    verification.reason = mismatch.or_else(|| {
        let first = file.tensors.iter().zip(&tensors);
        first.into_iter().find_map(|(tensor, found)| objection(tensor, found, options.max_error))
    });
    if verification.reason.is_some() {
        verification.verdict = Verdict::No;
    }
    verification.notes.extend(oddities(&verification.total.figures));
    verification.notes.extend(trailing_bytes(file));
    verification.elapsed_ms = start.elapsed().as_millis() as u64;
    Ok(verification)
}

impl Verification {
    fn add(&mut self, tensor: &Tensor, found: &Found, is_float: Option<bool>) {
        let (name, shape) = (tensor.spec.name.clone(), tensor.spec.shape.clone());
        let encoding = tensor.encoding.name();
        let (expected_bytes, stored_bytes) = (expected_bytes(tensor), tensor.byte_len());
        // Other tensors are rounded by a known rule and must be equal.
        let demand_equality = is_float.map(|float| !(float && tensor.spec.role.is_matrix()));
        let comparison = Comparison::new(&found.compared, demand_equality);
        if tensor.spec.role.is_matrix() {
            let figures = found.counts.figures();
            self.matrices.push(Matrix {
                name,
                shape,
                encoding,
                expected_bytes,
                stored_bytes,
                figures,
                comparison,
            });
        } else {
            self.other_tensors.push(Other {
                name,
                shape,
                encoding,
                expected_bytes,
                stored_bytes,
                comparison,
            });
        }
    }
}

impl Comparison {
    fn new(compared: &Compared, demand_equality: Option<bool>) -> Self {
        match demand_equality {
            None => Self::default(),
            Some(true) => Self {
                relative_error: None,
                differing: Some(compared.differing),
                first_difference: compared.first,
            },
            Some(false) => {
                Self { relative_error: Some(compared.relative_error()), ..Self::default() }
            }
        }
    }
}

fn total(file: &Drafter, tensors: &[Found], is_float: Option<bool>) -> Total {
    let mut sum = Found::default();
    for (tensor, found) in file.tensors.iter().zip(tensors) {
        if tensor.spec.role.is_matrix() {
            sum.merge(found);
        }
    }
    // A place in all matrices together means nothing.
    sum.compared.first = None;
    Total {
        figures: sum.counts.figures(),
        comparison: Comparison::new(&sum.compared, is_float.map(|float| !float)),
    }
}

/// Why a tensor is not INPUT's.
fn objection(tensor: &Tensor, found: &Found, max_error: f64) -> Option<String> {
    let name = &tensor.spec.name;
    if let Some(first) = &found.compared.first {
        return Some(format!("`{name}`: {first} ({} in all)", found.compared.differing));
    }
    let error = found.compared.relative_error();
    (error > max_error).then(|| {
        format!(
            "`{name}`: relative squared error: expected at most {}, found {}",
            shown_number(max_error),
            shown_error(error)
        )
    })
}

/// A relative squared error in few characters.
#[must_use]
pub fn shown_error(error: f64) -> String {
    if error < 1e6 { format!("{error:.4}") } else { format!("{error:.4e}") }
}

/// What is odd but no fault.
fn oddities(figures: &Figures) -> impl Iterator<Item = String> {
    [
        (figures.code_3, "codes 3 (+2 scales), which q4nx and PTQ1_0 cannot hold"),
        (figures.off_grid_scales, "scales that fp16 and bf16 do not both hold exactly"),
        (figures.noncanonical_blocks, "PTQ1_0 blocks with bytes that no encoder writes"),
    ]
    .into_iter()
    .filter(|(n, _)| *n > 0)
    .map(|(n, what)| format!("{n} {what}"))
}

/// A GGUF may go on after its last tensor; no reader looks there.
fn trailing_bytes(file: &Drafter) -> Option<String> {
    let [source] = file.files.as_slice() else { return None };
    let end = file.tensors.iter().map(|t| t.offset() + t.byte_len()).max()?;
    let after = source.len().saturating_sub(end.next_multiple_of(32));
    (after > 0).then(|| format!("{after} bytes after the last tensor are not read"))
}

/// Bytes of a tensor of this shape and encoding.
fn expected_bytes(tensor: &Tensor) -> u64 {
    let spec = &tensor.spec;
    let rows = spec.parameters() / spec.inputs().max(1);
    let cols = spec.inputs() as usize;
    match tensor.encoding {
        Encoding::Pq2_0 => rows * pq2_0::row_bytes(cols) as u64,
        Encoding::Ptq1_0 => rows * ptq1_0::row_bytes(cols) as u64,
        Encoding::Q4nx => {
            let [row_blocks, col_blocks, bytes] = q4nx::chunk_shape(rows as usize, cols);
            row_blocks * col_blocks * bytes
        }
        Encoding::F16 | Encoding::Bf16 => 2 * spec.parameters(),
        _ => 4 * spec.parameters(),
    }
}

/// Opening compares shapes and types; the sizes that follow are recomputed here.
fn check_size(tensor: &Tensor) -> Result<(), Error> {
    let (expected, found) = (expected_bytes(tensor), tensor.byte_len());
    if expected == found {
        return Ok(());
    }
    Err(Error::Input(formats::Error::Tensor {
        path: tensor.path().to_path_buf(),
        tensor: tensor.stored_name.clone(),
        expected: format!("{expected} bytes of {}", tensor.encoding.name()),
        found: format!("{found}"),
        hint: None,
    }))
}

/// What one band, or all bands of a tensor, have shown.
#[derive(Debug, Clone, Default)]
struct Found {
    counts: Counts,
    compared: Compared,
}

impl Found {
    /// Adds the next band.
    fn merge(&mut self, next: &Self) {
        self.counts.merge(&next.counts);
        self.compared.merge(&next.compared);
    }
}

/// One thread's working memory.
struct Reader<'a> {
    file: &'a Drafter,
    comparer: Option<Comparer<'a>>,
    rows: TernaryRows,
    values: Vec<f32>,
}

impl<'a> Reader<'a> {
    fn new(file: &'a Drafter, reference: Option<&'a Reference<'a>>) -> Self {
        Self {
            file,
            comparer: reference.map(Comparer::new),
            rows: TernaryRows::zeroed(0, 0),
            values: Vec::new(),
        }
    }
}

impl bands::Worker for Reader<'_> {
    type Outcome = Found;

    fn unit(&mut self, unit: Unit, bytes: &[u8]) -> Result<Found, Error> {
        let tensor = &self.file.tensors[unit.tensor];
        let mut found = Found::default();
        if tensor.spec.role.is_matrix() {
            let cols = tensor.spec.inputs() as usize;
            debug_assert!(cols.is_multiple_of(GROUP), "ternary encodings have whole groups");
            if (self.rows.rows(), self.rows.cols()) != (unit.count, cols) {
                self.rows = TernaryRows::zeroed(unit.count, cols);
            }
            tensor.decode_rows(unit.first as usize, bytes, &mut self.rows)?;
            found.counts = Counts::of(&self.rows, tensor.encoding, bytes);
            if let Some(comparer) = &mut self.comparer {
                found.compared = comparer.rows(unit, &self.rows)?;
            }
        } else {
            self.values.resize(unit.count, 0.0);
            tensor.decode_values(bytes, &mut self.values);
            refuse_not_finite(tensor, unit.first, &self.values)?;
            if let Some(comparer) = &mut self.comparer {
                found.compared = comparer.values(unit, tensor, &self.values)?;
            }
        }
        Ok(found)
    }
}

#[cfg(test)]
mod tests;
