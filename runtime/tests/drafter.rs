//! Whole drafters: containers that agree, a straight re-implementation in f64, and refusals.

#![allow(clippy::unwrap_used, reason = "tests, which clippy does not see in helpers")]

mod support;

use std::path::Path;

use formats::dflash2::drafter as file;
use formats::dflash2::names::Role;
use formats::gguf::GgmlType;
use hadamard::Isa;
use proptest::prelude::*;
use runtime::Error;
use runtime::backend::Cpu;
use runtime::drafter::{Context, Drafter, top_k};
use runtime::kv::KvType;
use runtime::quant::ActQuant;
use runtime::rows::{Primal, Rows};
use runtime::target::{LogitRows, State, Target};
use serde_json::{Value, json};
use support::drafter::{Kind, config, write};
use support::{Shape, Storage, noise};

fn target(shape: &Shape) -> Target {
    let source = noise(shape, Storage::Pq2_0, 7).source();
    Target::load(source, ActQuant::F32, Isa::detect(), &Cpu::default()).unwrap()
}

fn open(path: &Path, target: &Target, act: ActQuant) -> Result<Drafter, Error> {
    Drafter::open(path, None, target, act, Isa::detect(), &Cpu::default())
}

fn written(shape: &Shape, config: &Value, kind: Kind, target: &Target, act: ActQuant) -> Drafter {
    let dir = tempfile::tempdir().unwrap();
    // The mapping outlives the name of the file.
    open(&write(dir.path(), config, kind, shape.block, 3), target, act).unwrap()
}

/// Tapped states of a prompt of `n` tokens.
fn taps(target: &Target, drafter: &Drafter, n: usize) -> Rows<Primal> {
    let ids: Vec<u32> = (0..n).map(|i| (i * 7 % 60) as u32).collect();
    let mut state = State::new(target.config(), KvType::F32);
    let layers = &drafter.config().target_layer_ids;
    target.advance(&mut state, &ids, layers, LogitRows::None).unwrap().taps.unwrap()
}

fn difference(a: &Rows<Primal>, b: &Rows<Primal>) -> f32 {
    let max = a.data().iter().fold(1.0f32, |m, x| m.max(x.abs()));
    a.data().iter().zip(b.data()).fold(0.0f32, |m, (a, b)| m.max((a - b).abs())) / max
}

#[test]
fn containers_agree() {
    let shape = Shape::tiny();
    let target = target(&shape);
    let run = |kind, act| {
        let drafter = written(&shape, &config(&shape), kind, &target, act);
        let mut context = Context::new(drafter.config(), KvType::F32);
        drafter.extend(&mut context, &taps(&target, &drafter, 20)).unwrap();
        let hidden = drafter.block(&mut context, &target, 5, 8).unwrap();
        (hidden, drafter.draft(&mut context, &target, 5).unwrap())
    };
    let (hidden, draft) = run(Kind::Float, ActQuant::A8);
    assert_eq!(draft.len(), 7);
    for (kind, act, bound) in [
        (Kind::Q4nx, ActQuant::F32, 2e-5),
        (Kind::Gguf(GgmlType::PQ2_0), ActQuant::F32, 2e-5),
        (Kind::Gguf(GgmlType::PTQ1_0), ActQuant::F32, 2e-5),
        (Kind::Q4nx, ActQuant::A16, 5e-3),
        (Kind::Gguf(GgmlType::PQ2_0), ActQuant::A8, 0.5),
    ] {
        let (other, other_draft) = run(kind, act);
        let found = difference(&hidden, &other);
        assert!(found <= bound, "{kind:?} {act}: {found}");
        if act == ActQuant::F32 {
            assert_eq!(draft, other_draft);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]

    /// Context rows in any pieces; drafting leaves them as they were, and a window forgets only what
    /// no block sees.
    #[test]
    fn pieces_of_context_change_no_bit(
        pieces in prop::collection::vec(1usize..9, 1..12),
        kv in prop::sample::select(&[KvType::F16, KvType::F32][..]),
    ) {
        let shape = Shape::mini();
        let target = target(&shape);
        let kind = Kind::Gguf(GgmlType::PQ2_0);
        let drafter = written(&shape, &config(&shape), kind, &target, ActQuant::A8);
        let n = pieces.iter().sum();
        let taps = taps(&target, &drafter, n);
        let mut whole = Context::new(drafter.config(), kv);
        drafter.extend(&mut whole, &taps).unwrap();
        let mut context = Context::new(drafter.config(), kv);
        for piece in pieces {
            let at = context.len();
            drafter.extend(&mut context, &taps.slice(at..at + piece)).unwrap();
            let before = context.digest();
            drafter.draft(&mut context, &target, 9).unwrap();
            prop_assert_eq!(before, context.digest());
        }
        prop_assert_eq!((context.len(), context.digest()), (whole.len(), whole.digest()));
        let draft = |context: &mut Context| drafter.draft(context, &target, 9).unwrap();
        prop_assert_eq!(draft(&mut context), draft(&mut whole));
    }
}

/// A drafter's tensors as f64, and the forward pass written straight from its description.
struct Oracle {
    opened: file::Drafter,
}

impl Oracle {
    fn tensor(&self, role: Role, layer: Option<usize>) -> Vec<f64> {
        let mut tensors = self.opened.tensors.iter();
        let tensor = tensors.find(|t| t.spec.role == role && t.spec.layer == layer).unwrap();
        let mut values = vec![0.0; tensor.spec.parameters() as usize];
        tensor.read_values(0, &mut values, &mut file::Buffer::default()).unwrap();
        values.into_iter().map(f64::from).collect()
    }

    fn multiply(&self, role: Role, layer: Option<usize>, x: &[Vec<f64>]) -> Vec<Vec<f64>> {
        let w = self.tensor(role, layer);
        let product = |x: &Vec<f64>| {
            w.chunks_exact(x.len()).map(|w| w.iter().zip(x).map(|(w, x)| w * x).sum()).collect()
        };
        x.iter().map(product).collect()
    }

    fn norm(&self, role: Role, layer: Option<usize>, x: &mut [Vec<f64>]) {
        let w = self.tensor(role, layer);
        for x in x.iter_mut().flat_map(|x| x.chunks_exact_mut(w.len())) {
            let mean = x.iter().map(|x| x * x).sum::<f64>() / x.len() as f64;
            x.iter_mut().zip(&w).for_each(|(x, w)| *x = *x * w / (mean + 1e-6).sqrt());
        }
    }

    fn rope(&self, x: &mut [Vec<f64>], start: usize) {
        let dim = self.opened.config.head_dim;
        for (i, x) in x.iter_mut().enumerate() {
            for head in x.chunks_exact_mut(dim) {
                for j in 0..dim / 2 {
                    let angle = (start + i) as f64 * 1e7f64.powf(-2.0 * j as f64 / dim as f64);
                    let (a, b) = (head[j], head[j + dim / 2]);
                    head[j] = a * angle.cos() - b * angle.sin();
                    head[j + dim / 2] = a * angle.sin() + b * angle.cos();
                }
            }
        }
    }

    fn conv(
        &self,
        role: Role,
        n: usize,
        z: &[Vec<f64>],
        delta: &[Vec<f64>],
        side: usize,
    ) -> Vec<Vec<f64>> {
        let (base, h) = (self.tensor(role, Some(n)), self.opened.config.hidden_size);
        let at = |i: usize, t: usize, c: usize| {
            base[(side * 2 + t) * h + c] + delta[i][(side * 2 + t) * (h / 16) + c / 16]
        };
        let value = |i: usize, c: usize| {
            let before = if i > 0 { at(i, 1, c) * z[i - 1][c] } else { 0.0 };
            at(i, 0, c) * z[i][c] + before
        };
        (0..z.len()).map(|i| (0..h).map(|c| value(i, c)).collect()).collect()
    }

    /// Normed hidden states of the block and the walk over given logits of its rows.
    fn block(&self, taps: &[Vec<f64>], mut x: Vec<Vec<f64>>) -> Vec<Vec<f64>> {
        let c = &self.opened.config;
        let (start, dim, window) = (taps.len(), c.head_dim, c.sliding_window.unwrap());
        let mut h = self.multiply(Role::Fc, None, taps);
        self.norm(Role::HiddenNorm, None, &mut h);
        for n in 0..c.num_hidden_layers {
            let layer = Some(n);
            let mut a = x.clone();
            self.norm(Role::InputNorm, layer, &mut a);
            let delta = self.multiply(Role::AttentionConvProjection, layer, &a);
            let a = self.conv(Role::AttentionConvBase, n, &a, &delta, 0);
            let mut q = self.multiply(Role::Q, layer, &a);
            self.norm(Role::QNorm, layer, &mut q);
            self.rope(&mut q, start);
            let rows: Vec<Vec<f64>> = h.iter().chain(&a).cloned().collect();
            let mut k = self.multiply(Role::K, layer, &rows);
            self.norm(Role::KNorm, layer, &mut k);
            self.rope(&mut k, 0);
            let v = self.multiply(Role::V, layer, &rows);
            let mut attended = vec![vec![0.0; c.q_width()]; x.len()];
            for i in 0..x.len() {
                for head in 0..c.num_attention_heads {
                    let kv = head / (c.num_attention_heads / c.num_key_value_heads) * dim;
                    let sees = |r: usize| {
                        let (s, inside) = (start + i, r >= start);
                        s.abs_diff(r) < window
                            && (inside || r < s)
                            && (c.is_causal == Some(false) || r <= s)
                    };
                    let keys: Vec<usize> = (0..rows.len()).filter(|r| sees(*r)).collect();
                    let weight = |r: usize| {
                        let q = &q[i][head * dim..][..dim];
                        let dot: f64 = q.iter().zip(&k[r][kv..]).map(|(q, k)| q * k).sum();
                        (dot / (dim as f64).sqrt()).exp()
                    };
                    let total: f64 = keys.iter().map(|r| weight(*r)).sum();
                    for d in 0..dim {
                        let sum: f64 = keys.iter().map(|r| weight(*r) * v[*r][kv + d]).sum();
                        attended[i][head * dim + d] = sum / total;
                    }
                }
            }
            let o = self.multiply(Role::O, layer, &attended);
            let o = self.conv(Role::AttentionConvBase, n, &o, &delta, 1);
            add(&mut x, &o);
            let mut m = x.clone();
            self.norm(Role::PostAttentionNorm, layer, &mut m);
            let delta = self.multiply(Role::MlpConvProjection, layer, &m);
            let m = self.conv(Role::MlpConvBase, n, &m, &delta, 0);
            let mut gate = self.multiply(Role::Gate, layer, &m);
            let up = self.multiply(Role::Up, layer, &m);
            for (g, u) in gate.iter_mut().flatten().zip(up.iter().flatten()) {
                *g = *g / (1.0 + (-*g).exp()) * u;
            }
            let f = self.multiply(Role::Down, layer, &gate);
            add(&mut x, &self.conv(Role::MlpConvBase, n, &f, &delta, 1));
        }
        self.norm(Role::FinalNorm, None, &mut x);
        x
    }

    fn walk(&self, hidden: &[Vec<f64>], logits: &Rows<Primal>, pending: u32) -> Vec<u32> {
        let c = &self.opened.config;
        let z = self.multiply(Role::SelectorHidden, None, hidden);
        let (p, q) = (
            self.tensor(Role::PredecessorCodebook, None),
            self.tensor(Role::SuccessorCodebook, None),
        );
        let row = |book: &[f64], id: u32| {
            book[id as usize * c.selector_rank..][..c.selector_rank].to_vec()
        };
        let mut previous = pending;
        let next = |(logits, z): (&[f32], &Vec<f64>)| {
            let score = |id: u32| {
                let (p, q) = (row(&p, previous), row(&q, id));
                let edge: f64 = p.iter().zip(z).zip(&q).map(|((p, z), q)| p * z * q).sum();
                f64::from(logits[id as usize]) + edge
            };
            let ids = top_k(logits, c.selector_top_k);
            previous = ids.into_iter().max_by(|a, b| score(*a).total_cmp(&score(*b))).unwrap();
            previous
        };
        logits.iter().zip(&z).map(next).collect()
    }
}

fn add(x: &mut [Vec<f64>], y: &[Vec<f64>]) {
    x.iter_mut().flatten().zip(y.iter().flatten()).for_each(|(x, y)| *x += y);
}

fn wide(rows: &Rows<Primal>) -> Vec<Vec<f64>> {
    rows.iter().map(|row| row.iter().map(|x| f64::from(*x)).collect()).collect()
}

#[test]
fn close_to_the_description_in_f64() {
    let shape = Shape::mini();
    let target = target(&shape);
    for causal in [false, true] {
        let mut config = config(&shape);
        config["is_causal"] = json!(causal);
        let dir = tempfile::tempdir().unwrap();
        let path = write(dir.path(), &config, Kind::Float, shape.block, 11);
        let drafter = open(&path, &target, ActQuant::A8).unwrap();
        let oracle = Oracle { opened: file::Drafter::open(&path, None).unwrap() };
        // The window of 12 cuts the context of 20, not that of 5.
        for n in [5, 20] {
            let taps = taps(&target, &drafter, n);
            let mut context = Context::new(drafter.config(), KvType::F32);
            drafter.extend(&mut context, &taps).unwrap();
            let found = drafter.block(&mut context, &target, 9, 8).unwrap();
            let mut ids = [shape.vocab as u32 - 1; 8];
            ids[0] = 9;
            let expected =
                oracle.block(&wide(&taps), wide(&target.embedding().rows(&ids).unwrap()));
            for (found, expected) in found.iter().zip(&expected) {
                for (found, expected) in found.iter().zip(expected) {
                    assert!((f64::from(*found) - expected).abs() < 2e-4, "{found} {expected}");
                }
            }
            let logits = target.head(&found.slice(1..8)).unwrap();
            let expected = oracle.walk(&expected[1..], &logits, 9);
            assert_eq!(drafter.draft(&mut context, &target, 9).unwrap(), expected);
        }
    }
}

#[test]
fn the_end_of_the_context_shortens_the_block() {
    let shape = Shape::mini();
    let target = target(&shape);
    let mut config = config(&shape);
    config["max_position_embeddings"] = json!(20);
    let drafter = written(&shape, &config, Kind::Float, &target, ActQuant::A8);
    let all = taps(&target, &drafter, 24);
    for (n, drafts) in [(12, 7), (13, 6), (18, 1), (19, 0), (20, 0), (24, 0)] {
        let mut context = Context::new(drafter.config(), KvType::F16);
        drafter.extend(&mut context, &all.slice(0..n)).unwrap();
        assert_eq!(drafter.draft(&mut context, &target, 1).unwrap().len(), drafts, "{n}");
    }
}

#[test]
fn scales_and_caps_of_the_configuration_are_applied() {
    let shape = Shape::mini();
    let target = target(&shape);
    let draft = |changes: Value| {
        let mut config = config(&shape);
        for (key, value) in changes.as_object().unwrap() {
            config["dflash_config"][key] = value.clone();
        }
        let drafter = written(&shape, &config, Kind::Float, &target, ActQuant::A8);
        let mut context = Context::new(drafter.config(), KvType::F16);
        drafter.extend(&mut context, &taps(&target, &drafter, 9)).unwrap();
        let hidden = drafter.block(&mut context, &target, 1, 8).unwrap();
        (hidden, drafter.draft(&mut context, &target, 1).unwrap())
    };
    let (plain, drafts) = draft(json!({}));
    let (scaled, _) = draft(json!({ "input_embedding_scale": 3.0 }));
    assert_ne!(plain, scaled);
    // Logits that hardly count leave the choice to the pairs.
    let (same, small) = draft(json!({ "output_multiplier": 1e-3 }));
    let (_, capped) = draft(json!({ "final_logit_softcapping": 1e-3 }));
    assert_eq!(plain, same);
    assert_ne!(drafts, small);
    assert_ne!(drafts, capped);
}

#[test]
fn pairs_that_do_not_fit_are_refused_with_the_number() {
    let shape = Shape::mini();
    let target = target(&shape);
    let wider = Shape { hidden: 256, ..Shape::mini() };
    let larger = Shape { vocab: 96, ..Shape::mini() };
    let deeper = Shape { mask: vec![true; 4], ..Shape::mini() };
    let mut tapped = config(&shape);
    tapped.as_object_mut().unwrap().remove("num_target_layers");
    tapped["dflash_config"]["target_layer_ids"] = json!([0, 7]);
    for (config, parts) in [
        (config(&wider), ["hidden size", "256", "128"]),
        (config(&larger), ["vocabulary size", "96", "64"]),
        (config(&deeper), ["number of target layers", "4", "3"]),
        (tapped, ["tapped layer", "7", "3"]),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let path = write(dir.path(), &config, Kind::Float, 128, 3);
        let error = open(&path, &target, ActQuant::A8).unwrap_err();
        assert!(matches!(error, Error::Mismatch { .. }));
        let message = error.to_string();
        assert!(parts.iter().all(|part| message.contains(part)), "{message}");
    }
}
