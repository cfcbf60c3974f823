//! Rotary positions: pairs `(j, j + d/2)` of the first `d` values of a head are turned by
//! `p · θ^(-2j/d)`.
//!
//! Angles are computed in f64 and their sines and cosines rounded to f32 once. A target turns a part
//! of each head, a drafter all of it. Sections for images (interleaved M-RoPE) choose which of three
//! positions turns which pair; in text the three are equal, and this is what remains.

use crate::math::{pow, sin_cos};

/// The inverse frequencies of one kind of head.
#[derive(Debug, Clone)]
pub struct Rope {
    inv_freq: Vec<f64>,
}

/// Cosine and sine per pair, at one position.
#[derive(Debug, Clone)]
pub struct Angles(Vec<(f32, f32)>);

impl Rope {
    /// Turns the first `dims` values (an even number) of each head.
    #[must_use]
    pub fn new(theta: f64, dims: usize) -> Self {
        let inv_freq = (0..dims / 2).map(|j| pow(theta, -((2 * j) as f64) / dims as f64));
        Self { inv_freq: inv_freq.collect() }
    }

    /// The angles at `position`.
    #[must_use]
    pub fn at(&self, position: usize) -> Angles {
        let angle = |inv_freq: &f64| {
            let (sin, cos) = sin_cos(position as f64 * inv_freq);
            (cos as f32, sin as f32)
        };
        Angles(self.inv_freq.iter().map(angle).collect())
    }
}

impl Angles {
    /// Turns one head.
    ///
    /// # Panics
    /// If the head is narrower than what is turned.
    pub fn turn(&self, head: &mut [f32]) {
        let half = self.0.len();
        for (j, (cos, sin)) in self.0.iter().enumerate() {
            let (x, y) = (head[j], head[j + half]);
            head[j] = x * cos - y * sin;
            head[j + half] = x * sin + y * cos;
        }
    }

    /// [`Angles::turn`] for each head of `width` values.
    pub fn turn_each(&self, heads: &mut [f32], width: usize) {
        heads.chunks_exact_mut(width).for_each(|head| self.turn(head));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turns_as_the_formula_says() {
        for (theta, dims, width, position) in
            [(1e7, 64, 256, 5), (1e7, 128, 128, 262_143), (5e5, 16, 64, 1000)]
        {
            let head: Vec<f32> = (0..width).map(|i| (i as f32 * 0.37).sin()).collect();
            let mut turned = head.clone();
            Rope::new(theta, dims).at(position).turn_each(&mut turned, width);
            let half = dims / 2;
            for j in 0..half {
                let angle = position as f64 * f64::powf(theta, -2.0 * j as f64 / dims as f64);
                let (x, y) = (f64::from(head[j]), f64::from(head[j + half]));
                let expected =
                    [x * angle.cos() - y * angle.sin(), x * angle.sin() + y * angle.cos()];
                for (found, expected) in [turned[j], turned[j + half]].into_iter().zip(expected) {
                    assert!((f64::from(found) - expected).abs() < 1e-6, "{dims} {j}");
                }
            }
            assert_eq!(turned[dims..], head[dims..]);
        }
    }

    #[test]
    fn position_0_changes_nothing() {
        let mut head = [1.0, 2.0, 3.0, 4.0];
        Rope::new(1e7, 4).at(0).turn(&mut head);
        assert_eq!(head, [1.0, 2.0, 3.0, 4.0]);
    }
}
