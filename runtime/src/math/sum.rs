//! The one order in which long sums are taken.
//!
//! Term `i` goes to lane `i mod 16`; a lane adds its terms in ascending order, starting from +0; in
//! the end lanes 8 apart are added, then 4, 2 and 1 apart. One vector of 16 lanes, two of 8, four of
//! 4 and plain code all do exactly this, so the bits do not depend on the machine.

use std::ops::AddAssign;

const LANES: usize = 16;

/// A sum in the making.
#[derive(Debug, Clone, Copy, Default)]
pub struct Sum16<T> {
    lanes: [T; LANES],
}

impl<T: AddAssign + Copy + Default> Sum16<T> {
    /// The empty sum.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The sum of terms that were added to these lanes.
    #[inline(always)]
    pub(crate) fn of_lanes(lanes: [T; LANES]) -> Self {
        Self { lanes }
    }

    /// Adds term `i`. Terms come in ascending order; gaps are allowed.
    #[inline]
    pub fn add(&mut self, i: usize, term: T) {
        self.lanes[i % LANES] += term;
    }

    /// The sum of the lanes.
    #[must_use]
    #[inline(always)]
    pub fn total(mut self) -> T {
        for apart in [8, 4, 2, 1] {
            for i in 0..apart {
                let upper = self.lanes[i + apart];
                self.lanes[i] += upper;
            }
        }
        self.lanes[0]
    }
}

/// The dot product: products rounded to f32, summed in the order of [`Sum16`].
///
/// # Panics
/// If the lengths differ.
#[must_use]
#[inline(always)]
pub fn dot16(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    let mut sum = Sum16::new();
    let ((a, a_rest), (b, b_rest)) = (a.as_chunks::<LANES>(), b.as_chunks::<LANES>());
    for (a, b) in a.iter().zip(b) {
        for (lane, (a, b)) in sum.lanes.iter_mut().zip(a.iter().zip(b)) {
            *lane += a * b;
        }
    }
    for (lane, (a, b)) in sum.lanes.iter_mut().zip(a_rest.iter().zip(b_rest)) {
        *lane += a * b;
    }
    sum.total()
}

/// The sum of squares, squared (exactly) and summed in f64 in the order of [`Sum16`].
#[must_use]
#[inline(always)]
pub fn sum_squares(x: &[f32]) -> f64 {
    let mut sum = Sum16::new();
    let (x, rest) = x.as_chunks::<LANES>();
    for x in x {
        for (lane, x) in sum.lanes.iter_mut().zip(x) {
            *lane += f64::from(*x) * f64::from(*x);
        }
    }
    for (lane, x) in sum.lanes.iter_mut().zip(rest) {
        *lane += f64::from(*x) * f64::from(*x);
    }
    sum.total()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The definition, written out.
    fn by_definition(terms: &[f32]) -> f32 {
        let lane = |l: usize| terms.iter().skip(l).step_by(16).fold(0.0f32, |sum, t| sum + t);
        let l: Vec<f32> = (0..16).map(lane).collect();
        let e: Vec<f32> = (0..8).map(|i| l[i] + l[i + 8]).collect();
        let q: Vec<f32> = (0..4).map(|i| e[i] + e[i + 4]).collect();
        (q[0] + q[2]) + (q[1] + q[3])
    }

    proptest! {
        #[test]
        fn all_forms_follow_the_definition(
            pairs in prop::collection::vec((-1e3f32..1e3, -1e3f32..1e3), 0..200)
        ) {
            let (a, b): (Vec<f32>, Vec<f32>) = pairs.iter().copied().unzip();
            let terms: Vec<f32> = pairs.iter().map(|(a, b)| a * b).collect();
            let expected = by_definition(&terms).to_bits();
            let mut sum = Sum16::new();
            terms.iter().enumerate().for_each(|(i, t)| sum.add(i, *t));
            prop_assert_eq!(sum.total().to_bits(), expected);
            prop_assert_eq!(dot16(&a, &b).to_bits(), expected);
        }

        #[test]
        fn squares_follow_the_definition_in_f64(x in prop::collection::vec(-1e3f32..1e3, 0..200)) {
            let mut sum = Sum16::new();
            x.iter().enumerate().for_each(|(i, x)| sum.add(i, f64::from(*x) * f64::from(*x)));
            prop_assert_eq!(sum_squares(&x).to_bits(), sum.total().to_bits());
        }

        #[test]
        fn squares_are_close(x in prop::collection::vec(-1e3f32..1e3, 0..200)) {
            let exact: f64 = x.iter().map(|x| f64::from(*x).powi(2)).sum();
            prop_assert!((sum_squares(&x) - exact).abs() <= exact * 1e-14);
        }
    }

    #[test]
    fn the_order_shows() {
        // 2^24 swallows a 1 that comes after it, but not the 2 of another lane.
        let mut terms = [0.0f32; 33];
        (terms[0], terms[16], terms[32]) = (16_777_216.0, 1.0, 1.0);
        assert_eq!(dot16(&terms, &[1.0; 33]), 16_777_216.0);
        (terms[16], terms[32], terms[1], terms[17]) = (0.0, 0.0, 1.0, 1.0);
        assert_eq!(dot16(&terms, &[1.0; 33]), 16_777_218.0);
        assert_eq!(dot16(&[0.0; 0], &[]).to_bits(), 0);
    }
}
