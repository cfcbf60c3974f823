//! Weights where they lie: views of a file, decoded row by row.
//!
//! Nothing is copied at load. A 27 B model is 7 GB of ternary blocks; they stay in the page cache,
//! and a row is decoded when it is needed.

mod float_dots;

use std::ops::Range;

use formats::{Fault, GROUP, TernaryRows, View, mlx, pq2_0, ptq1_0, q4nx};
use hadamard::{Isa, Level};
use half::{bf16, f16};

use crate::Error;
use crate::math::dot16;
use crate::parallel::by_output;
use crate::rows::Rows;
use crate::simd::LANES;

/// How ternary weights are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum TernaryEncoding {
    /// [`formats::pq2_0`] blocks, row by row.
    Pq2_0,
    /// [`formats::ptq1_0`] blocks, row by row.
    Ptq1_0,
    /// [`formats::q4nx`] exact-ternary chunks of 32 rows.
    Q4nx,
    /// [`formats::mlx`] modules, row by row: codes, scales and biases are three tensors. That biases
    /// are the negated scales is checked whenever a row is decoded.
    Mlx,
}

/// A ternary matrix `[out_features, in_features]` in its file.
#[derive(Debug, Clone)]
pub struct TernaryMatrix {
    bytes: View,
    encoding: TernaryEncoding,
    /// Of a module of a pack.
    affine: Option<Affine>,
    out_features: usize,
    in_features: usize,
    path: String,
    name: String,
}

/// What lies beside the codes of an MLX module, `[out_features, in_features / 128]` each.
#[derive(Debug, Clone)]
struct Affine {
    scales: View,
    biases: View,
    scale_type: mlx::ScaleType,
}

impl TernaryMatrix {
    /// `bytes` as the rows of a matrix; `path` and `name` are for messages.
    ///
    /// # Panics
    /// If the bytes are not those of the shape; readers check that before. If the encoding is
    /// [`TernaryEncoding::Mlx`], which has more than these bytes: see [`TernaryMatrix::packed`].
    #[must_use]
    pub fn new(
        bytes: View,
        encoding: TernaryEncoding,
        out_features: usize,
        in_features: usize,
        path: &str,
        name: &str,
    ) -> Self {
        assert_ne!(encoding, TernaryEncoding::Mlx);
        let matrix = Self {
            bytes,
            encoding,
            affine: None,
            out_features,
            in_features,
            path: path.to_owned(),
            name: name.to_owned(),
        };
        let bands = out_features / matrix.band();
        assert_eq!(matrix.bytes.len(), bands * matrix.band_bytes());
        matrix
    }

    /// A module of an MLX pack.
    ///
    /// # Panics
    /// If the parts are not those of the shape; readers check that before.
    #[must_use]
    pub fn packed(module: &mlx::Packed) -> Self {
        let matrix = Self {
            bytes: module.weight.clone(),
            encoding: TernaryEncoding::Mlx,
            affine: Some(Affine {
                scales: module.scales.clone(),
                biases: module.biases.clone(),
                scale_type: module.scale_type,
            }),
            out_features: module.rows,
            in_features: module.cols,
            path: formats::shown_path(&module.path),
            name: module.name.clone(),
        };
        let groups = module.rows * (module.cols / GROUP);
        assert_eq!(matrix.bytes.len(), module.rows * matrix.band_bytes());
        assert_eq!((module.scales.len(), module.biases.len()), (2 * groups, 2 * groups));
        matrix
    }

    /// How it is stored.
    #[must_use]
    pub fn encoding(&self) -> TernaryEncoding {
        self.encoding
    }

    /// The name of its tensor.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Number of outputs.
    #[must_use]
    pub fn out_features(&self) -> usize {
        self.out_features
    }

    /// Number of inputs.
    #[must_use]
    pub fn in_features(&self) -> usize {
        self.in_features
    }

    /// Its bytes in the file.
    fn views(&self) -> impl Iterator<Item = &View> {
        let beside = self.affine.iter().flat_map(|affine| [&affine.scales, &affine.biases]);
        std::iter::once(&self.bytes).chain(beside)
    }

    /// Says that all rows are read soon. A hint.
    pub(crate) fn will_need(&self) {
        self.views().for_each(View::will_need);
    }

    /// Gives the memory of a mapped file back, which is read again when a row is. A hint.
    pub(crate) fn release(&self) {
        self.views().for_each(View::release);
    }

    /// Rows that are stored together.
    fn band(&self) -> usize {
        match self.encoding {
            TernaryEncoding::Pq2_0 | TernaryEncoding::Ptq1_0 | TernaryEncoding::Mlx => 1,
            TernaryEncoding::Q4nx => q4nx::ROW_BLOCK,
        }
    }

    fn band_bytes(&self) -> usize {
        match self.encoding {
            TernaryEncoding::Pq2_0 => pq2_0::row_bytes(self.in_features),
            TernaryEncoding::Ptq1_0 => ptq1_0::row_bytes(self.in_features),
            TernaryEncoding::Q4nx => self.in_features / q4nx::COL_BLOCK * q4nx::CHUNK_BYTES,
            TernaryEncoding::Mlx => self.in_features / 4,
        }
    }

    /// Decodes the band that begins at row `first`.
    fn decode(&self, first: usize, rows: &mut TernaryRows) -> Result<(), Error> {
        let len = self.band_bytes();
        let start = first / self.band() * len;
        let bytes = &self.bytes[start..start + len];
        let groups = self.in_features / GROUP;
        let decoded: Result<(), Fault> = match (self.encoding, &self.affine) {
            (TernaryEncoding::Pq2_0, _) => pq2_0::decode(bytes, rows),
            (TernaryEncoding::Ptq1_0, _) => ptq1_0::decode(bytes, rows),
            (TernaryEncoding::Q4nx, _) => q4nx::decode(bytes, rows),
            (TernaryEncoding::Mlx, Some(Affine { scales, biases, scale_type })) => {
                let of_row = 2 * first * groups..2 * (first + 1) * groups;
                let (scales, biases) = (&scales[of_row.clone()], &biases[of_row]);
                let scale_type = *scale_type;
                mlx::decode(mlx::Rows { weight: bytes, scales, biases, scale_type }, rows)
            }
            (TernaryEncoding::Mlx, None) => unreachable!("a module has scales"),
        };
        decoded.map_err(|fault| {
            let base = match fault.unit {
                "chunk" => first / q4nx::ROW_BLOCK * (self.in_features / q4nx::COL_BLOCK),
                _ => first * groups,
            };
            fault.offset_by(base as u64).at(&self.path, &self.name).into()
        })
    }

    /// Calls `each` with the number of every row of `range`, ascending, and where it is decoded.
    ///
    /// # Errors
    /// [`Error::Formats`] where the bytes break a rule of their encoding.
    ///
    /// # Panics
    /// If there are no such rows, or rows that are stored together would be parted.
    pub fn for_each_row(
        &self,
        range: Range<usize>,
        mut each: impl FnMut(usize, &TernaryRows, usize),
    ) -> Result<(), Error> {
        let band = self.band();
        assert!(range.end <= self.out_features);
        assert!(range.start.is_multiple_of(band) && range.end.is_multiple_of(band), "whole bands");
        let mut rows = TernaryRows::zeroed(band, self.in_features);
        for first in range.step_by(band) {
            self.decode(first, &mut rows)?;
            (0..band).for_each(|r| each(first + r, &rows, r));
        }
        Ok(())
    }

    /// Writes row `r` as f32, in the basis it is stored in.
    ///
    /// # Errors
    /// As [`TernaryMatrix::for_each_row`].
    pub fn dequantize_row(&self, r: usize, out: &mut [f32]) -> Result<(), Error> {
        let mut rows = TernaryRows::zeroed(self.band(), self.in_features);
        let first = r / self.band() * self.band();
        self.decode(first, &mut rows)?;
        rows.dequantize_row(r - first, out);
        Ok(())
    }
}

/// How float weights are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum FloatEncoding {
    /// IEEE single precision.
    F32,
    /// IEEE half precision.
    F16,
    /// The upper half of single precision.
    Bf16,
    /// ggml's blocks of 32 bytes with an fp16 scale before them: `w = d · q`.
    Q8_0,
}

const Q8_VALUES: usize = 32;
const Q8_BYTES: usize = 34;

impl FloatEncoding {
    fn bytes_of(self, values: usize) -> usize {
        match self {
            Self::F32 => values * 4,
            Self::F16 | Self::Bf16 => values * 2,
            Self::Q8_0 => values / Q8_VALUES * Q8_BYTES,
        }
    }
}

/// A float matrix `[out_features, in_features]` in its file.
#[derive(Debug, Clone)]
pub struct FloatMatrix {
    bytes: View,
    encoding: FloatEncoding,
    out_features: usize,
    in_features: usize,
}

impl FloatMatrix {
    /// `bytes` as the rows of a matrix.
    ///
    /// # Panics
    /// If the bytes are not those of the shape; readers check that before.
    #[must_use]
    pub fn new(
        bytes: View,
        encoding: FloatEncoding,
        out_features: usize,
        in_features: usize,
    ) -> Self {
        assert_eq!(bytes.len(), encoding.bytes_of(out_features * in_features));
        Self { bytes, encoding, out_features, in_features }
    }

    /// Number of outputs.
    #[must_use]
    pub fn out_features(&self) -> usize {
        self.out_features
    }

    /// Number of inputs.
    #[must_use]
    pub fn in_features(&self) -> usize {
        self.in_features
    }

    /// Its size in the file.
    #[must_use]
    pub fn stored_bytes(&self) -> usize {
        self.bytes.len()
    }

    /// Writes row `r` as f32 (exact).
    ///
    /// # Panics
    /// If there is no such row or `out` has another length.
    pub fn dequantize_row(&self, r: usize, out: &mut [f32]) {
        assert_eq!(out.len(), self.in_features);
        let bytes = self.row(r);
        match self.encoding {
            FloatEncoding::F32 => {
                for (out, bytes) in out.iter_mut().zip(bytes.as_chunks().0) {
                    *out = f32::from_le_bytes(*bytes);
                }
            }
            FloatEncoding::F16 => {
                for (out, bytes) in out.iter_mut().zip(bytes.as_chunks().0) {
                    *out = f16::from_le_bytes(*bytes).to_f32();
                }
            }
            FloatEncoding::Bf16 => {
                for (out, bytes) in out.iter_mut().zip(bytes.as_chunks().0) {
                    *out = bf16::from_le_bytes(*bytes).to_f32();
                }
            }
            FloatEncoding::Q8_0 => {
                let blocks = bytes.as_chunks::<Q8_BYTES>().0;
                for (out, block) in out.as_chunks_mut::<Q8_VALUES>().0.iter_mut().zip(blocks) {
                    let d = f16::from_le_bytes([block[0], block[1]]).to_f32();
                    for (out, q) in out.iter_mut().zip(&block[2..]) {
                        *out = d * f32::from(*q as i8);
                    }
                }
            }
        }
    }

    /// The products of every row with every row of `x`: `[x.n(), out_features]`, each a
    /// [`dot16`].
    ///
    /// # Errors
    /// [`Error::FloatEnvironment`] when a worker thread has other modes.
    ///
    /// # Panics
    /// If the widths differ.
    pub fn matmul<B: Sync>(&self, isa: Isa, x: &Rows<B>, out: &mut [f32]) -> Result<(), Error> {
        let (n, n_out, width) = (x.n(), self.out_features, self.in_features);
        assert_eq!((x.width(), out.len()), (width, n * n_out));
        if isa.level() != Level::Scalar && width.is_multiple_of(LANES) {
            return float_dots::matmul(isa, self, x, out);
        }
        by_output(n_out, width, out, |range, out| {
            let mut row = vec![0.0; width];
            for (o, out) in range.zip(out.chunks_exact_mut(n)) {
                self.dequantize_row(o, &mut row);
                out.iter_mut().zip(x.iter()).for_each(|(out, x)| *out = dot16(&row, x));
            }
            Ok(())
        })
    }

    /// The bytes of row `r`.
    fn row(&self, r: usize) -> &[u8] {
        let len = self.encoding.bytes_of(self.in_features);
        &self.bytes[r * len..(r + 1) * len]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use formats::Source;

    fn matrix(bytes: Vec<u8>, encoding: FloatEncoding, out: usize, inputs: usize) -> FloatMatrix {
        let source = Source::from_bytes("w", bytes);
        FloatMatrix::new(source.view(0, source.len()).unwrap(), encoding, out, inputs)
    }

    #[test]
    fn float_encodings_by_hand() {
        let values = [1.5f32, -0.25, 3.0, 0.0];
        let each = |bytes: fn(f32) -> Vec<u8>| values.iter().flat_map(|v| bytes(*v)).collect();
        for (encoding, bytes) in [
            (FloatEncoding::F32, each(|v| v.to_le_bytes().into())),
            (FloatEncoding::F16, each(|v| f16::from_f32(v).to_le_bytes().into())),
            (FloatEncoding::Bf16, each(|v| bf16::from_f32(v).to_le_bytes().into())),
        ] {
            let matrix = matrix(bytes, encoding, 2, 2);
            let mut row = [0.0; 2];
            matrix.dequantize_row(1, &mut row);
            assert_eq!(row, [3.0, 0.0], "{encoding:?}");
            let mut out = [0.0; 4];
            matrix
                .matmul(Isa::detect(), &Rows::from_vec(2, vec![2.0, 4.0, 1.0, 0.0]), &mut out)
                .unwrap();
            assert_eq!(out, [2.0, 6.0, 1.5, 3.0]);
        }
    }

    #[test]
    fn q8_0_by_hand() {
        let mut bytes = f16::from_f32(0.5).to_le_bytes().to_vec();
        bytes.extend((0..32).map(|i| (i - 16) as i8 as u8));
        let matrix = matrix(bytes, FloatEncoding::Q8_0, 1, 32);
        let mut row = [0.0; 32];
        matrix.dequantize_row(0, &mut row);
        assert_eq!((row[0], row[16], row[31]), (-8.0, 0.0, 7.5));
    }

    /// A module of two rows of two groups, all scales 1; the bias of group 3 is `bias`.
    fn module(code: u8, bias: f16) -> mlx::Packed {
        let view = |bytes: Vec<u8>| {
            let len = bytes.len() as u64;
            Source::from_bytes("w", bytes).view(0, len).unwrap()
        };
        let mut biases = f16::NEG_ONE.to_le_bytes().repeat(4);
        biases[6..].copy_from_slice(&bias.to_le_bytes());
        mlx::Packed {
            path: "model.safetensors".into(),
            name: "lm_head.weight".into(),
            rows: 2,
            cols: 256,
            weight: view(vec![code * 0x55; 2 * 64]),
            scales: view(f16::ONE.to_le_bytes().repeat(4)),
            biases: view(biases),
            scale_type: mlx::ScaleType::F16,
        }
    }

    #[test]
    fn modules_of_a_pack_are_decoded_where_they_lie() {
        for (code, value) in [(0, -1.0), (1, 0.0), (2, 1.0), (3, 2.0)] {
            let matrix = TernaryMatrix::packed(&module(code, f16::NEG_ONE));
            assert_eq!(matrix.encoding(), TernaryEncoding::Mlx);
            let mut row = [9.0; 256];
            matrix.dequantize_row(1, &mut row).unwrap();
            assert_eq!(row, [value; 256]);
        }
        let matrix = TernaryMatrix::packed(&module(0, f16::ONE));
        assert!(matrix.dequantize_row(0, &mut [0.0; 256]).is_ok());
        let message = matrix.dequantize_row(1, &mut [0.0; 256]).unwrap_err().to_string();
        for part in ["model.safetensors", "lm_head.weight", "group 3", "negated scale", "0x3C00"] {
            assert!(message.contains(part), "{message}");
        }
    }

    #[test]
    fn damaged_scales_are_named_with_their_group() {
        let mut bytes = vec![0; 2 * pq2_0::row_bytes(256)];
        bytes[pq2_0::row_bytes(256) + pq2_0::BLOCK_BYTES + 1] = 0x7C;
        let view = Source::from_bytes("w", bytes.clone()).view(0, bytes.len() as u64).unwrap();
        let matrix = TernaryMatrix::new(view, TernaryEncoding::Pq2_0, 2, 256, "m.gguf", "blk.0.w");
        let message = matrix.for_each_row(0..2, |_, _, _| ()).unwrap_err().to_string();
        assert!(message.contains("m.gguf") && message.contains("blk.0.w"), "{message}");
        assert!(message.contains("group 3"), "{message}");
        assert!(matrix.dequantize_row(0, &mut [0.0; 256]).is_ok());
    }
}
