//! Calibration data of models at work, against straightforward computations.

#![allow(clippy::unwrap_used, reason = "tests, which clippy does not see in helpers")]

mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::{Arc, Mutex};

use formats::calib::{Input, Tile, WEIGHT_ONE, inputs_of};
use hadamard::Isa;
use runtime::Error;
use runtime::backend::Cpu;
use runtime::capture::{Capture, Captured};
use runtime::drafter::{Drafter, InputObserver};
use runtime::kv::KvType;
use runtime::moments::{Moments, decaying_weights, exponents};
use runtime::quant::ActQuant;
use runtime::round::{Coupling, Greedy, Limits};
use runtime::rows::{Primal, Rows};
use runtime::target::Target;
use support::drafter::{Kind, config, write};
use support::{Shape, Storage, noise};

/// Rows of an input, with the position of the first in its block.
type Kept = Vec<(usize, Vec<f32>)>;

/// Keeps all rows, and shows them to moments too.
#[derive(Debug)]
struct Keeper {
    moments: Arc<Moments>,
    rows: Mutex<BTreeMap<Input, Kept>>,
}

impl InputObserver for Keeper {
    fn rows(&self, input: Input, first: usize, rows: &Rows<Primal>) -> Result<(), Error> {
        let mut all = self.rows.lock().unwrap();
        let kept = all.entry(input).or_default();
        kept.extend(rows.iter().enumerate().map(|(i, row)| (first + i, row.to_vec())));
        self.moments.rows(input, first, rows)
    }
}

struct Pair {
    target: Target,
    drafter: Drafter,
    block: usize,
    exponents: BTreeMap<Input, i32>,
}

impl Pair {
    fn of(target: Target, drafter: &Path, block: usize) -> Self {
        let (act, isa) = (ActQuant::A8, Isa::detect());
        let mut drafter = Drafter::open(drafter, None, &target, act, isa, &Cpu::default()).unwrap();
        let exponents = exponents(&target, &mut drafter, KvType::F16).unwrap();
        Self { target, drafter, block, exponents }
    }

    /// Models of noise.
    fn noise() -> Self {
        let shape = Shape::mini();
        let dir = tempfile::tempdir().unwrap();
        let source = noise(&shape, Storage::Pq2_0, 5).source();
        let target = Target::load(source, ActQuant::A8, Isa::detect(), &Cpu::default()).unwrap();
        let drafter = write(dir.path(), &config(&shape), Kind::Float, shape.block, 3);
        Self::of(target, &drafter, 64)
    }

    /// The trained pair.
    fn trained() -> Self {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/pair");
        let (act, isa) = (ActQuant::A8, Isa::detect());
        let target = Target::open(&folder.join("target.gguf"), act, isa, &Cpu::default()).unwrap();
        Self::of(target, &folder.join("drafter/model.safetensors"), 256)
    }

    fn moments(&self, full: &[Input]) -> Moments {
        let config = self.drafter.config();
        let (weights, full) = (decaying_weights(config.block_size), full.iter().copied().collect());
        Moments::new(config, self.block, weights, &full, &self.exponents, Isa::detect()).unwrap()
    }

    fn observed(&mut self, observer: Arc<dyn InputObserver>) -> Capture<'_> {
        self.drafter.set_inputs(Some(observer));
        self.capture(0)
    }

    fn capture(&self, top: usize) -> Capture<'_> {
        Capture {
            target: &self.target,
            drafter: &self.drafter,
            kv: KvType::F16,
            draft_max: self.drafter.config().block_size - 1,
            coupling: Coupling::Off,
            top,
        }
    }
}

fn answer(capture: &Capture<'_>, prompt: &[u32], tokens: usize) -> Captured {
    let limits = Limits { max_tokens: Some(tokens), ..Limits::default() };
    capture.answer(prompt, &limits, &mut Greedy, &|| false).unwrap().unwrap()
}

/// All tiles of all inputs.
fn tiles(moments: &Moments, block: usize) -> Vec<Vec<i64>> {
    let records = moments.records();
    let tiles = records.iter().flat_map(|(name, record)| {
        let input = Input::parse(name).unwrap();
        record.tiles(block).map(move |tile| moments.tile(input, tile))
    });
    tiles.collect()
}

/// `H x` per block by the definition, in f64.
fn rotated(x: &[f32], block: usize) -> Vec<f64> {
    let sign = |i: usize, j: usize| if (i & j).count_ones().is_multiple_of(2) { 1.0 } else { -1.0 };
    let mut out = Vec::new();
    for x in x.chunks(block) {
        let row = |i| x.iter().enumerate().map(|(j, x)| sign(i, j) * f64::from(*x)).sum::<f64>();
        out.extend((0..block).map(|i| row(i) / (block as f64).sqrt()));
    }
    out
}

#[test]
fn moments_are_those_of_a_straightforward_computation() {
    let mut pair = Pair::noise();
    let moments = Arc::new(pair.moments(&[Input::Fc, Input::Down(1)]));
    let keeper = Arc::new(Keeper { moments: moments.clone(), rows: Mutex::default() });
    let capture = pair.observed(keeper.clone());
    let prompt: Vec<u32> = (0..40).map(|i| (i * 7 + 3) % 60).collect();
    let captured = answer(&capture, &prompt, 60);
    moments.end_unit().unwrap();

    let block = pair.block;
    let weights = decaying_weights(8);
    let (records, rows) = (moments.records(), keeper.rows.lock().unwrap());
    assert_eq!(rows.len(), inputs_of(pair.drafter.config()).len());
    // Every token but the last is context; every round has a whole block, but the last ones of a budget.
    assert_eq!(rows[&Input::Context].len(), prompt.len() + 59);
    assert!(rows[&Input::Qkv(0)].len() >= 8 * (captured.rounds - 1));
    assert_eq!(rows[&Input::Selector].len() * 8, rows[&Input::Down(0)].len() * 7);
    for (name, record) in &records {
        let input = Input::parse(name).unwrap();
        let context = matches!(input, Input::Fc | Input::Context);
        let weight = |place: usize| if context { WEIGHT_ONE } else { weights[place] };
        let rows = &rows[&input];
        assert_eq!(record.rows, rows.len() as u64);
        assert_eq!(record.weight, rows.iter().map(|(place, _)| weight(*place)).sum::<u64>());
        assert_eq!(record.full, [Input::Fc, Input::Down(1)].contains(&input));
        let rotated: Vec<(f64, Vec<f64>)> = rows
            .iter()
            .map(|(place, x)| (weight(*place) as f64 / WEIGHT_ONE as f64, rotated(x, block)))
            .collect();
        let squares = |(w, x): &(f64, Vec<f64>)| w * x.iter().map(|x| x * x).sum::<f64>();
        let mean = rotated.iter().map(squares).sum::<f64>() / record.width as f64;
        for tile in record.tiles(block) {
            let (i, j) = match tile {
                Tile::Diagonal(i) => (i, i),
                Tile::Pair(i, j) => (i, j),
            };
            let units = moments.tile(input, tile);
            let mut units = units.iter();
            for r in 0..block {
                for c in if i == j { r } else { 0 }..block {
                    let product =
                        |(w, x): &(f64, Vec<f64>)| w * x[i * block + r] * x[j * block + c];
                    let exact: f64 = rotated.iter().map(product).sum();
                    let found = *units.next().unwrap() as f64 * f64::from(record.exponent).exp2();
                    assert!((found - exact).abs() < 2e-6 * mean, "{name}: {found} {exact} {mean}");
                }
            }
            assert!(units.next().is_none());
        }
    }
}

#[test]
fn an_answer_and_the_same_text_given_are_the_same() {
    let mut pair = Pair::trained();
    let block = pair.block;
    let prompt: Vec<u32> = vec![294, 258, 328, 283, 64, 409, 65, 72, 315, 649, 743, 312, 426];
    let plain = answer(&pair.capture(32), &prompt, 90);
    let (answered, given) = (Arc::new(pair.moments(&[])), Arc::new(pair.moments(&[])));
    let capture = Capture { top: 32, ..pair.observed(answered.clone()) };
    let captured = answer(&capture, &prompt, 90);
    answered.end_unit().unwrap();
    assert_eq!((captured.ids.len(), captured.positions), (103, 89));
    assert!(captured.rounds < 60, "{} rounds", captured.rounds);
    // An observer changes nothing.
    assert_eq!((&plain.ids, plain.rounds), (&captured.ids, captured.rounds));
    assert_eq!(plain.labels, captured.labels);

    let capture = Capture { top: 32, ..pair.observed(given.clone()) };
    let text = capture.text(&captured.ids, prompt.len(), &|| false).unwrap().unwrap();
    given.end_unit().unwrap();
    assert_eq!((text.positions, text.rounds), (captured.positions, captured.rounds));
    assert_eq!(text.labels, captured.labels);
    // A block sees all before it, as far as its window goes.
    let before = capture.drafter.config().sliding_window.unwrap() - 1;
    let anchors = &captured.labels.as_ref().unwrap().anchors;
    let seen: usize = anchors.iter().map(|anchor| before.min(*anchor)).sum();
    assert_eq!((text.context_rows, captured.context_rows), (seen, seen));
    assert_eq!(given.records(), answered.records());
    assert_eq!(tiles(&given, block), tiles(&answered, block));

    let labels = captured.labels.unwrap();
    assert_eq!((labels.first, labels.taps.n(), labels.likeliest.len()), (13, 102, 90));
    assert_eq!(labels.anchors[0], 13);
    for (i, likeliest) in labels.likeliest.iter().enumerate() {
        assert_eq!(likeliest[0].0, captured.ids[13 + i]);
        assert!(likeliest.len() == 32 && likeliest.windows(2).all(|p| p[0].1 >= p[1].1));
    }
    // Past the anchors, the rounds' own sums: each anchor is where the round before it ended.
    assert!(labels.anchors.windows(2).all(|p| p[1] > p[0] && p[1] - p[0] <= 8));

    let broken = capture.text(&captured.ids, prompt.len(), &|| true).unwrap();
    assert!(broken.is_none());
    assert!(matches!(capture.text(&[1, 2], 2, &|| false), Err(Error::EmptyPrompt)));
}

#[test]
fn neither_threads_nor_the_order_of_units_show() {
    let mut pair = Pair::noise();
    let block = pair.block;
    let prompts: Vec<Vec<u32>> =
        (0..3).map(|p| (0..20 + 9 * p).map(|i| (i * 11 + p) % 60).collect()).collect();
    let mut all = BTreeSet::new();
    for (threads, order) in [(1, [0, 1, 2]), (2, [2, 0, 1]), (4, [1, 2, 0])] {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        let moments = Arc::new(pair.moments(&[Input::Qkv(0)]));
        let capture = pair.observed(moments.clone());
        pool.install(|| {
            for p in order {
                answer(&capture, &prompts[p], 40);
                moments.end_unit().unwrap();
            }
        });
        all.insert((tiles(&moments, block), format!("{:?}", moments.records())));
    }
    assert_eq!(all.len(), 1);
}
