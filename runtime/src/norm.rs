//! The two normalisations, of one vector at a time.

use crate::math::sum_squares;

/// RMSNorm with its weight.
#[derive(Debug, Clone)]
pub struct RmsNorm {
    weight: Vec<f32>,
    eps: f64,
}

impl RmsNorm {
    /// `weight`: `[width]`, multiplied as it stands.
    #[must_use]
    pub fn new(weight: Vec<f32>, eps: f64) -> Self {
        Self { weight, eps }
    }

    /// `x_i = (x_i · inv) · w_i` with `inv = 1 / sqrt(mean(x²) + eps)`, in f64 up to `inv`, which is
    /// rounded to f32.
    ///
    /// # Panics
    /// If `x` is not as wide as the weight.
    pub fn apply(&self, x: &mut [f32]) {
        assert_eq!(x.len(), self.weight.len());
        let mean = sum_squares(x) / x.len() as f64;
        let inv = (1.0 / (mean + self.eps).sqrt()) as f32;
        for (x, w) in x.iter_mut().zip(&self.weight) {
            *x = (*x * inv) * w;
        }
    }

    /// [`RmsNorm::apply`] to each run of the weight's width: rows, or the heads of rows.
    pub fn apply_each(&self, x: &mut [f32]) {
        x.chunks_exact_mut(self.weight.len()).for_each(|x| self.apply(x));
    }
}

/// `x_i = x_i / max(sqrt(Σ x²), eps)`: the norm in f64, rounded to f32 before the division.
pub fn l2_norm(x: &mut [f32], eps: f64) {
    let norm = sum_squares(x).sqrt();
    let norm = if norm < eps { eps } else { norm } as f32;
    x.iter_mut().for_each(|x| *x /= norm);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rms_by_hand() {
        let norm = RmsNorm::new(vec![1.0, 2.0], 0.0);
        let mut x = [3.0, -3.0, 0.5, 0.5];
        norm.apply_each(&mut x);
        assert_eq!(x, [1.0, -2.0, 1.0, 2.0]);
        let mut zero = [0.0, 0.0];
        RmsNorm::new(vec![1.0, 1.0], 1e-6).apply(&mut zero);
        assert_eq!(zero, [0.0, 0.0]);
    }

    #[test]
    fn l2_by_hand() {
        let mut x = [3.0, -4.0];
        l2_norm(&mut x, 1e-6);
        assert_eq!(x, [0.6, -0.8]);
        let mut tiny = [1e-8, 0.0];
        l2_norm(&mut tiny, 1e-6);
        assert_eq!(tiny, [1e-8 / 1e-6, 0.0]);
        let mut none = [f32::NAN, 1.0];
        l2_norm(&mut none, 1e-6);
        assert!(none[0].is_nan());
    }
}
