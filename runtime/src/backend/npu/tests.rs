//! Products through shim and simulated XRT.

use formats::{GROUP, Source, TernaryRows, pq2_0};
use half::f16;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use xrt_sim::{Faults, Simulated};

use super::*;
use crate::backend::{Cpu, Reference};
use crate::quant::ActQuant;
use crate::rows::{Rotated, Rows};
use crate::weights::TernaryEncoding;

fn sound() -> (Simulated, Npu) {
    let simulated = Simulated::new(Faults::default());
    let device = Device::open(&xrt_sim::api().unwrap(), simulated.index()).unwrap();
    let npu = Npu::open(&device, xrt_sim::image(), &Options::new("npu-sim")).unwrap();
    (simulated, npu)
}

/// Codes 0 to 3 and scales of 8 significant bits, some of them zero.
fn weights(n: usize, k: usize, rng: &mut ChaCha8Rng) -> TernaryMatrix {
    let mut rows = TernaryRows::zeroed(n, k);
    for r in 0..n {
        (0..k).for_each(|at| rows.set_code(r, at, rng.random_range(0..4)));
        for g in 0..k / GROUP {
            let scale: u16 = rng.random_range(0x1000..0x4400);
            let zero = rng.random_bool(0.05);
            rows.set_scale(r, g, f16::from_bits(if zero { 0 } else { scale & !7 }));
        }
    }
    let mut bytes = vec![0; n * pq2_0::row_bytes(k)];
    pq2_0::encode(&rows, &mut bytes);
    let source = Source::from_bytes("w", bytes);
    let view = source.view(0, source.len()).unwrap();
    TernaryMatrix::new(view, TernaryEncoding::Pq2_0, n, k, "w", "w")
}

fn inputs(n: usize, k: usize, rng: &mut ChaCha8Rng) -> Rows<Rotated> {
    let x = (0..n * k).map(|_| rng.random_range(-4.0f32..4.0)).collect();
    Rows::from_data(k, x)
}

fn product(backend: &dyn Backend, matrix: &TernaryMatrix, x: &Activations) -> Vec<f32> {
    let mut out = vec![f32::NAN; x.n() * matrix.out_features()];
    backend.prepare(matrix.clone()).unwrap().matmul(x, &mut out).unwrap();
    out
}

fn bits(x: &[f32]) -> Vec<u32> {
    x.iter().map(|x| x.to_bits()).collect()
}

#[test]
fn products_have_the_bits_of_the_scalar_arithmetic() {
    let (_simulated, npu) = sound();
    let mut rng = ChaCha8Rng::seed_from_u64(1);
    for (rows, k, n) in [(64, 128, 1), (1100, 640, 3), (32, 1536, 8), (2048, 256, 9), (96, 512, 20)]
    {
        let matrix = weights(rows, k, &mut rng);
        let x = inputs(n, k, &mut rng);
        for act in [ActQuant::N16, ActQuant::N8] {
            let x = Activations::new(&x, act).unwrap();
            let expected = bits(&product(&Reference, &matrix, &x));
            assert!(bits(&product(&npu, &matrix, &x)) == expected, "{rows} x {k}, {n}, {act}");
            assert!(bits(&product(&Cpu::default(), &matrix, &x)) == expected, "{act} on the CPU");
        }
    }
    let x = Activations::new(&inputs(1, 128, &mut rng), ActQuant::A16).unwrap();
    let matrix = npu.prepare(weights(32, 128, &mut rng)).unwrap();
    let error = matrix.matmul(&x, &mut [0.0; 32]).unwrap_err().to_string();
    assert_eq!(error, "npu-sim: it multiplies n16 and n8, not a16");
}

/// A core that rounds towards minus infinity, as it does by default, errs to one side (K14).
#[test]
fn errors_have_no_side() {
    let (_simulated, npu) = sound();
    let mut rng = ChaCha8Rng::seed_from_u64(2);
    let (rows, k) = (1024, 2048);
    let (matrix, x) = (weights(rows, k, &mut rng), inputs(8, k, &mut rng));
    let x16 = Activations::new(&x, ActQuant::N16).unwrap();
    let found = product(&npu, &matrix, &x16);
    // The same integers without rounding.
    let d = |row: usize, g: usize| x16.npu().unwrap()[0].group(row, g).unwrap();
    let mut errors = Vec::new();
    matrix
        .for_each_row(0..rows, |o, w, r| {
            for row in 0..8 {
                let mut exact = 0.0f64;
                for g in 0..k / GROUP {
                    let (q, d) = d(row, g);
                    let isum: i64 = (0..GROUP)
                        .map(|n| i64::from(q[n]) * (i64::from(w.code(r, g * GROUP + n)) - 1))
                        .sum();
                    exact += isum as f64 * f64::from(d) * f64::from(w.row_scales(r)[g].to_f32());
                }
                errors.push((f64::from(found[row * rows + o]) - exact) / 2f64.powi(-15));
            }
        })
        .unwrap();
    let mean = errors.iter().sum::<f64>() / errors.len() as f64;
    let square = errors.iter().map(|e| e * e).sum::<f64>() / errors.len() as f64;
    assert!(square > 0.0 && mean.abs() < 5.0 * (square / errors.len() as f64).sqrt(), "{mean}");
}

/// What the array cannot take is refused by its shape, before anything is read of it.
#[test]
fn matrices_beyond_the_array_are_refused() {
    let (rows, k) = (256 * 20 * 1024, GROUP);
    let source = Source::from_bytes("w", vec![0; rows * pq2_0::row_bytes(k)]);
    let view = source.view(0, source.len()).unwrap();
    let matrix = TernaryMatrix::new(view, TernaryEncoding::Pq2_0, rows, k, "w", "w");
    let (_simulated, npu) = sound();
    let error = npu.prepare(matrix.clone()).unwrap_err().to_string();
    assert_eq!(error, "npu-sim: row groups: 256 exceeds 255");
    let need = Need::new();
    need.prepare(matrix).unwrap();
    assert_eq!(need.too_large().unwrap(), "5242880 x 128: row groups: 256 exceeds 255");
    assert_eq!(need.matrices(), 0);
}
