//! What is read from a state, made into the input of the output matrix.

use hadamard::Isa;

use super::Heads;
use crate::math::silu;
use crate::norm::RmsNorm;
use crate::rows::{Primal, Rows};
use crate::{Error, simd, spread};

/// `rms(o) ⊙ silu(z)` per head: the norm comes before the gate.
#[derive(Debug, Clone)]
pub struct GatedNorm {
    norm: RmsNorm,
    heads: Heads,
    /// Heads that come tiled leave grouped.
    permuted: bool,
}

impl GatedNorm {
    /// `norm`: of one head's width. `permuted`: bring the heads from the tiled into the grouped order
    /// ([`super::tiled_to_grouped`]), as the output matrix wants them.
    #[must_use]
    pub fn new(norm: RmsNorm, heads: Heads, permuted: bool) -> Self {
        Self { norm, heads, permuted }
    }

    /// `o`: `[value_heads, n, dim]`, as [`super::DeltaState::advance`] gives it; `z`: `[n, inner]`.
    ///
    /// # Errors
    /// [`Error::FloatEnvironment`] when a worker thread has other modes.
    ///
    /// # Panics
    /// If the shapes differ.
    pub fn apply(&self, isa: Isa, o: &[f32], z: &Rows<Primal>) -> Result<Rows<Primal>, Error> {
        let (n, Heads { value_heads, dim, .. }) = (z.n(), self.heads);
        assert_eq!((z.width(), o.len()), (self.heads.inner(), n * self.heads.inner()));
        let mut out = Rows::zeroed(n, self.heads.inner());
        spread::parts(out.data_mut(), dim, 2 * dim, |at, out| {
            let (row, place) = (at / value_heads, at % value_heads);
            let head = if self.permuted { self.heads.tiled(place) } else { place };
            out.copy_from_slice(&o[(head * n + row) * dim..][..dim]);
            self.norm.apply_each(isa, out);
            gated(isa, &z.row(row)[head * dim..][..dim], out);
            Ok(())
        })?;
        Ok(out)
    }
}

simd::per_isa! {
    fn gated(z: &[f32], out: &mut [f32]) {
        for (out, z) in out.iter_mut().zip(z) {
            *out *= silu(*z);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gdn::{HeadOrder, tiled_to_grouped};
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]

        #[test]
        fn each_head_is_normed_gated_and_placed(
            seed in prop::collection::vec(-3f32..3.0, 89),
            (key_heads, rep, n) in (1usize..5, 1usize..4, 1usize..5),
            dim in prop::sample::select(vec![4usize, 20, 128]),
            permuted in any::<bool>(),
        ) {
            let value_heads = key_heads * rep;
            let heads = Heads { key_heads, value_heads, dim, order: HeadOrder::Tiled };
            let mut next = seed.iter().copied().cycle();
            let mut take = |n: usize| next.by_ref().take(n).collect::<Vec<f32>>();
            let norm = RmsNorm::new(take(dim), 1e-6);
            let (o, z) = (take(n * heads.inner()), take(n * heads.inner()));
            let z = Rows::from_vec(heads.inner(), z);
            let mut expected = Vec::new();
            for i in 0..n {
                let mut row: Vec<f32> = (0..value_heads)
                    .flat_map(|head| &o[(head * n + i) * dim..][..dim])
                    .copied()
                    .collect();
                row.chunks_exact_mut(dim).for_each(|head| norm.apply(head));
                row.iter_mut().zip(z.row(i)).for_each(|(x, z)| *x *= silu(*z));
                expected.extend(if permuted { tiled_to_grouped(&row, key_heads, dim) } else { row });
            }
            let gated = GatedNorm::new(norm, heads, permuted);
            for isa in Isa::available() {
                let found = gated.apply(isa, &o, &z).unwrap();
                let bits = |x: &[f32]| x.iter().map(|x| x.to_bits()).collect::<Vec<u32>>();
                prop_assert_eq!(bits(found.data()), bits(&expected));
            }
        }
    }
}
