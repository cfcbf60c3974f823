//! FILE against INPUT, band by band.
//!
//! A float INPUT is rotated into FILE's basis, where the transform keeps squared
//! errors as they are. A ternary INPUT must have the same weights: what counts is
//! the value s * (code - 1), so a negative scale equals mirrored codes, and a
//! scale of a group without non-zero codes equals any other.

use std::collections::BTreeMap;
use std::fmt;

use formats::dflash2::drafter::{Buffer, Drafter, Encoding, Tensor};
use formats::{GROUP, TernaryRows};
use hadamard::{BlockHadamard, Isa, Signs};
use half::{bf16, f16};
use serde::Serialize;

use crate::bands::Unit;
use crate::pipeline::refuse_not_finite;
use crate::{Error, facts, plan};

/// Where FILE and INPUT first differ in a tensor.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Difference {
    /// The place.
    #[serde(flatten)]
    pub place: Place,
    /// What stands there in FILE.
    pub file: f32,
    /// What INPUT has, rounded to FILE's type where FILE stores it rounded.
    pub input: f32,
}

/// A place in a tensor, counted from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum Place {
    /// One weight of a matrix, or one value of a codebook.
    Cell {
        /// Row (output, or token).
        row: u64,
        /// Column (input).
        column: u64,
    },
    /// The scale of 128 weights.
    Scale {
        /// Row (output).
        row: u64,
        /// Group within the row.
        group: u64,
    },
    /// One value of a norm or base kernel.
    Value {
        /// Flat index.
        index: u64,
    },
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.place {
            Place::Cell { row, column } => write!(f, "row {row}, column {column}")?,
            Place::Scale { row, group } => write!(f, "scale of row {row}, group {group}")?,
            Place::Value { index } => write!(f, "value {index}")?,
        }
        write!(f, ": expected {}, found {}", self.input, self.file)
    }
}

/// What comparing one band, or several, has shown.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Compared {
    /// Sum of squares of a float INPUT's weights.
    pub(super) energy: f64,
    /// Sum of squared differences.
    pub(super) error: f64,
    /// Weights or values that differ, where equality is demanded.
    pub(super) differing: u64,
    /// The first of them.
    pub(super) first: Option<Difference>,
}

impl Compared {
    /// Adds the next band.
    pub(super) fn merge(&mut self, next: &Self) {
        self.energy += next.energy;
        self.error += next.error;
        self.differing += next.differing;
        self.first = self.first.or(next.first);
    }

    /// Sum of squared errors over sum of squares; infinite where INPUT is all zero
    /// and FILE is not.
    pub(super) fn relative_error(&self) -> f64 {
        if self.error == 0.0 { 0.0 } else { self.error / self.energy }
    }
}

/// An INPUT whose tensors have FILE's shapes.
#[derive(Debug)]
pub(super) struct Reference<'a> {
    pub(super) input: &'a Drafter,
    /// The way from a float INPUT into FILE's basis; none for a ternary INPUT.
    rotation: Option<(BlockHadamard, BTreeMap<usize, Signs>)>,
}

impl<'a> Reference<'a> {
    /// The reference, or the sentence that says why there is nothing to compare.
    pub(super) fn new(
        file: &Drafter,
        input: &'a Drafter,
        isa: Isa,
    ) -> Result<Result<Self, String>, Error> {
        if let Some((name, of_file, of_input)) =
            facts::first_difference(&file.config, &input.config)
        {
            return Ok(Err(format!("`{name}`: expected {of_input}, found {of_file}")));
        }
        let Some(rotation) = &file.rotation else { return Err(plan::refuse_float(file)) };
        if let Some(of_input) = &input.rotation {
            if rotation.block != of_input.block {
                return Ok(Err(format!(
                    "the rotation: expected blocks of {}, found {}",
                    of_input.block, rotation.block
                )));
            }
            // A width without signs is a width whose signs are all +1.
            let sign = |of: &BTreeMap<usize, Vec<i8>>, width: usize, at: usize| {
                of.get(&width).and_then(|signs| signs.get(at)).copied().unwrap_or(1)
            };
            for width in file.config.matrix_widths() {
                let differs = |at: &usize| {
                    sign(&rotation.signs, width, *at) != sign(&of_input.signs, width, *at)
                };
                if let Some(at) = (0..width).find(differs) {
                    return Ok(Err(format!(
                        "the rotation: sign {at} of the input width {width} is not INPUT's"
                    )));
                }
            }
            return Ok(Ok(Self { input, rotation: None }));
        }
        let hadamard = plan::transform(file, rotation.block, isa)?;
        let mut signs = BTreeMap::new();
        for width in file.config.matrix_widths() {
            let plus = || Signs::plus(width);
            let values = rotation.signs.get(&width).cloned();
            // Readers let only +1 and -1 pass.
            signs.insert(width, values.and_then(|v| Signs::new(v).ok()).unwrap_or_else(plus));
        }
        Ok(Ok(Self { input, rotation: Some((hadamard, signs)) }))
    }

    pub(super) fn is_float(&self) -> bool {
        self.rotation.is_some()
    }
}

/// One thread's comparisons; keeps its memory between bands.
#[derive(Debug)]
pub(super) struct Comparer<'a> {
    reference: &'a Reference<'a>,
    buffer: Buffer,
    rows: TernaryRows,
    values: Vec<f32>,
    row: Vec<f32>,
}

impl<'a> Comparer<'a> {
    pub(super) fn new(reference: &'a Reference<'a>) -> Self {
        Self {
            reference,
            buffer: Buffer::default(),
            rows: TernaryRows::zeroed(0, 0),
            values: Vec::new(),
            row: Vec::new(),
        }
    }

    /// Compares a band of a matrix that was decoded from FILE.
    pub(super) fn rows(&mut self, unit: Unit, decoded: &TernaryRows) -> Result<Compared, Error> {
        let tensor = &self.reference.input.tensors[unit.tensor];
        let first_row = unit.first as usize;
        let Some((hadamard, signs)) = &self.reference.rotation else {
            if (self.rows.rows(), self.rows.cols()) != (decoded.rows(), decoded.cols()) {
                self.rows = TernaryRows::zeroed(decoded.rows(), decoded.cols());
            }
            tensor.read_rows(first_row, &mut self.rows, &mut self.buffer)?;
            return Ok(equal_rows(decoded, &self.rows, unit.first));
        };
        let cols = decoded.cols();
        self.values.resize(decoded.rows() * cols, 0.0);
        read_finite(tensor, (first_row * cols) as u64, &mut self.values, &mut self.buffer)?;
        let rotated = hadamard.forward_rows(&mut self.values, cols, &signs[&cols]);
        debug_assert!(rotated.is_ok(), "widths were checked against the block");
        self.row.resize(cols, 0.0);
        let mut compared = Compared::default();
        for (r, weights) in self.values.chunks_exact(cols).enumerate() {
            decoded.dequantize_row(r, &mut self.row);
            let (energy, error) = squares(weights, &self.row);
            compared.energy += energy;
            compared.error += error;
        }
        Ok(compared)
    }

    /// Compares a run of values of FILE's `tensor`, which is no matrix.
    pub(super) fn values(
        &mut self,
        unit: Unit,
        tensor: &Tensor,
        found: &[f32],
    ) -> Result<Compared, Error> {
        self.values.resize(found.len(), 0.0);
        let input = &self.reference.input.tensors[unit.tensor];
        read_finite(input, unit.first, &mut self.values, &mut self.buffer)?;
        if self.reference.is_float() {
            match tensor.encoding {
                Encoding::Bf16 => round(&mut self.values, |v| bf16::from_f32(v).to_f32()),
                Encoding::F16 => round(&mut self.values, |v| f16::from_f32(v).to_f32()),
                _ => {}
            }
        }
        let mut compared = Compared::default();
        for (i, (file, input)) in found.iter().zip(&self.values).enumerate() {
            if file.to_bits() != input.to_bits() {
                compared.differing += 1;
                compared.first.get_or_insert_with(|| {
                    let index = unit.first + i as u64;
                    let inputs = tensor.spec.inputs();
                    let place = if tensor.spec.role.is_codebook() {
                        Place::Cell { row: index / inputs, column: index % inputs }
                    } else {
                        Place::Value { index }
                    };
                    Difference { place, file: *file, input: *input }
                });
            }
        }
        Ok(compared)
    }
}

fn round(values: &mut [f32], to_stored: impl Fn(f32) -> f32) {
    values.iter_mut().for_each(|v| *v = to_stored(*v));
}

/// Reads values and refuses those that are not finite.
fn read_finite(
    tensor: &Tensor,
    first: u64,
    values: &mut [f32],
    buffer: &mut Buffer,
) -> Result<(), Error> {
    tensor.read_values(first, values, buffer)?;
    refuse_not_finite(tensor, first, values)
}

/// Sums of w^2 and (w - v)^2 in f64, over 8 lanes that are added up at the end: a
/// fixed order that vectorises.
fn squares(weights: &[f32], decoded: &[f32]) -> (f64, f64) {
    let (mut energy, mut error) = ([0.0; 8], [0.0; 8]);
    // Rows are whole groups of 128.
    for (w, v) in weights.as_chunks::<8>().0.iter().zip(decoded.as_chunks::<8>().0) {
        for lane in 0..8 {
            let (w, v) = (f64::from(w[lane]), f64::from(v[lane]));
            energy[lane] += w * w;
            error[lane] += (w - v) * (w - v);
        }
    }
    (energy.iter().sum(), error.iter().sum())
}

/// Compares ternary rows by the values they stand for; `first_row` is their first.
fn equal_rows(file: &TernaryRows, input: &TernaryRows, first_row: u64) -> Compared {
    let mut compared = Compared::default();
    let (file_codes, input_codes) =
        (file.codes().as_chunks::<{ GROUP / 4 }>().0, input.codes().as_chunks::<{ GROUP / 4 }>().0);
    let groups = file_codes.iter().zip(file.scales()).zip(input_codes.iter().zip(input.scales()));
    for (index, (file_group, input_group)) in groups.enumerate() {
        if file_group == input_group {
            continue;
        }
        let row = first_row + (index / file.groups_per_row()) as u64;
        let group = (index % file.groups_per_row()) as u64;
        let value = |(codes, scale): (&[u8; GROUP / 4], &f16), k: usize| {
            let code = codes[k / 4] >> (2 * (k % 4)) & 3;
            scale.to_f32() * (f32::from(code) - 1.0)
        };
        let differs = |k: &usize| value(file_group, *k) != value(input_group, *k);
        let mut differing = (0..GROUP).filter(differs);
        let Some(first) = differing.next() else { continue };
        compared.differing += 1 + differing.count() as u64;
        compared.first.get_or_insert_with(|| {
            let magnitude = |scale: &f16| scale.to_f32().abs();
            let (of_file, of_input) = (magnitude(file_group.1), magnitude(input_group.1));
            if of_file == of_input {
                Difference {
                    place: Place::Cell { row, column: group * GROUP as u64 + first as u64 },
                    file: value(file_group, first),
                    input: value(input_group, first),
                }
            } else {
                Difference { place: Place::Scale { row, group }, file: of_file, input: of_input }
            }
        });
    }
    compared
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two rows of two groups; scale 0.5 and codes 0, 1, 2, 0 repeated.
    fn rows() -> TernaryRows {
        let mut rows = TernaryRows::zeroed(2, 2 * GROUP);
        let (codes, scales) = rows.parts_mut();
        codes.fill(0b00_10_01_00);
        scales.fill(f16::from_f32(0.5));
        rows
    }

    #[test]
    fn only_the_value_counts() {
        let mut mirrored = rows();
        let (codes, scales) = mirrored.parts_mut();
        codes.fill(0b10_00_01_10);
        scales.fill(f16::from_f32(-0.5));
        assert_eq!(equal_rows(&mirrored, &rows(), 0), Compared::default());
        // Zero is zero: by code, by scale, of either sign.
        let (mut a, mut b) = (rows(), rows());
        for (group, codes, scale) in [(0, 0b01_01_01_01, 3.0), (1, 0b00_10_01_00, -0.0)] {
            a.parts_mut().0[group * 32..(group + 1) * 32].fill(codes);
            a.set_scale(0, group, f16::from_f32(scale));
            b.set_scale(0, group, f16::ZERO);
        }
        assert_eq!(equal_rows(&a, &b, 0), Compared::default());
    }

    #[test]
    fn the_first_difference_is_a_code_or_a_scale() {
        let mut file = rows();
        file.set_code(1, 130, 1);
        file.set_code(1, 131, 2);
        let compared = equal_rows(&file, &rows(), 64);
        assert_eq!(compared.differing, 2);
        let first = compared.first.unwrap();
        assert_eq!(first.place, Place::Cell { row: 65, column: 130 });
        assert_eq!(first.to_string(), "row 65, column 130: expected 0.5, found 0");

        let mut file = rows();
        file.set_scale(1, 0, f16::from_f32(0.25));
        let compared = equal_rows(&file, &rows(), 0);
        assert_eq!(compared.differing, 96);
        let text = compared.first.unwrap().to_string();
        assert_eq!(text, "scale of row 1, group 0: expected 0.5, found 0.25");
    }

    #[test]
    fn squares_are_summed_in_double_precision() {
        let w = [3e-20f32; 128];
        let v = [1e-20f32; 128];
        let (energy, error) = squares(&w, &v);
        assert!((energy / (128.0 * 9e-40) - 1.0).abs() < 1e-6);
        assert!((error / (128.0 * 4e-40) - 1.0).abs() < 1e-6);
    }
}
