//! Token embeddings: rows of a matrix that is looked up, never multiplied.

use std::sync::Arc;

use crate::Error;
use crate::rotation::Rotation;
use crate::rows::{Primal, Rows};
use crate::weights::{FloatMatrix, TernaryMatrix};

/// The embedding `[vocab, hidden]` of a target, which its drafter borrows.
#[derive(Debug)]
pub struct Embedding {
    table: Table,
    /// Rotation of the stored rows; none when they are in the primal basis.
    rotation: Option<Arc<Rotation>>,
}

/// How the rows are stored.
#[derive(Debug)]
pub enum Table {
    /// Codes and scales.
    Ternary(TernaryMatrix),
    /// Floats.
    Float(FloatMatrix),
}

impl Embedding {
    /// Rows that are stored in `rotation`'s basis, or in the primal one.
    #[must_use]
    pub fn new(table: Table, rotation: Option<Arc<Rotation>>) -> Self {
        Self { table, rotation }
    }

    /// Number of tokens.
    #[must_use]
    pub fn vocab(&self) -> usize {
        match &self.table {
            Table::Ternary(matrix) => matrix.out_features(),
            Table::Float(matrix) => matrix.out_features(),
        }
    }

    /// The row of each id, in the primal basis.
    ///
    /// # Errors
    /// [`Error::TokenId`] for an id that is no row, [`Error::Formats`] where weights are damaged.
    pub fn rows(&self, ids: &[u32]) -> Result<Rows<Primal>, Error> {
        let vocab = self.vocab();
        if let Some(id) = ids.iter().find(|id| **id as usize >= vocab) {
            return Err(Error::TokenId { id: *id, vocab });
        }
        let hidden = match &self.table {
            Table::Ternary(matrix) => matrix.in_features(),
            Table::Float(matrix) => matrix.in_features(),
        };
        let mut data = vec![0.0; ids.len() * hidden];
        for (id, row) in ids.iter().zip(data.chunks_exact_mut(hidden)) {
            match &self.table {
                Table::Ternary(matrix) => matrix.dequantize_row(*id as usize, row)?,
                Table::Float(matrix) => matrix.dequantize_row(*id as usize, row),
            }
        }
        match &self.rotation {
            None => Ok(Rows::from_vec(hidden, data)),
            Some(rotation) => rotation.unrotate(&Rows::from_data(hidden, data)),
        }
    }
}
