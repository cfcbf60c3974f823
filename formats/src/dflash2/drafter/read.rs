//! Reading: bands of rows and runs of values, checked as they are decoded.

use half::f16;
use half::slice::HalfFloatSliceExt;

use super::{Encoding, Tensor};
use crate::{Error, Fault, GROUP, TernaryRows, pq2_0, ptq1_0, q4nx};

/// Memory that a reader keeps between calls.
#[derive(Debug, Default)]
pub struct Buffer {
    bytes: Vec<u8>,
}

impl Buffer {
    /// The first `len` bytes; the buffer grows but never shrinks.
    pub fn at_least(&mut self, len: usize) -> &mut [u8] {
        if self.bytes.len() < len {
            self.bytes.resize(len, 0);
        }
        &mut self.bytes[..len]
    }
}

impl Tensor {
    /// Reads `out.len()` values from flat index `first` on, as f32 (exact).
    ///
    /// Values are not checked: a caller that needs finite ones looks at them.
    ///
    /// # Errors
    /// [`Error::Truncated`] or [`Error::Io`].
    ///
    /// # Panics
    /// If the tensor is ternary or the range passes its end.
    pub fn read_values(
        &self,
        first: u64,
        out: &mut [f32],
        buffer: &mut Buffer,
    ) -> Result<(), Error> {
        #[expect(clippy::expect_used, reason = "stated panic")]
        let value_bytes = self.encoding.value_bytes().expect("a float tensor");
        assert!(first + out.len() as u64 <= self.spec.parameters());
        let bytes = buffer.at_least(out.len() * value_bytes);
        self.source.read_exact_at(self.offset + first * value_bytes as u64, bytes)?;
        self.decode_values(bytes, out);
        Ok(())
    }

    /// The values that stored bytes stand for, as f32 (exact).
    ///
    /// # Panics
    /// If the tensor is ternary or the lengths do not fit each other.
    pub fn decode_values(&self, bytes: &[u8], out: &mut [f32]) {
        #[expect(clippy::expect_used, reason = "stated panic")]
        let value_bytes = self.encoding.value_bytes().expect("a float tensor");
        assert_eq!(bytes.len(), out.len() * value_bytes);
        match self.encoding {
            Encoding::F32 => {
                for (out, bytes) in out.iter_mut().zip(bytes.as_chunks().0) {
                    *out = f32::from_le_bytes(*bytes);
                }
            }
            Encoding::F16 => {
                const RUN: usize = 1024;
                let mut halves = [f16::ZERO; RUN];
                for (out, bytes) in out.chunks_mut(RUN).zip(bytes.chunks(2 * RUN)) {
                    let halves = &mut halves[..out.len()];
                    for (half, bytes) in halves.iter_mut().zip(bytes.as_chunks().0) {
                        *half = f16::from_le_bytes(*bytes);
                    }
                    halves.convert_to_f32_slice(out);
                }
            }
            _ => {
                for (out, bytes) in out.iter_mut().zip(bytes.as_chunks().0) {
                    *out = f32::from_bits(u32::from(u16::from_le_bytes(*bytes)) << 16);
                }
            }
        }
    }

    /// Decodes `rows.rows()` rows of a ternary matrix from row `first` on.
    ///
    /// # Errors
    /// As [`Tensor::decode_rows`], [`Error::Truncated`], [`Error::Io`].
    ///
    /// # Panics
    /// As [`Tensor::decode_rows`].
    pub fn read_rows(
        &self,
        first: usize,
        rows: &mut TernaryRows,
        buffer: &mut Buffer,
    ) -> Result<(), Error> {
        let (row_bytes, _) = self.ternary_codec(rows.cols());
        let bytes = buffer.at_least(rows.rows() * row_bytes);
        self.source.read_exact_at(self.offset + (first * row_bytes) as u64, bytes)?;
        self.decode_rows(first, bytes, rows)
    }

    /// Decodes the stored bytes of `rows.rows()` rows of a ternary matrix, the
    /// first of which is row `first`.
    ///
    /// # Errors
    /// [`Error::Contents`] where the bytes break a rule of their encoding; the
    /// group or chunk is counted from the tensor's start.
    ///
    /// # Panics
    /// If the tensor is not ternary, the range passes its end, or a q4nx band does
    /// not begin and end on a multiple of 32 rows.
    pub fn decode_rows(
        &self,
        first: usize,
        bytes: &[u8],
        rows: &mut TernaryRows,
    ) -> Result<(), Error> {
        let cols = rows.cols();
        assert_eq!(self.spec.shape[1], cols as u64);
        assert!((first + rows.rows()) as u64 <= self.spec.shape[0]);
        let (_, decode) = self.ternary_codec(cols);
        if self.encoding == Encoding::Q4nx {
            let whole = |n: usize| n.is_multiple_of(q4nx::ROW_BLOCK);
            assert!(whole(first) && whole(rows.rows()));
        }
        decode(bytes, rows).map_err(|fault| {
            let base = match fault.unit {
                "chunk" => first / q4nx::ROW_BLOCK * (cols / q4nx::COL_BLOCK),
                _ => first * (cols / GROUP),
            };
            fault.offset_by(base as u64).at(self.path(), &self.stored_name)
        })
    }

    /// Stored bytes per row, and the decoder.
    fn ternary_codec(&self, cols: usize) -> (usize, Decode) {
        match self.encoding {
            Encoding::Pq2_0 => (pq2_0::row_bytes(cols), pq2_0::decode),
            Encoding::Ptq1_0 => (ptq1_0::row_bytes(cols), ptq1_0::decode),
            Encoding::Q4nx => {
                let bytes = cols / q4nx::COL_BLOCK * q4nx::CHUNK_BYTES / q4nx::ROW_BLOCK;
                (bytes, q4nx::decode)
            }
            float => unreachable!("{} is no ternary encoding", float.name()),
        }
    }
}

type Decode = fn(&[u8], &mut TernaryRows) -> Result<(), Fault>;
