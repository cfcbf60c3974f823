//! Between ternary files: without loss, or not at all.

use std::fs;

use formats::safetensors::Dtype;

use crate::harness::{Case, Model, decode, group_of, mini_config, patch, run};

const MATRIX: &str = "layers.0.self_attn.k_proj.weight";

fn compiled() -> Case {
    let case = Case::new(&Model::noise(mini_config(), Dtype::BF16, 7));
    case.ternarize(&["m.q4nx", "m.gguf"], &[]).ok();
    case
}

#[test]
fn a_cycle_through_all_formats_gives_the_same_file() {
    let case = Case::new(&Model::fixture());
    let q4nx = case.q4nx(&[]);
    fs::create_dir(case.out("b")).unwrap();
    case.convert("m.q4nx", "p.gguf", &["--format=pq2_0"]).ok();
    case.convert("p.gguf", "t.gguf", &["--format=ptq1_0"]).ok();
    case.convert("t.gguf", "b/m.q4nx", &[]).ok();
    assert!(fs::read(case.out("b/m.q4nx")).unwrap() == q4nx);

    let config = |name| fs::read_to_string(case.out(name)).unwrap();
    assert_eq!(config("b/config.json"), config("config.json"));
}

#[test]
fn a_conversion_is_what_a_direct_run_writes() {
    let case = compiled();
    case.convert("m.q4nx", "c.gguf", &[]).ok();
    assert!(decode(&case.out("c.gguf")) == decode(&case.out("m.gguf")));
    case.ternarize(&["t.gguf"], &["--format=ptq1_0"]).ok();
    case.convert("m.gguf", "ct.gguf", &["--format=ptq1_0"]).ok();
    assert!(decode(&case.out("ct.gguf")) == decode(&case.out("t.gguf")));
}

#[test]
fn foreign_scales_are_refused_by_q4nx_unless_they_may_be_rounded() {
    let case = compiled();
    let gguf = case.out("m.gguf");
    // Three scales with bits that bf16 has no room for, one negative.
    for (group, bits) in [(5, 0x3C01_u16), (6, 0xBC03), (9, 0x3C07)] {
        patch(&gguf, group_of(&gguf, MATRIX, group), &bits.to_le_bytes());
    }
    let name = format!("`{MATRIX}`");
    case.convert("m.gguf", "n.q4nx", &["--force"])
        .refused(3, &["n.q4nx", "q4nx cannot hold", &name, "group 5", "0x3C01", "--round-scales"]);
    assert!(!case.out("n.q4nx").exists());
    // Other GGUF formats hold them.
    case.convert("m.gguf", "t.gguf", &["--format=ptq1_0"]).ok();
    assert!(decode(&case.out("t.gguf")) == decode(&gguf));

    let report =
        case.convert("m.gguf", "n.q4nx", &["--force", "--round-scales", "--json"]).ok().json();
    let matrices = report["matrices"].as_array().unwrap();
    let rounded = |m: &serde_json::Value| m["rounded_scales"].as_u64().unwrap();
    let matrix = matrices.iter().find(|m| m["name"] == MATRIX).unwrap();
    assert_eq!(rounded(matrix), 3);
    assert_eq!(matrices.iter().map(rounded).sum::<u64>(), 3);
    let rows = &decode(&case.out("n.q4nx"))[MATRIX];
    let scale = |group: usize| rows.scales()[group].to_bits();
    assert_eq!((scale(5), scale(6), scale(9)), (0x3C00, 0xBC00, 0x3C08));

    let text = case.convert("m.gguf", "n.q4nx", &["--force", "--round-scales"]).ok();
    assert!(text.stdout().contains("3 scales rounded"), "{}", text.stdout());
}

#[test]
fn up_403_scales_that_are_not_finite_are_refused_whatever_the_output() {
    for bits in [0x7C00_u16, 0xFC00, 0x7E00] {
        let case = compiled();
        let gguf = case.out("m.gguf");
        patch(&gguf, group_of(&gguf, MATRIX, 77), &bits.to_le_bytes());
        let found = if bits == 0x7E00 { "NaN" } else { "inf" };
        for format in ["--format=q4nx", "--format=ptq1_0", "--format=pq2_0", "--format=f32"] {
            case.convert("m.gguf", "n", &["--force", format])
                .refused(3, &["m.gguf", "blk.0.attn_k.weight", "group 77", found]);
            assert!(!case.out("n").exists());
        }
    }
}

#[test]
fn code_3_is_refused_by_the_formats_that_have_no_such_value() {
    let case = compiled();
    let gguf = case.out("m.gguf");
    patch(&gguf, group_of(&gguf, MATRIX, 130) + 2 + 17, &[0xFF]);
    for format in ["--format=q4nx", "--format=ptq1_0"] {
        case.convert("m.gguf", "n", &["--force", format])
            .refused(3, &["ternary codes (0, 1, 2)", MATRIX, "group 130"]);
        assert!(!case.out("n").exists());
    }
    // The float value it stands for is written, and PQ2_0 keeps it.
    case.convert("m.gguf", "n.gguf", &[]).ok();
    case.convert("m.gguf", "n.safetensors", &["--force"]).ok();
}

#[test]
fn a_q4nx_that_is_not_exact_ternary_is_refused() {
    let case = compiled();
    let q4nx = case.out("m.q4nx");
    let at = group_of(&q4nx, MATRIX, 0);
    // A nibble of 3 in the first chunk, then a minimum that is not the negated scale.
    for (offset, byte, found) in [(1024, 0x13, "code 3"), (512, 0x5A, "minimum bits")] {
        let original = fs::read(&q4nx).unwrap()[(at + offset) as usize];
        patch(&q4nx, at + offset, &[byte]);
        case.convert("m.q4nx", "n.gguf", &[]).refused(3, &["m.q4nx", MATRIX, "chunk 0", found]);
        patch(&q4nx, at + offset, &[original]);
    }
    case.convert("m.q4nx", "n.gguf", &[]).ok();
}

#[test]
fn a_block_of_no_transform_is_told_once() {
    let case = compiled();
    let mut bytes = fs::read(case.out("m.gguf")).unwrap();
    let key = b"prism.hadamard.block_size";
    let at = bytes.windows(key.len()).position(|w| w == key).unwrap() + key.len() + 4;
    bytes[at..at + 4].copy_from_slice(&1u32.to_le_bytes());
    fs::write(case.out("m.gguf"), bytes).unwrap();
    let run = case.convert("m.gguf", "n.gguf", &[]).refused(3, &["the rotation", "found 1"]);
    assert_eq!(run.stderr().matches("power of two").count(), 1, "{}", run.stderr());
}

#[test]
fn a_q4nx_without_its_rotation_is_refused() {
    let case = compiled();
    fs::copy(case.input("config.json"), case.out("config.json")).unwrap();
    case.convert("m.q4nx", "n.gguf", &[])
        .refused(3, &["config.json", "prism_hadamard", "nothing", "written with the q4nx"]);
}

#[test]
fn a_float_drafter_with_a_rotation_is_refused() {
    let case = compiled();
    fs::copy(case.out("config.json"), case.input("config.json")).unwrap();
    run(&[&case.weights(), &"--block=256", &"-o", &case.out("n.q4nx")])
        .refused(3, &["config.json", "prism_hadamard", "float"]);
}

#[test]
fn codebooks_can_be_spelled_as_older_trainers_do() {
    let case = compiled();
    case.convert("m.gguf", "n.safetensors", &["--force", "--codebooks=weight"]).ok();
    let names = crate::harness::read(&case.out("n.safetensors"));
    assert!(names.contains_key("candidate_selector.predecessor_codebook.weight"));
    case.convert("m.gguf", "n.q4nx", &["--force", "--codebooks=bare"]).ok();
    assert!(fs::read(case.out("n.q4nx")).unwrap() == fs::read(case.out("m.q4nx")).unwrap());
}

#[test]
fn norms_that_bf16_cannot_hold_are_rounded_only_on_request() {
    let case = Case::new(&Model::noise(mini_config(), Dtype::BF16, 7).with("norm.weight", |t| {
        t.edit(Dtype::F32, |values| values[3] = 1.0 + f32::EPSILON);
    }));
    case.ternarize(&["m.gguf"], &[]).ok();
    case.convert("m.gguf", "n.q4nx", &[])
        .refused(3, &["`norm.weight` exact in BF16", "1 values in F32", "--round-scales"]);
    let report = case.convert("m.gguf", "n.q4nx", &["--round-scales", "--json"]).ok().json();
    let norm =
        report["other_tensors"].as_array().unwrap().iter().find(|t| t["name"] == "norm.weight");
    assert_eq!(norm.unwrap()["rounded_values"], 1);
}

#[test]
fn a_tokenizer_in_the_input_goes_into_the_output() {
    let pair = concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/pair");
    let dir = tempfile::tempdir().unwrap();
    let [first, second] = ["a.gguf", "b.gguf"].map(|name| dir.path().join(name));
    let (input, target) = (format!("{pair}/drafter"), format!("{pair}/target.gguf"));
    run(&[&input, &"--block", &"256", &"--tokenizer", &target, &"-o", &first]).ok();
    run(&[&"convert", &first, &"-o", &second]).ok();
    let tokens = |path: &std::path::Path| {
        let file = formats::gguf::File::open(formats::Source::open(path).unwrap()).unwrap();
        file.require_strs("tokenizer.ggml.tokens").unwrap().to_vec()
    };
    assert_eq!(tokens(&first).len(), 1536);
    assert_eq!(tokens(&first), tokens(&second));
}
