//! Everything that is decided before the first output byte.
//!
//! A plan gives every tensor a treatment, every output a layout and a size, and
//! refuses what cannot work: wrong widths, wrong containers, outputs that would
//! clobber files, a full disk. What it lets through fails only on contents.

use std::path::PathBuf;

use formats::dflash2::config::Config;
use formats::dflash2::drafter::{Container, Drafter, Rotation};
use formats::dflash2::names::{Codebooks, check_block};
use formats::gguf::Value;
use formats::q4nx;
use hadamard::{BlockHadamard, Isa};

use crate::Error;
use crate::bands::BAND_ROWS;
use crate::calibrated::{Bank, Calibration};
use crate::output::{self, Contents, Format, Output, Request, config_path};
use crate::ternary::Rule;

/// What is asked of a run.
#[derive(Debug, Clone)]
pub struct Options {
    /// The outputs.
    pub outputs: Vec<Request>,
    /// How float matrices become ternary; none when the input is ternary already.
    pub ternarize: Option<Ternarize>,
    /// Moments that a ternarization fits; the rule serves matrices without.
    pub calibration: Option<Calibration>,
    /// Spelling of the codebooks in outputs with published names; none keeps the
    /// published one.
    pub codebooks: Option<Codebooks>,
    /// `tokenizer.*` keys for GGUF outputs.
    pub tokenizer: Vec<(String, Value)>,
    /// Round scales, norms and base kernels that a q4nx cannot hold exactly.
    pub round_scales: bool,
    /// Further files that were read for this run, which no output may replace.
    pub other_inputs: Vec<PathBuf>,
    /// Where the report goes: a page where the name ends in `.html`, JSON otherwise.
    pub report: Option<PathBuf>,
    /// Replace existing outputs.
    pub force: bool,
    /// Instruction set at most.
    pub isa: Isa,
    /// Worker threads, at least 1.
    pub threads: usize,
}

/// Rule and rotation of a ternarization.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ternarize {
    /// The rule.
    pub rule: Rule,
    /// Inputs per Hadamard transform.
    pub block: usize,
}

/// A checked run.
#[derive(Debug)]
pub struct Plan<'a> {
    /// The input.
    pub drafter: &'a Drafter,
    /// Basis of the ternary matrices, before and after.
    pub rotation: Rotation,
    /// The rule; none for conversions between ternary files.
    pub rule: Option<Rule>,
    /// The outputs.
    pub outputs: Vec<Output>,
    /// What the user should know, one sentence each.
    pub notes: Vec<String>,
    pub(crate) hadamard: BlockHadamard,
    pub(crate) bank: Option<Bank>,
    pub(crate) options: Options,
}

impl<'a> Plan<'a> {
    /// Checks a run against its input and the file systems.
    ///
    /// # Errors
    /// See the module documentation.
    pub fn new(drafter: &'a Drafter, options: Options) -> Result<Self, Error> {
        let rotation = match options.ternarize {
            Some(Ternarize { block, .. }) => {
                refuse_ternary(drafter)?;
                check_block(&drafter.path, &drafter.config, block)?;
                Rotation { block, signs: std::collections::BTreeMap::new() }
            }
            None => drafter.rotation.clone().ok_or_else(|| refuse_float(drafter))?,
        };
        let hadamard = transform(drafter, rotation.block, options.isa)?;
        let rule = options.ternarize.map(|t| t.rule);
        let contents = Contents {
            drafter,
            rotation: &rotation,
            codebooks: options.codebooks.unwrap_or(Codebooks::Bare),
            rule: method(rule, options.calibration.as_ref()),
            tokenizer: &options.tokenizer,
        };
        let mut outputs = options
            .outputs
            .iter()
            .map(|request| Output::plan(request, &contents))
            .collect::<Result<Vec<_>, _>>()?;
        place_configs(&mut outputs, drafter);
        let bank = options
            .calibration
            .as_ref()
            .filter(|_| rule.is_some())
            .map(|calibration| Bank::new(drafter, calibration, rotation.block))
            .transpose()?;
        let mut inputs: Vec<_> = drafter.files.iter().map(|f| f.path()).collect();
        inputs.extend(drafter.config_path.as_deref());
        inputs.extend(options.other_inputs.iter().map(PathBuf::as_path));
        output::check_readers(&outputs, &inputs)?;
        output::check_paths(&outputs, options.report.as_deref(), &inputs, options.force)?;
        output::check_space(&outputs)?;

        let mut notes = drafter.notes.clone();
        notes.extend(notes_on(&rotation, &drafter.config, &outputs));
        Ok(Self { drafter, rotation, rule, outputs, notes, hadamard, bank, options })
    }

    /// How codes and scales are chosen, by its name in reports; none for conversions
    /// between ternary files.
    #[must_use]
    pub fn method(&self) -> Option<&'static str> {
        method(self.rule, self.options.calibration.as_ref())
    }

    /// Tensor bytes of the input.
    #[must_use]
    pub fn input_bytes(&self) -> u64 {
        self.drafter.tensors.iter().map(formats::dflash2::drafter::Tensor::byte_len).sum()
    }

    /// An upper bound of the memory that a run needs.
    #[must_use]
    pub fn memory_bytes(&self) -> u64 {
        let widest = self.drafter.config.matrix_widths().into_iter().max().unwrap_or(0);
        let band = BAND_ROWS * widest;
        // Input bytes, codes and scales, and for each output its encoded band
        // (8 bytes per weight where it is rotated back).
        let outputs: usize =
            self.outputs.iter().map(|o| if o.format.is_ternary() { band } else { 8 * band }).sum();
        let calibrated = self
            .bank
            .as_ref()
            .map_or(0, |bank| bank.memory_bytes(self.drafter, self.options.threads));
        (self.options.threads * (4 * band + band / 2 + outputs) + (32 << 20) + calibrated) as u64
    }
}

fn method(rule: Option<Rule>, calibration: Option<&Calibration>) -> Option<&'static str> {
    rule.map(|rule| calibration.map_or(rule.name(), Calibration::name))
}

/// The transform that rotates the matrices of `drafter`.
pub(crate) fn transform(drafter: &Drafter, block: usize, isa: Isa) -> Result<BlockHadamard, Error> {
    BlockHadamard::new(block, isa).map_err(|e| {
        Error::Input(formats::Error::Structure {
            path: drafter.path.clone(),
            part: "the rotation".into(),
            expected: "a block of a power of two from 2 to 8192".into(),
            found: match e {
                hadamard::Error::BlockSize { found } => found.to_string(),
                other => other.to_string(),
            },
            hint: None,
        })
    })
}

fn refuse_ternary(drafter: &Drafter) -> Result<(), Error> {
    if drafter.container == Container::Safetensors {
        return Ok(());
    }
    Err(Error::Input(formats::Error::Structure {
        path: drafter.path.clone(),
        part: "the matrices".into(),
        expected: "a float drafter (BF16, F16 or F32 safetensors)".into(),
        found: format!("a {} file that is ternary already", drafter.container.name()),
        hint: Some("use `ternarize convert` to write it in another format".into()),
    }))
}

/// What is said of a float drafter where a ternary one is needed.
pub(crate) fn refuse_float(drafter: &Drafter) -> Error {
    Error::Input(formats::Error::Structure {
        path: drafter.path.clone(),
        part: "the matrices".into(),
        expected: "a ternary drafter (q4nx or GGUF)".into(),
        found: "a float drafter".into(),
        hint: Some("use `ternarize INPUT -o OUT` to ternarize it".into()),
    })
}

/// Gives every output that has one the path of its `config.json`.
fn place_configs(outputs: &mut [Output], drafter: &Drafter) {
    let mut taken: Vec<(PathBuf, Vec<u8>)> = Vec::new();
    for output in outputs {
        let path = config_path(&output.path, drafter.config_path.as_deref());
        let Some(config) = &mut output.config else { continue };
        let place = output::resolved(&path);
        config.path = match taken.iter().find(|(p, _)| output::resolved(p) == place) {
            Some((_, bytes)) if *bytes != config.bytes => output::named_config(&output.path),
            // In one spelling: it is written once.
            Some((taken, _)) => taken.clone(),
            None => path,
        };
        taken.push((config.path.clone(), config.bytes.clone()));
    }
}

fn notes_on(rotation: &Rotation, config: &Config, outputs: &[Output]) -> Vec<String> {
    let mut notes = Vec::new();
    let q4nx = outputs.iter().any(|o| o.format == Format::Q4nx);
    if q4nx && rotation.block != BlockHadamard::DEFAULT_BLOCK {
        notes.push(format!(
            "OpenFlowLM reads a rotation block of {} only; this file has {}",
            BlockHadamard::DEFAULT_BLOCK,
            rotation.block
        ));
    }
    let narrow = |rows: usize| !rows.is_multiple_of(2 * q4nx::ROW_BLOCK);
    if q4nx
        && [config.q_width(), config.kv_width(), config.intermediate_size, config.hidden_size]
            .into_iter()
            .any(narrow)
    {
        notes.push(
            "OpenFlowLM reads rows in bands of 64; a matrix of this file has other rows".into(),
        );
    }
    notes
}
