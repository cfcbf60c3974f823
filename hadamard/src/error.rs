//! What a caller can get wrong: a block size, a length, or a sign vector.

/// A rejected argument. Nothing has been written when an operation returns one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The block size is not one the transform is defined for.
    #[error("block size must be a power of two from 2 to 8192, found {found}")]
    BlockSize {
        /// The size asked for.
        found: usize,
    },
    /// A vector, or a row of a matrix, does not consist of whole blocks.
    #[error("length {len} is not a multiple of the block size {block}")]
    PartialBlock {
        /// The length of the vector or row.
        len: usize,
        /// The block size of the transform.
        block: usize,
    },
    /// A matrix does not consist of whole rows.
    #[error("matrix of {len} elements is not made of rows of {cols}")]
    PartialRow {
        /// The number of elements of the matrix.
        len: usize,
        /// The row length.
        cols: usize,
    },
    /// The sign vector belongs to vectors of another width.
    #[error("expected signs of width {expected}, found width {found}")]
    SignsWidth {
        /// The length of the vector or row to transform.
        expected: usize,
        /// The width of the signs.
        found: usize,
    },
    /// A sign is neither 1 nor -1.
    #[error("sign {index} must be 1 or -1, found {found}")]
    SignValue {
        /// The position of the first bad sign.
        index: usize,
        /// Its value.
        found: i8,
    },
}
