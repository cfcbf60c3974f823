//! The transform is the rotation its formula says, against oracles in `f64`.

use hadamard::{BlockHadamard, Error, Isa, Signs};
use nalgebra::{DMatrix, DVector};
use proptest::prelude::*;

/// The Hadamard matrix without its scale, straight from the definition.
fn entry(i: usize, j: usize) -> f64 {
    if (i & j).count_ones().is_multiple_of(2) { 1.0 } else { -1.0 }
}

/// H_b (sigma ⊙ x) in `f64`, one sum per output.
fn oracle(block: usize, x: &[f32], signs: &Signs) -> Vec<f64> {
    let signed: Vec<f64> =
        x.iter().zip(signs.values()).map(|(&x, sign)| f64::from(x) * f64::from(sign)).collect();
    let scale = (block as f64).sqrt().recip();
    signed
        .chunks(block)
        .flat_map(|x| {
            (0..block).map(move |i| {
                x.iter().enumerate().map(|(j, x)| entry(i, j) * x).sum::<f64>() * scale
            })
        })
        .collect()
}

fn norm(x: &[f32]) -> f64 {
    x.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>().sqrt()
}

/// A block size up to `2^max_exponent`, a few blocks, and signs.
fn blocks(max_exponent: u32) -> impl Strategy<Value = (usize, Vec<f32>, Signs)> {
    (1..=max_exponent, 1_usize..=3).prop_flat_map(|(exponent, n_blocks)| {
        let block = 1 << exponent;
        let len = n_blocks * block;
        (
            Just(block),
            prop::collection::vec(-1.0_f32..1.0, len),
            prop::collection::vec(prop_oneof![Just(1_i8), Just(-1)], len)
                .prop_map(|signs| Signs::new(signs).expect("signs are 1 or -1")),
        )
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn forward_is_the_formula((block, x, signs) in blocks(9)) {
        let expected = oracle(block, &x, &signs);
        for isa in Isa::available() {
            let mut found = x.clone();
            BlockHadamard::new(block, isa).unwrap().forward(&mut found, &signs).unwrap();
            for (found, expected) in found.iter().zip(&expected) {
                prop_assert!((f64::from(*found) - expected).abs() < 4e-6);
            }
        }
    }

    #[test]
    fn inverse_undoes_forward_and_norms_stay((block, x, signs) in blocks(13)) {
        for isa in Isa::available() {
            let hadamard = BlockHadamard::new(block, isa).unwrap();
            let mut rotated = x.clone();
            hadamard.forward(&mut rotated, &signs).unwrap();
            prop_assert!((norm(&rotated) - norm(&x)).abs() <= 1e-6 * norm(&x));
            hadamard.inverse(&mut rotated, &signs).unwrap();
            for (found, expected) in rotated.iter().zip(&x) {
                prop_assert!((found - expected).abs() < 4e-6);
            }
        }
    }

    /// W' (R x) = W x.
    #[test]
    fn a_rotated_matrix_meets_a_rotated_vector(
        (block, x, signs) in blocks(7),
        weights in prop::collection::vec(-1.0_f32..1.0, 5 * 3 * 128),
    ) {
        let cols = x.len();
        let rows = 5;
        let w = weights[..rows * cols].to_vec();
        let to_f64 = |x: &[f32]| x.iter().copied().map(f64::from).collect::<Vec<_>>();
        let expected = DMatrix::from_row_slice(rows, cols, &to_f64(&w)) * DVector::from_vec(to_f64(&x));
        for isa in Isa::available() {
            let hadamard = BlockHadamard::new(block, isa).unwrap();
            let (mut w, mut x) = (w.clone(), x.clone());
            hadamard.forward_rows(&mut w, cols, &signs).unwrap();
            hadamard.forward(&mut x, &signs).unwrap();
            let found = DMatrix::from_row_slice(rows, cols, &to_f64(&w)) * DVector::from_vec(to_f64(&x));
            prop_assert!((found - &expected).amax() < 1e-5);
        }
    }

    #[test]
    fn rows_are_vectors((block, x, signs) in blocks(8)) {
        let cols = x.len();
        let matrix: Vec<f32> = [1.0, -2.0, 0.5].iter().flat_map(|s| x.iter().map(move |x| s * x)).collect();
        for isa in Isa::available() {
            let hadamard = BlockHadamard::new(block, isa).unwrap();
            let (mut forward, mut inverse) = (matrix.clone(), matrix.clone());
            hadamard.forward_rows(&mut forward, cols, &signs).unwrap();
            hadamard.inverse_rows(&mut inverse, cols, &signs).unwrap();
            let (mut forward_each, mut inverse_each) = (matrix.clone(), matrix.clone());
            for row in forward_each.chunks_exact_mut(cols) {
                hadamard.forward(row, &signs).unwrap();
            }
            for row in inverse_each.chunks_exact_mut(cols) {
                hadamard.inverse(row, &signs).unwrap();
            }
            prop_assert_eq!(forward, forward_each);
            prop_assert_eq!(inverse, inverse_each);
        }
    }
}

/// H H^T = b I, and the transform of the identity is H / sqrt(b).
#[test]
fn the_matrix_is_hadamard() {
    for block in [2, 8, 64, 256] {
        let h = DMatrix::from_fn(block, block, entry);
        assert_eq!(&h * h.transpose(), DMatrix::identity(block, block) * block as f64);

        for isa in Isa::available() {
            let mut rows = vec![0.0; block * block];
            for i in 0..block {
                rows[i * block + i] = 1.0;
            }
            BlockHadamard::new(block, isa).unwrap().transform(&mut rows).unwrap();
            let scale = f64::from((1.0 / (block as f64).sqrt()) as f32);
            let found =
                DMatrix::from_row_iterator(block, block, rows.iter().copied().map(f64::from));
            assert_eq!(found, &h * scale);
        }
    }
}

/// Odd powers of two have an irrational scale; it is rounded once.
#[test]
fn the_scale_is_the_nearest_float() {
    for (block, scale) in [
        (2, std::f32::consts::FRAC_1_SQRT_2),
        (1024, 1.0 / 32.0),
        (8192, std::f32::consts::FRAC_1_SQRT_2 / 64.0),
    ] {
        let mut x = vec![0.0; block];
        x[0] = 1.0;
        BlockHadamard::new(block, Isa::scalar()).unwrap().transform(&mut x).unwrap();
        assert_eq!(x, vec![scale; block]);
    }
}

#[test]
fn signs_come_first_forward_and_last_inverse() {
    let signs = Signs::new(vec![1, -1]).unwrap();
    let hadamard = BlockHadamard::new(2, Isa::detect()).unwrap();
    let mut x = [3.0, 1.0];
    hadamard.forward(&mut x, &signs).unwrap();
    assert!(x[0] < x[1]);
    let mut x = [3.0, 1.0];
    hadamard.inverse(&mut x, &signs).unwrap();
    assert!(x[0] > 0.0 && x[1] < 0.0);
}

#[test]
fn bad_block_sizes_are_refused() {
    for found in [0, 1, 3, 1000, 1023, 16384, usize::MAX, 1 << 63] {
        let error = BlockHadamard::new(found, Isa::scalar()).unwrap_err();
        assert_eq!(error, Error::BlockSize { found });
    }
}

#[test]
fn bad_shapes_are_refused_and_nothing_is_written() {
    let hadamard = BlockHadamard::new(4, Isa::detect()).unwrap();
    let partial_block = |len| Err(Error::PartialBlock { len, block: 4 });
    let signs_width = |expected, found| Err(Error::SignsWidth { expected, found });
    let mut x = [1.0; 12];

    assert_eq!(hadamard.transform(&mut x[..6]), partial_block(6));
    assert_eq!(hadamard.forward(&mut x[..6], &Signs::plus(6)), partial_block(6));
    assert_eq!(hadamard.inverse(&mut x[..6], &Signs::plus(6)), partial_block(6));
    assert_eq!(hadamard.forward(&mut x, &Signs::plus(4)), signs_width(12, 4));
    assert_eq!(hadamard.inverse(&mut x, &Signs::plus(16)), signs_width(12, 16));

    for rows in [BlockHadamard::forward_rows, BlockHadamard::inverse_rows] {
        assert_eq!(rows(&hadamard, &mut x, 6, &Signs::plus(6)), partial_block(6));
        assert_eq!(
            rows(&hadamard, &mut x, 8, &Signs::plus(8)),
            Err(Error::PartialRow { len: 12, cols: 8 })
        );
        assert_eq!(
            rows(&hadamard, &mut x, 0, &Signs::plus(0)),
            Err(Error::PartialRow { len: 12, cols: 0 })
        );
        assert_eq!(rows(&hadamard, &mut x, 4, &Signs::plus(12)), signs_width(4, 12));
    }
    assert_eq!(x, [1.0; 12]);
}

#[test]
fn nothing_is_transformed_to_nothing() {
    let hadamard = BlockHadamard::new(4, Isa::detect()).unwrap();
    let signs = Signs::new(vec![-1; 4]).unwrap();
    assert_eq!(hadamard.transform(&mut []), Ok(()));
    assert_eq!(hadamard.forward(&mut [], &Signs::plus(0)), Ok(()));
    assert_eq!(hadamard.forward_rows(&mut [], 4, &signs), Ok(()));
    assert_eq!(hadamard.inverse_rows(&mut [], 0, &Signs::plus(0)), Ok(()));
}

/// Rows are rotated on worker threads.
#[test]
fn types_are_shareable() {
    fn assert_shareable<T: Send + Sync + 'static>() {}
    assert_shareable::<Isa>();
    assert_shareable::<Signs>();
    assert_shareable::<BlockHadamard>();
    assert_shareable::<Error>();
}
