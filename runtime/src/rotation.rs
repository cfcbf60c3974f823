//! The rotation between the two bases, for every width of one model.
//!
//! `R x = H (σ ⊙ x)` per block: signs first, then the transform; back is the transform first, then
//! the signs. One width has one sign vector, shared by all matrices with that many inputs.

use std::collections::BTreeMap;

use hadamard::{BlockHadamard, Isa, Signs};

use crate::rows::{Primal, Rotated, Rows};
use crate::{Error, spread};

/// A block size and the signs of each width.
#[derive(Debug, Clone)]
pub struct Rotation {
    hadamard: BlockHadamard,
    signs: BTreeMap<usize, Signs>,
}

impl Rotation {
    /// A rotation in blocks of `block`; `signs`: by width, each +1 or -1.
    ///
    /// # Errors
    /// [`Error::Hadamard`] for a block that is no power of two from 2 to 8192, a width that is no
    /// multiple of it, and other signs.
    pub fn new(block: usize, signs: BTreeMap<usize, Vec<i8>>, isa: Isa) -> Result<Self, Error> {
        let hadamard = BlockHadamard::new(block, isa)?;
        let mut checked = BTreeMap::new();
        for (width, values) in signs {
            if !width.is_multiple_of(block) {
                return Err(hadamard::Error::PartialBlock { len: width, block }.into());
            }
            let signs = Signs::new(values)?;
            if signs.width() != width {
                let found = signs.width();
                return Err(hadamard::Error::SignsWidth { expected: width, found }.into());
            }
            checked.insert(width, signs);
        }
        Ok(Self { hadamard, signs: checked })
    }

    /// Inputs per transform.
    #[must_use]
    pub fn block(&self) -> usize {
        self.hadamard.block()
    }

    /// Whether vectors of `width` can be rotated.
    #[must_use]
    pub fn has(&self, width: usize) -> bool {
        self.signs.contains_key(&width)
    }

    /// The rows as the ternary matrices want them.
    ///
    /// # Errors
    /// [`Error::NoSigns`] when the rotation has no signs for the rows' width;
    /// [`Error::FloatEnvironment`] when a worker thread has other modes.
    pub fn rotate(&self, x: &Rows<Primal>) -> Result<Rows<Rotated>, Error> {
        let (width, signs) = (x.width(), self.signs_of(x.width())?);
        let mut data = vec![0.0; x.data().len()];
        spread::parts(&mut data, width, width / 3, |i, row| {
            row.copy_from_slice(x.row(i));
            Ok(self.hadamard.forward(row, signs)?)
        })?;
        Ok(Rows::from_data(width, data))
    }

    /// The rows of a matrix that is stored rotated (an embedding) as the model defines them.
    ///
    /// # Errors
    /// As [`Rotation::rotate`].
    pub fn unrotate(&self, x: &Rows<Rotated>) -> Result<Rows<Primal>, Error> {
        let (width, signs) = (x.width(), self.signs_of(x.width())?);
        let mut data = vec![0.0; x.data().len()];
        spread::parts(&mut data, width, width / 3, |i, row| {
            row.copy_from_slice(x.row(i));
            Ok(self.hadamard.inverse(row, signs)?)
        })?;
        Ok(Rows::from_data(width, data))
    }

    fn signs_of(&self, width: usize) -> Result<&Signs, Error> {
        self.signs.get(&width).ok_or(Error::NoSigns { width })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rotation() -> Rotation {
        let signs = [(4, vec![1, -1, 1, 1]), (8, vec![-1, 1, 1, 1, 1, 1, 1, -1])];
        Rotation::new(4, signs.into(), Isa::detect()).unwrap()
    }

    #[test]
    fn each_width_has_its_signs() {
        let x = Rows::from_vec(4, vec![1.0, 2.0, 3.0, 4.0]);
        let rotated = rotation().rotate(&x).unwrap();
        assert_eq!(rotated.data(), [3.0, 1.0, -4.0, 2.0]);
        assert_eq!(rotation().unrotate(&rotated).unwrap(), x);
        let wide = Rows::from_vec(8, vec![1.0; 16]);
        let rotated = rotation().rotate(&wide).unwrap();
        assert_eq!(rotated.row(0), rotated.row(1));
        assert_eq!(rotation().unrotate(&rotated).unwrap(), wide);
        // So many that they are spread over threads.
        let many = Rows::from_vec(8, (0..80_000).map(|i| (i % 5) as f32).collect());
        let rotated = rotation().rotate(&many).unwrap();
        for i in (0..10_000).step_by(999) {
            let alone = rotation().rotate(&many.slice(i..i + 1)).unwrap();
            assert_eq!(rotated.row(i), alone.row(0));
        }
        assert_eq!(rotation().unrotate(&rotated).unwrap(), many);
    }

    #[test]
    fn what_cannot_be_rotated_is_refused() {
        let error = rotation().rotate(&Rows::zeroed(1, 12)).unwrap_err();
        assert!(error.to_string().contains("12"), "{error}");
        for (block, width, values) in
            [(3, 4, vec![1; 4]), (4, 6, vec![1; 6]), (4, 8, vec![1; 4]), (4, 4, vec![1, 0, 1, 1])]
        {
            assert!(Rotation::new(block, [(width, values)].into(), Isa::scalar()).is_err());
        }
        assert!(rotation().has(8) && !rotation().has(12));
        assert_eq!(rotation().block(), 4);
    }
}
