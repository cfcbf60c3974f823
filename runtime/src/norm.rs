//! The two normalisations, of one vector at a time.

use hadamard::Isa;

use crate::math::sum_squares;
use crate::rows::{Primal, Rows};
use crate::{Error, simd, spread};

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
    #[inline(always)]
    pub fn apply(&self, x: &mut [f32]) {
        assert_eq!(x.len(), self.weight.len());
        let mean = sum_squares(x) / x.len() as f64;
        let inv = (1.0 / (mean + self.eps).sqrt()) as f32;
        for (x, w) in x.iter_mut().zip(&self.weight) {
            *x = (*x * inv) * w;
        }
    }

    /// [`RmsNorm::apply`] to each run of the weight's width: rows, or the heads of rows.
    pub fn apply_each(&self, isa: Isa, x: &mut [f32]) {
        each(isa, self, x);
    }

    /// The rows, normed.
    ///
    /// # Errors
    /// [`Error::FloatEnvironment`] when a worker thread has other modes.
    ///
    /// # Panics
    /// If the rows are not as wide as the weight.
    pub fn rows(&self, isa: Isa, x: &Rows<Primal>) -> Result<Rows<Primal>, Error> {
        let mut out = x.clone();
        let width = x.width();
        spread::parts(out.data_mut(), width, width / 4, |_, row| {
            self.apply_each(isa, row);
            Ok(())
        })?;
        Ok(out)
    }
}

simd::per_isa! {
    fn each(norm: &RmsNorm, x: &mut [f32]) {
        x.chunks_exact_mut(norm.weight.len()).for_each(|x| norm.apply(x));
    }
}

/// `x_i = x_i / max(sqrt(Σ x²), eps)`: the norm in f64, rounded to f32 before the division.
#[inline(always)]
pub fn l2_norm(x: &mut [f32], eps: f64) {
    let norm = sum_squares(x).sqrt();
    let norm = if norm < eps { eps } else { norm } as f32;
    x.iter_mut().for_each(|x| *x /= norm);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn instructions_change_no_bit(
            width in 1usize..70, x in prop::collection::vec(-9f32..9.0, 200)
        ) {
            let norm = RmsNorm::new(x[..width].to_vec(), 1e-6);
            let x = &x[..x.len() / width * width];
            let mut expected = x.to_vec();
            expected.chunks_exact_mut(width).for_each(|x| norm.apply(x));
            for isa in Isa::available() {
                let found = norm.rows(isa, &Rows::from_vec(width, x.to_vec())).unwrap();
                prop_assert_eq!(found.data(), &expected);
            }
        }
    }

    #[test]
    fn rms_by_hand() {
        let norm = RmsNorm::new(vec![1.0, 2.0], 0.0);
        let mut x = [3.0, -3.0, 0.5, 0.5];
        norm.apply_each(Isa::detect(), &mut x);
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
