//! The transform in the nearest cache and on a matrix larger than any cache, against the plain loop
//! and against copying the same bytes.

use divan::counter::{BytesCount, ItemsCount};
use divan::{Bencher, black_box};
use hadamard::{BlockHadamard, Isa, Level, Signs};

fn main() {
    divan::main();
}

const BLOCK: usize = BlockHadamard::DEFAULT_BLOCK;
const ROWS: usize = 5120;
const COLS: usize = 17408;

fn available() -> Vec<Level> {
    Isa::available().into_iter().map(Isa::level).collect()
}

fn values(len: usize) -> Vec<f32> {
    (0..len as u32)
        .map(|i| (i.wrapping_mul(2_654_435_761) >> 8) as f32 / (1 << 23) as f32 - 1.0)
        .collect()
}

fn mixed_signs(width: usize) -> Signs {
    Signs::new((0..width).map(|i| if i % 3 == 0 { -1 } else { 1 }).collect())
        .expect("signs are 1 or -1")
}

/// What one writes first: three loops over indices, no thought of vectors.
fn plain_loops(x: &mut [f32]) {
    let scale = 1.0 / (BLOCK as f32).sqrt();
    for x in x.as_chunks_mut::<BLOCK>().0 {
        for v in x.iter_mut() {
            *v *= scale;
        }
        let mut stride = 1;
        while stride < BLOCK {
            for start in (0..BLOCK).step_by(2 * stride) {
                for i in start..start + stride {
                    let (u, v) = (x[i], x[i + stride]);
                    x[i] = u + v;
                    x[i + stride] = u - v;
                }
            }
            stride *= 2;
        }
    }
}

#[divan::bench_group(sample_count = 200, sample_size = 500)]
mod one_block {
    use super::*;

    #[divan::bench]
    fn plain(bencher: Bencher) {
        let mut x = values(BLOCK);
        bencher.counter(ItemsCount::new(BLOCK)).bench_local(|| plain_loops(black_box(&mut x)));
    }

    #[divan::bench(args = available())]
    fn transform(bencher: Bencher, level: Level) {
        let hadamard = BlockHadamard::new(BLOCK, Isa::at_most(level)).expect("a valid block size");
        let mut x = values(BLOCK);
        bencher
            .counter(ItemsCount::new(BLOCK))
            .bench_local(|| hadamard.transform(black_box(&mut x)));
    }

    #[divan::bench(args = available())]
    fn forward(bencher: Bencher, level: Level) {
        let hadamard = BlockHadamard::new(BLOCK, Isa::at_most(level)).expect("a valid block size");
        let signs = mixed_signs(BLOCK);
        let mut x = values(BLOCK);
        bencher
            .counter(ItemsCount::new(BLOCK))
            .bench_local(|| hadamard.forward(black_box(&mut x), &signs));
    }
}

/// Bytes are those of the matrix once, though each operation reads and writes it.
#[divan::bench_group(sample_count = 10, sample_size = 1)]
mod matrix_5120x17408 {
    use super::*;

    const SIZE: usize = ROWS * COLS;

    #[divan::bench]
    fn copy(bencher: Bencher) {
        let x = values(SIZE);
        let mut y = vec![1.0; SIZE];
        bencher.counter(BytesCount::of_slice(&x)).bench_local(|| y.copy_from_slice(black_box(&x)));
    }

    #[divan::bench]
    fn plain(bencher: Bencher) {
        let mut x = values(SIZE);
        bencher.counter(BytesCount::of_slice(&x)).bench_local(|| plain_loops(black_box(&mut x)));
    }

    #[divan::bench(args = available())]
    fn transform(bencher: Bencher, level: Level) {
        let hadamard = BlockHadamard::new(BLOCK, Isa::at_most(level)).expect("a valid block size");
        let mut x = values(SIZE);
        bencher
            .counter(BytesCount::of_slice(&x))
            .bench_local(|| hadamard.transform(black_box(&mut x)));
    }

    #[divan::bench(args = available())]
    fn forward_rows(bencher: Bencher, level: Level) {
        let hadamard = BlockHadamard::new(BLOCK, Isa::at_most(level)).expect("a valid block size");
        let signs = mixed_signs(COLS);
        let mut x = values(SIZE);
        bencher
            .counter(BytesCount::of_slice(&x))
            .bench_local(|| hadamard.forward_rows(black_box(&mut x), COLS, &signs));
    }
}
