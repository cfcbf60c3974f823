//! A job: one matrix times up to 8 rows, as instructions and bytes of its three buffer objects.
//!
//! Outputs come in blocks of 1024 = 8 columns x 4 cores x 32, a strip of each core. Up to 20 strips are
//! a row group, whose accumulators stay in the cores; K goes by in slices of 512, again for every row
//! group.
//!
//! ```text
//! weights, `npu-pack/1`: [column][row group][slice][strip][core 0..3][2 t2 chunks of 2176 bytes]
//! activations: the slices of a row group of 20 strips (or of all, if fewer), then, if the last row
//!              group has fewer strips, the slices again with that number in their headers
//! results:     [column][strip][core 0..3][4 fields][8 rows][8] f32
//! ```

use std::ops::Range;

use crate::arithmetic::{Activations, Matrix, OperandError};
use crate::array::Tile;
use crate::design::{COLUMNS, CORES, MAX_STRIPS};
use crate::layout::{
    self, CHUNK_BYTES, CODES_AT, GROUP, ROWS, SLICE_BYTES, SLICE_K, STRIP_BYTES, STRIP_FLOATS,
    STRIP_ROWS,
};
use crate::txn::{self, Operation};

/// Outputs of a strip of all cores.
pub const BLOCK_ROWS: usize = COLUMNS * CORES * STRIP_ROWS;

/// Which buffer object is which argument.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum Argument {
    /// The weights.
    Weights = 0,
    /// The activations.
    Activations = 1,
    /// The results.
    Results = 2,
}

/// The shape cannot be run.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum JobError {
    /// No outputs or inputs.
    #[error("a matrix of {rows} x {k} has nothing to multiply")]
    Empty {
        /// Outputs.
        rows: usize,
        /// Inputs.
        k: usize,
    },
    /// A buffer object or a repeat count beyond what the hardware takes.
    #[error("{what}: {found} exceeds {limit}")]
    Limit {
        /// What is too large.
        what: &'static str,
        /// How large.
        found: usize,
        /// The limit.
        limit: usize,
    },
}

/// The shape of a matrix on the array.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Job {
    rows: usize,
    k: usize,
}

impl Job {
    /// A matrix of `rows` outputs and `k` inputs.
    ///
    /// # Errors
    /// An empty shape; more weights than 2 GiB; more than 255 row groups of 20 strips.
    pub fn new(rows: usize, k: usize) -> Result<Self, JobError> {
        if rows == 0 || k == 0 {
            return Err(JobError::Empty { rows, k });
        }
        let job = Self { rows, k };
        let groups = job.strips() / MAX_STRIPS;
        if groups > 255 {
            return Err(JobError::Limit { what: "row groups", found: groups, limit: 255 });
        }
        let (found, limit) = (job.strips().saturating_mul(job.slices()), i32::MAX as usize);
        let found = found.saturating_mul(BLOCK_ROWS / STRIP_ROWS * STRIP_BYTES);
        if found > limit {
            return Err(JobError::Limit { what: "bytes of weights", found, limit });
        }
        Ok(job)
    }

    /// Strips of each core.
    #[must_use]
    pub fn strips(&self) -> usize {
        self.rows.div_ceil(BLOCK_ROWS)
    }

    /// Slices of K.
    #[must_use]
    pub fn slices(&self) -> usize {
        self.k.div_ceil(SLICE_K)
    }

    /// Strips of each row group: as many groups of 20 as there are, then the rest.
    #[must_use]
    pub fn groups(&self) -> Vec<usize> {
        let mut groups = vec![MAX_STRIPS; self.strips() / MAX_STRIPS];
        groups.extend(Some(self.strips() % MAX_STRIPS).filter(|rest| *rest > 0));
        groups
    }

    /// Bytes of the weights.
    #[must_use]
    pub fn weight_bytes(&self) -> usize {
        COLUMNS * self.column_weight_bytes()
    }

    /// Bytes of activations in memory. They are read once per row group.
    #[must_use]
    pub fn activation_bytes(&self) -> usize {
        self.variants().len() * self.slices() * SLICE_BYTES
    }

    /// Bytes of activations that go into the array.
    #[must_use]
    pub fn streamed_activation_bytes(&self) -> usize {
        self.groups().len() * self.slices() * SLICE_BYTES
    }

    /// Bytes of the results, all 8 rows.
    #[must_use]
    pub fn result_bytes(&self) -> usize {
        COLUMNS * self.column_result_bytes()
    }

    fn column_result_bytes(&self) -> usize {
        self.strips() * CORES * STRIP_FLOATS * 4
    }

    /// Strips and repeats of each copy of the activations.
    fn variants(&self) -> Vec<(usize, usize)> {
        let (full, rest) = (self.strips() / MAX_STRIPS, self.strips() % MAX_STRIPS);
        [(MAX_STRIPS, full), (rest, 1)].into_iter().filter(|(s, n)| s * n > 0).collect()
    }

    /// The instructions. Weights begin `weights_at` bytes into their buffer object.
    ///
    /// # Errors
    /// Weights that reach beyond 2 GiB, where the firmware no longer translates addresses.
    pub fn instructions(&self, weights_at: usize) -> Result<Vec<u32>, JobError> {
        let (found, limit) = (weights_at.saturating_add(self.weight_bytes()), i32::MAX as usize);
        if found > limit {
            return Err(JobError::Limit { what: "the end of the weights", found, limit });
        }
        Ok(txn::encode(COLUMNS as u8, &self.operations(weights_at)))
    }

    fn operations(&self, weights_at: usize) -> Vec<Operation> {
        let mut out = Vec::new();
        let (weights, results) = (self.column_weight_bytes(), self.column_result_bytes());
        for col in 0..COLUMNS {
            let tile = Tile { col: col as u8, row: 0 };
            descriptor(&mut out, tile, 1, results, Argument::Results, col * results);
            // Tokens carry the number of the controller that waits for them.
            let register = register(tile, 0x1D200);
            out.push(Operation::Masked { register, value: 0xF00, mask: 0x1F00 });
            push(&mut out, tile, 0x1D204, 1, 1, true);
            let at = weights_at + col * weights;
            descriptor(&mut out, tile, 0, weights, Argument::Weights, at);
            push(&mut out, tile, 0x1D214, 0, 1, false);
        }
        let tile = Tile { col: 0, row: 0 };
        let bytes = self.slices() * SLICE_BYTES;
        for (i, (_, repeats)) in self.variants().into_iter().enumerate() {
            let id = 2 + i as u32;
            descriptor(&mut out, tile, id, bytes, Argument::Activations, i * bytes);
            push(&mut out, tile, 0x1D21C, id, repeats as u32, false);
        }
        for col in 0..COLUMNS {
            let tile = Tile { col: col as u8, row: 0 };
            out.push(Operation::Sync { tile, direction: 0, channel: 0 });
        }
        out
    }

    /// The activations' buffer object.
    ///
    /// # Errors
    /// Activations of another width.
    pub fn pack_activations(&self, x: &Activations) -> Result<Vec<u8>, OperandError> {
        if x.k() != self.k {
            let (expected, found) = (self.k, x.k());
            return Err(OperandError::Length { what: "columns", expected, found });
        }
        let variants = self.variants().into_iter();
        Ok(variants.flat_map(|(strips, _)| layout::slices(x, strips as u32)).collect())
    }

    /// `w` in the order of `npu-pack/1`; rows and columns that it lacks have scales of zero.
    ///
    /// # Errors
    /// A matrix of another shape.
    pub fn pack_weights(&self, w: &Matrix) -> Result<Vec<u8>, OperandError> {
        for (what, expected, found) in
            [("outputs", self.rows, w.rows()), ("columns", self.k, w.k())]
        {
            if expected != found {
                return Err(OperandError::Length { what, expected, found });
            }
        }
        let mut out = vec![0; self.weight_bytes()];
        for (col, mut out) in out.chunks_exact_mut(self.column_weight_bytes()).enumerate() {
            for group in 0..self.groups().len() {
                let part;
                (part, out) = out.split_at_mut(self.group_weight_bytes(group));
                self.pack_group(col, group, part, |rows| Ok(w.strip(rows)))?;
            }
        }
        Ok(out)
    }

    /// Bytes of a column's weights. The weights are those of all columns, one after the other.
    #[must_use]
    pub fn column_weight_bytes(&self) -> usize {
        self.strips() * self.slices() * CORES * STRIP_BYTES
    }

    /// Bytes of a row group of a column. The weights of a column are those of its row groups, one after
    /// the other.
    #[must_use]
    pub fn group_weight_bytes(&self, group: usize) -> usize {
        self.group_strips(group) * self.slices() * CORES * STRIP_BYTES
    }

    fn group_strips(&self, group: usize) -> usize {
        self.strips().saturating_sub(group * MAX_STRIPS).min(MAX_STRIPS)
    }

    /// Writes a row group of a column in the order of `npu-pack/1` over zeros. `strip` gives rows of the
    /// matrix, at most 32 and perhaps none.
    ///
    /// # Errors
    /// What `strip` says; [`OperandError::Length`] for another number of rows, columns or bytes than
    /// there must be.
    pub fn pack_group<E: From<OperandError>>(
        &self,
        col: usize,
        group: usize,
        out: &mut [u8],
        strip: impl Fn(Range<usize>) -> Result<Matrix, E>,
    ) -> Result<(), E> {
        let n_strips = self.group_strips(group);
        let length = |what, expected: usize, found: usize| {
            if expected == found {
                return Ok(());
            }
            Err(OperandError::Length { what, expected, found })
        };
        length("bytes of weights", self.group_weight_bytes(group), out.len())?;
        let (elements, _) = out.as_chunks_mut::<STRIP_BYTES>();
        for n in 0..n_strips {
            for core in 0..CORES {
                let first = first_row(group * MAX_STRIPS + n, col, core).min(self.rows);
                let rows = first..(first + STRIP_ROWS).min(self.rows);
                let w = strip(rows.clone())?;
                length("outputs", rows.len(), w.rows())?;
                length("columns", self.k, w.k())?;
                for slice in 0..self.slices() {
                    let out = &mut elements[(slice * n_strips + n) * CORES + core];
                    pack_strip(&w, slice * SLICE_K, out);
                }
            }
        }
        Ok(())
    }

    /// The values of the results' buffer object, `[live_rows, outputs]`.
    ///
    /// # Errors
    /// Bytes of another length.
    pub fn unpack_results(&self, bytes: &[u8], live_rows: usize) -> Result<Vec<f32>, OperandError> {
        let (expected, found) = (self.result_bytes(), bytes.len());
        if expected != found {
            return Err(OperandError::Length { what: "bytes of results", expected, found });
        }
        if live_rows == 0 || live_rows > ROWS {
            return Err(OperandError::Rows { found: live_rows });
        }
        let values = bytes.as_chunks::<4>().0;
        let at = |row: usize, output: usize| {
            let (block, rest) = (output / BLOCK_ROWS, output % BLOCK_ROWS);
            let (col, core) = (rest / (CORES * STRIP_ROWS), rest / STRIP_ROWS % CORES);
            let strip = (col * self.strips() + block) * CORES + core;
            let o = output % STRIP_ROWS;
            strip * STRIP_FLOATS + (o / 8) * 64 + row * 8 + o % 8
        };
        let all = (0..live_rows).flat_map(|row| (0..self.rows).map(move |o| (row, o)));
        Ok(all.map(|(row, o)| f32::from_le_bytes(values[at(row, o)])).collect())
    }
}

/// The first output of strip `block` of a core.
fn first_row(block: usize, col: usize, core: usize) -> usize {
    block * BLOCK_ROWS + (col * CORES + core) * STRIP_ROWS
}

/// A strip's codes and scales of a slice; `w` has the rows of the strip.
fn pack_strip(w: &Matrix, k0: usize, out: &mut [u8; STRIP_BYTES]) {
    for (c, chunk) in out.chunks_exact_mut(CHUNK_BYTES).enumerate() {
        let k0 = k0 + 256 * c;
        for r in 0..STRIP_ROWS {
            for half in 0..2 {
                let scale = w.scale(r, k0 / GROUP + half).to_le_bytes();
                chunk[2 * (half * 32 + r)..][..2].copy_from_slice(&scale);
            }
            for k in 0..256 {
                let code = w.code(r, k0 + k) << (2 * (r / 8));
                chunk[CODES_AT + 8 * k + r % 8] |= code;
            }
        }
    }
}

fn register(tile: Tile, offset: u32) -> u32 {
    u32::from(tile.col) << 25 | u32::from(tile.row) << 20 | offset
}

/// A linear descriptor of a shim, and the address it gets.
fn descriptor(
    out: &mut Vec<Operation>,
    tile: Tile,
    id: u32,
    bytes: usize,
    argument: Argument,
    offset: usize,
) {
    let base = register(tile, 0x1D000 + 0x20 * id);
    // The longest bursts (512 bytes), cacheable, valid.
    let words = vec![bytes as u32 / 4, 0, 0, 0, 0xC000_0000, 0x0200_0000, 0, 0x0200_0000];
    out.push(Operation::Block { register: base, words });
    let (argument, offset) = (argument as u32, offset as u32);
    out.push(Operation::Patch { register: base + 4, argument, offset });
}

fn push(out: &mut Vec<Operation>, tile: Tile, queue: u32, id: u32, repeats: u32, token: bool) {
    let value = id | (repeats - 1) << 16 | u32::from(token) << 31;
    out.push(Operation::Write { register: register(tile, queue), value });
}
