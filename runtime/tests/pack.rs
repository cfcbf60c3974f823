//! A target as an MLX 2-bit pack: the bits of the GGUF of the same model, and refusals.

#![allow(clippy::unwrap_used, reason = "tests, which clippy does not see in helpers")]

mod support;

use formats::safetensors::Dtype;
use hadamard::Isa;
use runtime::Error;
use runtime::backend::Cpu;
use runtime::gdn::HeadOrder;
use runtime::kv::KvType;
use runtime::quant::ActQuant;
use runtime::rows::{Primal, Rows};
use runtime::target::{Digest, LogitRows, State, Target};
use serde_json::json;
use support::pack::{Pack, pack};
use support::{Builder, Shape, Storage, noise};

/// Four key heads of two value heads: an order that is not its own inverse.
fn four_by_two() -> Shape {
    Shape {
        hidden: 512,
        feed_forward: 512,
        heads: 4,
        kv_heads: 2,
        head_dim: 128,
        rope_dims: 32,
        key_heads: 4,
        value_heads: 8,
        gdn_dim: 64,
        block: 512,
        ..Shape::mini()
    }
}

/// Three value heads per key head, as the published model has, and heads wider than the model.
fn four_by_three() -> Shape {
    Shape { value_heads: 12, gdn_dim: 128, ..four_by_two() }
}

fn both(shape: &Shape) -> (Builder, Pack) {
    let mut builder = noise(shape, Storage::Pq2_0, 7);
    let pack = pack(shape, &mut builder);
    (builder, pack)
}

fn open(pack: &Pack, act: ActQuant) -> Result<Target, Error> {
    let dir = tempfile::tempdir().unwrap();
    pack.write(dir.path());
    // The mapping outlives the names of the files.
    Target::open(dir.path(), act, Isa::detect(), &Cpu::default())
}

type Bits = Vec<u32>;

/// Logits, taps and digests of a prompt, a pass of which a part is kept, and one more token.
fn run(target: &Target, shape: &Shape) -> (Vec<Bits>, Vec<Digest>) {
    let taps: Vec<usize> = (0..shape.mask.len()).collect();
    let mut state = State::new(target.config(), KvType::F16);
    let (mut bits, mut digests) = (Vec::new(), Vec::new());
    let mut take = |rows: Option<Rows<Primal>>| {
        bits.push(rows.unwrap().data().iter().map(|x| x.to_bits()).collect());
    };
    let pass = target.advance(&mut state, &[3, 1, 4, 1, 5, 9], &taps, LogitRows::All).unwrap();
    take(pass.logits);
    take(pass.taps);
    digests.push(state.digest(Some(2)));
    let (pass, verified) = target.verify(&mut state, &[2, 6, 5, 3], &taps).unwrap();
    take(pass.logits);
    take(pass.taps);
    state.commit(&verified, 2);
    digests.push(state.digest(None));
    take(target.advance(&mut state, &[8], &taps, LogitRows::Last).unwrap().logits);
    digests.push(state.digest(None));
    (bits, digests)
}

#[test]
fn a_pack_gives_the_bits_of_the_gguf() {
    for (shape, acts) in [
        (four_by_two(), &ActQuant::ALL[..]),
        (four_by_three(), &[ActQuant::A8][..]),
        (Shape { mask: vec![true, true, true, false], ..four_by_two() }, &[ActQuant::A8][..]),
    ] {
        let (builder, pack) = both(&shape);
        for act in acts {
            let gguf =
                Target::load(builder.source(), *act, Isa::detect(), &Cpu::default()).unwrap();
            let packed = open(&pack, *act).unwrap();
            assert_eq!(packed.config().gdn.order, HeadOrder::Grouped);
            let mut config = packed.config().clone();
            config.gdn.order = HeadOrder::Tiled;
            assert_eq!((&config, packed.vocab()), (gguf.config(), gguf.vocab()));
            let ((bits, digests), (expected, of_gguf)) = (run(&packed, &shape), run(&gguf, &shape));
            assert!(bits == expected, "{act}: logits or taps differ");
            assert_eq!(digests, of_gguf, "{act}");
        }
    }
}

/// The other order would not go unnoticed: rows as the GGUF has them give other numbers.
#[test]
fn a_wrong_order_shows() {
    let shape = four_by_two();
    let (builder, pack) = both(&shape);
    let expected = run(&open(&pack, ActQuant::A8).unwrap(), &shape);
    let (.., dt) = builder.tensors.iter().find(|(t, _)| t.name == "blk.0.ssm_dt.bias").unwrap();
    let mut wrong = pack;
    wrong.tensor("model.layers.0.linear_attn.dt_bias").2.clone_from(dt);
    let found = run(&open(&wrong, ActQuant::A8).unwrap(), &shape);
    assert_ne!((found.0, found.1), expected);
}

/// Without a vision part names have no prefix; the interval says which layers attend.
#[test]
fn other_ways_to_say_the_same() {
    let shape = Shape { mask: vec![true, true, true, false, true], ..four_by_two() };
    let (_, mut pack) = both(&shape);
    let expected = run(&open(&pack, ActQuant::A8).unwrap(), &shape);
    pack.config["components"]["vision"] = json!(false);
    pack.config["schema_version"] = json!(1);
    let text = pack.config["text_config"].as_object_mut().unwrap();
    text.remove("layer_types");
    text.insert("full_attention_interval".into(), json!(4));
    let bare = |name: &str| name.strip_prefix("language_model.").unwrap().to_owned();
    for list in ["weight_names", "inverse_weight_names"] {
        for name in pack.rotation[format!("prism.hadamard.{list}")].as_array_mut().unwrap() {
            *name = json!(bare(name.as_str().unwrap()));
        }
    }
    let tensors = std::mem::take(&mut pack.tensors).into_iter();
    pack.tensors = tensors
        .filter(|(name, _)| !name.starts_with("vision"))
        .map(|(name, tensor)| (bare(&name), tensor))
        .collect();
    assert_eq!(run(&open(&pack, ActQuant::A8).unwrap(), &shape), expected);
}

#[test]
fn refusals_are_one_line_with_file_and_tensor_or_key() {
    type Change = fn(&mut Pack);
    let cases: [(Change, &[&str]); 13] = [
        (|p| p.config["text_config"]["hidden_size"] = json!(1024), &["[64, 1024]", "[64, 512]"]),
        (|p| p.config["text_config"]["vocab_size"] = json!(65), &["embed_tokens", "[65, 512]"]),
        (|p| p.config["text_config"]["tie_word_embeddings"] = json!(true), &["tie_word"]),
        (|p| p.config["model_type"] = json!("qwen3_5"), &["config.json", "model_type"]),
        (|p| p.config["schema_version"] = json!(3), &["schema_version", "1, 2"]),
        (|p| p.rotation["prism.hadamard.axis"] = json!("x"), &["hadamard.json", "axis"]),
        (|p| p.rotation["prism.hadamard.sign_widths"] = json!([1024]), &["sign_values"]),
        (
            |p| p.tensor("model.norm.weight").1 = vec![512, 1],
            &["model.safetensors", "language_model.model.norm.weight", "[512]", "[512, 1]"],
        ),
        (
            |p| p.tensor("model.norm.weight").0 = Dtype::U32,
            &["model.norm.weight", "F32, F16 or BF16", "U32"],
        ),
        (
            |p| p.tensor("model.layers.0.linear_attn.conv1d.weight").1 = vec![1024, 1, 4],
            &["conv1d.weight", "[1024, 4, 1]"],
        ),
        (
            |p| p.tensor("model.layers.0.linear_attn.in_proj_a.weight").1.reverse(),
            &["in_proj_a.weight", "[8, 512]", "[512, 8]"],
        ),
        (
            |p| drop(p.tensors.remove("language_model.model.layers.2.linear_attn.A_log")),
            &["missing tensors", "layers.2.linear_attn.A_log"],
        ),
        (
            |p| drop(p.tensors.remove("language_model.model.layers.1.self_attn.k_proj.scales")),
            &["missing tensors", "k_proj.scales"],
        ),
    ];
    let shape = four_by_two();
    for (change, parts) in cases {
        let (_, mut pack) = both(&shape);
        change(&mut pack);
        let message = open(&pack, ActQuant::A8).unwrap_err().to_string();
        assert!(parts.iter().all(|part| message.contains(part)), "{parts:?}: {message}");
        assert!(!message.contains('\n'), "{message}");
    }
    let empty = tempfile::tempdir().unwrap();
    let error =
        Target::open(empty.path(), ActQuant::A8, Isa::detect(), &Cpu::default()).unwrap_err();
    assert!(error.to_string().contains("config.json"), "{error}");
}

/// What is no scale of a ternary pack is found where it is used, and the state says so.
#[test]
fn a_bias_that_is_not_the_negated_scale_is_an_error_of_its_tensor() {
    let (_, mut pack) = both(&four_by_two());
    // Row 3, group 1.
    let (.., biases) = pack.tensor("model.layers.1.mlp.up_proj.biases");
    biases[2 * (3 * 4 + 1)] ^= 1;
    let target = open(&pack, ActQuant::A8).unwrap();
    let mut state = State::new(target.config(), KvType::F16);
    let error = target.advance(&mut state, &[1], &[], LogitRows::None).unwrap_err();
    let message = error.to_string();
    for part in ["model.safetensors", "layers.1.mlp.up_proj.weight", "group 13", "negated scale"] {
        assert!(message.contains(part), "{message}");
    }
    assert!(matches!(
        target.advance(&mut state, &[1], &[], LogitRows::None),
        Err(Error::BrokenState)
    ));
}
