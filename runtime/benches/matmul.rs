//! Ternary matrices against the limits of the machine, measured in the same run.
//!
//! `cargo bench -p runtime --bench matmul -- [THREADS [INSTRUCTION|best [ROWS…]]]`. A cell is the median of the
//! products with one matrix, cycled through copies that no cache holds; `%dot` is its share of the
//! rate of the dot instruction (`a8`: bytes, `a16`: 16-bit words), `%read` that of packed bytes over the
//! read bandwidth. Quantization of the activations is not in it.

#![allow(clippy::print_stdout, reason = "a table is what a bench is for")]

use std::time::Instant;

use formats::{Source, pq2_0};
use hadamard::Isa;
use runtime::backend::{Backend, Cpu, Dot, Prepared};
use runtime::machine;
use runtime::quant::{ActQuant, Activations};
use runtime::rotation::Rotation;
use runtime::rows::Rows;
use runtime::weights::{TernaryEncoding, TernaryMatrix};

const SHAPES: [(usize, usize); 3] = [(17408, 5120), (5120, 17408), (5120, 5120)];
const ROWS: [usize; 7] = [1, 2, 4, 8, 16, 32, 128];

/// Bytes of packed copies to cycle through.
fn cycle() -> usize {
    (2 * machine::last_level_cache()).max(300 << 20)
}

fn matrix(out: usize, inputs: usize) -> TernaryMatrix {
    let mut bytes = vec![0u8; out * pq2_0::row_bytes(inputs)];
    let mut state = 1u64;
    for (i, block) in bytes.chunks_exact_mut(pq2_0::BLOCK_BYTES).enumerate() {
        block[..2].copy_from_slice(&(0x2000 + i as u16 % 512).to_le_bytes());
        for codes in block[2..].chunks_exact_mut(8) {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            // No code 3: a pair of bits loses its upper one where both are set.
            let codes_3 = state & (state >> 1) & 0x5555_5555_5555_5555;
            codes.copy_from_slice(&(state ^ (codes_3 << 1)).to_le_bytes());
        }
    }
    let source = Source::from_bytes("w", bytes);
    let view = source.view(0, source.len()).expect("all of it");
    TernaryMatrix::new(view, TernaryEncoding::Pq2_0, out, inputs, "w", "w")
}

fn activations(n: usize, width: usize, act: ActQuant) -> Activations {
    let rotation = Rotation::new(1024, [(width, vec![1; width])].into(), Isa::detect());
    let values = (0..n * width).map(|i| (i * 7919 % 2001) as f32 / 1000.0 - 1.0).collect();
    let rows = rotation.and_then(|r| r.rotate(&Rows::from_vec(width, values)));
    Activations::new(&rows.expect("whole blocks"), act).expect("finite values")
}

/// The median time of a product, seconds.
fn time(copies: &[Box<dyn Prepared>], x: &Activations, out: &mut [f32]) -> f64 {
    let mut times = Vec::new();
    let begin = Instant::now();
    while times.len() < 2 * copies.len() + 5
        || (begin.elapsed().as_secs_f64() < 0.4 && times.len() < 1000)
    {
        let start = Instant::now();
        copies[times.len() % copies.len()].matmul(x, out).expect("sound weights");
        times.push(start.elapsed().as_secs_f64());
    }
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

fn run(dot: Dot, threads: usize, rows: &[usize]) {
    let limits = machine::measure(dot).expect("memory");
    println!(
        "{dot}, {threads} threads: {:.1} GOP/s bytes, {:.1} GOP/s words, {:.2} GB/s read, {} MiB of copies",
        limits.dot_i8 / 1e9,
        limits.dot_i16 / 1e9,
        limits.read / 1e9,
        cycle() >> 20
    );
    println!("  out x in     act    n        ms     GOP/s  %dot    GB/s  %read");
    for (out, inputs) in SHAPES {
        let matrix = matrix(out, inputs);
        let bytes = out * inputs / 128 * 34;
        let copies: Vec<_> = (0..cycle().div_ceil(bytes))
            .map(|_| Cpu::new(dot).prepare(matrix.clone()).expect("a matrix"))
            .collect();
        for act in [ActQuant::A8, ActQuant::A16] {
            for &n in rows {
                let x = activations(n, inputs, act);
                let mut y = vec![0.0; n * out];
                let seconds = time(&copies, &x, &mut y);
                let operations = 2.0 * (n * out * inputs) as f64;
                let peak = if act == ActQuant::A8 { limits.dot_i8 } else { limits.dot_i16 };
                let read = bytes as f64 / seconds;
                println!(
                    "{out:5} x {inputs:5}  {act:4} {n:4} {:9.3} {:9.1} {:5.1} {:7.2}  {:5.1}",
                    seconds * 1e3,
                    operations / seconds / 1e9,
                    100.0 * operations / seconds / peak,
                    read / 1e9,
                    100.0 * read / limits.read
                );
            }
        }
    }
}

fn main() {
    // Cargo adds arguments of its own.
    let mut args = std::env::args().skip(1).filter(|arg| !arg.starts_with("--"));
    let threads = args.next().map_or(1, |n| n.parse().expect("a number of threads"));
    let wanted = args.next();
    let dots = Dot::available(Isa::detect());
    let best = *dots.last().expect("one at least");
    let named = |name: String| dots.iter().find(|dot| dot.name() == name).copied();
    let wanted = wanted.filter(|name| name != "best");
    let dot = wanted.map_or(best, |name| named(name).expect("an instruction of this CPU"));
    let mut rows: Vec<usize> = args.map(|n| n.parse().expect("a number of rows")).collect();
    if rows.is_empty() {
        rows = ROWS.to_vec();
    }
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().expect("threads");
    pool.install(|| run(dot, threads, &rows));
}
