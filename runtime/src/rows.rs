//! Activations, and the basis they are in.
//!
//! A ternary matrix is stored for rotated inputs, everything else (norms, residual stream, taps,
//! heads) works in the primal basis. Giving one the other's vector computes noise without any other
//! symptom, so the basis is part of the type and mixing them does not compile:
//!
//! ```compile_fail
//! use runtime::rows::{Primal, Rotated, Rows};
//! fn multiply(x: &Rows<Rotated>) {}
//! let x: Rows<Primal> = Rows::zeroed(1, 256);
//! multiply(&x);
//! ```
//!
//! ```
//! use runtime::rows::{Primal, Rows};
//! fn norm(x: &Rows<Primal>) {}
//! let x: Rows<Primal> = Rows::zeroed(1, 256);
//! norm(&x);
//! ```
//!
//! Rotated rows come from [`crate::rotation::Rotation`] only.

use std::marker::PhantomData;

/// The basis of the model's own definition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Primal {}

/// The basis of the ternary matrices' inputs: signs, then Hadamard, per block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rotated {}

/// `[n, width]` row-major f32 in one basis.
#[derive(Debug, Clone, PartialEq)]
pub struct Rows<B> {
    width: usize,
    data: Vec<f32>,
    basis: PhantomData<B>,
}

impl Rows<Primal> {
    /// `n` rows of zeros.
    ///
    /// # Panics
    /// If `width` is 0.
    #[must_use]
    pub fn zeroed(n: usize, width: usize) -> Self {
        Self::from_data(width, vec![0.0; n * width])
    }

    /// Rows that lie one after the other in `data`.
    ///
    /// # Panics
    /// If `width` is 0 or `data` is not whole rows.
    #[must_use]
    pub fn from_vec(width: usize, data: Vec<f32>) -> Self {
        Self::from_data(width, data)
    }
}

impl<B> Rows<B> {
    /// For this crate: the caller vouches for the basis.
    pub(crate) fn from_data(width: usize, data: Vec<f32>) -> Self {
        assert!(width > 0 && data.len().is_multiple_of(width), "whole rows");
        Self { width, data, basis: PhantomData }
    }

    /// Appends rows of the same width.
    pub(crate) fn append(&mut self, mut rows: Self) {
        assert_eq!(self.width, rows.width, "rows of one width");
        self.data.append(&mut rows.data);
    }

    /// The number of rows.
    #[must_use]
    pub fn n(&self) -> usize {
        self.data.len() / self.width
    }

    /// Values per row.
    #[must_use]
    pub fn width(&self) -> usize {
        self.width
    }

    /// All values, row after row.
    #[must_use]
    pub fn data(&self) -> &[f32] {
        &self.data
    }

    /// All values, to be changed within their basis.
    #[must_use]
    pub fn data_mut(&mut self) -> &mut [f32] {
        &mut self.data
    }

    /// The values, row after row.
    #[must_use]
    pub fn into_vec(self) -> Vec<f32> {
        self.data
    }

    /// Row `i`.
    ///
    /// # Panics
    /// If there is no such row.
    #[must_use]
    pub fn row(&self, i: usize) -> &[f32] {
        &self.data[i * self.width..(i + 1) * self.width]
    }

    /// Row `i`, to be changed within its basis.
    ///
    /// # Panics
    /// If there is no such row.
    #[must_use]
    pub fn row_mut(&mut self, i: usize) -> &mut [f32] {
        &mut self.data[i * self.width..(i + 1) * self.width]
    }

    /// The rows in order.
    pub fn iter(&self) -> std::slice::ChunksExact<'_, f32> {
        self.data.chunks_exact(self.width)
    }

    /// The rows in order, to be changed within their basis.
    pub fn iter_mut(&mut self) -> std::slice::ChunksExactMut<'_, f32> {
        self.data.chunks_exact_mut(self.width)
    }

    /// Adds `other` value by value, as a residual connection does.
    ///
    /// # Panics
    /// If the shapes differ.
    pub fn add(&mut self, other: &Self) {
        assert_eq!((self.n(), self.width), (other.n(), other.width));
        for (x, y) in self.data.iter_mut().zip(&other.data) {
            *x += y;
        }
    }

    /// The same basis, rows `range` only.
    ///
    /// # Panics
    /// If there are no such rows.
    #[must_use]
    pub fn slice(&self, range: std::ops::Range<usize>) -> Self {
        let data = self.data[range.start * self.width..range.end * self.width].to_vec();
        Self::from_data(self.width, data)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_lie_one_after_the_other() {
        let mut rows = Rows::from_vec(2, vec![1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
        assert_eq!((rows.n(), rows.width()), (3, 2));
        assert_eq!(rows.row(1), [3.0, 4.0]);
        rows.row_mut(1)[0] = 9.0;
        rows.add(&Rows::from_vec(2, vec![1.0; 6]));
        assert_eq!(rows.data(), [2.0, 3.0, 10.0, 5.0, 6.0, 7.0]);
        assert_eq!(rows.slice(1..2).data(), [10.0, 5.0]);
        assert_eq!(rows.iter().count(), 3);
    }
}
