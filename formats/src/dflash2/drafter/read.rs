//! Reading: bands of rows and runs of values, checked as they are decoded.

use half::f16;
use half::slice::HalfFloatSliceExt;
use zerocopy::IntoBytes;

use super::{Encoding, Tensor};
use crate::{Error, Fault, GROUP, TernaryRows, pq2_0, ptq1_0, q4nx};

/// Bytes read at a time when a file is only converted: the working set of a
/// reader stays in the cache.
const RUN: usize = 1 << 16;

/// Memory that a reader keeps between calls.
#[derive(Debug, Default)]
pub struct Buffer {
    bytes: Vec<u8>,
    /// How many of `bytes` the last read filled.
    len: usize,
}

impl Buffer {
    /// The encoded bytes of the rows that [`Tensor::read_rows`] read last.
    #[must_use]
    pub fn encoded(&self) -> &[u8] {
        &self.bytes[..self.len]
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
    pub fn read_values(&self, first: u64, out: &mut [f32]) -> Result<(), Error> {
        #[expect(clippy::expect_used, reason = "stated panic")]
        let value_bytes = self.encoding.value_bytes().expect("a float tensor");
        assert!(first + out.len() as u64 <= self.spec.parameters());
        let mut offset = self.offset + first * value_bytes as u64;
        let mut run = [0u16; RUN / 2];
        for out in out.chunks_mut(RUN / value_bytes) {
            let run = &mut run[..out.len() * value_bytes / 2];
            self.source.read_exact_at(offset, run.as_mut_bytes())?;
            offset += (out.len() * value_bytes) as u64;
            match self.encoding {
                Encoding::F32 => {
                    for (out, bytes) in out.iter_mut().zip(run.as_bytes().as_chunks().0) {
                        *out = f32::from_le_bytes(*bytes);
                    }
                }
                Encoding::F16 => {
                    run.iter_mut().for_each(|bits| *bits = u16::from_le(*bits));
                    let halves: &[f16] = zerocopy::transmute_ref!(&*run);
                    halves.convert_to_f32_slice(out);
                }
                _ => {
                    for (out, bits) in out.iter_mut().zip(&*run) {
                        *out = f32::from_bits(u32::from(u16::from_le(*bits)) << 16);
                    }
                }
            }
        }
        Ok(())
    }

    /// Decodes `rows.rows()` rows of a ternary matrix from row `first` on.
    ///
    /// # Errors
    /// [`Error::Contents`] where the bytes break a rule of their encoding (the
    /// group or chunk is counted from the tensor's start), [`Error::Truncated`],
    /// [`Error::Io`].
    ///
    /// # Panics
    /// If the tensor is not ternary, the range passes its end, or a q4nx band
    /// does not begin and end on a multiple of 32 rows.
    pub fn read_rows(
        &self,
        first: usize,
        rows: &mut TernaryRows,
        buffer: &mut Buffer,
    ) -> Result<(), Error> {
        let cols = rows.cols();
        assert_eq!(self.spec.shape[1], cols as u64);
        assert!((first + rows.rows()) as u64 <= self.spec.shape[0]);
        type Decode = fn(&[u8], &mut TernaryRows) -> Result<(), Fault>;
        let (row_bytes, decode): (usize, Decode) = match self.encoding {
            Encoding::Pq2_0 => (pq2_0::row_bytes(cols), pq2_0::decode),
            Encoding::Ptq1_0 => (ptq1_0::row_bytes(cols), ptq1_0::decode),
            Encoding::Q4nx => {
                assert!(
                    first.is_multiple_of(q4nx::ROW_BLOCK)
                        && rows.rows().is_multiple_of(q4nx::ROW_BLOCK)
                );
                (cols / q4nx::COL_BLOCK * q4nx::CHUNK_BYTES / q4nx::ROW_BLOCK, q4nx::decode)
            }
            float => unreachable!("{} is no ternary encoding", float.name()),
        };
        let len = rows.rows() * row_bytes;
        if buffer.bytes.len() < len {
            buffer.bytes.resize(len, 0);
        }
        buffer.len = len;
        let bytes = &mut buffer.bytes[..len];
        self.source.read_exact_at(self.offset + (first * row_bytes) as u64, bytes)?;
        decode(bytes, rows).map_err(|fault| {
            let base = match fault.unit {
                "chunk" => first / q4nx::ROW_BLOCK * (cols / q4nx::COL_BLOCK),
                _ => first * (cols / GROUP),
            };
            fault.offset_by(base as u64).at(self.path(), &self.stored_name)
        })
    }
}
