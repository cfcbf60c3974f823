//! A matrix of a model, whatever it is stored as, and the input it is multiplied with.
//!
//! Matrices that share an input share its rotation and its integers: both are made once, when the
//! first matrix asks.

use std::cell::OnceCell;
use std::sync::Arc;

use hadamard::Isa;

use crate::Error;
use crate::backend::{Backend, Prepared};
use crate::profile::{Profile, Stage};
use crate::quant::{ActQuant, Activations};
use crate::rotation::Rotation;
use crate::rows::{Primal, Rotated, Rows};
use crate::weights::{FloatMatrix, TernaryMatrix};
use crate::work::Work;

/// A matrix `[out_features, in_features]`.
#[derive(Debug)]
pub struct Linear {
    out_features: usize,
    work: Work,
    weights: Weights,
}

#[derive(Debug)]
enum Weights {
    /// Always in the rotated basis.
    Ternary(Box<dyn Prepared>),
    Float {
        matrix: FloatMatrix,
        rotated: bool,
    },
}

impl Linear {
    /// A ternary matrix, stored for rotated inputs.
    ///
    /// # Errors
    /// As [`Backend::prepare`].
    pub fn ternary(matrix: TernaryMatrix, backend: &dyn Backend) -> Result<Self, Error> {
        let out_features = matrix.out_features();
        let work = Work::ternary(out_features, matrix.in_features());
        Ok(Self { out_features, work, weights: Weights::Ternary(backend.prepare(matrix)?) })
    }

    /// A float matrix, stored for rotated inputs or not.
    #[must_use]
    pub fn float(matrix: FloatMatrix, rotated: bool) -> Self {
        let (out_features, work) = (matrix.out_features(), Work::float(matrix.stored_bytes()));
        Self { out_features, work, weights: Weights::Float { matrix, rotated } }
    }

    /// Number of outputs.
    #[must_use]
    pub fn out_features(&self) -> usize {
        self.out_features
    }

    /// What a pass has to do with it.
    #[must_use]
    pub fn work(&self) -> Work {
        self.work
    }

    /// The products with all rows of `x`: `[n, out_features]`.
    ///
    /// # Errors
    /// [`Error::NonFinite`] when a row cannot be made into integers, [`Error::NoSigns`] when the
    /// model has no rotation for its width, and what the backend says.
    pub fn apply(&self, x: &Input<'_>) -> Result<Rows<Primal>, Error> {
        let stage = match &self.weights {
            Weights::Ternary(_) => Stage::Ternary,
            Weights::Float { .. } => Stage::Float,
        };
        self.apply_as(stage, x)
    }

    /// [`Linear::apply`], with the time of the products as that of `stage`.
    ///
    /// # Errors
    /// As [`Linear::apply`].
    pub fn apply_as(&self, stage: Stage, x: &Input<'_>) -> Result<Rows<Primal>, Error> {
        let Arithmetic { isa, profile, .. } = x.arithmetic;
        // What the product needs is made before its time counts.
        match &self.weights {
            Weights::Ternary(_) => {
                x.activations()?;
            }
            Weights::Float { rotated: true, .. } => {
                x.rotated()?;
            }
            Weights::Float { rotated: false, .. } => {}
        }
        profile.stage(stage, || {
            let mut out = Rows::zeroed(x.primal.n(), self.out_features);
            match &self.weights {
                Weights::Ternary(matrix) => matrix.matmul(x.activations()?, out.data_mut())?,
                Weights::Float { matrix, rotated: true } => {
                    matrix.matmul(*isa, x.rotated()?, out.data_mut())?;
                }
                Weights::Float { matrix, rotated: false } => {
                    matrix.matmul(*isa, x.primal, out.data_mut())?;
                }
            }
            Ok(out)
        })
    }
}

/// How a model computes.
#[derive(Debug, Clone)]
pub struct Arithmetic {
    /// The integers.
    pub act: ActQuant,
    /// The rotation; none for models that have no rotated matrix.
    pub rotation: Option<Arc<Rotation>>,
    /// The instructions of what lies between the ternary matrices. They change no bit.
    pub isa: Isa,
    /// Where the time goes; off unless somebody asks.
    pub profile: Profile,
}

impl Arithmetic {
    /// Without a profile.
    #[must_use]
    pub fn new(act: ActQuant, rotation: Option<Arc<Rotation>>, isa: Isa) -> Self {
        Self { act, rotation, isa, profile: Profile::default() }
    }
}

/// Rows that several matrices are multiplied with.
#[derive(Debug)]
pub struct Input<'a> {
    primal: &'a Rows<Primal>,
    arithmetic: &'a Arithmetic,
    rotated: OnceCell<Rows<Rotated>>,
    activations: OnceCell<Activations>,
}

impl<'a> Input<'a> {
    /// `x` for the matrices of a model with this arithmetic.
    #[must_use]
    pub fn new(x: &'a Rows<Primal>, arithmetic: &'a Arithmetic) -> Self {
        Self { primal: x, arithmetic, rotated: OnceCell::new(), activations: OnceCell::new() }
    }

    fn rotated(&self) -> Result<&Rows<Rotated>, Error> {
        if let Some(rotated) = self.rotated.get() {
            return Ok(rotated);
        }
        let width = self.primal.width();
        let rotation = self.arithmetic.rotation.as_ref().ok_or(Error::NoSigns { width })?;
        let rotate = || rotation.rotate(self.primal);
        let rotated = self.arithmetic.profile.stage(Stage::Rotation, rotate)?;
        Ok(self.rotated.get_or_init(|| rotated))
    }

    fn activations(&self) -> Result<&Activations, Error> {
        if let Some(activations) = self.activations.get() {
            return Ok(activations);
        }
        let (rotated, act) = (self.rotated()?, self.arithmetic.act);
        let quantize = || Activations::new(rotated, act);
        let activations = self.arithmetic.profile.stage(Stage::Quantization, quantize)?;
        Ok(self.activations.get_or_init(|| activations))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::Cpu;
    use crate::weights::{FloatEncoding, TernaryEncoding};
    use formats::{Source, TernaryRows, pq2_0};
    use half::f16;
    use proptest::prelude::*;

    fn floats(rows: &[f32], out: usize, inputs: usize) -> FloatMatrix {
        let bytes: Vec<u8> = rows.iter().flat_map(|v| v.to_le_bytes()).collect();
        let view = Source::from_bytes("w", bytes.clone()).view(0, bytes.len() as u64).unwrap();
        FloatMatrix::new(view, FloatEncoding::F32, out, inputs)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]

        /// `W' (R x) = W x`: a stored ternary matrix against the same matrix taken back to the
        /// primal basis and multiplied in f64.
        #[test]
        fn rotated_matrices_give_the_product_of_the_primal_ones(
            codes in prop::collection::vec(0u8..4, 2 * 256),
            minus in prop::collection::vec(any::<bool>(), 256),
            x in prop::collection::vec(-4f32..4.0, 256),
        ) {
            let mut ternary = TernaryRows::zeroed(2, 256);
            for (at, code) in codes.iter().enumerate() {
                ternary.set_code(at / 256, at % 256, *code);
            }
            (0..4).for_each(|g| ternary.set_scale(g / 2, g % 2, f16::from_f32(0.125)));
            let signs: Vec<i8> = minus.iter().map(|m| if *m { -1 } else { 1 }).collect();
            let rotation = Rotation::new(128, [(256, signs)].into(), Isa::detect()).unwrap();
            let mut stored = vec![0.0; 512];
            for (r, row) in stored.chunks_exact_mut(256).enumerate() {
                ternary.dequantize_row(r, row);
            }
            // Rows of W are R^-1 applied to the stored rows.
            let primal = rotation.unrotate(&Rows::from_data(256, stored.clone())).unwrap();
            let exact: Vec<f64> = primal.iter().map(|w| {
                w.iter().zip(&x).map(|(w, x)| f64::from(*w) * f64::from(*x)).sum()
            }).collect();

            let mut bytes = vec![0; 2 * pq2_0::row_bytes(256)];
            pq2_0::encode(&ternary, &mut bytes);
            let view = Source::from_bytes("w", bytes.clone()).view(0, bytes.len() as u64).unwrap();
            let matrix = TernaryMatrix::new(view, TernaryEncoding::Pq2_0, 2, 256, "w", "w");
            let rotation = Some(Arc::new(rotation));
            let arithmetic = Arithmetic::new(ActQuant::F32, rotation, Isa::detect());
            let x = Rows::from_vec(256, x);
            let input = Input::new(&x, &arithmetic);
            for linear in [
                Linear::ternary(matrix, &Cpu::default()).unwrap(),
                Linear::float(floats(&stored, 2, 256), true),
                Linear::float(floats(primal.data(), 2, 256), false),
            ] {
                let found = linear.apply(&input).unwrap();
                for (found, exact) in found.data().iter().zip(&exact) {
                    prop_assert!((f64::from(*found) - exact).abs() < 1e-4, "{found} {exact}");
                }
            }
        }
    }

    #[test]
    fn a_rotated_matrix_needs_a_rotation() {
        let linear = Linear::float(floats(&[0.0; 4], 2, 2), true);
        let arithmetic = Arithmetic::new(ActQuant::A8, None, Isa::detect());
        let x = Rows::zeroed(1, 2);
        let error = linear.apply(&Input::new(&x, &arithmetic)).unwrap_err();
        assert!(matches!(error, Error::NoSigns { width: 2 }));
        assert_eq!(linear.out_features(), 2);
    }
}
