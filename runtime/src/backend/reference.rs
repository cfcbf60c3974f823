//! The reference backend: plain code that reads the file's own blocks.
//!
//! Rows of the matrix are decoded one after the other into one integer per weight, and each is
//! multiplied with all rows of activations, by the threads of the current rayon pool. Faster kernels
//! are right if and only if they give the bits of this one.

use super::{Backend, Prepared, n16};
use crate::Error;
use crate::parallel::by_output;
use crate::quant::Activations;
use crate::weights::TernaryMatrix;
use formats::{GROUP, TernaryRows};

/// The plain backend.
#[derive(Debug, Clone, Copy, Default)]
pub struct Reference;

impl Backend for Reference {
    fn prepare(&self, matrix: TernaryMatrix) -> Result<Box<dyn Prepared>, Error> {
        Ok(Box::new(matrix))
    }
}

impl Prepared for TernaryMatrix {
    fn matmul(&self, x: &Activations, out: &mut [f32]) -> Result<(), Error> {
        let (width, n) = (x.width(), x.n());
        assert_eq!((width, out.len()), (self.in_features(), n * self.out_features()));
        if let Some(blocks) = x.npu() {
            return n16::multiply(self, blocks, out);
        }
        let inputs: Vec<Row<'_>> = (0..n).map(|i| Row::of(x, i)).collect();
        by_output(self.out_features(), width, out, |range, out| {
            let mut weights = Weights { t: vec![0; width], s: vec![0.0; width / GROUP] };
            let first = range.start;
            self.for_each_row(range, |o, rows, r| {
                weights.take(rows, r);
                for (row, out) in inputs.iter().zip(&mut out[(o - first) * n..][..n]) {
                    *out = match row {
                        Row::Integers { q, d } => weights.dot_integers(q, d),
                        Row::Floats(x) => weights.dot_floats(x),
                    };
                }
            })
        })
    }
}

/// One row of activations.
enum Row<'a> {
    /// `q`: `[width]`, `d`: `[width / 128]`.
    Integers {
        q: Vec<i16>,
        d: Vec<f32>,
    },
    Floats(&'a [f32]),
}

impl<'a> Row<'a> {
    fn of(x: &'a Activations, i: usize) -> Self {
        if let Some(x) = x.floats(i) {
            return Self::Floats(x);
        }
        let integers = x.integers().expect("there are no other activations");
        let groups = (0..x.width() / GROUP).map(|g| integers.group(i, g));
        let (q, d): (Vec<_>, Vec<_>) = groups.unzip();
        Self::Integers { q: q.concat(), d }
    }
}

/// One row of weights, an integer each.
struct Weights {
    /// `[in_features]`, -1 to 2.
    t: Vec<i16>,
    /// `[in_features / 128]`.
    s: Vec<f32>,
}

impl Weights {
    fn take(&mut self, rows: &TernaryRows, r: usize) {
        for (t, byte) in self.t.as_chunks_mut::<4>().0.iter_mut().zip(rows.row_codes(r)) {
            *t = [0, 2, 4, 6].map(|shift| i16::from((byte >> shift) & 3) - 1);
        }
        for (s, scale) in self.s.iter_mut().zip(rows.row_scales(r)) {
            *s = scale.to_f32();
        }
    }

    fn dot_integers(&self, q: &[i16], d: &[f32]) -> f32 {
        let mut acc = 0.0f32;
        let groups = self.t.as_chunks::<GROUP>().0.iter().zip(q.as_chunks::<GROUP>().0);
        for ((t, q), (s, d)) in groups.zip(self.s.iter().zip(d)) {
            // At most 128 · 2 · 32767: exact.
            let isum: i32 = t.iter().zip(q).map(|(t, q)| i32::from(*t) * i32::from(*q)).sum();
            acc += isum as f32 * (s * d);
        }
        acc
    }

    fn dot_floats(&self, x: &[f32]) -> f32 {
        let mut acc = 0.0f64;
        let groups = self.t.as_chunks::<GROUP>().0.iter().zip(x.as_chunks::<GROUP>().0);
        for ((t, x), s) in groups.zip(&self.s) {
            for (t, x) in t.iter().zip(x) {
                acc += f64::from(*s) * f64::from(*t) * f64::from(*x);
            }
        }
        acc as f32
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quant::ActQuant;
    use crate::rows::{Rotated, Rows};
    use crate::weights::TernaryEncoding;
    use formats::{Source, pq2_0, ptq1_0};
    use half::f16;
    use proptest::prelude::*;

    fn stored(rows: &TernaryRows, encoding: TernaryEncoding) -> TernaryMatrix {
        let (n, cols) = (rows.rows(), rows.cols());
        let bytes = match encoding {
            TernaryEncoding::Pq2_0 => {
                let mut bytes = vec![0; n * pq2_0::row_bytes(cols)];
                pq2_0::encode(rows, &mut bytes);
                bytes
            }
            _ => {
                let mut bytes = vec![0; n * ptq1_0::row_bytes(cols)];
                ptq1_0::encode(rows, &mut bytes).unwrap();
                bytes
            }
        };
        let source = Source::from_bytes("w", bytes);
        TernaryMatrix::new(source.view(0, source.len()).unwrap(), encoding, n, cols, "w", "w")
    }

    fn product(matrix: &TernaryMatrix, x: &Rows<Rotated>, act: ActQuant) -> Vec<f32> {
        let x = Activations::new(x, act).unwrap();
        let mut out = vec![f32::NAN; x.n() * matrix.out_features()];
        Reference.prepare(matrix.clone()).unwrap().matmul(&x, &mut out).unwrap();
        out
    }

    /// `n_out` rows of `groups` groups with these codes and scales, cycled.
    fn matrix(n_out: usize, groups: usize, codes: &[u8], scales: &[u16]) -> TernaryRows {
        let mut rows = TernaryRows::zeroed(n_out, groups * GROUP);
        for r in 0..n_out {
            for k in 0..groups * GROUP {
                rows.set_code(r, k, codes[(r * 31 + k * 7) % codes.len()]);
            }
            for g in 0..groups {
                let scale = f16::from_bits(scales[(r + g) % scales.len()]);
                rows.set_scale(r, g, scale);
            }
        }
        rows
    }

    #[test]
    fn a_product_by_hand() {
        let mut rows = TernaryRows::zeroed(2, GROUP);
        rows.set_scale(0, 0, f16::from_f32(0.5));
        rows.set_code(0, 0, 2);
        rows.set_code(0, 1, 0);
        rows.set_code(0, 2, 3);
        let mut x = vec![0.0; GROUP];
        x[..4].copy_from_slice(&[127.0, 1.0, 3.0, 5.0]);
        let x = Rows::from_data(GROUP, x);
        let matrix = stored(&rows, TernaryEncoding::Pq2_0);
        // 0.5 (127 - 1 + 2 · 3); codes of value 0 and scales of 0 add nothing.
        for act in ActQuant::ALL {
            assert_eq!(product(&matrix, &x, act), [66.0, 0.0], "{act}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]

        #[test]
        fn many_rows_are_single_rows(
            n in 1usize..10,
            groups in 1usize..4,
            n_out in 1usize..6,
            codes in prop::collection::vec(0u8..4, 1..300),
            scales in prop::collection::vec(0u16..0x7C00, 1..20),
            x in prop::collection::vec(-8f32..8.0, 10 * 3 * GROUP),
        ) {
            let width = groups * GROUP;
            let x = Rows::from_data(width, x[..n * width].to_vec());
            let matrix = stored(&matrix(n_out, groups, &codes, &scales), TernaryEncoding::Pq2_0);
            for act in ActQuant::ALL {
                let together = product(&matrix, &x, act);
                for i in 0..n {
                    let alone = product(&matrix, &x.slice(i..i + 1), act);
                    let bits = |v: &[f32]| v.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
                    prop_assert_eq!(bits(&together[i * n_out..(i + 1) * n_out]), bits(&alone));
                }
            }
        }

        #[test]
        fn encodings_agree_and_errors_are_small(
            codes in prop::collection::vec(0u8..3, 1..300),
            scales in prop::collection::vec(0x2000u16..0x3C00, 1..20),
            x in prop::collection::vec(-8f32..8.0, 2 * GROUP),
        ) {
            let rows = matrix(3, 2, &codes, &scales);
            let x = Rows::from_data(2 * GROUP, x);
            let pq2 = stored(&rows, TernaryEncoding::Pq2_0);
            let ptq1 = stored(&rows, TernaryEncoding::Ptq1_0);
            let exact = product(&pq2, &x, ActQuant::F32);
            for (act, step) in [(ActQuant::A8, 1.0 / 127.0), (ActQuant::A16, 1.0 / 16384.0)] {
                let found = product(&pq2, &x, act);
                prop_assert_eq!(&found, &product(&ptq1, &x, act));
                for (r, (found, exact)) in found.iter().zip(&exact).enumerate() {
                    // Half a step per input, of the largest input of its block.
                    let mut bound = 0.0;
                    for g in 0..2 {
                        let block = &x.data()[g * GROUP..(g + 1) * GROUP];
                        let max = block.iter().fold(0.0f32, |m, x| m.max(x.abs()));
                        let nonzero = (0..GROUP).filter(|k| rows.code(r, g * GROUP + k) != 1).count();
                        let scale = rows.row_scales(r)[g].to_f32();
                        bound += 0.51 * step * max * scale * nonzero as f32;
                    }
                    prop_assert!((found - exact).abs() <= bound + 1e-4, "{found} {exact} {bound}");
                }
            }
        }
    }
}
