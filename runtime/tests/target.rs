//! Whole targets: representations that agree, refusals, and state that does not depend on how tokens
//! are grouped.

#![allow(clippy::unwrap_used, reason = "tests, which clippy does not see in helpers")]

mod support;

use formats::Source;
use formats::gguf::{Array, GgmlType, Value};
use hadamard::Isa;
use proptest::prelude::*;
use runtime::Error;
use runtime::backend::Cpu;
use runtime::kv::KvType;
use runtime::quant::ActQuant;
use runtime::rows::{Primal, Rows};
use runtime::target::{LayerKind, LogitRows, State, Target};
use support::{Builder, Shape, Storage, noise};

fn load(source: Source, act: ActQuant) -> Target {
    Target::load(source, act, Isa::detect(), &Cpu::default()).unwrap()
}

fn target(shape: &Shape, storage: Storage, act: ActQuant) -> Target {
    load(noise(shape, storage, 7).source(), act)
}

fn bits(rows: &Rows<Primal>) -> Vec<u32> {
    rows.data().iter().map(|x| x.to_bits()).collect()
}

/// The largest difference, relative to the larger of 1 and the largest value.
fn difference(a: &Rows<Primal>, b: &Rows<Primal>) -> f32 {
    assert_eq!((a.n(), a.width()), (b.n(), b.width()));
    let max = a.data().iter().fold(1.0f32, |m, x| m.max(x.abs()));
    let pairs = a.data().iter().zip(b.data());
    pairs.fold(0.0f32, |m, (a, b)| m.max((a - b).abs())) / max
}

fn prompt(n: usize, vocab: usize) -> Vec<u32> {
    (0..n).map(|i| ((i * i * 31 + 7 * i + 3) % vocab) as u32).collect()
}

#[test]
fn representations_agree() {
    let mut worst = Vec::new();
    for shape in [Shape::mini(), Shape::tiny()] {
        let ids = prompt(9, shape.vocab);
        let taps: Vec<usize> = (0..shape.mask.len()).collect();
        let run = |storage, act| {
            let target = target(&shape, storage, act);
            let mut state = State::new(target.config(), KvType::F32);
            let pass = target.advance(&mut state, &ids, &taps, LogitRows::All).unwrap();
            (pass.logits.unwrap(), pass.taps.unwrap())
        };
        let (logits, taps_of) = run(Storage::Pq2_0, ActQuant::F32);
        assert!(logits.data().iter().all(|x| x.is_finite()));
        for (storage, act, bound) in [
            (Storage::Ptq1_0, ActQuant::F32, 0.0),
            (Storage::Pq2_0, ActQuant::A16, 2e-3),
            (Storage::Pq2_0, ActQuant::A8, 0.4),
            (Storage::Plain(GgmlType::F32), ActQuant::A8, 2e-5),
            (Storage::Plain(GgmlType::F16), ActQuant::A8, 5e-3),
            (Storage::Plain(GgmlType::BF16), ActQuant::A8, 0.03),
            (Storage::Plain(GgmlType::Q8_0), ActQuant::A8, 0.4),
        ] {
            let (other, other_taps) = run(storage, act);
            let found = difference(&logits, &other).max(difference(&taps_of, &other_taps));
            worst.push((storage, act, found, bound));
        }
    }
    let too_large: Vec<_> = worst.iter().filter(|(.., found, bound)| found > bound).collect();
    assert!(too_large.is_empty(), "{too_large:?} of {worst:?}");
}

#[test]
fn both_rules_for_layer_kinds() {
    let shape = Shape { mask: vec![true, true, true, false, true], ..Shape::mini() };
    let by_mask = noise(&shape, Storage::Pq2_0, 1);
    let mut by_interval = noise(&shape, Storage::Pq2_0, 1);
    by_interval.remove("qwen35.attention.recurrent_layers");
    let mut by_value = noise(&Shape::mini(), Storage::Pq2_0, 1);
    by_value.remove("qwen35.attention.recurrent_layers");
    by_value.set("qwen35.full_attention_interval", Value::U32(2));
    let kinds = |builder: &Builder| load(builder.source(), ActQuant::A8).config().layers.clone();
    use LayerKind::{Attention, Gdn};
    assert_eq!(kinds(&by_mask), [Gdn, Gdn, Gdn, Attention, Gdn]);
    assert_eq!(kinds(&by_interval), kinds(&by_mask));
    assert_eq!(kinds(&by_value), [Gdn, Attention, Gdn]);
}

#[test]
fn extra_prediction_layers_are_left_out() {
    let mut builder = noise(&Shape::mini(), Storage::Pq2_0, 1);
    builder.set("qwen35.block_count", Value::U32(4));
    builder.set("qwen35.nextn_predict_layers", Value::U32(1));
    let target = load(builder.source(), ActQuant::A8);
    assert_eq!(target.config().layers.len(), 3);
}

#[test]
fn an_embedding_can_be_the_head() {
    let mut builder = noise(&Shape::mini(), Storage::Plain(GgmlType::F32), 1);
    builder.tensors.retain(|(t, _)| t.name != "output.weight");
    let tied = load(builder.source(), ActQuant::A8);
    let mut rotated = noise(&Shape::mini(), Storage::Pq2_0, 1);
    rotated.tensors.retain(|(t, _)| t.name != "output.weight");
    rotated.set("prism.hadamard.version", Value::U32(2));
    rotated.set("prism.hadamard.tied_output", Value::Bool(true));
    let Value::Array(Array::String(names)) =
        &mut rotated.keys.iter_mut().find(|(k, _)| k == "prism.hadamard.weight_names").unwrap().1
    else {
        unreachable!("a list of names")
    };
    names.retain(|name| name != "output.weight");
    let rotated = load(rotated.source(), ActQuant::F32);
    let run = |target: &Target| {
        let mut state = State::new(target.config(), KvType::F32);
        target.advance(&mut state, &[1, 2, 3], &[], LogitRows::All).unwrap().logits.unwrap()
    };
    assert!(difference(&run(&tied), &run(&rotated)) < 5e-5);
}

#[test]
fn refusals_name_key_or_tensor() {
    let hadamard = |suffix: &str| format!("prism.hadamard.{suffix}");
    let strings = |names: &[&str]| {
        Value::Array(Array::String(names.iter().map(|name| (*name).into()).collect()))
    };
    let text = |text: &str| Value::String(text.into());
    let cases: Vec<(String, Option<Value>, &str)> = vec![
        ("general.architecture".into(), Some(text("qwen3")), "`qwen35`"),
        ("qwen35.block_count".into(), None, "nothing"),
        ("qwen35.block_count".into(), Some(Value::U32(0)), "1 to"),
        ("qwen35.attention.head_count_kv".into(), Some(Value::U32(3)), "a divisor"),
        ("qwen35.attention.value_length".into(), Some(Value::U32(32)), "the width of a key"),
        ("qwen35.rope.dimension_count".into(), Some(Value::U32(66)), "even number"),
        ("qwen35.ssm.group_count".into(), Some(Value::U32(3)), "a divisor"),
        ("qwen35.ssm.inner_size".into(), Some(Value::U32(64)), "the value heads"),
        ("qwen35.rope.freq_base".into(), Some(Value::F32(-1.0)), "a positive number"),
        ("qwen35.full_attention_interval".into(), Some(Value::U32(0)), "at least 1"),
        (hadamard("version"), Some(Value::U32(3)), "1 or 2"),
        (hadamard("tied_output"), Some(Value::Bool(true)), "version 1"),
        (hadamard("transform"), Some(text("fourier")), "walsh-hadamard"),
        (hadamard("axis"), Some(text("output")), "input-last-dimension"),
        (hadamard("sign_mode"), Some(text("random")), "`explicit`"),
        (hadamard("block_size"), Some(Value::U32(96)), "a power of two"),
        (hadamard("block_size"), Some(Value::U32(256)), "whole blocks of 256"),
        (hadamard("weight_names"), Some(strings(&[])), "at least one"),
        (hadamard("weight_names"), Some(strings(&["blk.0.attn_norm.weight"])), "can be rotated"),
        (hadamard("weight_names"), Some(strings(&["blk.9.ffn_up.weight"])), "of this file"),
        (hadamard("weight_names"), Some(strings(&["output.weight", "output.weight"])), "twice"),
        (hadamard("weight_names"), Some(strings(&["output.weight"])), "every ternary matrix"),
        (hadamard("weight_names"), Some(strings(&["token_embd.weight"])), "can be rotated"),
        (hadamard("inverse_weight_names"), Some(strings(&["output.weight"])), "token_embd"),
        (hadamard("inverse_weight_names"), Some(strings(&[])), "the ternary `token_embd.weight`"),
        (hadamard("sign_widths"), Some(Value::Array(Array::I32(vec![]))), "at least one"),
        (hadamard("sign_widths"), Some(Value::Array(Array::I32(vec![128, 128]))), "add up"),
        (hadamard("sign_widths"), Some(Value::Array(Array::I32(vec![384]))), "the width 128"),
        (hadamard("sign_widths"), Some(Value::Array(Array::I32(vec![64, 320]))), "multiples"),
        (hadamard("sign_widths"), Some(Value::Array(Array::I32(vec![128, 128, 128]))), "twice"),
        (hadamard("sign_values"), Some(Value::Array(Array::I32(vec![0; 384]))), "+1 and -1"),
        (hadamard("sign_values"), None, "nothing"),
    ];
    for (key, value, part) in cases {
        let mut builder = noise(&Shape::mini(), Storage::Pq2_0, 1);
        if key.ends_with("interval") {
            builder.remove("qwen35.attention.recurrent_layers");
        }
        match value {
            Some(value) => builder.set(&key, value),
            None => builder.remove(&key),
        }
        let result = Target::load(builder.source(), ActQuant::A8, Isa::scalar(), &Cpu::default());
        let message = result.unwrap_err().to_string();
        assert!(message.contains(part) && message.contains("noise.gguf"), "{key}: {message}");
    }

    let mut bare = noise(&Shape::mini(), Storage::Pq2_0, 1);
    bare.keys.retain(|(key, _)| !key.starts_with("prism."));
    let message = Target::load(bare.source(), ActQuant::A8, Isa::scalar(), &Cpu::default())
        .unwrap_err()
        .to_string();
    assert!(message.contains("the rotation of the ternary tensor"), "{message}");

    let mut missing = noise(&Shape::mini(), Storage::Plain(GgmlType::F32), 1);
    missing.tensors.retain(|(t, _)| t.name != "blk.1.attn_k.weight");
    let mut turned = noise(&Shape::mini(), Storage::Plain(GgmlType::F32), 1);
    turned.tensor("blk.0.ffn_up.weight").0.dims.reverse();
    for (builder, name) in [(missing, "blk.1.attn_k.weight"), (turned, "blk.0.ffn_up.weight")] {
        let result = Target::load(builder.source(), ActQuant::A8, Isa::scalar(), &Cpu::default());
        let message = result.unwrap_err().to_string();
        assert!(message.contains(name), "{message}");
    }
}

#[test]
fn a_mapped_file_and_one_in_memory_agree() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("t.gguf");
    let source = noise(&Shape::mini(), Storage::Pq2_0, 1).source();
    std::fs::write(&path, source.read_vec(0, source.len()).unwrap()).unwrap();
    let run = |target: &Target| {
        let mut state = State::new(target.config(), KvType::F16);
        target.advance(&mut state, &[5, 6, 7], &[], LogitRows::None).unwrap();
        state.digest(None)
    };
    let mapped = Target::open(&path, ActQuant::A8, Isa::detect(), &Cpu::default()).unwrap();
    let read = load(Source::open(&path).unwrap(), ActQuant::A8);
    assert_eq!(run(&mapped), run(&load(source, ActQuant::A8)));
    assert_eq!(run(&mapped), run(&read));
}

#[test]
fn what_cannot_be_taken_in_is_refused_and_leaves_the_state() {
    let target = target(&Shape { context: 8, ..Shape::mini() }, Storage::Pq2_0, ActQuant::A8);
    let mut state = State::new(target.config(), KvType::F16);
    target.advance(&mut state, &[1, 2], &[], LogitRows::None).unwrap();
    let before = state.digest(Some(3));
    assert_ne!(before, state.digest(None));
    let error = target.advance(&mut state, &[1, 64], &[], LogitRows::None).unwrap_err();
    assert!(matches!(error, Error::TokenId { id: 64, vocab: 64 }));
    let error = target.advance(&mut state, &[1; 7], &[], LogitRows::None).unwrap_err();
    assert!(matches!(error, Error::ContextFull { needed: 9, limit: 8 }));
    assert_eq!((state.digest(Some(3)), state.len(), state.is_empty()), (before, 2, false));
    target.advance(&mut state, &[1; 6], &[], LogitRows::Last).unwrap();
}

#[test]
fn numbers_that_overflow_are_an_error_and_the_state_says_so() {
    let mut builder = noise(&Shape::mini(), Storage::Pq2_0, 1);
    let (_, norm) = builder.tensor("blk.1.attn_norm.weight");
    norm[4..8].copy_from_slice(&f32::INFINITY.to_le_bytes());
    let target = load(builder.source(), ActQuant::A8);
    let mut state = State::new(target.config(), KvType::F16);
    let error = target.advance(&mut state, &[1, 2], &[], LogitRows::None).unwrap_err();
    assert!(matches!(error, Error::NonFinite { .. }), "{error}");
    let error = target.advance(&mut state, &[1, 2], &[], LogitRows::None).unwrap_err();
    assert!(matches!(error, Error::BrokenState));
}

/// Tokens that were verified and then forgotten leave no trace in what comes after.
#[test]
fn a_pass_that_is_not_committed_is_dropped() {
    let target = target(&Shape::mini(), Storage::Pq2_0, ActQuant::A8);
    let fresh = || {
        let mut state = State::new(target.config(), KvType::F16);
        target.advance(&mut state, &[1, 2, 3], &[], LogitRows::None).unwrap();
        state
    };
    let (mut plain, mut state) = (fresh(), fresh());
    target.verify(&mut state, &[9, 8, 7, 6], &[]).unwrap();
    for id in [4, 5, 6] {
        let expected = target.advance(&mut plain, &[id], &[], LogitRows::Last).unwrap();
        let found = target.advance(&mut state, &[id], &[], LogitRows::Last).unwrap();
        assert_eq!(found, expected);
        assert_eq!(state.digest(None), plain.digest(None));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Prefill in any chunks, and verifying any number of tokens of which any number is kept: the
    /// logits and the state have the bits of one token at a time.
    #[test]
    fn grouping_changes_no_bit(
        ids in prop::collection::vec(0u32..64, 20),
        steps in prop::collection::vec((1usize..9, 0usize..9), 40),
        act in prop::sample::select(&ActQuant::ALL[..]),
        kv in prop::sample::select(&[KvType::F16, KvType::F32][..]),
    ) {
        let target = target(&Shape::mini(), Storage::Pq2_0, act);
        let taps = [0, 1];
        let mut plain = State::new(target.config(), kv);
        let (mut digests, mut rows) = (vec![plain.digest(None)], Vec::new());
        for id in &ids {
            let pass = target.advance(&mut plain, &[*id], &taps, LogitRows::All).unwrap();
            rows.push((bits(&pass.logits.unwrap()), bits(&pass.taps.unwrap())));
            digests.push(plain.digest(None));
        }
        let mut state = State::new(target.config(), kv);
        for (n, keep) in steps {
            let at = state.len();
            let wrong = (at + 1) as u32 % 64;
            let mut next: Vec<u32> = ids[at..].iter().copied().take(n).collect();
            if next.is_empty() {
                break;
            }
            if keep >= n {
                let pass = target.advance(&mut state, &next, &taps, LogitRows::All).unwrap();
                let (logits, taps) = (pass.logits.unwrap(), pass.taps.unwrap());
                for i in 0..next.len() {
                    prop_assert_eq!(&bits(&logits.slice(i..i + 1)), &rows[at + i].0);
                    prop_assert_eq!(&bits(&taps.slice(i..i + 1)), &rows[at + i].1);
                }
            } else {
                // Rows past those that are kept are of other tokens.
                let keep = keep.min(next.len());
                next[keep..].fill(wrong);
                let (pass, verified) = target.verify(&mut state, &next, &taps).unwrap();
                prop_assert_eq!(state.digest(None), digests[at]);
                let logits = pass.logits.unwrap();
                for i in 0..keep {
                    prop_assert_eq!(&bits(&logits.slice(i..i + 1)), &rows[at + i].0);
                }
                state.commit(&verified, keep);
            }
            prop_assert_eq!(state.digest(None), digests[state.len()]);
        }
    }
}

/// Un-rotated F32 weights as f64, and the forward pass written straight from its description, value
/// heads in the order of the file.
struct Oracle {
    file: formats::gguf::File,
    shape: Shape,
}

impl Oracle {
    fn tensor(&self, name: &str) -> Vec<f64> {
        let info = self.file.tensor(name).unwrap();
        let bytes = self.file.source().read_vec(info.offset, info.len).unwrap();
        match info.ty {
            GgmlType::F32 => {
                bytes.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b).into()).collect()
            }
            _ => bytes.as_chunks().0.iter().map(|b| half::bf16::from_le_bytes(*b).into()).collect(),
        }
    }

    fn multiply(&self, name: &str, x: &[Vec<f64>]) -> Vec<Vec<f64>> {
        let w = self.tensor(name);
        let product = |x: &Vec<f64>| {
            w.chunks_exact(x.len()).map(|w| w.iter().zip(x).map(|(w, x)| w * x).sum()).collect()
        };
        x.iter().map(product).collect()
    }

    fn norm(&self, name: &str, x: &mut [f64]) {
        let w = self.tensor(name);
        for x in x.chunks_exact_mut(w.len()) {
            let mean = x.iter().map(|x| x * x).sum::<f64>() / x.len() as f64;
            x.iter_mut().zip(&w).for_each(|(x, w)| *x = *x * w / (mean + 1e-6).sqrt());
        }
    }

    fn normed(&self, name: &str, x: &[Vec<f64>]) -> Vec<Vec<f64>> {
        let mut x = x.to_vec();
        x.iter_mut().for_each(|x| self.norm(name, x));
        x
    }

    fn rope(&self, head: &mut [f64], position: usize) {
        let dims = self.shape.rope_dims;
        for j in 0..dims / 2 {
            let angle = position as f64 * 1e7f64.powf(-2.0 * j as f64 / dims as f64);
            let (a, b) = (head[j], head[j + dims / 2]);
            head[j] = a * angle.cos() - b * angle.sin();
            head[j + dims / 2] = a * angle.sin() + b * angle.cos();
        }
    }

    fn attention(&self, n: usize, a: &[Vec<f64>]) -> Vec<Vec<f64>> {
        let Shape { heads, kv_heads, head_dim: dim, .. } = self.shape;
        let name = |suffix: &str| format!("blk.{n}.{suffix}.weight");
        let qg = self.multiply(&name("attn_q"), a);
        let mut k = self.multiply(&name("attn_k"), a);
        let v = self.multiply(&name("attn_v"), a);
        for (p, k) in k.iter_mut().enumerate() {
            self.norm(&name("attn_k_norm"), k);
            k.chunks_exact_mut(dim).for_each(|head| self.rope(head, p));
        }
        let mut out = vec![vec![0.0; heads * dim]; a.len()];
        for (p, out) in out.iter_mut().enumerate() {
            for (head, out) in out.chunks_exact_mut(dim).enumerate() {
                let mut q = qg[p][2 * head * dim..][..dim].to_vec();
                let gate = &qg[p][(2 * head + 1) * dim..][..dim];
                self.norm(&name("attn_q_norm"), &mut q);
                self.rope(&mut q, p);
                let kv = head / (heads / kv_heads) * dim;
                let weight = |k: &Vec<f64>| {
                    let dot: f64 = q.iter().zip(&k[kv..]).map(|(q, k)| q * k).sum();
                    (dot / (dim as f64).sqrt()).exp()
                };
                let weights: Vec<f64> = k[..=p].iter().map(weight).collect();
                let total: f64 = weights.iter().sum();
                for d in 0..dim {
                    let sum: f64 = weights.iter().zip(&v).map(|(w, v)| w * v[kv + d]).sum();
                    out[d] = sum / total / (1.0 + (-gate[d]).exp());
                }
            }
        }
        self.multiply(&name("attn_output"), &out)
    }

    fn gdn(&self, n: usize, a: &[Vec<f64>]) -> Vec<Vec<f64>> {
        let Shape { key_heads: nk, value_heads: nv, gdn_dim: dim, conv, .. } = self.shape;
        let name = |suffix: &str| format!("blk.{n}.{suffix}");
        let silu = |x: f64| x / (1.0 + (-x).exp());
        let u = self.multiply(&name("attn_qkv.weight"), a);
        let z = self.multiply(&name("attn_gate.weight"), a);
        let alpha = self.multiply(&name("ssm_alpha.weight"), a);
        let beta = self.multiply(&name("ssm_beta.weight"), a);
        let w = self.tensor(&name("ssm_conv1d.weight"));
        let (decay, dt) = (self.tensor(&name("ssm_a")), self.tensor(&name("ssm_dt.bias")));
        let mut s = vec![vec![vec![0.0f64; dim]; dim]; nv];
        let mut out = vec![vec![0.0; nv * dim]; a.len()];
        for (t, out) in out.iter_mut().enumerate() {
            let channel = |c: usize| {
                let tap = |i: usize| (t + i + 1).checked_sub(conv).map_or(0.0, |at| u[at][c]);
                silu((0..conv).map(|i| w[c * conv + i] * tap(i)).sum())
            };
            let c: Vec<f64> = (0..u[t].len()).map(channel).collect();
            let unit = |x: &[f64]| {
                let norm = x.iter().map(|x| x * x).sum::<f64>().sqrt().max(1e-6);
                x.iter().map(|x| x / norm).collect::<Vec<f64>>()
            };
            for h in 0..nv {
                let q = unit(&c[h % nk * dim..][..dim]);
                let k = unit(&c[(nk + h % nk) * dim..][..dim]);
                let v = &c[(2 * nk + h) * dim..][..dim];
                let g = (decay[h] * (alpha[t][h] + dt[h]).exp().ln_1p()).exp();
                let strength = 1.0 / (1.0 + (-beta[t][h]).exp());
                for (j, s) in s[h].iter_mut().enumerate() {
                    s.iter_mut().for_each(|s| *s *= g);
                    let m: f64 = s.iter().zip(&k).map(|(s, k)| s * k).sum();
                    let d = (v[j] - m) * strength;
                    s.iter_mut().zip(&k).for_each(|(s, k)| *s += d * k);
                    let o: f64 = s.iter().zip(&q).map(|(s, q)| s * q).sum();
                    out[h * dim + j] = o / (dim as f64).sqrt();
                }
            }
            self.norm(&name("ssm_norm.weight"), out);
            out.iter_mut().zip(&z[t]).for_each(|(out, z)| *out *= silu(*z));
        }
        self.multiply(&name("ssm_out.weight"), &out)
    }

    /// The residual stream after each layer, and the logits.
    fn run(&self, ids: &[u32]) -> (Vec<Vec<Vec<f64>>>, Vec<Vec<f64>>) {
        let table = self.tensor("token_embd.weight");
        let hidden = self.shape.hidden;
        let mut x: Vec<Vec<f64>> =
            ids.iter().map(|id| table[*id as usize * hidden..][..hidden].to_vec()).collect();
        let mut layers = Vec::new();
        for (n, gdn) in self.shape.mask.iter().enumerate() {
            let name = |suffix: &str| format!("blk.{n}.{suffix}.weight");
            let a = self.normed(&name("attn_norm"), &x);
            add(&mut x, &if *gdn { self.gdn(n, &a) } else { self.attention(n, &a) });
            let h = self.normed(&name("post_attention_norm"), &x);
            let mut product = self.multiply(&name("ffn_gate"), &h);
            let up = self.multiply(&name("ffn_up"), &h);
            for (g, u) in product.iter_mut().flatten().zip(up.iter().flatten()) {
                *g = *g / (1.0 + (-*g).exp()) * u;
            }
            add(&mut x, &self.multiply(&name("ffn_down"), &product));
            layers.push(x.clone());
        }
        let logits = self.multiply("output.weight", &self.normed("output_norm.weight", &x));
        (layers, logits)
    }
}

fn add(x: &mut [Vec<f64>], y: &[Vec<f64>]) {
    x.iter_mut().flatten().zip(y.iter().flatten()).for_each(|(x, y)| *x += y);
}

#[test]
fn every_layer_is_close_to_the_description_in_f64() {
    let shape = Shape::mini();
    let plain = noise(&shape, Storage::Plain(GgmlType::F32), 7);
    let file = formats::gguf::File::open(plain.source()).unwrap();
    let ids = prompt(12, shape.vocab);
    let (layers, logits) = Oracle { file, shape: shape.clone() }.run(&ids);
    for storage in [Storage::Plain(GgmlType::F32), Storage::Pq2_0] {
        let target = target(&shape, storage, ActQuant::F32);
        let mut state = State::new(target.config(), KvType::F32);
        let pass = target.advance(&mut state, &ids, &[0, 1, 2], LogitRows::All).unwrap();
        let (found, taps) = (pass.logits.unwrap(), pass.taps.unwrap());
        let check = |what: &str, found: &[f32], expected: &[f64]| {
            let max = expected.iter().fold(1.0f64, |m, x| m.max(x.abs()));
            for (found, expected) in found.iter().zip(expected) {
                let error = (f64::from(*found) - expected).abs() / max;
                assert!(error < 2e-5, "{storage:?}, {what}: {found} {expected}");
            }
        };
        for t in 0..ids.len() {
            for (l, layer) in layers.iter().enumerate() {
                let at = l * shape.hidden;
                check(&format!("layer {l}"), &taps.row(t)[at..at + shape.hidden], &layer[t]);
            }
            check("logits", found.row(t), &logits[t]);
        }
    }
}
