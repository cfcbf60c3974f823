//! q4nx: the quantised tensors of the NPU engines' safetensors dialect.
//!
//! A matrix of `R` rows and `K` columns is a raster of chunks, each a tile of
//! 32 rows by 256 columns, row block after row block:
//!
//! ```text
//!              K columns, padded to a multiple of 256
//!           ┌─────────┬─────────┬── ─ ─
//!   32 rows │ chunk 0 │ chunk 1 │          chunk f: rows 32 * (f / n)..,
//!           ├─────────┼─────────┼── ─ ─             columns 256 * (f % n)..,
//!   32 rows │ chunk n │   n+1   │                   n = ceil(K / 256)
//! ```
//!
//! The tensor has dtype I8 and the shape `[R/32, n, chunk bytes]`. Nothing but
//! the chunk's size tells how it is coded ([`ChunkKind`]). In every kind the
//! numbers that serve 32 weights of a row stand at index `g * 32 + r`, with row
//! `r` of the tile and group `g = column / 32`.
//!
//! Ternary matrices are written in the q4_1 kind with constraints
//! ([`encode`], [`decode`]); the other kinds are read to f32
//! ([`dequantize`]).

pub(crate) mod exact_ternary;
mod q4_1;
mod q4_k;
mod q8;
pub(crate) mod tile;

use half::bf16;

use crate::Fault;

pub use exact_ternary::{decode, encode};

/// Rows of a chunk.
pub const ROW_BLOCK: usize = 32;

/// Columns of a chunk.
pub const COL_BLOCK: usize = 256;

/// Bytes of a q4_1 chunk, the kind that ternary matrices use.
pub const CHUNK_BYTES: usize = 5120;

/// Rows times 32-column groups of a chunk: how many scales it has.
const GROUPS: usize = ROW_BLOCK * COL_BLOCK / 32;

/// How the bytes of a chunk are coded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChunkKind {
    /// 5120 bytes: 4-bit codes, a bf16 scale and minimum per 32 weights.
    Q4_1,
    /// 5120 bytes: signed 4-bit codes and a bf16 scale; the minima are all zero.
    /// Told from [`ChunkKind::Q4_1`] by the tensor's first chunk only
    /// ([`ChunkKind::of_tensor`]).
    Q4_0,
    /// 8704 bytes: signed 8-bit codes, a bf16 scale per 32 weights.
    Q8,
    /// 4736 bytes: 4-bit codes, 8-bit scales and minima per 32 weights, bf16
    /// factors of both per row.
    Q4K,
}

impl ChunkKind {
    /// The sizes that [`ChunkKind::from_bytes`] accepts, for error messages.
    pub const READABLE: &str = "chunks of 5120 (q4_1), 8704 (q8) or 4736 bytes (Q4_K)";

    /// The kind of an I8 tensor whose last dimension is `last_dim`.
    ///
    /// # Errors
    /// What chunk this is instead, to follow "found", when it cannot be read.
    pub fn from_bytes(last_dim: u64) -> Result<Self, String> {
        let what = match last_dim {
            5120 => return Ok(Self::Q4_1),
            8704 => return Ok(Self::Q8),
            4736 => return Ok(Self::Q4K),
            1280 => "the small tile of Gemma 3 files, which is not supported",
            2560 => "the 32 x 128 half tile of GPT-OSS files, which is not supported",
            _ => "an unknown chunk",
        };
        Err(format!("{last_dim} bytes ({what})"))
    }

    /// The kind of a tensor with chunks of this size whose first chunk is
    /// `first`: the engines take a q4_1 tensor for signed q4_0 when all 256
    /// minima of its first chunk are +0.
    ///
    /// # Panics
    /// If this is [`ChunkKind::Q4_1`] and `first` is not 5120 bytes long.
    #[must_use]
    pub fn of_tensor(self, first: &[u8]) -> Self {
        match self {
            Self::Q4_1 if classify(first) == Content::Q4_0 => Self::Q4_0,
            kind => kind,
        }
    }

    /// Bytes of one chunk.
    #[must_use]
    pub fn bytes(self) -> usize {
        match self {
            Self::Q4_1 | Self::Q4_0 => CHUNK_BYTES,
            Self::Q8 => q8::CHUNK_BYTES,
            Self::Q4K => q4_k::CHUNK_BYTES,
        }
    }
}

/// What the numbers of a 5120-byte chunk are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Content {
    /// A ternary tile as [`encode`] writes it; the engines accept it as such.
    ExactTernary,
    /// Any other scales and minima.
    Q4_1,
    /// All minima are +0. As a tensor's first chunk it makes the codes signed.
    Q4_0,
}

/// What a 5120-byte chunk holds.
///
/// # Panics
/// If `chunk` is not [`CHUNK_BYTES`] long.
#[must_use]
pub fn classify(chunk: &[u8]) -> Content {
    assert_eq!(chunk.len(), CHUNK_BYTES);
    if chunk[2 * GROUPS..4 * GROUPS].iter().all(|b| *b == 0) {
        Content::Q4_0
    } else if exact_ternary::accepts(chunk) {
        Content::ExactTernary
    } else {
        Content::Q4_1
    }
}

/// The shape of the tensor that holds a `rows` x `cols` matrix in 5120-byte chunks.
#[must_use]
pub fn chunk_shape(rows: usize, cols: usize) -> [u64; 3] {
    [(rows / ROW_BLOCK) as u64, cols.div_ceil(COL_BLOCK) as u64, CHUNK_BYTES as u64]
}

/// Writes the weights of one chunk of any kind: `out` is `[32, 256]` row-major.
/// Columns past the matrix' width are zero in q4_1, q4_0 and q8 files.
///
/// # Errors
/// A [`Fault`] at the first scale or minimum that is infinite or NaN (counted in
/// the chunk's own order), or at the end of `chunk` when its size is not the
/// kind's.
///
/// # Panics
/// If `out` is not 8192 long.
pub fn dequantize(kind: ChunkKind, chunk: &[u8], out: &mut [f32]) -> Result<(), Fault> {
    assert_eq!(out.len(), ROW_BLOCK * COL_BLOCK);
    crate::pq2_0::check_len(chunk, kind.bytes())?;
    match kind {
        ChunkKind::Q4_1 => q4_1::dequantize(chunk, out),
        ChunkKind::Q4_0 => q4_1::dequantize_signed(chunk, out),
        ChunkKind::Q8 => q8::dequantize(chunk, out),
        ChunkKind::Q4K => q4_k::dequantize(chunk, out),
    }
}

/// Where the code of row `r`, column `k` stands, for the kinds that interleave
/// 16 rows: 16 codes of a column follow each other, the two halves of the tile
/// one after the other.
fn code_index(r: usize, k: usize) -> usize {
    r / 16 * (16 * COL_BLOCK) + k * 16 + r % 16
}

/// Reads `N` bf16 numbers that must be finite.
fn finite_bf16<const N: usize>(bytes: &[u8], what: &'static str) -> Result<[f32; N], Fault> {
    let mut out = [0.0; N];
    for (i, (out, pair)) in out.iter_mut().zip(bytes.as_chunks::<2>().0).enumerate() {
        let value = bf16::from_le_bytes(*pair);
        if !value.is_finite() {
            return Err(Fault {
                unit: what,
                index: i as u64,
                expected: "a finite number".into(),
                found: format!("bf16 bits 0x{:04X} ({value})", value.to_bits()),
            });
        }
        *out = value.to_f32();
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A chunk of `kind` with 1.0 in every 16-bit place of `range`.
    fn chunk(kind: ChunkKind, range: std::ops::Range<usize>) -> Vec<u8> {
        let mut chunk = vec![0; kind.bytes()];
        for pair in chunk[range].as_chunks_mut::<2>().0 {
            *pair = bf16::ONE.to_le_bytes();
        }
        chunk
    }

    fn put(chunk: &mut [u8], at: usize, value: f32) {
        chunk[at..at + 2].copy_from_slice(&bf16::from_f32(value).to_le_bytes());
    }

    fn values(kind: ChunkKind, chunk: &[u8]) -> Vec<f32> {
        let mut out = vec![f32::NAN; ROW_BLOCK * COL_BLOCK];
        dequantize(kind, chunk, &mut out).unwrap();
        out
    }

    /// The places with a value other than `rest`, as (row, column, value).
    fn others(values: &[f32], rest: f32) -> Vec<(usize, usize, f32)> {
        let all = values.iter().enumerate();
        all.filter(|(_, v)| **v != rest).map(|(i, v)| (i / COL_BLOCK, i % COL_BLOCK, *v)).collect()
    }

    #[test]
    fn kinds_by_size() {
        assert_eq!(ChunkKind::from_bytes(5120), Ok(ChunkKind::Q4_1));
        assert_eq!(ChunkKind::from_bytes(8704), Ok(ChunkKind::Q8));
        assert_eq!(ChunkKind::from_bytes(4736), Ok(ChunkKind::Q4K));
        for kind in [ChunkKind::Q4_1, ChunkKind::Q8, ChunkKind::Q4K] {
            assert_eq!(ChunkKind::from_bytes(kind.bytes() as u64), Ok(kind));
        }
        for (bytes, what) in [(1280, "Gemma"), (2560, "GPT-OSS"), (0, "unknown"), (u64::MAX, "")] {
            let reason = ChunkKind::from_bytes(bytes).unwrap_err();
            assert!(reason.contains(what) && reason.contains(&bytes.to_string()), "{reason}");
        }
        assert_eq!(chunk_shape(64, 1024), [2, 4, 5120]);
        assert_eq!(chunk_shape(32, 384), [1, 2, 5120]);
    }

    #[test]
    fn q4_1_values() {
        let mut c = chunk(ChunkKind::Q4_1, 0..512);
        c[512 + 2 * (2 * 32 + 5)..][..2].copy_from_slice(&bf16::ONE.to_le_bytes());
        // Row 3, column 37 is nibble 595: the high one of byte 297.
        c[1024 + 297] = 0xF0;
        // Row 31, column 255 is the last.
        c[5119] = 0x80;
        let mut expected: Vec<_> = (64..96).map(|k| (5, k, 1.0)).collect();
        expected.insert(0, (3, 37, 15.0));
        expected.push((31, 255, 8.0));
        assert_eq!(others(&values(ChunkKind::Q4_1, &c), 0.0), expected);
        assert_eq!(ChunkKind::Q4_1.of_tensor(&c), ChunkKind::Q4_1);
    }

    #[test]
    fn q4_0_values_are_signed() {
        let mut c = chunk(ChunkKind::Q4_0, 0..512);
        put(&mut c, 2 * (32 + 3), 0.5);
        c[1024 + 297] = 0xF0;
        c[5119] = 0x80;
        c[1024] = 0x07;
        let kind = ChunkKind::Q4_1.of_tensor(&c);
        assert_eq!(kind, ChunkKind::Q4_0);
        assert_eq!(others(&values(kind, &c), 0.0), [(0, 0, 7.0), (3, 37, -0.5), (31, 255, -8.0)]);
    }

    #[test]
    fn q8_values() {
        let mut c = chunk(ChunkKind::Q8, 0..512);
        put(&mut c, 2 * (32 + 3), 0.5);
        c[512 + 595] = 0xFF;
        c[8703] = 0x80;
        c[512 + 4096] = 127;
        assert_eq!(
            others(&values(ChunkKind::Q8, &c), 0.0),
            [(3, 37, -0.5), (16, 0, 127.0), (31, 255, -128.0)]
        );
    }

    #[test]
    fn q4_k_values() {
        let mut c = chunk(ChunkKind::Q4K, 4608..4736);
        // Row 3, columns 32..64: scale 200, min 7; the row's factors 2 and -0.5.
        c[32 + 3] = 200;
        c[256 + 32 + 3] = 7;
        put(&mut c, 4608 + 6, 2.0);
        put(&mut c, 4672 + 6, -0.5);
        // Row 3, column 37: the high nibble of byte 37 * 16 + 1.
        c[512 + 593] = 0x90;
        let mut expected: Vec<_> = (32..64).map(|k| (3, k, -3.5)).collect();
        expected[5].2 = 2.0 * 200.0 * 9.0 - 3.5;
        assert_eq!(others(&values(ChunkKind::Q4K, &c), 0.0), expected);
    }

    #[test]
    fn infinities_and_nan_are_refused_in_every_kind() {
        for (kind, at, unit, index) in [
            (ChunkKind::Q4_1, 2 * 255, "scale", 255),
            (ChunkKind::Q4_1, 512, "minimum", 0),
            (ChunkKind::Q4_0, 2 * 7, "scale", 7),
            (ChunkKind::Q8, 2 * 7, "scale", 7),
            (ChunkKind::Q4K, 4608 + 2, "row scale", 1),
            (ChunkKind::Q4K, 4672 + 62, "row minimum", 31),
        ] {
            for bits in [0x7F80u16, 0xFF80, 0x7FC0] {
                let mut c = vec![0; kind.bytes()];
                c[at..at + 2].copy_from_slice(&bits.to_le_bytes());
                let fault = dequantize(kind, &c, &mut [0.0; 8192]).unwrap_err();
                assert_eq!((fault.unit, fault.index), (unit, index));
            }
        }
    }

    #[test]
    fn chunks_of_another_size_are_refused() {
        for kind in [ChunkKind::Q4_1, ChunkKind::Q4_0, ChunkKind::Q8, ChunkKind::Q4K] {
            for len in [0, kind.bytes() - 1, kind.bytes() + 1] {
                assert!(dequantize(kind, &vec![0; len], &mut [0.0; 8192]).is_err());
            }
        }
    }
}
