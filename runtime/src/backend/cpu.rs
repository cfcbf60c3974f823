//! The CPU backend: packed matrices, one kernel per instruction set.
//!
//! [`layout`] has the order of the packed bytes, [`dot`] the choice of an instruction, [`avx512`],
//! [`wide`] and [`portable`] the kernels. A kernel multiplies a tile of 16 outputs with a block of up
//! to 8 rows; tiles are spread over the threads of the current rayon pool. The bits are those of
//! [`Reference`](super::Reference).

#[cfg(target_arch = "x86_64")]
#[expect(unsafe_code, reason = "vectors are loaded and stored through pointers")]
mod avx512;
mod dot;
mod layout;
mod memory;
mod packs;
mod portable;
#[cfg(target_arch = "x86_64")]
#[expect(unsafe_code, reason = "an instruction")]
mod prefetch;
#[cfg(test)]
mod tests;
#[cfg(target_arch = "x86_64")]
#[expect(unsafe_code, reason = "vectors are loaded and stored through pointers")]
mod wide;

use std::ops::Range;
use std::sync::OnceLock;

use hadamard::Isa;
use rayon::prelude::*;

pub use dot::Dot;
pub(crate) use memory::Memory;
pub use packs::ModelOnCpu;

use super::{Backend, Prepared};
use crate::Error;
use crate::pack_cache::PackedBytes;
use crate::parallel;
use crate::quant::{Activations, BLOCK_ROWS, Block, Integers};
use crate::weights::TernaryMatrix;
use dot::Kind;
use layout::{BAND, Lanes, TILE, Tile};

/// Bytes of packed weights that a task takes at most: they stay in a core's cache while blocks of rows
/// pass over them.
const TASK_BYTES: usize = 256 << 10;

/// The CPU backend.
///
/// Matrices are packed when they are first multiplied, into memory, unless a
/// [`PackCache`](crate::pack_cache::PackCache) has given them their packed bytes ([`ModelOnCpu`]). Their
/// files stay mapped for [`ActQuant::F32`](crate::quant::ActQuant::F32), which the reference
/// multiplies.
#[derive(Debug, Clone, Copy)]
pub struct Cpu {
    dot: Dot,
}

impl Cpu {
    /// A backend that multiplies with `dot`.
    #[must_use]
    pub fn new(dot: Dot) -> Self {
        Self { dot }
    }
}

impl Default for Cpu {
    /// With the best instruction of this CPU.
    fn default() -> Self {
        Self::new(Dot::detect(Isa::detect()))
    }
}

impl Backend for Cpu {
    fn prepare(&self, matrix: TernaryMatrix) -> Result<Box<dyn Prepared>, Error> {
        Ok(Box::new(Packed::new(matrix, self.dot)))
    }
}

/// A matrix, and its packed bytes once it has them.
#[derive(Debug)]
struct Packed {
    matrix: TernaryMatrix,
    dot: Dot,
    bytes: OnceLock<PackedBytes>,
}

impl Packed {
    fn new(matrix: TernaryMatrix, dot: Dot) -> Self {
        Self { matrix, dot, bytes: OnceLock::new() }
    }

    fn bytes(&self) -> Result<&[u8], Error> {
        if let Some(bytes) = self.bytes.get() {
            return Ok(bytes);
        }
        let packed = pack(&self.matrix)?;
        Ok(self.bytes.get_or_init(|| packed.into()))
    }
}

/// Packs a matrix into memory.
fn pack(matrix: &TernaryMatrix) -> Result<Memory, Error> {
    let (n, width) = (matrix.out_features(), matrix.in_features());
    let mut bytes = Memory::zeroed(layout::packed_bytes(n, width))
        .map_err(|source| Error::Memory { bytes: layout::packed_bytes(n, width), source })?;
    let bands = bytes.par_chunks_mut(layout::packed_bytes(BAND, width)).enumerate();
    bands.try_for_each(|(band, bytes)| layout::pack_band(matrix, band, bytes))?;
    // Packed bytes and pages of the file at once would be twice the model.
    matrix.release();
    Ok(bytes)
}

impl Prepared for Packed {
    fn matmul(&self, x: &Activations, out: &mut [f32]) -> Result<(), Error> {
        let (width, n_out) = (self.matrix.in_features(), self.matrix.out_features());
        assert_eq!((x.width(), out.len()), (width, x.n() * n_out));
        let Some(integers) = x.integers() else {
            return self.matrix.matmul(x, out);
        };
        let tiles = Tiles { bytes: self.bytes()?, tile_bytes: layout::tile_bytes(width) };
        let task = (TASK_BYTES / tiles.tile_bytes).max(1);
        let tasks = n_out.div_ceil(TILE).div_ceil(8 * rayon::current_num_threads());
        let outputs = TILE * task.min(tasks).max(1);
        parallel::by_rows(n_out, width, outputs, out, |range, out| {
            tiles.multiply(self.dot, range, integers, out);
            Ok(())
        })
    }
}

/// The tiles of a matrix.
#[derive(Debug, Clone, Copy)]
struct Tiles<'a> {
    bytes: &'a [u8],
    tile_bytes: usize,
}

impl Tiles<'_> {
    /// The products of outputs `range`, which begins with a tile, with all rows; `out`: where the
    /// outputs of each row go.
    fn multiply(self, dot: Dot, range: Range<usize>, x: &Integers, out: &mut [&mut [f32]]) {
        let first = range.start / TILE;
        for (rows, block) in x.blocks() {
            for (n, outputs) in range.clone().step_by(TILE).enumerate() {
                let bytes = &self.bytes[(first + n) * self.tile_bytes..][..self.tile_bytes];
                let mut lanes = [[0.0; TILE]; BLOCK_ROWS];
                let lanes = &mut lanes[..block.rows];
                multiply(dot, Tile::new(bytes), block, lanes);
                let len = TILE.min(range.end - outputs);
                for (out, lanes) in out[rows.clone()].iter_mut().zip(lanes) {
                    out[n * TILE..][..len].copy_from_slice(&lanes[..len]);
                }
            }
        }
    }
}

/// Multiplies a tile with the rows of `block`.
#[cfg_attr(target_arch = "x86_64", expect(unsafe_code, reason = "the calls into the SIMD kernels"))]
fn multiply(dot: Dot, tile: Tile<'_>, block: Block<'_>, out: &mut [Lanes]) {
    match dot.0 {
        Kind::Portable => portable::multiply(tile, block, out),
        #[cfg(target_arch = "x86_64")]
        // SAFETY: a `Dot` exists only if the CPU has its features, and those are the ones that the
        // kernel enables (see the test in `dot`).
        Kind::Maddubs => unsafe { wide::maddubs::multiply(tile, block, out) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: as above.
        Kind::AvxVnni => unsafe { wide::avx_vnni::multiply(tile, block, out) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: as above.
        Kind::Avx512Vl => unsafe { wide::avx512_vl::multiply(tile, block, out) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: as above.
        Kind::Avx512 => unsafe { avx512::multiply(tile, block, out) },
        #[cfg(not(target_arch = "x86_64"))]
        _ => unreachable!("no such instruction is detected here"),
    }
}
