//! The kernels against the scalar arithmetic, bit for bit.

#![allow(clippy::unwrap_used, reason = "helpers of tests are parts of tests")]

mod noise;

use aie_kernels::arithmetic::{Activations, Matrix, Mode, matmul};
use aie_kernels::host::{Core, Kernel};
use aie_kernels::layout::{
    CHUNK_BYTES, CODES_AT, GROUP, HEADER_AT, ROWS, SLICE_BYTES, SLICE_K, STRIP_BYTES, slices,
};
use noise::Noise;
use proptest::prelude::*;

fn matrix(k: usize, noise: &mut Noise, top: u32) -> Matrix {
    noise::matrix(32, k, noise, top)
}

const SLICES: u32 = 4096;
const WEIGHTS: u32 = SLICES + 2 * SLICE_BYTES as u32;
const ACC: u32 = WEIGHTS + 2 * STRIP_BYTES as u32;
const OUT: u32 = ACC + 20 * 1024;

/// Two t2 chunks of the first 32 outputs, packed here by the layout's definition.
fn strip(w: &Matrix, slice: usize) -> Vec<u8> {
    let mut out = vec![0u8; STRIP_BYTES];
    for (c, chunk) in out.chunks_exact_mut(CHUNK_BYTES).enumerate() {
        let k0 = slice * SLICE_K + c * 256;
        for row in 0..32 {
            for half in 0..2 {
                let scale = w.scale(row, k0 / GROUP + half);
                chunk[2 * (half * 32 + row)..][..2].copy_from_slice(&scale.to_le_bytes());
            }
            for k in 0..256 {
                let code = w.code(row, k0 + k);
                chunk[CODES_AT + (k / 8) * 64 + (k % 8) * 8 + row % 8] |= code << (2 * (row / 8));
            }
        }
    }
    out
}

/// The kernels over all slices, `[8 rows][32 outputs]`.
fn run(core: &mut Core, w: &Matrix, x: &Activations) -> Vec<f32> {
    let x = slices(x, 1);
    for (i, slice) in x.chunks_exact(SLICE_BYTES).enumerate() {
        let (ring, slot) = ((i % 2) as u32, ((i + 1) % 2) as u32);
        let at = (SLICES + ring * SLICE_BYTES as u32) as usize;
        core.memory_mut()[at..at + SLICE_BYTES].copy_from_slice(slice);
        let at = (WEIGHTS + slot * STRIP_BYTES as u32) as usize;
        core.memory_mut()[at..at + STRIP_BYTES].copy_from_slice(&strip(w, i));
        core.call(Kernel::TernaryMatmul, &[SLICES, ring, WEIGHTS, slot, ACC, 3]).unwrap();
    }
    core.call(Kernel::StripOut, &[ACC, 3, OUT, 1]).unwrap();
    let at = OUT as usize + 1024;
    let words: Vec<f32> = core.memory()[at..at + 1024]
        .as_chunks::<4>()
        .0
        .iter()
        .map(|b| f32::from_le_bytes(*b))
        .collect();
    (0..ROWS * 32).map(|i| words[(i % 32) / 8 * 64 + (i / 32) * 8 + i % 8]).collect()
}

fn bits(x: &[f32]) -> Vec<u32> {
    x.iter().map(|x| x.to_bits()).collect()
}

fn check(w: &Matrix, x: &Activations) {
    let found = run(&mut Core::new(), w, x);
    let expected = matmul(w, x).unwrap();
    assert_eq!(bits(&found[..expected.len()]), bits(&expected));
    assert!(found[expected.len()..].iter().all(|x| x.to_bits() == 0), "dead rows are zeros");
}

#[test]
fn all_widths() {
    let mut noise = Noise(1);
    for k in [4096, 5120, 6144, 17408, 25600, 128, 384, 640] {
        let w = matrix(k, &mut noise, 3);
        let x: Vec<f32> = (0..8 * k).map(|_| noise.next() as f32 / 1e9 - 1.0).collect();
        for mode in Mode::ALL {
            check(&w, &Activations::new(&x, k, mode).unwrap());
        }
    }
}

#[test]
fn rims() {
    let k = 1024;
    let groups = k / GROUP;
    for mode in Mode::ALL {
        let top = mode.limit();
        for q in [top, -top, 0, 1, -1] {
            for code in 0..4 {
                for scale in [0u16, 0x8000, 0x3f80, 0xbfff, 0x0080, 0x0001, 0x6000] {
                    for d in [1.0f32, 0.0, 2f32.powi(-115), 2f32.powi(-14)] {
                        let x = Activations::from_integers(vec![q; k], vec![d; groups], k, mode)
                            .unwrap();
                        let w = Matrix::new(32, k, vec![code; 32 * k], vec![scale; 32 * groups]);
                        check(&w.unwrap(), &x);
                    }
                }
            }
        }
    }
}

#[test]
fn one_row_has_the_bits_of_eight() {
    let mut noise = Noise(7);
    let w = matrix(1536, &mut noise, 4);
    let x: Vec<f32> = (0..8 * 1536).map(|_| noise.next() as f32 / 1e8 - 10.0).collect();
    for mode in Mode::ALL {
        let eight = run(&mut Core::new(), &w, &Activations::new(&x, 1536, mode).unwrap());
        for row in 0..8 {
            let alone = Activations::new(&x[row * 1536..(row + 1) * 1536], 1536, mode).unwrap();
            let one = run(&mut Core::new(), &w, &alone);
            assert_eq!(bits(&one[..32]), bits(&eight[row * 32..(row + 1) * 32]));
        }
    }
}

#[test]
fn t2_chunks_are_those_of_the_container() {
    let mut noise = Noise(3);
    let mut rows = formats::TernaryRows::zeroed(32, 512);
    for row in 0..32 {
        (0..512).for_each(|k| rows.set_code(row, k, (noise.next() % 3) as u8));
        for g in 0..4 {
            rows.set_scale(row, g, half::f16::from_f32((1 + noise.next() % 31) as f32 / 64.0));
        }
    }
    let bf16 = |s: &half::f16| half::bf16::from_f32(s.to_f32()).to_bits();
    let codes = (0..32 * 512).map(|i| rows.code(i / 512, i % 512)).collect();
    let w = Matrix::new(32, 512, codes, rows.scales().iter().map(bf16).collect()).unwrap();
    let mut container = vec![0; STRIP_BYTES];
    formats::t2::pack(&rows, formats::t2::Stride::Packed, &mut container).unwrap();
    assert!(strip(&w, 0) == container);
}

proptest! {
    #[test]
    fn random(seed: u64, rows in 1usize..9, groups in 1usize..9, shift in -60i32..60) {
        let mut noise = Noise(seed);
        let k = groups * GROUP;
        let w = matrix(k, &mut noise, 4);
        let scale = 2f32.powi(shift);
        let x: Vec<f32> = (0..rows * k).map(|_| (noise.next() as f32 / 1e9 - 1.0) * scale).collect();
        for mode in Mode::ALL {
            check(&w, &Activations::new(&x, k, mode).unwrap());
        }
    }
}

#[test]
fn the_transform_is_the_cpus() {
    use hadamard::{BlockHadamard, Isa, Signs};
    let mut noise = Noise(5);
    let rotation = BlockHadamard::new(1024, Isa::detect()).unwrap();
    let signs = Signs::new(vec![1; 1024]).unwrap();
    for shift in [-90, -20, 0, 40] {
        let scale = 2f32.powi(shift);
        let mut x: Vec<f32> =
            (0..8 * 1024).map(|_| (noise.next() as f32 / 1e9 - 1.0) * scale).collect();
        x[1024..2048].fill(0.0);
        for mode in Mode::ALL {
            let mut core = Core::new();
            for (at, x) in core.memory_mut()[4096..].as_chunks_mut::<4>().0.iter_mut().zip(&x) {
                *at = x.to_le_bytes();
            }
            let out = 4096 + 32768;
            let m = u32::from(mode == Mode::N8);
            core.call(Kernel::HadamardQuantize, &[4096, out as u32, m]).unwrap();
            let mut rotated = x.clone();
            for row in rotated.chunks_exact_mut(1024) {
                rotation.forward(row, &signs).unwrap();
            }
            let expected = slices(&Activations::new(&rotated, 1024, mode).unwrap(), 1);
            for slice in 0..2 {
                let found = &core.memory()[out + slice * SLICE_BYTES..][..HEADER_AT];
                let expected = &expected[slice * SLICE_BYTES..][..HEADER_AT];
                let integers = if mode == Mode::N16 { 8192 } else { 4096 };
                assert!(found[..integers] == expected[..integers], "{mode:?} {shift}");
                assert!(found[8192..] == expected[8192..], "{mode:?} {shift}");
            }
        }
    }
}

#[test]
fn faults_are_reported() {
    let mut core = Core::new();
    let mut call = |args: &[u32]| core.call(Kernel::TernaryMatmul, args).unwrap_err().to_string();
    assert!(call(&[SLICES, 0, WEIGHTS + 32, 0, ACC, 0]).contains("multiple of 64"));
    assert!(call(&[SLICES, 0, WEIGHTS, 0, ACC, 63]).contains("outside"));
    assert!(call(&[SLICES, 2, WEIGHTS, 0, ACC, 0]).contains("outside"));
    assert!(call(&[70000, 0, WEIGHTS, 0, ACC, 0]).contains("outside"));
    assert!(call(&[SLICES]).contains("arguments"));
}

/// Kernels are declared where they are defined, where the host calls them, in Rust and in MLIR.
#[test]
fn signatures_agree() {
    use aie_kernels::host::Argument;
    let definitions = concat!(
        include_str!("../kernels/ternary_matmul.cc"),
        include_str!("../kernels/hadamard_quantize.cc")
    );
    let host = include_str!("../host/core.cc");
    let signature = |text: &str, name: &str| -> Vec<Argument> {
        let text = text.split_once(&format!("extern \"C\" void {name}(")).unwrap().1;
        let parameters = text.split_once(')').unwrap().0.split(',');
        let kind = |p: &str| match (p.contains('*'), p.contains("float")) {
            (true, true) => Argument::Floats,
            (true, false) if p.contains("int32_t") => Argument::Words,
            (false, false) if p.contains("int32_t") => Argument::Number,
            _ => panic!("{name}: `{p}`"),
        };
        parameters.map(kind).collect()
    };
    assert_eq!(definitions.matches("extern \"C\" void").count(), Kernel::ALL.len());
    for kernel in Kernel::ALL {
        assert_eq!(signature(definitions, kernel.symbol()), kernel.arguments());
        assert_eq!(signature(host, kernel.symbol()), kernel.arguments());
    }
    let text = aie_kernels::mlir::module(&aie_kernels::design::configuration(), &[]).unwrap();
    for kernel in [Kernel::TernaryMatmul, Kernel::StripOut] {
        let of_mlir = |types: &str| -> Vec<Argument> {
            let kind = |t: &str| match t {
                "i32" => Argument::Number,
                t if t.ends_with("xi32>") => Argument::Words,
                t if t.ends_with("xf32>") => Argument::Floats,
                _ => panic!("`{t}`"),
            };
            types.split(", ").map(kind).collect()
        };
        let after =
            |mark: &str| text.split_once(mark).unwrap().1.split_once(')').unwrap().0.to_owned();
        let symbol = kernel.symbol();
        let declared = after(&format!("func.func private @{symbol}("));
        assert_eq!(of_mlir(&declared), kernel.arguments());
        let call = text.split_once(&format!("func.call @{symbol}(")).unwrap().1;
        let called = call.split_once(") : (").unwrap().1.split_once(')').unwrap().0;
        assert_eq!(called, declared);
    }
}

/// Under floor, the default of a core, all errors would have one sign.
#[test]
fn up_1401_errors_have_no_side() {
    let mut noise = Noise(11);
    for mode in Mode::ALL {
        let (mut sum, mut magnitude, mut n) = (0.0, 0.0, 0u32);
        for _ in 0..16 {
            let k = 2048;
            let w = matrix(k, &mut noise, 3);
            let x: Vec<f32> = (0..8 * k).map(|_| noise.next() as f32 / 1e9 - 1.0).collect();
            let x = Activations::new(&x, k, mode).unwrap();
            let found = run(&mut Core::new(), &w, &x);
            for (at, found) in found.iter().enumerate() {
                let (row, output) = (at / 32, at % 32);
                let group = |g: usize| {
                    let (q, d) = x.group(row, g).unwrap();
                    let code = |i: usize| i64::from(w.code(output, g * GROUP + i)) - 1;
                    let isum: i64 = (0..GROUP).map(|i| code(i) * i64::from(q[i])).sum();
                    let s = f32::from_bits(u32::from(w.scale(output, g)) << 16);
                    isum as f64 * f64::from(s) * f64::from(d)
                };
                let exact: f64 = (0..k / GROUP).map(group).sum();
                let error = f64::from(*found) - exact;
                (sum, magnitude, n) = (sum + error, magnitude + error.abs(), n + 1);
            }
        }
        assert!(
            magnitude > 0.0 && sum.abs() < 0.1 * magnitude,
            "{mode:?}: {sum} of {magnitude}, {n}"
        );
    }
}
