//! The report of a run: what went in, what came out, how good it is.

use std::collections::BTreeMap;
use std::path::Path;

use formats::dflash2::drafter::Drafter;
use serde::Serialize;

use crate::calibrated::{Bank, Facts, Losses, Moments};
use crate::pipeline::{Outcome, TensorOutcome};
use crate::plan::Plan;
use crate::ternary::Stats;

mod page;

/// Version of the report's keys.
pub const SCHEMA: u32 = 1;

/// A run, ready to be written as JSON.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// [`SCHEMA`].
    pub schema: u32,
    /// Version of this program.
    pub version: &'static str,
    /// The input.
    pub input: Input,
    /// The rule; absent for conversions between ternary files.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rule: Option<&'static str>,
    /// The calibration; absent without.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub calibration: Option<CalibrationReport>,
    /// Inputs per Hadamard transform.
    pub block: usize,
    /// The outputs.
    pub outputs: Vec<OutputFile>,
    /// All matrices together; absent for conversions between ternary files.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub total: Option<Quality>,
    /// Each matrix, in the order of the model.
    pub matrices: Vec<Matrix>,
    /// The tensors that stay float.
    pub other_tensors: Vec<Other>,
    /// What the user should know.
    pub notes: Vec<String>,
    /// Reading, computing and writing, the input's hash included.
    pub convert_ms: u64,
    /// Hashing the outputs.
    pub hash_ms: u64,
    /// Waiting for the disk.
    pub sync_ms: u64,
}

/// The input.
#[derive(Debug, Clone, Serialize)]
pub struct Input {
    /// The path that was given.
    pub path: String,
    /// The kind of file.
    pub container: &'static str,
    /// The files that hold tensors.
    pub files: Vec<InputFile>,
    /// Values in all tensors.
    pub parameters: u64,
}

/// One file of the input.
#[derive(Debug, Clone, Serialize)]
pub struct InputFile {
    /// Its path.
    pub path: String,
    /// Its size.
    pub size_bytes: u64,
    /// Its SHA-256.
    pub sha256: String,
}

/// One output.
#[derive(Debug, Clone, Serialize)]
pub struct OutputFile {
    /// Its path.
    pub path: String,
    /// Its format.
    pub format: &'static str,
    /// Its size.
    pub size_bytes: u64,
    /// Bytes of tensors in it.
    pub data_bytes: u64,
    /// Its SHA-256.
    pub sha256: String,
    /// The `config.json` written with it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub config: Option<String>,
}

/// One matrix.
#[derive(Debug, Clone, Serialize)]
pub struct Matrix {
    /// Its published name.
    pub name: String,
    /// `[out, in]`.
    pub shape: Vec<u64>,
    /// How it was stored in the input.
    pub from: &'static str,
    /// Figures of the ternarization.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub quality: Option<Quality>,
    /// What calibration did; absent for a matrix without moments.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub calibration: Option<MatrixCalibration>,
    /// Scales rounded for an output that could not hold them.
    pub rounded_scales: u64,
}

/// Where moments came from, and how they were used.
#[derive(Debug, Clone, Serialize)]
pub struct CalibrationReport {
    /// `prior`, or the calibration file.
    pub source: String,
    /// SHA-256 of the target that the rows were captured with.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target_sha256: Option<String>,
    /// Positions of the captured texts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub positions: Option<u64>,
    /// Rounds of scales and codes at most.
    pub rounds: usize,
    /// Matrices that had moments.
    pub matrices: usize,
}

/// Output errors of one matrix by its moments, relative to the energy of the outputs.
#[derive(Debug, Clone, Serialize)]
pub struct MatrixCalibration {
    /// The inputs, or the norms, that count alike.
    pub inputs: Vec<String>,
    /// Rows behind the moments.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rows: Option<u64>,
    /// What was added to the diagonal, relative to its mean.
    pub damping: f64,
    /// With the optimum of the weights alone.
    pub optimal_loss: f64,
    /// With the codes and scales chosen.
    pub loss: f64,
}

/// How well ternary weights stand for the float ones.
#[derive(Debug, Clone, Serialize)]
pub struct Quality {
    /// Weights.
    pub weights: u64,
    /// Sum of squared errors over sum of squares.
    pub relative_error: f64,
    /// Share of weights that are 0.
    pub zero_share: f64,
    /// Groups of 128 weights that were all zero.
    pub zero_groups: u64,
    /// Groups with a non-zero weight whose scale rounds to zero.
    pub underflow_groups: u64,
    /// Scales by binary exponent: `"-9": n` counts scales in [2^-9, 2^-8).
    pub scale_exponents: BTreeMap<i32, u64>,
}

/// One tensor that stays float.
#[derive(Debug, Clone, Serialize)]
pub struct Other {
    /// Its published name.
    pub name: String,
    /// Its shape.
    pub shape: Vec<u64>,
    /// How it was stored in the input.
    pub from: &'static str,
    /// Values that an output could not hold exactly, rounded to nearest.
    pub rounded_values: u64,
}

impl Report {
    /// The bytes of a file of this name: a page where it ends in `.html`, JSON otherwise.
    ///
    /// # Errors
    /// Those of the serializer.
    pub(crate) fn for_file(&self, path: &Path) -> serde_json::Result<Vec<u8>> {
        if path.extension().is_some_and(|e| e.eq_ignore_ascii_case("html")) {
            return Ok(page::html(self).into_bytes());
        }
        serde_json::to_vec_pretty(self)
    }

    /// The report of a finished run.
    #[must_use]
    pub fn new(plan: &Plan<'_>, outcome: &Outcome) -> Self {
        let drafter = plan.drafter;
        let mut total: Option<Stats> = None;
        for stats in outcome.tensors.iter().filter_map(|t| t.stats.as_ref()) {
            total.get_or_insert_default().merge(stats);
        }
        let tensors = || drafter.tensors.iter().zip(&outcome.tensors);
        Self {
            schema: SCHEMA,
            version: env!("CARGO_PKG_VERSION"),
            input: Input::new(drafter, &outcome.input_sha256),
            rule: plan.method(),
            calibration: plan.bank.as_ref().map(|bank| CalibrationReport::new(bank, drafter)),
            block: plan.rotation.block,
            outputs: plan
                .outputs
                .iter()
                .zip(&outcome.output_sha256)
                .map(|(output, sha256)| OutputFile {
                    path: output.path.to_string_lossy().into_owned(),
                    format: output.format.name(),
                    size_bytes: output.file_len,
                    data_bytes: output.data_len,
                    sha256: sha256.clone(),
                    config: output.config.as_ref().map(|c| c.path.to_string_lossy().into_owned()),
                })
                .collect(),
            total: total.as_ref().map(Quality::new),
            matrices: tensors()
                .enumerate()
                .filter(|(_, (t, _))| t.spec.role.is_matrix())
                .map(|(index, (tensor, outcome))| (index, tensor, outcome))
                .map(|(index, tensor, TensorOutcome { stats, losses, rounded_scales, .. })| {
                    Matrix {
                        name: tensor.spec.name.clone(),
                        shape: tensor.spec.shape.clone(),
                        from: tensor.encoding.name(),
                        quality: stats.as_ref().map(Quality::new),
                        calibration: plan
                            .bank
                            .as_ref()
                            .and_then(|bank| bank.facts(drafter, index))
                            .zip(losses.as_ref())
                            .map(|(facts, losses)| MatrixCalibration::new(facts, losses)),
                        rounded_scales: *rounded_scales,
                    }
                })
                .collect(),
            other_tensors: tensors()
                .filter(|(t, _)| !t.spec.role.is_matrix())
                .map(|(tensor, outcome)| Other {
                    name: tensor.spec.name.clone(),
                    shape: tensor.spec.shape.clone(),
                    from: tensor.encoding.name(),
                    rounded_values: outcome.rounded_values,
                })
                .collect(),
            notes: plan.notes.clone(),
            convert_ms: outcome.timings.convert.as_millis() as u64,
            hash_ms: outcome.timings.hash.as_millis() as u64,
            sync_ms: outcome.timings.sync.as_millis() as u64,
        }
    }
}

impl Input {
    pub(crate) fn new(drafter: &Drafter, sha256: &[String]) -> Self {
        Self {
            path: drafter.path.to_string_lossy().into_owned(),
            container: drafter.container.name(),
            files: drafter
                .files
                .iter()
                .zip(sha256)
                .map(|(file, sha256)| InputFile {
                    path: file.path().to_string_lossy().into_owned(),
                    size_bytes: file.len(),
                    sha256: sha256.clone(),
                })
                .collect(),
            parameters: drafter.tensors.iter().map(|t| t.spec.parameters()).sum(),
        }
    }
}

impl CalibrationReport {
    fn new(bank: &Bank, drafter: &Drafter) -> Self {
        let calibration = bank.calibration();
        let (source, target_sha256, positions) = match &calibration.moments {
            Moments::Prior => ("prior".into(), None, None),
            Moments::Captured(file) => {
                let document = file.document();
                let positions = document.texts.iter().map(|texts| texts.positions).sum();
                let source = file.path().to_string_lossy().into_owned();
                (source, Some(document.models.target_sha256.clone()), Some(positions))
            }
        };
        let matrices =
            (0..drafter.tensors.len()).filter(|tensor| bank.feed(*tensor).is_some()).count();
        Self { source, target_sha256, positions, rounds: calibration.rounds, matrices }
    }
}

impl MatrixCalibration {
    fn new(facts: Facts, losses: &Losses) -> Self {
        // Outputs that are always zero have no error.
        let relative = |loss: f64| if losses.energy > 0.0 { loss / losses.energy } else { 0.0 };
        Self {
            inputs: facts.inputs,
            rows: facts.rows,
            damping: facts.damping,
            optimal_loss: relative(losses.optimal),
            loss: relative(losses.chosen),
        }
    }
}

impl Quality {
    /// The figures of some groups.
    #[must_use]
    pub fn new(stats: &Stats) -> Self {
        Self {
            weights: stats.groups * formats::GROUP as u64,
            relative_error: stats.relative_error(),
            zero_share: stats.zero_share(),
            zero_groups: stats.zero_groups,
            underflow_groups: stats.underflow_groups,
            scale_exponents: Stats::by_exponent(&stats.scale_exponents),
        }
    }
}
