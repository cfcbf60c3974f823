//! The gated product inside an MLP.

use hadamard::Isa;

use crate::math::silu;
use crate::rows::{Primal, Rows};
use crate::{Error, simd, spread};

/// Values of a task.
const PART: usize = 2048;

/// `silu(gate) ⊙ up`.
///
/// # Errors
/// [`Error::FloatEnvironment`] when a worker thread has other modes.
///
/// # Panics
/// If the shapes differ.
pub fn swiglu(isa: Isa, mut gate: Rows<Primal>, up: &Rows<Primal>) -> Result<Rows<Primal>, Error> {
    assert_eq!((gate.n(), gate.width()), (up.n(), up.width()));
    spread::parts(gate.data_mut(), PART, 2 * PART, |i, gate| {
        let up = &up.data()[i * PART..][..gate.len()];
        product(isa, gate, up);
        Ok(())
    })?;
    Ok(gate)
}

simd::per_isa! {
    fn product(gate: &mut [f32], up: &[f32]) {
        for (g, u) in gate.iter_mut().zip(up) {
            *g = silu(*g) * u;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn by_hand() {
        for isa in Isa::available() {
            let gate = Rows::from_vec(2, vec![0.0, 3.0, f32::INFINITY, -1.0]);
            let up = Rows::from_vec(2, vec![5.0, 2.0, 1.0, 0.0]);
            let out = swiglu(isa, gate, &up).unwrap();
            assert_eq!(out.data(), [0.0, silu(3.0) * 2.0, f32::INFINITY, -0.0]);
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(16))]

        #[test]
        fn instructions_and_threads_change_no_bit(
            seed in prop::collection::vec(prop::num::f32::NORMAL | prop::num::f32::ZERO, 99),
            width in 3000usize..6000,
        ) {
            let gate: Vec<f32> = seed.iter().cycle().take(3 * width).copied().collect();
            let up: Vec<f32> = gate.iter().rev().copied().collect();
            let expected: Vec<u32> =
                gate.iter().zip(&up).map(|(g, u)| (silu(*g) * u).to_bits()).collect();
            let (gate, up) = (Rows::from_vec(width, gate), Rows::from_vec(width, up));
            for isa in Isa::available() {
                let found = swiglu(isa, gate.clone(), &up).unwrap();
                let found: Vec<u32> = found.data().iter().map(|x| x.to_bits()).collect();
                prop_assert_eq!(&found, &expected);
            }
        }
    }
}
