//! Weights that have no ternary form, or a special one (K4), and independence of
//! type, threads and instruction set.
//!
//! A single weight `w` of a rotation block of 256 becomes 256 rotated weights of
//! magnitude `w / 16`, without rounding: that is how a group's mean is set here.

use std::fs;

use formats::safetensors::Dtype;
use hadamard::Isa;
use half::f16;
use serde_json::Value;

use crate::harness::{Case, Model, decode, mini_config};

const MATRIX: &str = "layers.0.mlp.down_proj.weight";
const BLOCK: usize = 256;

/// The fixture with row 3 of `down_proj`, columns 256 and on, set to one block.
/// That is groups 14 and 15 of the matrix, which has four a row.
fn with_block(block: &[f32]) -> Model {
    let start = 3 * 512 + BLOCK;
    Model::fixture().with(MATRIX, |t| {
        t.edit(Dtype::F32, |values| values[start..start + BLOCK].copy_from_slice(block));
    })
}

/// A block whose rotated weights all have the magnitude `mean`.
fn spread(mean: f32) -> [f32; BLOCK] {
    let mut block = [0.0; BLOCK];
    block[77] = 16.0 * mean;
    block
}

/// Codes of group 14, its scale, and the matrix in the report.
fn group_14(model: &Model) -> (Vec<u8>, f16, Value) {
    let case = Case::new(model);
    let run = case.ternarize(&["m.q4nx"], &["--json"]).ok();
    let matrices = run.json()["matrices"].as_array().unwrap().clone();
    let matrix = matrices.into_iter().find(|m| m["name"] == MATRIX).unwrap();
    let rows = &decode(&case.out("m.q4nx"))[MATRIX];
    ((256..384).map(|k| rows.code(3, k)).collect(), rows.row_scales(3)[2], matrix)
}

#[test]
fn up_401_an_all_zero_group_is_zero_and_counted() {
    let (_, _, before) = group_14(&with_block(&spread(1.0)));
    let (codes, scale, report) = group_14(&with_block(&[0.0; BLOCK]));
    assert_eq!(codes, [1; 128]);
    assert_eq!(scale.to_bits(), 0);
    assert_eq!((&before["zero_groups"], &report["zero_groups"]), (&0.into(), &2.into()));
    assert_eq!(report["underflow_groups"], 0);
}

#[test]
fn up_401_a_negative_zero_is_zero() {
    let (codes, scale, _) = group_14(&with_block(&[-0.0; BLOCK]));
    assert_eq!((codes, scale.to_bits()), (vec![1; 128], 0));
}

#[test]
fn up_402_a_scale_that_underflows_makes_zero_codes_and_is_counted() {
    let (codes, scale, report) = group_14(&with_block(&spread(2.9e-8)));
    assert_eq!((codes, scale.to_bits()), (vec![1; 128], 0));
    assert_eq!(report["underflow_groups"], 2);
    assert_eq!(report["zero_groups"], 0);

    let (codes, scale, report) = group_14(&with_block(&spread(3.0e-8)));
    assert!(codes.iter().all(|code| *code != 1));
    assert_eq!(scale.to_bits(), 1);
    assert_eq!(report["underflow_groups"], 0);
    assert_eq!(report["scale_exponents"]["-24"], 2);
}

#[test]
fn up_404_the_largest_scale_is_written_and_the_next_one_refused() {
    let (_, scale, _) = group_14(&with_block(&spread(65_407.0)));
    assert_eq!(scale.to_f32(), 65_280.0);
    for (mean, rounded) in
        [(65_408.0, "6.5536e4"), (65_520.0, "6.5536e4"), (1e30, "1.000255551742587")]
    {
        let found = format!("found {rounded}");
        Case::new(&with_block(&spread(mean)))
            .is_refused(3, &["model.safetensors", MATRIX, "group 14", "below 65408", &found]);
    }
}

#[test]
fn up_404_an_overflow_of_the_other_rules_is_refused_too() {
    let case = Case::new(&with_block(&spread(65_408.0)));
    for rule in ["absmean", "twn"] {
        let rule = format!("--rule={rule}");
        case.ternarize(&["m.gguf"], &[&rule]).refused(3, &[MATRIX, "group 14", "65408"]);
        assert!(case.made().is_empty());
    }
}

#[test]
fn up_405_values_that_are_not_finite_are_named_with_their_index() {
    for (tensor, index) in [
        (MATRIX, 700),
        ("layers.1.attention_conv.kernel_projection.weight", 0),
        ("fc.weight", 256 * 512 - 1),
        ("norm.weight", 255),
        ("layers.0.self_attn.q_norm.weight", 5),
        ("layers.1.mlp_conv.base_kernel", 1023),
        ("candidate_selector.predecessor_codebook", 320 * 64 - 1),
    ] {
        for (bad, name) in [(f32::NAN, "NaN"), (f32::INFINITY, "inf"), (f32::NEG_INFINITY, "-inf")]
        {
            let model = Model::fixture()
                .with(tensor, |t| t.edit(Dtype::BF16, |values| values[index] = bad));
            let (value, found) = (format!("value {index}:"), format!("found {name}"));
            Case::new(&model).is_refused(3, &["model.safetensors", tensor, &value, &found]);
        }
    }
}

#[test]
fn up_405_the_first_of_several_is_named() {
    let mut model = Model::fixture();
    for (name, index) in
        [("fc.weight", 9), ("norm.weight", 1), ("layers.1.mlp.up_proj.weight", 300)]
    {
        model = model.with(name, |t| t.edit(Dtype::BF16, |values| values[index] = f32::NAN));
    }
    let case = Case::new(&model);
    for threads in ["--threads=1", "--threads=4"] {
        case.ternarize(&["m.gguf"], &[threads]).refused(3, &["`fc.weight`", "value 9:"]);
    }
}

#[test]
fn up_405_an_overflow_in_the_rotation_is_no_nan_in_the_file() {
    let case = Case::new(&with_block(&[3e38; BLOCK]));
    case.is_refused(
        3,
        &[MATRIX, "group 14", "finite weights after the rotation", "overflow of f32"],
    );
}

#[test]
fn a_norm_that_bf16_cannot_hold_is_refused() {
    let model =
        Model::fixture().with("norm.weight", |t| t.edit(Dtype::F32, |values| values[7] = f32::MAX));
    Case::new(&model).is_refused(3, &["m.q4nx", "norm.weight", "value 7", "bf16"]);
}

#[test]
fn up_406_the_type_of_the_input_does_not_change_the_output() {
    // Values that all three types hold: up to 7 bits, in steps of 2^-7.
    let mut model = Model::fixture();
    for tensor in model.tensors.values_mut() {
        tensor.edit(Dtype::BF16, |values| {
            values
                .iter_mut()
                .for_each(|v| *v = (*v * 128.0).round_ties_even().clamp(-127.0, 127.0) / 128.0);
        });
    }
    let bytes = [Dtype::BF16, Dtype::F16, Dtype::F32].map(|dtype| {
        let mut model = model.clone();
        model.tensors.values_mut().for_each(|t| t.edit(dtype, |_| {}));
        let case = Case::new(&model);
        let run = case.ternarize(&["m.q4nx", "m.gguf"], &["--json"]).ok();
        let matrices = run.json()["matrices"].as_array().unwrap().clone();
        assert!(matrices.iter().all(|m| m["from"] == dtype.name()));
        (fs::read(case.out("m.q4nx")).unwrap(), decode(&case.out("m.gguf")))
    });
    assert!(bytes[0] == bytes[1] && bytes[0] == bytes[2]);
}

#[test]
fn up_407_the_bytes_do_not_depend_on_threads_or_instruction_set() {
    let case = Case::new(&Model::fixture());
    let outputs = ["m.q4nx", "m.gguf", "t.gguf"];
    let formats = ["--format=q4nx", "--format=pq2_0", "--format=ptq1_0", "--force"];
    for rule in ["--rule=optimal", "--rule=absmean", "--rule=twn"] {
        let bytes = |threads: u32, isa: &str| {
            let (threads, isa) = (format!("--threads={threads}"), format!("--isa={isa}"));
            let more = [formats.as_slice(), &[rule, &threads, &isa]].concat();
            case.ternarize(&outputs, &more).ok();
            outputs.map(|name| fs::read(case.out(name)).unwrap())
        };
        let reference = bytes(1, "scalar");
        for isa in Isa::available() {
            for threads in [1, 2, 3, 5] {
                let level = isa.level().to_string();
                assert!(bytes(threads, &level) == reference, "{level}, {threads} threads, {rule}");
            }
        }
    }
}

#[test]
fn input_in_shards_gives_the_same_weights() {
    let model = Model::noise(mini_config(), Dtype::BF16, 5);
    let whole = Case::new(&model);
    let outputs = ["m.q4nx", "m.gguf"];
    let report = whole.ternarize(&outputs, &["--json"]).ok().json();
    let shards = Case::empty();
    model.write_shards(&shards.input(""));
    crate::harness::run(&[
        &shards.input(""),
        &"--block=256",
        &"-o",
        &shards.out("m.q4nx"),
        &"-o",
        &shards.out("m.gguf"),
    ])
    .ok();
    let read = |case: &Case| outputs.map(|name| fs::read(case.out(name)).unwrap());
    let ([q4nx, gguf], [sharded_q4nx, mut sharded_gguf]) = (read(&whole), read(&shards));
    assert!(q4nx == sharded_q4nx);

    // The one difference is the digest of the input in the lineage.
    let digest = report["input"]["files"][0]["sha256"].as_str().unwrap().as_bytes();
    let at = gguf.windows(64).position(|w| w == digest).unwrap();
    assert_eq!(gguf.len(), sharded_gguf.len());
    assert_ne!(&sharded_gguf[at..at + 64], digest);
    sharded_gguf[at..at + 64].copy_from_slice(digest);
    assert!(gguf == sharded_gguf);
}
