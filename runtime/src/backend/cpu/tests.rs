//! Every kernel against the reference, bit for bit.

use formats::{GROUP, Source, TernaryRows, View, mlx, pq2_0, ptq1_0, q4nx};
use half::f16;
use proptest::prelude::*;
use rayon::ThreadPoolBuilder;

use super::*;
use crate::quant::ActQuant;
use crate::rows::{Rotated, Rows};
use crate::weights::TernaryEncoding;

fn view(bytes: Vec<u8>) -> View {
    let source = Source::from_bytes("w", bytes);
    source.view(0, source.len()).unwrap()
}

fn stored(rows: &TernaryRows, encoding: TernaryEncoding) -> TernaryMatrix {
    let (n, cols) = (rows.rows(), rows.cols());
    let bytes = match encoding {
        TernaryEncoding::Pq2_0 => {
            let mut bytes = vec![0; n * pq2_0::row_bytes(cols)];
            pq2_0::encode(rows, &mut bytes);
            bytes
        }
        TernaryEncoding::Ptq1_0 => {
            let mut bytes = vec![0; n * ptq1_0::row_bytes(cols)];
            ptq1_0::encode(rows, &mut bytes).unwrap();
            bytes
        }
        TernaryEncoding::Q4nx => {
            let chunks = n / q4nx::ROW_BLOCK * (cols / q4nx::COL_BLOCK);
            let mut bytes = vec![0; chunks * q4nx::CHUNK_BYTES];
            let band = bytes.len() / (n / q4nx::ROW_BLOCK);
            for (b, bytes) in bytes.chunks_exact_mut(band).enumerate() {
                let mut part = TernaryRows::zeroed(q4nx::ROW_BLOCK, cols);
                let (codes, scales) = part.parts_mut();
                codes.copy_from_slice(&rows.codes()[b * codes.len()..][..codes.len()]);
                scales.copy_from_slice(&rows.scales()[b * scales.len()..][..scales.len()]);
                q4nx::encode(&part, bytes).unwrap();
            }
            bytes
        }
        _ => {
            let halves = |sign: u16| -> Vec<u8> {
                rows.scales().iter().flat_map(|s| (s.to_bits() ^ sign).to_le_bytes()).collect()
            };
            return TernaryMatrix::packed(&mlx::Packed {
                path: "w".into(),
                name: "w".into(),
                rows: n,
                cols,
                weight: view(rows.codes().to_vec()),
                scales: view(halves(0)),
                biases: view(halves(0x8000)),
                scale_type: mlx::ScaleType::F16,
            });
        }
    };
    TernaryMatrix::new(view(bytes), encoding, n, cols, "w", "w")
}

fn random(seed: u32, i: usize) -> u32 {
    let x = (i as u32 ^ seed).wrapping_mul(0x9E37_79B1);
    (x ^ (x >> 15)).wrapping_mul(0x85EB_CA6B).rotate_left(13)
}

/// Random codes and scales, which bf16 holds as well; some groups have a scale of zero.
fn weights(n: usize, cols: usize, codes: u32, seed: u32) -> TernaryRows {
    let mut rows = TernaryRows::zeroed(n, cols);
    for r in 0..n {
        for k in 0..cols {
            rows.set_code(r, k, (random(seed, r * cols + k) % codes) as u8);
        }
        for g in 0..cols / GROUP {
            let bits = random(!seed, r * cols + g);
            let scale = if bits.is_multiple_of(11) { 0 } else { (bits >> 8) as u16 & 0x3FF8 };
            rows.set_scale(r, g, f16::from_bits(scale));
        }
    }
    rows
}

/// Random values of many magnitudes; some groups are zero.
fn inputs(n: usize, cols: usize, seed: u32) -> Rows<Rotated> {
    let value = |i: usize| {
        let bits = random(seed.rotate_left(7), i);
        let exponent = random(seed, i / GROUP) % 24;
        match random(seed, i / GROUP) % 13 {
            0 => 0.0,
            _ => (bits as i32) as f32 * 2f32.powi(-40 + exponent as i32),
        }
    };
    Rows::from_data(cols, (0..n * cols).map(value).collect())
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

fn product(matrix: &dyn Prepared, x: &Activations, n_out: usize) -> Vec<u32> {
    let mut out = vec![f32::NAN; x.n() * n_out];
    matrix.matmul(x, &mut out).unwrap();
    bits(&out)
}

fn dots() -> Vec<Dot> {
    Dot::available(Isa::detect())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    /// Shapes with partial tiles, odd numbers of groups and partial blocks of rows.
    #[test]
    fn every_kernel_gives_the_bits_of_the_reference(
        n in prop_oneof![4 => 1usize..17, 1 => Just(31usize), 1 => Just(65)],
        n_out in 1usize..90,
        groups in 1usize..8,
        codes in 3u32..5,
        threads in 1usize..5,
        seed in any::<u32>(),
    ) {
        let cols = groups * GROUP;
        let matrix = stored(&weights(n_out, cols, codes, seed), TernaryEncoding::Pq2_0);
        let x = inputs(n, cols, seed);
        let pool = ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        for act in ActQuant::ALL {
            let x = Activations::new(&x, act).unwrap();
            let expected = product(&matrix, &x, n_out);
            for dot in dots() {
                let packed = Cpu::new(dot).prepare(matrix.clone()).unwrap();
                let found = pool.install(|| product(&*packed, &x, n_out));
                prop_assert_eq!(&found, &expected, "{} {}", dot, act);
            }
        }
    }

    #[test]
    fn every_encoding_is_packed_alike(
        n in 1usize..10, bands in 1usize..4, blocks in 1usize..3, seed in any::<u32>()
    ) {
        let (n_out, cols) = (bands * q4nx::ROW_BLOCK, blocks * q4nx::COL_BLOCK);
        let rows = weights(n_out, cols, 3, seed);
        let x = Activations::new(&inputs(n, cols, seed), ActQuant::A8).unwrap();
        let expected = product(&stored(&rows, TernaryEncoding::Pq2_0), &x, n_out);
        for encoding in [
            TernaryEncoding::Pq2_0,
            TernaryEncoding::Ptq1_0,
            TernaryEncoding::Q4nx,
            TernaryEncoding::Mlx,
        ] {
            let packed = Cpu::default().prepare(stored(&rows, encoding)).unwrap();
            prop_assert_eq!(&product(&*packed, &x, n_out), &expected, "{:?}", encoding);
        }
    }
}

/// What could overflow a sum of 16 bits: all codes 3, all integers the largest of one sign.
#[test]
fn the_largest_sums_are_exact() {
    let cols = 3 * GROUP;
    for code in 0..4 {
        let mut rows = TernaryRows::zeroed(16, cols);
        for r in 0..16 {
            (0..cols).for_each(|k| rows.set_code(r, k, code));
            (0..3).for_each(|g| rows.set_scale(r, g, f16::from_f32(0.37)));
        }
        let matrix = stored(&rows, TernaryEncoding::Pq2_0);
        for value in [1.0f32, -1.0, 1.999_999_9, -1.999_999_9, 255.0 / 256.0] {
            for n in [1, 2, 3, 4, 5, 8] {
                let x = Rows::from_data(cols, vec![value; n * cols]);
                for act in ActQuant::ALL {
                    let x = Activations::new(&x, act).unwrap();
                    let expected = product(&matrix, &x, 16);
                    for dot in dots() {
                        let packed = Cpu::new(dot).prepare(matrix.clone()).unwrap();
                        assert_eq!(product(&*packed, &x, 16), expected, "{dot} {act} {value}");
                    }
                }
            }
        }
    }
}

/// Large enough to be spread over threads, in tasks of several tiles, with many rows.
#[test]
fn threads_and_batches_change_no_bit() {
    let (n_out, cols) = (1000, 1024);
    let matrix = stored(&weights(n_out, cols, 4, 5), TernaryEncoding::Pq2_0);
    let packed = Cpu::default().prepare(matrix.clone()).unwrap();
    for act in [ActQuant::A8, ActQuant::A16] {
        let x = inputs(130, cols, 9);
        let expected = product(&matrix, &Activations::new(&x, act).unwrap(), n_out);
        for threads in 1..5 {
            let pool = ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            for chunk in [130, 64, 7, 1] {
                let mut found = Vec::new();
                for first in (0..130).step_by(chunk) {
                    let part = x.slice(first..130.min(first + chunk));
                    let part = Activations::new(&part, act).unwrap();
                    found.extend(pool.install(|| product(&*packed, &part, n_out)));
                }
                assert!(found == expected, "{act} {threads} {chunk}");
            }
        }
    }
}

#[test]
fn damaged_weights_are_named() {
    let mut bytes = vec![0; 70 * pq2_0::row_bytes(256)];
    bytes[66 * pq2_0::row_bytes(256) + 1] = 0x7C;
    let matrix = TernaryMatrix::new(view(bytes), TernaryEncoding::Pq2_0, 70, 256, "m", "blk.0.w");
    let packed = Cpu::default().prepare(matrix).unwrap();
    let x = Activations::new(&inputs(1, 256, 1), ActQuant::A8).unwrap();
    let message = packed.matmul(&x, &mut [0.0; 70]).unwrap_err().to_string();
    assert!(message.contains("blk.0.w") && message.contains("group 132"), "{message}");
}
