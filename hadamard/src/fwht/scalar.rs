//! The reference: one stage after the other, one butterfly after the other.
//!
//! Other kernels are right if and only if they give the bits of this one.

use crate::signs;

/// Transforms each block of `x`, signs first if there are any.
///
/// `x`: whole blocks of `block` elements; `flips`: `[x.len()]` sign patterns.
pub(super) fn transform(x: &mut [f32], block: usize, scale: f32, flips: Option<&[u32]>) {
    if let Some(flips) = flips {
        signs::apply(x, flips);
    }
    for x in x.chunks_exact_mut(block) {
        for x in x.iter_mut() {
            *x *= scale;
        }
        let mut stride = 1;
        while stride < block {
            for pair in x.chunks_exact_mut(2 * stride) {
                let (u, v) = pair.split_at_mut(stride);
                for (u, v) in u.iter_mut().zip(v) {
                    (*u, *v) = (*u + *v, *u - *v);
                }
            }
            stride *= 2;
        }
    }
}
