//! What lies between the ternary matrices of a step, at the dimensions of the 27 B target.
//!
//! `cargo bench -p runtime --bench step -- [THREADS [INSTRUCTION [NAME…]]]`. A row is the median time
//! of one call, as one layer makes it, for 1, 8 and 128 tokens; `calls` is how often a step makes it.
//! Data is what the last call left in the caches, but for states and keys, which are cycled through
//! copies of 300 MB.

#![allow(clippy::print_stdout, reason = "a table is what a bench is for")]

use std::time::Instant;

use formats::Source;
use hadamard::{Isa, Level};
use runtime::attention::attend_rows;
use runtime::gdn::{CausalConv, DeltaState, GatedNorm, HeadOrder, Heads, Updates};
use runtime::kv::{KvCache, KvType};
use runtime::norm::RmsNorm;
use runtime::rotation::Rotation;
use runtime::round::{Greedy, Verifier};
use runtime::rows::{Primal, Rows};
use runtime::swiglu::swiglu;
use runtime::weights::{FloatEncoding, FloatMatrix};

const HIDDEN: usize = 5120;
const FEED_FORWARD: usize = 17408;
const VOCAB: usize = 248_320;
const HEADS: Heads = Heads { key_heads: 16, value_heads: 48, dim: 128, order: HeadOrder::Tiled };
/// Query heads, key heads and their width.
const ATTENTION: (usize, usize, usize) = (24, 4, 256);

/// Bytes of copies to cycle through.
const CYCLE: usize = 300 << 20;

fn values(n: usize) -> Vec<f32> {
    (0..n).map(|i| (i * 7919 % 2001) as f32 / 1000.0 - 1.0).collect()
}

fn rows(n: usize, width: usize) -> Rows<Primal> {
    Rows::from_vec(width, values(n * width))
}

/// The median time of a call, in seconds; `work` is given the number of the call.
fn time(mut work: impl FnMut(usize)) -> f64 {
    let mut times = Vec::new();
    let begin = Instant::now();
    while times.len() < 9 || (begin.elapsed().as_secs_f64() < 0.15 && times.len() < 2000) {
        let start = Instant::now();
        work(times.len());
        times.push(start.elapsed().as_secs_f64());
    }
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

struct Table {
    isa: Isa,
    names: Vec<String>,
}

impl Table {
    /// `work`: makes the computation for a number of tokens.
    fn row<W: FnMut(usize)>(&self, name: &str, calls: usize, work: impl Fn(Isa, usize) -> W) {
        if !self.names.is_empty() && !self.names.iter().any(|wanted| name.contains(wanted)) {
            return;
        }
        let cells = [1, 8, 128].map(|n| 1e6 * time(work(self.isa, n)));
        print!("{name:<22}{calls:>6}");
        cells.iter().for_each(|us| print!("{us:>12.1}"));
        println!("{:>10.3}{:>10.3}", cells[0] * calls as f64 / 1e3, cells[1] * calls as f64 / 1e3);
    }
}

fn updates(n: usize) -> Updates {
    let scaled = |x: f32, by: f32| x * by;
    Updates {
        heads: HEADS,
        qkv: values(n * HEADS.channels()).into_iter().map(|x| scaled(x, 0.1)).collect(),
        decay: vec![0.97; n * HEADS.value_heads],
        beta: vec![0.5; n * HEADS.value_heads],
    }
}

fn float_matrix(out: usize, inputs: usize) -> FloatMatrix {
    let bytes: Vec<u8> = values(out * inputs).iter().flat_map(|x| x.to_le_bytes()).collect();
    let source = Source::from_bytes("w", bytes);
    let view = source.view(0, source.len()).expect("all of it");
    FloatMatrix::new(view, FloatEncoding::F32, out, inputs)
}

fn between_matrices(table: &Table) {
    let rotation = |isa, width| {
        let sign = |i: usize| if i.is_multiple_of(3) { -1 } else { 1 };
        let signs = (0..width).map(sign).collect();
        Rotation::new(1024, [(width, signs)].into(), isa).expect("whole blocks")
    };
    for (width, calls) in [(HIDDEN, 128), (FEED_FORWARD, 64)] {
        table.row(&format!("rotation {width}"), calls, |isa, n| {
            let (rotation, x) = (rotation(isa, width), rows(n, width));
            move |_| drop(rotation.rotate(&x).expect("signs"))
        });
    }
    table.row("rms norm", 128, |isa, n| {
        let (norm, x) = (RmsNorm::new(values(HIDDEN), 1e-6), rows(n, HIDDEN));
        move |_| drop(norm.rows(isa, &x).expect("modes"))
    });
    table.row("swiglu", 64, |isa, n| {
        let (gate, up) = (rows(n, FEED_FORWARD), rows(n, FEED_FORWARD));
        move |_| drop(swiglu(isa, gate.clone(), &up).expect("modes"))
    });
    table.row("float 48 x 5120", 96, |isa, n| {
        let copies: Vec<_> =
            (0..CYCLE / (48 * HIDDEN * 4)).map(|_| float_matrix(48, HIDDEN)).collect();
        let (x, mut out) = (rows(n, HIDDEN), vec![0.0; n * 48]);
        move |i| copies[i % copies.len()].matmul(isa, &x, &mut out).expect("modes")
    });
    table.row("argmax", 1, |_, n| {
        let x = rows(n, VOCAB);
        move |_| x.iter().for_each(|x| drop(Greedy.choose(x, 0)))
    });
}

fn delta_net(table: &Table) {
    table.row("convolution, norms", 48, |isa, n| {
        let conv = CausalConv::new(HEADS.channels(), &values(4 * HEADS.channels()));
        let (history, u) = (values(conv.history_len()), rows(n, HEADS.channels()));
        move |_| {
            drop(conv.queries_keys_values(isa, &history, &u, HEADS, (1e-6, 0.1)).expect("modes"));
        }
    });
    let states = || vec![DeltaState::new(HEADS); CYCLE / (HEADS.inner() * HEADS.dim * 4)];
    table.row("delta net, advance", 48, |isa, n| {
        let (mut states, updates) = (states(), updates(n));
        let len = states.len();
        move |i| drop(states[i % len].advance(isa, &updates).expect("modes"))
    });
    table.row("delta net, outputs", 48, |isa, n| {
        let (mut states, updates) = (states(), updates(n));
        let len = states.len();
        move |i| drop(states[i % len].outputs(isa, &updates).expect("modes"))
    });
    table.row("all accepted, outputs", 48, |isa, n| {
        let (mut states, updates) = (states(), updates(n));
        let len = states.len();
        move |i| {
            let state = &mut states[i % len];
            let (_, corrections) = state.outputs(isa, &updates).expect("modes");
            state.accept(&updates, &corrections, n);
        }
    });
    table.row("gated norm", 48, |isa, n| {
        let gated = GatedNorm::new(RmsNorm::new(values(HEADS.dim), 1e-6), HEADS, true);
        let (o, z) = (values(n * HEADS.inner()), rows(n, HEADS.inner()));
        move |_| drop(gated.apply(isa, &o, &z).expect("modes"))
    });
}

fn attention(table: &Table) {
    let (heads, kv_heads, dim) = ATTENTION;
    for context in [0, 1024, 8192, 32768] {
        table.row(&format!("attention at {context}"), 16, |isa, n| {
            let mut cache = KvCache::new(kv_heads, dim, KvType::F16);
            let row = values(kv_heads * dim);
            (0..context + n).for_each(|_| cache.append(&row, &row));
            let bytes = cache.bytes().max(1 << 20);
            let caches = vec![cache; (CYCLE / bytes).clamp(1, 16)];
            let (q, mut out) = (values(n * heads * dim), vec![0.0; n * heads * dim]);
            let visible: Vec<_> = (0..n).map(|i| 0..context + i + 1).collect();
            move |i| {
                let cache = &caches[i % caches.len()];
                attend_rows(isa, &q, cache, &visible, 0.0625, &mut out).expect("modes");
            }
        });
    }
}

fn main() {
    let mut arguments: Vec<String> =
        std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    let threads = arguments.first().and_then(|n| n.parse().ok()).unwrap_or(0);
    let cap: Option<Level> = arguments.get(1).and_then(|name| name.parse().ok());
    let isa = cap.map_or_else(Isa::detect, Isa::at_most);
    let names = arguments.drain(2.min(arguments.len())..).collect();
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().expect("threads");
    pool.install(|| {
        println!("{}, {} threads, microseconds a call", isa.level(), rayon::current_num_threads());
        println!(
            "{:<22}{:>6}{:>12}{:>12}{:>12}{:>10}{:>10}",
            "", "calls", "n = 1", "n = 8", "n = 128", "ms, n = 1", "ms, n = 8"
        );
        let table = Table { isa, names };
        between_matrices(&table);
        delta_net(&table);
        attention(&table);
    });
}
