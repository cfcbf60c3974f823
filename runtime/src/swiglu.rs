//! The gated product inside an MLP.

use crate::math::silu;
use crate::rows::{Primal, Rows};

/// `silu(gate) ⊙ up`.
///
/// # Panics
/// If the shapes differ.
#[must_use]
pub fn swiglu(mut gate: Rows<Primal>, up: &Rows<Primal>) -> Rows<Primal> {
    assert_eq!((gate.n(), gate.width()), (up.n(), up.width()));
    for (g, u) in gate.data_mut().iter_mut().zip(up.data()) {
        *g = silu(*g) * u;
    }
    gate
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn by_hand() {
        let gate = Rows::from_vec(2, vec![0.0, 3.0, f32::INFINITY, -1.0]);
        let up = Rows::from_vec(2, vec![5.0, 2.0, 1.0, 0.0]);
        let out = swiglu(gate, &up);
        assert_eq!(out.data(), [0.0, silu(3.0) * 2.0, f32::INFINITY, -0.0]);
    }
}
