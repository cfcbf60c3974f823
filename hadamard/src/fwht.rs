//! The block transform: argument checks, and the choice of a kernel.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "x86_64")]
mod prefetch;
mod scalar;

use crate::{Error, Isa, Level, Signs, signs};

const MIN_BLOCK: usize = 2;
const MAX_BLOCK: usize = 8192;

/// The orthonormal Walsh-Hadamard transform of consecutive blocks, on one instruction set.
///
/// See the [crate documentation](crate) for the formula and the order of operations.
#[derive(Clone, Debug)]
pub struct BlockHadamard {
    block: usize,
    isa: Isa,
    /// 1 / sqrt(block), rounded to nearest.
    scale: f32,
}

impl BlockHadamard {
    /// The block size used unless something asks for another.
    pub const DEFAULT_BLOCK: usize = 1024;

    /// A transform of blocks of `block` elements that runs on `isa`.
    ///
    /// # Errors
    ///
    /// [`Error::BlockSize`] unless `block` is a power of two from 2 to 8192.
    pub fn new(block: usize, isa: Isa) -> Result<Self, Error> {
        if !block.is_power_of_two() || !(MIN_BLOCK..=MAX_BLOCK).contains(&block) {
            return Err(Error::BlockSize { found: block });
        }
        let scale = (1.0 / (block as f64).sqrt()) as f32;
        Ok(BlockHadamard { block, isa, scale })
    }

    /// The number of elements of a block.
    #[must_use]
    pub const fn block(&self) -> usize {
        self.block
    }

    /// The instruction set the transform runs on.
    #[must_use]
    pub const fn isa(&self) -> Isa {
        self.isa
    }

    /// Replaces each block of `x` by its transform, without signs.
    ///
    /// # Errors
    ///
    /// [`Error::PartialBlock`] if `x` is not made of whole blocks.
    pub fn transform(&self, x: &mut [f32]) -> Result<(), Error> {
        self.check_blocks(x.len())?;
        self.run(x, None);
        Ok(())
    }

    /// Rotates `x`: signs first, then the transform of each block.
    ///
    /// # Errors
    ///
    /// [`Error::PartialBlock`] if `x` is not made of whole blocks, [`Error::SignsWidth`] if `signs`
    /// is not as wide as `x`.
    pub fn forward(&self, x: &mut [f32], signs: &Signs) -> Result<(), Error> {
        self.check_blocks(x.len())?;
        check_signs(x.len(), signs)?;
        self.run(x, signs.flips());
        Ok(())
    }

    /// Undoes [`forward`](Self::forward), to rounding: the transform of each block first, then signs.
    ///
    /// # Errors
    ///
    /// As [`forward`](Self::forward).
    pub fn inverse(&self, x: &mut [f32], signs: &Signs) -> Result<(), Error> {
        self.check_blocks(x.len())?;
        check_signs(x.len(), signs)?;
        self.run_inverse(x, signs.flips());
        Ok(())
    }

    /// [`forward`](Self::forward) on each row of `matrix`, `[rows, cols]` row-major.
    ///
    /// This is `W R^-1`, the matrix whose product with a rotated vector is the product of `W` with
    /// the vector.
    ///
    /// # Errors
    ///
    /// [`Error::PartialBlock`] if `cols` is not made of whole blocks, [`Error::PartialRow`] if
    /// `matrix` is not made of whole rows, [`Error::SignsWidth`] if `signs` is not `cols` wide.
    pub fn forward_rows(
        &self,
        matrix: &mut [f32],
        cols: usize,
        signs: &Signs,
    ) -> Result<(), Error> {
        self.check_rows(matrix.len(), cols, signs)?;
        match signs.flips() {
            // Without signs a matrix is just many blocks.
            None => self.run(matrix, None),
            Some(flips) => {
                for row in matrix.chunks_exact_mut(cols) {
                    self.run(row, Some(flips));
                }
            }
        }
        Ok(())
    }

    /// [`inverse`](Self::inverse) on each row of `matrix`, `[rows, cols]` row-major.
    ///
    /// # Errors
    ///
    /// As [`forward_rows`](Self::forward_rows).
    pub fn inverse_rows(
        &self,
        matrix: &mut [f32],
        cols: usize,
        signs: &Signs,
    ) -> Result<(), Error> {
        self.check_rows(matrix.len(), cols, signs)?;
        match signs.flips() {
            None => self.run(matrix, None),
            Some(flips) => {
                for row in matrix.chunks_exact_mut(cols) {
                    self.run_inverse(row, Some(flips));
                }
            }
        }
        Ok(())
    }

    fn check_blocks(&self, len: usize) -> Result<(), Error> {
        if !len.is_multiple_of(self.block) {
            return Err(Error::PartialBlock { len, block: self.block });
        }
        Ok(())
    }

    fn check_rows(&self, len: usize, cols: usize, signs: &Signs) -> Result<(), Error> {
        self.check_blocks(cols)?;
        // No matrix but the empty one is a multiple of 0.
        if !len.is_multiple_of(cols) {
            return Err(Error::PartialRow { len, cols });
        }
        check_signs(cols, signs)
    }

    /// `x`: whole blocks; `flips`: `[x.len()]`.
    fn run_inverse(&self, x: &mut [f32], flips: Option<&[u32]>) {
        let Some(flips) = flips else {
            return self.run(x, None);
        };
        // Block by block, so that the signs find the block in the nearest cache.
        for (x, flips) in x.chunks_exact_mut(self.block).zip(flips.chunks_exact(self.block)) {
            self.run(x, None);
            signs::apply(x, flips);
        }
    }

    /// `x`: whole blocks; `flips`: `[x.len()]`.
    fn run(&self, x: &mut [f32], flips: Option<&[u32]>) {
        let Self { block, scale, .. } = *self;
        match self.isa.level() {
            #[cfg(target_arch = "x86_64")]
            Level::Avx512 if block >= avx512::MIN_BLOCK => {
                // SAFETY: an `Isa` of this level exists only if the CPU has the level's features,
                // and those are the ones the kernel enables (see the test in `isa`).
                unsafe { avx512::transform(x, block, scale, flips) }
            }
            #[cfg(target_arch = "x86_64")]
            Level::Avx2 | Level::Avx512 if block >= avx2::MIN_BLOCK => {
                // SAFETY: as above; levels include the features of lower levels.
                unsafe { avx2::transform(x, block, scale, flips) }
            }
            _ => scalar::transform(x, block, scale, flips),
        }
    }
}

fn check_signs(expected: usize, signs: &Signs) -> Result<(), Error> {
    if signs.width() != expected {
        return Err(Error::SignsWidth { expected, found: signs.width() });
    }
    Ok(())
}
