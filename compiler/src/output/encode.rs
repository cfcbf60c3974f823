//! From rows and values in memory to the bytes of one output.

use formats::dflash2::drafter::Rotation;
use formats::dflash2::names::TensorSpec;
use formats::{Fault, TernaryRows, pq2_0, ptq1_0, q4nx, scale};
use hadamard::{BlockHadamard, Signs};
use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};
use ndarray::ArrayViewMut2;

use super::Format;

/// What was changed to fit the output.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Rounded {
    /// Scales that were not exact in bf16.
    pub(crate) scales: u64,
    /// Values that were not exact in the output's type.
    pub(crate) values: u64,
}

impl Rounded {
    pub(crate) fn merge(&mut self, other: Self) {
        self.scales += other.scales;
        self.values += other.values;
    }
}

/// Encodes for one format; keeps its working memory between calls.
#[derive(Debug)]
pub(crate) struct Encoder {
    format: Format,
    rotation: BlockHadamard,
    signs: Vec<(usize, Signs)>,
    /// Whether scales that bf16 cannot hold are rounded rather than refused.
    round_scales: bool,
    bytes: Vec<u8>,
    values: Vec<f32>,
}

impl Encoder {
    pub(crate) fn new(
        format: Format,
        rotation: &Rotation,
        hadamard: BlockHadamard,
        round_scales: bool,
    ) -> Self {
        let signs = rotation
            .signs
            .iter()
            .filter_map(|(width, signs)| Some((*width, Signs::new(signs.clone()).ok()?)))
            .collect();
        Self {
            format,
            rotation: hadamard,
            signs,
            round_scales,
            bytes: Vec::new(),
            values: Vec::new(),
        }
    }

    /// Bytes per row of a matrix.
    pub(crate) fn row_bytes(&self, cols: usize) -> usize {
        match self.format {
            Format::Pq2_0 => pq2_0::row_bytes(cols),
            Format::Ptq1_0 => ptq1_0::row_bytes(cols),
            Format::Q4nx => cols / q4nx::COL_BLOCK * q4nx::CHUNK_BYTES / q4nx::ROW_BLOCK,
            Format::F32 => 4 * cols,
            Format::Bf16 => 2 * cols,
        }
    }

    /// Bytes per value of a tensor that is not a matrix.
    pub(crate) fn value_bytes(&self, spec: &TensorSpec) -> usize {
        match self.format {
            Format::Q4nx | Format::Bf16 => 2,
            Format::Pq2_0 | Format::Ptq1_0 if spec.role.is_codebook() => 2,
            Format::Pq2_0 | Format::Ptq1_0 | Format::F32 => 4,
        }
    }

    /// The bytes of a band of rows.
    pub(crate) fn rows(&mut self, rows: &TernaryRows) -> Result<(&[u8], Rounded), Fault> {
        let len = rows.rows() * self.row_bytes(rows.cols());
        if !self.format.is_ternary() {
            self.primal(rows);
        }
        let bytes = at_least(&mut self.bytes, len);
        let mut rounded = Rounded::default();
        match self.format {
            Format::Pq2_0 => pq2_0::encode(rows, bytes),
            Format::Ptq1_0 => ptq1_0::encode(rows, bytes)?,
            Format::Q4nx if self.round_scales => {
                let mut rows = rows.clone();
                rounded.scales = round_scales(&mut rows)?;
                q4nx::encode(&rows, bytes)?;
            }
            Format::Q4nx => q4nx::encode(rows, bytes)?,
            Format::F32 => write_f32(&self.values[..rows.rows() * rows.cols()], bytes),
            Format::Bf16 => {
                // The primal basis has no bf16 form of its own: rounding is what was
                // asked for and is not counted.
                write_bf16(&self.values[..rows.rows() * rows.cols()], bytes)?;
            }
        }
        Ok((bytes, rounded))
    }

    /// The bytes of a run of values of a norm, base kernel or codebook.
    pub(crate) fn values(
        &mut self,
        spec: &TensorSpec,
        values: &[f32],
    ) -> Result<(&[u8], Rounded), Fault> {
        let value_bytes = self.value_bytes(spec);
        let bytes = at_least(&mut self.bytes, values.len() * value_bytes);
        let mut rounded = Rounded::default();
        if value_bytes == 4 {
            write_f32(values, bytes);
        } else {
            rounded.values = write_bf16(values, bytes)?;
        }
        Ok((bytes, rounded))
    }

    /// Rotates rows back into the primal basis, into `self.values`.
    fn primal(&mut self, rows: &TernaryRows) {
        let cols = rows.cols();
        let signs = self.signs.iter().find(|(width, _)| *width == cols).map(|(_, signs)| signs);
        let values = at_least(&mut self.values, rows.rows() * cols);
        let mut values = ArrayViewMut2::from_shape((rows.rows(), cols), values)
            .expect("the buffer was cut to this shape");
        for (r, mut row) in values.rows_mut().into_iter().enumerate() {
            let row = row.as_slice_mut().expect("rows of a row-major view are contiguous");
            rows.dequantize_row(r, row);
            let done = match signs {
                Some(signs) => self.rotation.inverse(row, signs),
                None => self.rotation.transform(row),
            };
            debug_assert!(done.is_ok(), "widths were checked against the block");
        }
    }
}

/// The first `len` elements of a buffer that grows but never shrinks, so that
/// nothing is cleared over and over.
pub(crate) fn at_least<T: Copy + Default>(buffer: &mut Vec<T>, len: usize) -> &mut [T] {
    if buffer.len() < len {
        buffer.resize(len, T::default());
    }
    &mut buffer[..len]
}

fn write_f32(values: &[f32], bytes: &mut [u8]) {
    for (bytes, value) in bytes.as_chunks_mut().0.iter_mut().zip(values) {
        *bytes = value.to_le_bytes();
    }
}

/// Writes values rounded to bf16 and counts those that changed.
fn write_bf16(values: &[f32], bytes: &mut [u8]) -> Result<u64, Fault> {
    const RUN: usize = 1024;
    let mut narrow = [bf16::ZERO; RUN];
    let mut rounded = 0;
    for (run, (values, bytes)) in values.chunks(RUN).zip(bytes.chunks_mut(2 * RUN)).enumerate() {
        let narrow = &mut narrow[..values.len()];
        narrow.convert_from_f32_slice(values);
        for (bytes, narrow) in bytes.as_chunks_mut().0.iter_mut().zip(&*narrow) {
            *bytes = narrow.to_le_bytes();
        }
        rounded += values.iter().zip(&*narrow).filter(|(v, n)| n.to_f32() != **v).count() as u64;
        if let Some(at) = narrow.iter().position(|n| !n.is_finite()) {
            return Err(Fault {
                unit: "value",
                index: (run * RUN + at) as u64,
                expected: "a finite number that bf16 can hold".into(),
                found: values[at].to_string(),
            });
        }
    }
    Ok(rounded)
}

/// Moves every scale to the nearest value that fp16 and bf16 share; returns how
/// many moved.
fn round_scales(rows: &mut TernaryRows) -> Result<u64, Fault> {
    let mut moved = 0;
    let (_, scales) = rows.parts_mut();
    for (group, stored) in scales.iter_mut().enumerate() {
        if scale::on_grid(*stored) {
            continue;
        }
        let magnitude = f64::from(stored.to_f32().abs());
        let Some(near) = scale::round_to_grid(magnitude) else {
            return Err(Fault {
                unit: "group",
                index: group as u64,
                expected: format!("a scale below {}", scale::OVERFLOW),
                found: stored.to_string(),
            });
        };
        *stored = f16::from_bits(near.to_bits() | (stored.to_bits() & 0x8000));
        moved += 1;
    }
    Ok(moved)
}
