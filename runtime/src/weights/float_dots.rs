//! Products with float matrices, in vectors of 16 inputs.
//!
//! A vector is the 16 lanes of [`crate::math::dot16`]; products of a few outputs with a few rows are
//! under way together, so that a vector of weights is used for several rows and a vector of
//! activations for several outputs.

use hadamard::Isa;
use half::f16;

use super::{FloatEncoding, FloatMatrix, Q8_BYTES, Q8_VALUES};
use crate::math::Sum16;
use crate::rows::Rows;
use crate::simd::{self, Kernel, LANES, Simd};
use crate::{Error, spread};

/// Outputs of a task.
const PART: usize = 8;

/// [`FloatMatrix::matmul`] for widths that are multiples of 16.
pub(super) fn matmul<B: Sync>(
    isa: Isa,
    matrix: &FloatMatrix,
    x: &Rows<B>,
    out: &mut [f32],
) -> Result<(), Error> {
    let (n, n_out) = (x.n(), matrix.out_features);
    let mut by_output = vec![0.0; out.len()];
    spread::parts(&mut by_output, PART * n, PART * n * x.width() / 12, |part, out| {
        let task = Task { matrix, x: x.data(), first: part * PART, out };
        match matrix.encoding {
            FloatEncoding::F32 => simd::run(isa, Dots::<F32>(task, std::marker::PhantomData)),
            FloatEncoding::F16 => simd::run(isa, Dots::<F16>(task, std::marker::PhantomData)),
            FloatEncoding::Bf16 => simd::run(isa, Dots::<Bf16>(task, std::marker::PhantomData)),
            FloatEncoding::Q8_0 => simd::run(isa, Dots::<Q8>(task, std::marker::PhantomData)),
        }
        Ok(())
    })?;
    for (o, column) in by_output.chunks_exact(n).enumerate() {
        column.iter().enumerate().for_each(|(i, value)| out[i * n_out + o] = *value);
    }
    Ok(())
}

/// Decodes a row as [`FloatMatrix::dequantize_row`] does.
trait Decode {
    /// Values `16 c` to `16 c + 15`.
    fn values<S: Simd>(simd: S, row: &[u8], c: usize) -> S::F32;
}

struct F32;
struct F16;
struct Bf16;
struct Q8;

impl Decode for F32 {
    #[inline(always)]
    fn values<S: Simd>(simd: S, row: &[u8], c: usize) -> S::F32 {
        let bytes = &row.as_chunks::<{ 4 * LANES }>().0[c].as_chunks::<4>().0;
        simd.load(&std::array::from_fn(|i| f32::from_le_bytes(bytes[i])))
    }
}

impl Decode for F16 {
    #[inline(always)]
    fn values<S: Simd>(simd: S, row: &[u8], c: usize) -> S::F32 {
        let bytes = &row.as_chunks::<{ 2 * LANES }>().0[c].as_chunks::<2>().0;
        simd.widen(&std::array::from_fn(|i| f16::from_le_bytes(bytes[i])))
    }
}

impl Decode for Bf16 {
    #[inline(always)]
    fn values<S: Simd>(simd: S, row: &[u8], c: usize) -> S::F32 {
        let bytes = &row.as_chunks::<{ 2 * LANES }>().0[c].as_chunks::<2>().0;
        let wide = |i: usize| f32::from_bits(u32::from(u16::from_le_bytes(bytes[i])) << 16);
        simd.load(&std::array::from_fn(wide))
    }
}

impl Decode for Q8 {
    #[inline(always)]
    fn values<S: Simd>(simd: S, row: &[u8], c: usize) -> S::F32 {
        let per_block = Q8_VALUES / LANES;
        let block = &row.as_chunks::<Q8_BYTES>().0[c / per_block];
        let d = f16::from_le_bytes([block[0], block[1]]).to_f32();
        let q = &block[2..].as_chunks::<LANES>().0[c % per_block];
        simd.mul(simd.splat(d), simd.load(&q.map(|q| f32::from(q as i8))))
    }
}

struct Task<'a> {
    matrix: &'a FloatMatrix,
    /// `[n, in_features]`.
    x: &'a [f32],
    /// The first output.
    first: usize,
    /// `[outputs, n]`.
    out: &'a mut [f32],
}

struct Dots<'a, D>(Task<'a>, std::marker::PhantomData<D>);

impl<D: Decode> Kernel for Dots<'_, D> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let mut task = self.0;
        let n = task.x.len() / task.matrix.in_features;
        let outputs = task.out.len() / n;
        let mut o = 0;
        while o < outputs {
            let together = if outputs - o >= 4 { 4 } else { 1 };
            let mut i = 0;
            while i < n {
                i += match (together, n - i) {
                    (4, 4..) => task.block::<D, S, 4, 4>(simd, o, i),
                    (4, 2..) => task.block::<D, S, 4, 2>(simd, o, i),
                    (4, _) => task.block::<D, S, 4, 1>(simd, o, i),
                    (_, 4..) => task.block::<D, S, 1, 4>(simd, o, i),
                    _ => task.block::<D, S, 1, 1>(simd, o, i),
                };
            }
            o += together;
        }
    }
}

impl Task<'_> {
    /// `O` outputs from `o` on by `R` rows from `i` on.
    #[inline(always)]
    fn block<D: Decode, S: Simd, const O: usize, const R: usize>(
        &mut self,
        simd: S,
        o: usize,
        i: usize,
    ) -> usize {
        let width = self.matrix.in_features;
        let n = self.x.len() / width;
        let weights: [&[u8]; O] = std::array::from_fn(|k| self.matrix.row(self.first + o + k));
        let x: [&[[f32; LANES]]; R] =
            std::array::from_fn(|r| self.x[(i + r) * width..][..width].as_chunks().0);
        let mut sums = [[simd.splat(0.0); R]; O];
        for c in 0..width / LANES {
            let x = x.map(|x| simd.load(&x[c]));
            for (sums, weights) in sums.iter_mut().zip(&weights) {
                let w = D::values(simd, weights, c);
                for (sum, x) in sums.iter_mut().zip(x) {
                    *sum = simd.add(*sum, simd.mul(w, x));
                }
            }
        }
        for (k, sums) in sums.into_iter().enumerate() {
            for (r, sum) in sums.into_iter().enumerate() {
                let mut lanes = [0.0; LANES];
                simd.store(sum, &mut lanes);
                self.out[(o + k) * n + i + r] = Sum16::of_lanes(lanes).total();
            }
        }
        R
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use formats::Source;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// Any finite weights; on every instruction set and number of threads.
        #[test]
        fn products_are_those_of_single_rows(
            seed in prop::collection::vec(any::<u8>(), 97),
            xs in prop::collection::vec(-9f32..9.0, 91),
            (n, n_out, chunks) in (1usize..10, 1usize..40, 1usize..5),
            encoding in prop::sample::select(vec![
                FloatEncoding::F32, FloatEncoding::F16, FloatEncoding::Bf16, FloatEncoding::Q8_0,
            ]),
        ) {
            let width = chunks * Q8_VALUES;
            let mut bytes: Vec<u8> =
                seed.iter().copied().cycle().take(encoding.bytes_of(width * n_out)).collect();
            // No exponent of ones.
            match encoding {
                FloatEncoding::F32 => bytes.iter_mut().skip(3).step_by(4).for_each(|b| *b &= 0xBF),
                FloatEncoding::F16 | FloatEncoding::Bf16 => {
                    bytes.iter_mut().skip(1).step_by(2).for_each(|b| *b &= 0xBF);
                }
                FloatEncoding::Q8_0 => {
                    bytes.iter_mut().skip(1).step_by(Q8_BYTES).for_each(|b| *b &= 0xBF);
                }
            }
            let source = Source::from_bytes("w", bytes);
            let view = source.view(0, source.len()).unwrap();
            let matrix = FloatMatrix::new(view, encoding, n_out, width);
            let x = xs.iter().copied().cycle().take(n * width).collect();
            let x: Rows<crate::rows::Primal> = Rows::from_vec(width, x);
            let bits = |isa, threads| {
                let mut out = vec![f32::NAN; n * n_out];
                let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
                pool.install(|| matrix.matmul(isa, &x, &mut out)).unwrap();
                out.into_iter().map(f32::to_bits).collect::<Vec<_>>()
            };
            let expected = bits(Isa::scalar(), 1);
            for isa in Isa::available() {
                prop_assert_eq!(&bits(isa, 1), &expected);
                prop_assert_eq!(&bits(isa, 3), &expected);
            }
        }
    }
}
