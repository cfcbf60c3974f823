//! Groups per second of each rule on each instruction set, and of the whole inner
//! loop (rotation and optimum). One item is one weight.
//!
//! `cargo bench -p compiler`

use compiler::ternary::{Rule, Stats, Ternarizer};
use divan::counter::ItemsCount;
use divan::{Bencher, black_box};
use hadamard::{BlockHadamard, Isa};
use half::f16;

/// Weights per iteration: 1 MiB of f32, so that the caches of a core hold it.
const WEIGHTS: usize = 1 << 18;
const TILE: usize = 2048;

fn main() {
    divan::main();
}

/// Sums of uniforms: near enough to Gaussian for the order of the work.
fn weights() -> Vec<f32> {
    let mut state = 1u64;
    let mut uniform = || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1 << 24) as f32 - 0.5
    };
    (0..WEIGHTS).map(|_| 0.03 * (0..12).map(|_| uniform()).sum::<f32>()).collect()
}

fn run(bencher: Bencher<'_, '_>, rule: Rule, isa: Isa, rotation: Option<&BlockHadamard>) {
    let source = weights();
    let mut values = source.clone();
    let mut codes = vec![0; WEIGHTS / 4];
    let mut scales = vec![f16::ZERO; WEIGHTS / 128];
    let ternarizer = Ternarizer::new(rule, isa);
    bencher.counter(ItemsCount::new(WEIGHTS)).bench_local(|| {
        let mut stats = Stats::default();
        values.copy_from_slice(&source);
        for ((values, codes), scales) in values
            .chunks_mut(TILE)
            .zip(codes.chunks_mut(TILE / 4))
            .zip(scales.chunks_mut(TILE / 128))
        {
            if let Some(rotation) = rotation {
                rotation.transform(values).expect("whole blocks");
            }
            ternarizer.groups(values, codes, scales, &mut stats).expect("finite weights");
        }
        black_box(stats)
    });
}

fn levels() -> Vec<Isa> {
    Isa::available()
}

#[divan::bench(args = levels())]
fn optimal(bencher: Bencher<'_, '_>, isa: Isa) {
    run(bencher, Rule::Optimal, isa, None);
}

#[divan::bench(args = levels())]
fn rotate_and_optimal(bencher: Bencher<'_, '_>, isa: Isa) {
    let rotation = BlockHadamard::new(1024, isa).expect("a valid block");
    run(bencher, Rule::Optimal, isa, Some(&rotation));
}

#[divan::bench(args = [Rule::Absmean, Rule::Twn])]
fn comparison(bencher: Bencher<'_, '_>, rule: Rule) {
    run(bencher, rule, Isa::detect(), None);
}
