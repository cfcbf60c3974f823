//! The run: bands of rows through rotation, rule and encoders, on all cores.
//!
//! Workers take bands in the order of the input file (see `bands`) and write each
//! result at its planned place, so the bytes do not depend on how the work was
//! shared out. The first worker hashes the input before it joins in.

use std::time::{Duration, Instant};

use formats::dflash2::drafter::{Buffer, Encoding, Tensor};
use formats::{Fault, GROUP, TernaryRows};
use rayon::prelude::*;

use crate::bands::{self, BAND_ROWS, Unit};
use crate::calibrated::{self, BandFault, Bank, Losses, Solver, Store};
use crate::observer::Observer;
use crate::output::{Encoder, Rounded, SideFile, at_least};
use crate::pending::Pending;
use crate::plan::Plan;
use crate::report::Report;
use crate::ternary::{GroupFault, Stats, Ternarizer};
use crate::{Error, digest};

/// What a run did.
#[derive(Debug)]
pub struct Outcome {
    /// Per tensor, in the order of the model's specs.
    pub tensors: Vec<TensorOutcome>,
    /// SHA-256 of each input file, in the order of [`formats::dflash2::drafter::Drafter::files`].
    pub input_sha256: Vec<String>,
    /// SHA-256 of each output.
    pub output_sha256: Vec<String>,
    /// Where the time went.
    pub timings: Timings,
}

/// What a run did to one tensor.
#[derive(Debug, Clone, Default)]
pub struct TensorOutcome {
    /// Figures of the ternarization; none for tensors that stay as they were.
    pub stats: Option<Stats>,
    /// Losses by the moments; none where there were none.
    pub(crate) losses: Option<Losses>,
    /// Scales rounded for an output that could not hold them.
    pub rounded_scales: u64,
    /// Values rounded for an output that could not hold them.
    pub rounded_values: u64,
}

/// Wall-clock time of the parts of a run.
#[derive(Debug, Clone, Copy, Default)]
pub struct Timings {
    /// Reading, computing and writing into the page cache, input hash included.
    pub convert: Duration,
    /// Hashing the outputs, while the disk is waited for.
    pub hash: Duration,
    /// Waiting for the disk.
    pub sync: Duration,
}

/// Result of one unit.
#[derive(Debug, Default)]
struct UnitOutcome {
    stats: Option<Stats>,
    losses: Option<Losses>,
    rounded: Rounded,
}

impl Plan<'_> {
    /// Converts. Outputs appear under their names only when all of them are whole.
    ///
    /// # Errors
    /// The first fault in the order of the input; [`Error::Interrupted`] when the
    /// observer asks to stop. Nothing of the outputs is left behind.
    pub fn run(&self, observer: &dyn Observer) -> Result<Outcome, Error> {
        let start = Instant::now();
        let files = Files::create(self)?;
        let pool = bands::pool(self.options.threads, &self.drafter.path)?;
        let (input_sha256, tensors) = pool.install(|| self.convert(&files.outputs, observer))?;
        for (output, pending) in self.outputs.iter().zip(&files.outputs) {
            pending.write_at(0, &output.header(&self.lineage_digest(&input_sha256))?)?;
        }
        let convert = start.elapsed();

        // The disk is busy with one while the processor is busy with the other.
        let ((output_sha256, hash), (synced, sync)) = pool.install(|| {
            rayon::join(|| timed(|| self.hash(&files.outputs, observer)), || timed(|| files.sync()))
        });
        let output_sha256 = output_sha256?;
        synced?;

        let timings = Timings { convert, hash, sync };
        let outcome = Outcome { tensors, input_sha256, output_sha256, timings };
        if let Some(report) = &files.report {
            let bytes = Report::new(self, &outcome)
                .for_file(report.path())
                .map_err(|e| Error::write("writing", report.path(), e.into()))?;
            report.write_at(0, &bytes)?;
            report.sync()?;
        }
        files.publish(self.options.force)?;
        Ok(outcome)
    }

    fn hash(&self, files: &[Pending], observer: &dyn Observer) -> Result<Vec<String>, Error> {
        let lens: Vec<u64> = self.outputs.iter().map(|o| o.file_len).collect();
        let hash = |(file, len): (&Pending, u64)| {
            digest::of_output(file.path(), file.file(), len, observer)
        };
        files.par_iter().zip(lens).map(hash).collect()
    }

    /// The digest that goes into a GGUF's lineage: the file's, or that of the list
    /// of shards.
    fn lineage_digest(&self, input_sha256: &[String]) -> String {
        match input_sha256 {
            [only] => only.clone(),
            several => {
                let name = |path: &std::path::Path| {
                    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
                };
                let names = self.drafter.files.iter().map(|f| name(f.path()));
                formats::digest::of_listing(&names.zip(several.iter().cloned()).collect::<Vec<_>>())
            }
        }
    }

    /// All units through all workers; input digests and per-tensor outcomes.
    fn convert(
        &self,
        pending: &[Pending],
        observer: &dyn Observer,
    ) -> Result<(Vec<String>, Vec<TensorOutcome>), Error> {
        let bands_of = |tensor: &Tensor| (tensor.spec.shape[0] as usize).div_ceil(BAND_ROWS);
        let stores =
            self.bank.as_ref().map(|bank| bank.open(self.drafter.tensors.iter().map(bands_of)));
        let stores = stores.unwrap_or_default();
        let (hashes, outcomes) =
            bands::share(self.drafter, self.options.threads, observer, || {
                Worker::new(self, pending, &stores)
            })?;
        let mut tensors = vec![TensorOutcome::default(); self.drafter.tensors.len()];
        for (unit, UnitOutcome { stats, losses, rounded }) in outcomes {
            let tensor = &mut tensors[unit.tensor];
            tensor.rounded_scales += rounded.scales;
            tensor.rounded_values += rounded.values;
            if let Some(stats) = stats {
                tensor.stats.get_or_insert_default().merge(&stats);
            }
            if let Some(losses) = losses {
                tensor.losses.get_or_insert_default().merge(&losses);
            }
        }
        Ok((hashes, tensors))
    }
}

/// A result, and how long it took.
fn timed<T>(work: impl FnOnce() -> T) -> (T, Duration) {
    let start = Instant::now();
    let result = work();
    (result, start.elapsed())
}

/// Everything a run writes, under partial names.
struct Files {
    outputs: Vec<Pending>,
    configs: Vec<Pending>,
    report: Option<Pending>,
}

impl Files {
    /// Creates all files, so that what cannot be written shows before the work.
    fn create(plan: &Plan<'_>) -> Result<Self, Error> {
        let outputs = plan
            .outputs
            .iter()
            .map(|output| Pending::create(&output.path, output.file_len))
            .collect::<Result<_, _>>()?;
        let mut configs: Vec<&SideFile> =
            plan.outputs.iter().filter_map(|o| o.config.as_ref()).collect();
        configs.sort_by(|a, b| a.path.cmp(&b.path));
        configs.dedup_by(|a, b| a.path == b.path);
        let configs = configs
            .into_iter()
            .map(|config| {
                let file = Pending::create(&config.path, config.bytes.len() as u64)?;
                file.write_at(0, &config.bytes)?;
                Ok(file)
            })
            .collect::<Result<_, Error>>()?;
        let report =
            plan.options.report.as_ref().map(|path| Pending::create(path, 0)).transpose()?;
        Ok(Self { outputs, configs, report })
    }

    /// Waits until everything but the report is on the disk.
    fn sync(&self) -> Result<(), Error> {
        self.outputs.iter().chain(&self.configs).try_for_each(Pending::sync)
    }

    /// Gives the files their names, the configurations first: an output never
    /// stands without its own. When one cannot be renamed, those before it go
    /// again, unless they replaced others.
    fn publish(self, force: bool) -> Result<(), Error> {
        let mut published = Vec::new();
        for file in self.configs.into_iter().chain(self.outputs).chain(self.report) {
            let path = file.path().to_path_buf();
            if let Err(error) = file.publish(force) {
                if !force {
                    for path in published {
                        // The first error is the one to tell.
                        let _ = std::fs::remove_file(path);
                    }
                }
                return Err(error);
            }
            published.push(path);
        }
        Ok(())
    }
}

/// One thread's working memory.
struct Worker<'a> {
    plan: &'a Plan<'a>,
    pending: &'a [Pending],
    encoders: Vec<Encoder>,
    ternarizer: Option<Ternarizer>,
    solver: Option<Solver>,
    stores: &'a [Store],
    /// Columns of a band that are solved together.
    columns: Vec<f32>,
    values: Vec<f32>,
    rows: TernaryRows,
}

impl<'a> Worker<'a> {
    fn new(plan: &'a Plan<'a>, pending: &'a [Pending], stores: &'a [Store]) -> Self {
        let encoders = plan
            .outputs
            .iter()
            .map(|output| {
                Encoder::new(
                    output.format,
                    &plan.rotation,
                    plan.hadamard.clone(),
                    plan.options.round_scales,
                )
            })
            .collect();
        Self {
            plan,
            pending,
            encoders,
            ternarizer: plan.rule.map(|rule| Ternarizer::new(rule, plan.options.isa)),
            solver: plan
                .bank
                .as_ref()
                .map(|bank| Solver::new(plan.options.isa, bank.calibration().rounds)),
            stores,
            columns: Vec::new(),
            values: Vec::new(),
            rows: TernaryRows::zeroed(0, 0),
        }
    }

    fn matrix(&mut self, tensor: &Tensor, unit: Unit, bytes: &[u8]) -> Result<UnitOutcome, Error> {
        let cols = tensor.spec.inputs() as usize;
        if (self.rows.rows(), self.rows.cols()) != (unit.count, cols) {
            self.rows = TernaryRows::zeroed(unit.count, cols);
        }
        let first_row = unit.first as usize;
        let mut outcome = UnitOutcome::default();
        let feed = self.plan.bank.as_ref().and_then(|bank| bank.feed(unit.tensor));
        if let Some(feed) = feed {
            let rounded = self.calibrate(feed, tensor, unit, bytes)?;
            (outcome.stats, outcome.losses) = (Some(rounded.stats), Some(rounded.losses));
        } else if let Some(ternarizer) = self.ternarizer {
            let mut stats = Stats::default();
            self.ternarize(ternarizer, tensor, first_row, bytes, &mut stats)?;
            outcome.stats = Some(stats);
        } else {
            tensor.decode_rows(first_row, bytes, &mut self.rows)?;
        }
        for ((output, encoder), pending) in
            self.plan.outputs.iter().zip(&mut self.encoders).zip(self.pending)
        {
            let row_bytes = encoder.row_bytes(cols) as u64;
            let (bytes, rounded) = encoder.rows(&self.rows).map_err(|fault| {
                does_not_fit(tensor, fault, output, (first_row * (cols / GROUP)) as u64)
            })?;
            outcome.rounded.merge(rounded);
            pending.write_at(output.offsets[unit.tensor] + unit.first * row_bytes, bytes)?;
        }
        Ok(outcome)
    }

    /// Rotates and ternarizes one band, a few Hadamard blocks at a time so that
    /// they stay in the nearest cache.
    fn ternarize(
        &mut self,
        ternarizer: Ternarizer,
        tensor: &Tensor,
        first_row: usize,
        bytes: &[u8],
        stats: &mut Stats,
    ) -> Result<(), Error> {
        let cols = self.rows.cols();
        let value_bytes = bytes.len() / (self.rows.rows() * cols);
        let first_value = (first_row * cols) as u64;
        let (codes, scales) = self.rows.parts_mut();
        // Blocks and batches of groups are powers of two, and a tile is both.
        let tile = self.plan.rotation.block.max(16 * GROUP);
        let values = at_least(&mut self.values, tile);
        for (index, ((bytes, codes), scales)) in bytes
            .chunks(tile * value_bytes)
            .zip(codes.chunks_mut(tile / 4))
            .zip(scales.chunks_mut(tile / GROUP))
            .enumerate()
        {
            let values = &mut values[..bytes.len() / value_bytes];
            tensor.decode_values(bytes, values);
            let rotated = self.plan.hadamard.transform(values);
            debug_assert!(rotated.is_ok(), "widths were checked against the block");
            ternarizer.groups(values, codes, scales, stats).map_err(|fault| {
                let base = first_value + (index * tile) as u64;
                no_ternary_form(tensor, fault, base, self.plan.rotation.block)
            })?;
        }
        Ok(())
    }

    /// Rotates one band and rounds it by its moments.
    fn calibrate(
        &mut self,
        feed: usize,
        tensor: &Tensor,
        unit: Unit,
        bytes: &[u8],
    ) -> Result<calibrated::Rounded, Error> {
        let (Some(bank), Some(solver)) = (&self.plan.bank, &mut self.solver) else {
            return Ok(calibrated::Rounded::default());
        };
        let cols = self.rows.cols();
        let values = at_least(&mut self.values, unit.count * cols);
        tensor.decode_values(bytes, values);
        let rotated = self.plan.hadamard.transform(values);
        debug_assert!(rotated.is_ok(), "widths were checked against the block");
        let (drafter, isa) = (self.plan.drafter, self.plan.options.isa);
        let n = bank.unit_columns();
        let threads = self.plan.options.threads.max(1);
        // Workers begin at different columns, so that they prepare different moments.
        let first = rayon::current_thread_index().unwrap_or(0) * (cols / n) / threads;
        let hessian = |run| bank.hessian(self.stores, drafter, feed, run, isa);
        let rounded =
            calibrated::round(solver, values, n, first, hessian, &mut self.rows, &mut self.columns);
        Bank::done(self.stores, feed);
        rounded.map_err(|fault| match fault {
            BandFault::Moments(error) => error,
            BandFault::Group(at, fault) => {
                let base = unit.first * cols as u64 + at as u64;
                no_ternary_form(tensor, fault.of_first(), base, self.plan.rotation.block)
            }
        })
    }

    fn rest(&mut self, tensor: &Tensor, unit: Unit, stored: &[u8]) -> Result<UnitOutcome, Error> {
        let values = at_least(&mut self.values, unit.count);
        tensor.decode_values(stored, values);
        refuse_not_finite(tensor, unit.first, values)?;
        let mut outcome = UnitOutcome::default();
        for ((output, encoder), pending) in
            self.plan.outputs.iter().zip(&mut self.encoders).zip(self.pending)
        {
            let value_bytes = encoder.value_bytes(&tensor.spec) as u64;
            let (bytes, rounded) = if tensor.encoding == Encoding::Bf16 && value_bytes == 2 {
                (stored, Rounded::default())
            } else {
                encoder
                    .values(&tensor.spec, values)
                    .map_err(|fault| does_not_fit(tensor, fault, output, unit.first))?
            };
            // Between ternary files nothing changes silently.
            if rounded.values > 0
                && self.ternarizer.is_none()
                && output.format.is_ternary()
                && !self.plan.options.round_scales
            {
                return Err(Error::Unsupported {
                    path: output.path.clone(),
                    format: output.format.name(),
                    expected: format!("`{}` exact in BF16", tensor.spec.name),
                    found: format!(
                        "{} values in {} that are not",
                        rounded.values,
                        tensor.encoding.name()
                    ),
                    hint: Some("use --round-scales to round them".into()),
                });
            }
            outcome.rounded.merge(rounded);
            pending.write_at(output.offsets[unit.tensor] + unit.first * value_bytes, bytes)?;
        }
        Ok(outcome)
    }
}

impl bands::Worker for Worker<'_> {
    type Outcome = UnitOutcome;

    fn unit(&mut self, unit: Unit, bytes: &[u8]) -> Result<UnitOutcome, Error> {
        let tensor = &self.plan.drafter.tensors[unit.tensor];
        if tensor.spec.role.is_matrix() {
            self.matrix(tensor, unit, bytes)
        } else {
            self.rest(tensor, unit, bytes)
        }
    }
}

/// Refuses the first NaN or infinity; `first` is the flat index of `values`.
pub(crate) fn refuse_not_finite(tensor: &Tensor, first: u64, values: &[f32]) -> Result<(), Error> {
    match values.iter().position(|v| !v.is_finite()) {
        None => Ok(()),
        Some(at) => Err(not_finite(tensor, first + at as u64, values[at])),
    }
}

fn not_finite(tensor: &Tensor, index: u64, value: f32) -> Error {
    let fault = Fault {
        unit: "value",
        index,
        expected: "a finite number".into(),
        found: value.to_string(),
    };
    fault.at(tensor.path(), &tensor.stored_name).into()
}

/// What a codec of an output refuses; `base` is the index of the band's first group.
fn does_not_fit(tensor: &Tensor, fault: Fault, output: &crate::output::Output, base: u64) -> Error {
    let fault = fault.offset_by(base);
    let is_scale = fault.expected.contains("scale");
    Error::Unsupported {
        path: output.path.clone(),
        format: output.format.name(),
        expected: fault.expected,
        found: format!(
            "{} in {} {} of `{}`",
            fault.found, fault.unit, fault.index, tensor.spec.name
        ),
        hint: (output.format == crate::output::Format::Q4nx && is_scale)
            .then(|| "use --round-scales to round it".into()),
    }
}

/// A group that the rule refuses: blames the stored value where there is one.
/// `base` is the flat index of the tile's first weight.
fn no_ternary_form(tensor: &Tensor, fault: GroupFault, base: u64, block: usize) -> Error {
    let (group, expected, found) = match fault {
        GroupFault::Overflow { group, scale } => (
            group,
            format!("a scale below {}", formats::scale::OVERFLOW),
            format!("{scale:e}, which overflows fp16"),
        ),
        GroupFault::NotTernary { group, scale, weight } => (
            group,
            format!("weights that are ternary in rotation blocks of {block}"),
            format!("{weight:e} with the scale {scale:e}; is `--block` that of the tuning?"),
        ),
        GroupFault::NotFinite { group } => {
            let first = (base + (group * GROUP) as u64) / block as u64 * block as u64;
            let mut stored = vec![0.0; block];
            if let Err(error) = tensor.read_values(first, &mut stored, &mut Buffer::default()) {
                return error.into();
            }
            if let Err(error) = refuse_not_finite(tensor, first, &stored) {
                return error;
            }
            (group, "finite weights after the rotation".into(), "an overflow of f32".into())
        }
    };
    let index = base / GROUP as u64 + group as u64;
    Fault { unit: "group", index, expected, found }.at(tensor.path(), &tensor.stored_name).into()
}
