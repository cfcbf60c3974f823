//! Second moments of the inputs of a drafter's matrices, in the rotated basis: what a calibrated
//! ternarization needs.
//!
//! Rows are taken from a drafter at work ([`InputObserver`]), rotated in blocks with signs of +1, and
//! summed as `Σ w x' x'ᵀ`. At each [`CHUNK`] of an input's rows, and at the end of a unit of work, the
//! sums of the rows that wait are made in f64 in the order of the rows, rounded to integers, and added to
//! the totals. So a unit's contribution depends on nothing but the unit, and totals do not depend on the
//! order of units: work may be cut up by units in any way, and added again to the same bits.

mod gram;
mod scales;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use formats::calib::{self, Input, InputRecord, Tile, WEIGHT_ONE, inputs_of, triangle};
use formats::dflash2::config::Config;
use hadamard::Isa;

use crate::drafter::InputObserver;
use crate::rotation::Rotation;
use crate::rows::{Primal, Rows};
use crate::{Error, spread};

use gram::{Columns, MIN_BLOCK};

pub use scales::exponents;

/// Rows that wait before their sums are made. Part of the definition: each chunk is rounded by itself.
pub const CHUNK: usize = 128;

/// The weight of each row of a block of `n`, in units of `1 / WEIGHT_ONE`: one for the pending token and
/// the first draft, then `0.8` times that of the row before, because a draft counts only if all before it
/// were accepted.
#[must_use]
pub fn decaying_weights(n: usize) -> Vec<u64> {
    let mut weight = WEIGHT_ONE as f64;
    (0..n)
        .map(|i| {
            if i > 1 {
                weight *= 0.8;
            }
            weight.round() as u64
        })
        .collect()
}

/// Moments that grow.
#[derive(Debug)]
pub struct Moments {
    rotation: Rotation,
    isa: Isa,
    row_weights: Vec<u64>,
    sums: Mutex<BTreeMap<Input, Sums>>,
}

#[derive(Debug)]
struct Sums {
    width: usize,
    exponent: i32,
    rows: u64,
    weight: u64,
    diagonal: Vec<i64>,
    /// Empty where only the diagonal is wanted.
    pairs: Vec<i64>,
    full: bool,
    /// Rotated rows that wait, and their weights.
    waiting: Vec<f32>,
    weights: Vec<u64>,
}

impl Moments {
    /// No rows yet. `row_weights`: of each row of a block, in units of `1 / WEIGHT_ONE`, at most that;
    /// `full`: inputs of which all tiles are wanted; `exponents`: see [`exponents`].
    ///
    /// # Errors
    /// [`Error::Hadamard`] for a block that does not divide the widths of all matrices.
    ///
    /// # Panics
    /// If `block` is below 8, a weight is missing or above one, or an input has no exponent.
    pub fn new(
        config: &Config,
        block: usize,
        row_weights: Vec<u64>,
        full: &BTreeSet<Input>,
        exponents: &BTreeMap<Input, i32>,
        isa: Isa,
    ) -> Result<Self, Error> {
        assert!(block >= MIN_BLOCK && row_weights.len() >= config.block_size);
        assert!(row_weights.iter().all(|weight| *weight <= WEIGHT_ONE));
        let widths = config.matrix_widths().into_iter();
        let signs = widths.map(|width| (width, vec![1; width])).collect();
        let rotation = Rotation::new(block, signs, isa)?;
        let sums = inputs_of(config).into_iter().map(|input| {
            let (width, full) = (input.width(config), full.contains(&input));
            let n = width / block;
            let pairs = if full { n * (n - 1) / 2 } else { 0 };
            let sums = Sums {
                width,
                exponent: exponents[&input],
                rows: 0,
                weight: 0,
                diagonal: vec![0; n * triangle(block)],
                pairs: vec![0; pairs * block * block],
                full,
                waiting: Vec::new(),
                weights: Vec::new(),
            };
            (input, sums)
        });
        Ok(Self { rotation, isa, row_weights, sums: Mutex::new(sums.collect()) })
    }

    /// Bytes that moments of this shape take, with the rows that wait.
    #[must_use]
    pub fn bytes(config: &Config, block: usize, full: &BTreeSet<Input>) -> usize {
        let of = |input: Input| {
            let width = input.width(config);
            let n = width / block;
            let pairs = if full.contains(&input) { n * (n - 1) / 2 * block * block } else { 0 };
            8 * (n * triangle(block) + pairs) + CHUNK * width * 4
        };
        inputs_of(config).into_iter().map(of).sum()
    }

    /// Ends a unit of work: what waits is added.
    ///
    /// # Errors
    /// [`Error::Moments`] when a sum does not fit, [`Error::FloatEnvironment`] when a worker thread has
    /// other modes; the moments are of no use then.
    pub fn end_unit(&self) -> Result<(), Error> {
        for (input, sums) in &mut *self.sums() {
            self.flush(*input, sums)?;
        }
        Ok(())
    }

    /// What is there, by the names of the inputs. Hashes are left to the writer of a file.
    #[must_use]
    pub fn records(&self) -> BTreeMap<String, InputRecord> {
        let record = |sums: &Sums| InputRecord {
            width: sums.width,
            exponent: sums.exponent,
            rows: sums.rows,
            weight: sums.weight,
            full: sums.full,
            sha256: Vec::new(),
        };
        self.sums().iter().map(|(input, sums)| (input.to_string(), record(sums))).collect()
    }

    /// The integers of a tile, without rows that wait.
    ///
    /// # Panics
    /// If there is no such tile.
    #[must_use]
    pub fn tile(&self, input: Input, tile: Tile) -> Vec<i64> {
        let block = self.rotation.block();
        let sums = &self.sums()[&input];
        let (all, len) = match tile {
            Tile::Diagonal(_) => (&sums.diagonal, triangle(block)),
            Tile::Pair(..) => (&sums.pairs, block * block),
        };
        let place = tile.place(sums.width / block);
        all[place * len..(place + 1) * len].to_vec()
    }

    /// Takes the totals of `file` in the place of what is there.
    ///
    /// # Errors
    /// [`Error::Formats`] when the file was damaged.
    ///
    /// # Panics
    /// If the file is not of these inputs.
    pub fn restore(&self, file: &calib::File) -> Result<(), Error> {
        let block = self.rotation.block();
        for (input, sums) in &mut *self.sums() {
            let record = file.input(*input)?;
            assert_eq!((record.width, record.full), (sums.width, sums.full));
            sums.rows = record.rows;
            sums.weight = record.weight;
            for tile in Tile::all(sums.width / block, sums.full) {
                let (all, len) = match tile {
                    Tile::Diagonal(_) => (&mut sums.diagonal, triangle(block)),
                    Tile::Pair(..) => (&mut sums.pairs, block * block),
                };
                let place = tile.place(sums.width / block);
                all[place * len..(place + 1) * len].copy_from_slice(&file.units(*input, tile)?);
            }
        }
        Ok(())
    }

    fn sums(&self) -> MutexGuard<'_, BTreeMap<Input, Sums>> {
        self.sums.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds the rows that wait to the totals.
    fn flush(&self, input: Input, sums: &mut Sums) -> Result<(), Error> {
        if sums.weights.is_empty() {
            return Ok(());
        }
        let (block, width, exponent) = (self.rotation.block(), sums.width, sums.exponent);
        let weights: Vec<f64> =
            sums.weights.iter().map(|w| *w as f64 / WEIGHT_ONE as f64).collect();
        let rows = &sums.waiting;
        let columns = |i: usize| Columns::new(rows, width, &weights, i * block, block);
        let cost = weights.len() * block * block / 8;
        spread::parts(&mut sums.diagonal, triangle(block), cost, |i, tile| {
            let columns = columns(i);
            gram::add(self.isa, &columns, &columns, true, exponent, tile, input)
        })?;
        if sums.full {
            let pairs: Vec<Tile> = Tile::all(width / block, true).skip(width / block).collect();
            spread::parts(&mut sums.pairs, block * block, 2 * cost, |place, tile| {
                let Tile::Pair(i, j) = pairs[place] else { return Ok(()) };
                gram::add(self.isa, &columns(i), &columns(j), false, exponent, tile, input)
            })?;
        }
        sums.rows += sums.weights.len() as u64;
        sums.weight += sums.weights.iter().sum::<u64>();
        sums.waiting.clear();
        sums.weights.clear();
        Ok(())
    }
}

impl InputObserver for Moments {
    fn rows(&self, input: Input, first: usize, rows: &Rows<Primal>) -> Result<(), Error> {
        let rotated = self.rotation.rotate(rows)?;
        let of_context = matches!(input, Input::Fc | Input::Context);
        let mut all = self.sums();
        let Some(sums) = all.get_mut(&input) else { return Ok(()) };
        for (i, row) in rotated.iter().enumerate() {
            sums.waiting.extend_from_slice(row);
            sums.weights.push(if of_context { WEIGHT_ONE } else { self.row_weights[first + i] });
            if sums.weights.len() == CHUNK {
                self.flush(input, sums)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_fall_from_the_second_draft_on() {
        let weights = decaying_weights(8);
        assert_eq!(weights[..4], [65536, 65536, 52429, 41943]);
        assert!(weights.windows(2).all(|pair| pair[1] <= pair[0]) && weights[7] > 17000);
    }
}
