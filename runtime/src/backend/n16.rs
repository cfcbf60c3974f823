//! `n16` and `n8`, the NPU's arithmetic, on the CPU: the scalar form of [`aie_kernels::arithmetic`] over
//! the file's own blocks, 32 outputs at a time, as the cores of the array take them.
//!
//! Scales are rounded to bf16, the type of the cores' products. Files by `ternarize` have no others.

use std::ops::Range;

use aie_kernels::arithmetic::{Activations, Matrix, OperandError, matmul};
use aie_kernels::layout::{GROUP, STRIP_ROWS};
use half::bf16;

use crate::Error;
use crate::parallel::by_output;
use crate::weights::TernaryMatrix;

/// Outputs `range` of a matrix, which begin with a strip of 32, in the form of the NPU's arithmetic.
///
/// # Errors
/// [`Error::Formats`] where the bytes break a rule of their encoding.
pub(super) fn outputs(matrix: &TernaryMatrix, range: Range<usize>) -> Result<Matrix, Error> {
    let (n, k) = (range.len(), matrix.in_features());
    let mut codes = Vec::with_capacity(n * k);
    let mut scales = Vec::with_capacity(n * k / GROUP);
    matrix.for_each_row(range, |_, rows, r| {
        let bytes = rows.row_codes(r).iter();
        codes.extend(bytes.flat_map(|byte| [0, 2, 4, 6].map(|shift| (byte >> shift) & 3)));
        let of_row = rows.row_scales(r).iter();
        scales.extend(of_row.map(|scale| bf16::from_f32(scale.to_f32()).to_bits()));
    })?;
    Matrix::new(n, k, codes, scales).map_err(|e| operand(&e))
}

/// What models cannot cause: shapes and ranges are checked before.
pub(super) fn operand(error: &OperandError) -> Error {
    Error::Device { device: "npu", what: error.to_string(), hint: None }
}

/// The products with all rows of `blocks`, `[rows, out_features]`.
///
/// # Errors
/// As [`outputs`]; [`Error::FloatEnvironment`] when a worker thread has other modes.
pub(super) fn multiply(
    matrix: &TernaryMatrix,
    blocks: &[Activations],
    out: &mut [f32],
) -> Result<(), Error> {
    let n: usize = blocks.iter().map(Activations::live_rows).sum();
    by_output(matrix.out_features(), matrix.in_features(), out, |range, out| {
        for first in range.clone().step_by(STRIP_ROWS) {
            let strip = first..range.end.min(first + STRIP_ROWS);
            let w = outputs(matrix, strip.clone())?;
            let mut row0 = 0;
            for x in blocks {
                let products = matmul(&w, x).map_err(|e| operand(&e))?;
                for (row, products) in products.chunks_exact(strip.len()).enumerate() {
                    for (o, product) in products.iter().enumerate() {
                        out[(first - range.start + o) * n + row0 + row] = *product;
                    }
                }
                row0 += x.live_rows();
            }
        }
        Ok(())
    })
}
