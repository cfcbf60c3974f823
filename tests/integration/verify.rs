//! `verify` and `inspect` on files that were written, then damaged or mixed up.

use std::fs;
use std::path::Path;

use formats::safetensors::Dtype;
use half::f16;

use crate::harness::{Case, Model, group_of, mini_config, patch, run, sha256};

const MATRIX: &str = "layers.0.self_attn.k_proj.weight";
const OUTPUTS: [&str; 3] = ["m.q4nx", "m.gguf", "t.gguf"];

fn compiled(seed: u64) -> Case {
    let case = Case::new(&Model::noise(mini_config(), Dtype::BF16, seed));
    case.ternarize(&OUTPUTS, &["--format=q4nx", "--format=pq2_0", "--format=ptq1_0"]).ok();
    case
}

/// The verdict that `verify` ends with, and its exit code.
fn verdict(file: &Path, against: Option<&Path>) -> (String, Option<i32>) {
    let run = match against {
        Some(against) => run(&[&"verify", &file, &"--against", &against]),
        None => run(&[&"verify", &file]),
    };
    let last = run.stdout().lines().last().unwrap_or_else(|| panic!("{}", run.stderr()));
    (last.to_owned(), run.output.status.code())
}

const YES: &str = "verdict: ok";

#[test]
fn every_output_is_what_it_should_be() {
    let case = compiled(1);
    for name in OUTPUTS {
        let file = case.out(name);
        assert_eq!(verdict(&file, None), (YES.into(), Some(0)));
        for against in
            [case.weights(), case.input("")].into_iter().chain(OUTPUTS.map(|o| case.out(o)))
        {
            assert_eq!(
                verdict(&file, Some(&against)),
                (YES.into(), Some(0)),
                "{name}, {against:?}"
            );
        }
    }
    let json = run(&[&"verify", &case.out("m.q4nx"), &"--json"]).ok().json();
    assert_eq!((&json["schema"], &json["verdict"]), (&1.into(), &"ok".into()));
    assert_eq!(json["file"]["files"][0]["sha256"], sha256(&case.out("m.q4nx")));
}

#[test]
fn verify_finds_the_error_that_the_report_stated() {
    let case = Case::new(&Model::fixture());
    let report = case.ternarize(&["m.gguf"], &["--json"]).ok().json();
    let found = run(&[&"verify", &case.out("m.gguf"), &"--against", &case.weights(), &"--json"])
        .ok()
        .json();
    let by_name = |document: &serde_json::Value| -> Vec<(String, f64)> {
        let matrices = document["matrices"].as_array().unwrap().iter();
        let pair = |m: &serde_json::Value| {
            (m["name"].as_str().unwrap().to_owned(), m["relative_error"].as_f64().unwrap())
        };
        matrices.map(pair).collect()
    };
    for (stated, found) in by_name(&report).iter().zip(by_name(&found)) {
        assert_eq!(stated.0, found.0);
        assert!((stated.1 - found.1).abs() < 1e-6, "{stated:?}, {found:?}");
    }
}

#[test]
fn another_drafter_is_a_no() {
    let (case, other) = (compiled(1), compiled(2));
    for name in OUTPUTS {
        for against in [other.weights(), other.out("m.gguf"), other.out("m.q4nx")] {
            let (last, code) = verdict(&case.out(name), Some(&against));
            assert!(last.starts_with("verdict: no (") && code == Some(1), "{last} {code:?}");
        }
    }
}

#[test]
fn one_other_code_is_a_no_against_a_ternary_file() {
    let case = compiled(1);
    fs::copy(case.out("m.gguf"), case.out("n.gguf")).unwrap();
    let gguf = case.out("n.gguf");
    let at = group_of(&gguf, MATRIX, 17) + 2;
    let byte = fs::read(&gguf).unwrap()[at as usize];
    // Another code of the first weight of group 17.
    let code = if byte & 3 == 0 { byte | 1 } else { byte & !3 };
    patch(&gguf, at, &[code]);
    for against in ["m.gguf", "m.q4nx", "t.gguf"] {
        let (last, code) = verdict(&gguf, Some(&case.out(against)));
        assert!(last.starts_with("verdict: no (") && last.contains(MATRIX), "{last}");
        assert_eq!(code, Some(1));
    }
    assert_eq!(verdict(&gguf, None), (YES.into(), Some(0)));
}

#[test]
fn up_403_a_scale_that_is_not_finite_is_damage() {
    for (bits, found) in [(0x7C00_u16, "inf"), (0xFC00, "-inf"), (0x7E00, "NaN")] {
        let case = compiled(1);
        let gguf = case.out("m.gguf");
        patch(&gguf, group_of(&gguf, MATRIX, 21), &bits.to_le_bytes());
        run(&[&"verify", &gguf]).refused(3, &["m.gguf", "blk.0.attn_k.weight", "group 21", found]);

        // bf16 in the q4nx: the scale stands four times, and its negative as often.
        let q4nx = case.out("m.q4nx");
        let chunk = group_of(&q4nx, MATRIX, 0);
        let wide = half::bf16::from_f32(f16::from_bits(bits).to_f32()).to_bits();
        for g in 0..4 {
            patch(&q4nx, chunk + 64 * g, &wide.to_le_bytes());
            patch(&q4nx, chunk + 512 + 64 * g, &(wide ^ 0x8000).to_le_bytes());
        }
        run(&[&"verify", &q4nx]).refused(3, &["m.q4nx", MATRIX, "chunk 0", found]);
    }
}

#[test]
fn up_303_another_tile_in_the_header_is_damage() {
    let case = compiled(1);
    let q4nx = case.out("m.q4nx");
    let bytes = fs::read(&q4nx).unwrap();
    // As many bytes, and as many characters.
    for (from, to) in
        [("[8,1,5120]", "[4,2,5120]"), ("[8,1,5120]", "[1,8,5120]"), ("[8,1,5120]", "[5,8,1024]")]
    {
        let at = bytes.windows(from.len()).position(|w| w == from.as_bytes()).unwrap();
        patch(&q4nx, at as u64, to.as_bytes());
        for command in ["verify", "convert"] {
            let run = match command {
                "verify" => run(&[&command, &q4nx]),
                _ => run(&[&command, &q4nx, &"-o", &case.out("n.gguf")]),
            };
            run.refused(3, &["m.q4nx", "tensor `", "expected", "found", "5120"]);
        }
        patch(&q4nx, at as u64, from.as_bytes());
    }
    assert_eq!(verdict(&q4nx, None), (YES.into(), Some(0)));
}

#[test]
fn up_104_half_a_file_has_no_facts() {
    let case = compiled(1);
    let files = OUTPUTS.map(|name| case.out(name)).into_iter().chain([case.weights()]);
    for file in files {
        let whole = fs::read(&file).unwrap();
        for len in [whole.len() / 2, whole.len() - 4096, 100, 3, 0] {
            fs::write(&file, &whole[..len]).unwrap();
            let name = file.file_name().unwrap().to_str().unwrap();
            run(&[&"inspect", &file]).refused(3, &[name]);
            run(&[&"verify", &file]).refused(3, &[name]);
        }
    }
}

/// Overwrites what follows the name of the first tensor in a GGUF's header: its
/// number of dimensions, the two dimensions, its type.
fn with_info(case: &Case, n_dims: u32, dims: [u64; 2], ty: u32) -> std::path::PathBuf {
    let gguf = case.out("m.gguf");
    let bytes = fs::read(&gguf).unwrap();
    let at = bytes.windows(9).rposition(|w| w == b"fc.weight").unwrap() as u64 + 9;
    let mut info = n_dims.to_le_bytes().to_vec();
    dims.iter().for_each(|dim| info.extend(dim.to_le_bytes()));
    info.extend(ty.to_le_bytes());
    patch(&gguf, at, &info);
    gguf
}

#[test]
fn up_202_and_204_absurd_dimensions_of_a_gguf_are_named() {
    let case = compiled(1);
    for (n_dims, dims, part) in [
        (2, [u64::MAX, 2], "fc.weight"),
        (2, [1 << 32, 1 << 33], "fc.weight"),
        (5, [256, 256], "dimensions"),
        (1_000_000, [256, 256], "dimensions"),
        (u32::MAX, [256, 256], "dimensions"),
    ] {
        let gguf = with_info(&case, n_dims, dims, 142);
        for command in ["inspect", "verify"] {
            run(&[&command, &gguf]).refused(3, &["m.gguf", part]);
        }
    }
}

#[test]
fn up_209_an_unknown_type_of_a_gguf_is_named() {
    let case = compiled(1);
    let gguf = with_info(&case, 2, [256, 256], 200);
    for command in ["inspect", "verify"] {
        run(&[&command, &gguf]).refused(3, &["m.gguf", "fc.weight", "200"]);
    }
}

#[test]
fn inspect_says_what_a_file_is() {
    let case = compiled(1);
    for (file, what) in [
        (case.out("m.q4nx"), "q4nx"),
        (case.out("m.gguf"), "PQ2_0"),
        (case.out("t.gguf"), "PTQ1_0"),
        (case.weights(), "BF16"),
    ] {
        let run = run(&[&"inspect", &file]).ok();
        for part in [what, "hidden_size", "21 tensors"] {
            assert!(run.stdout().contains(part), "no {part} in {}", run.stdout());
        }
    }
    let json = run(&[&"inspect", &case.out("m.gguf"), &"--json"]).ok().json();
    assert_eq!(json["tensors"].as_array().unwrap().len(), 21);
    assert_eq!(json["rotation"]["block"], 256);
    assert_eq!(json["lineage"]["input_sha256"], sha256(&case.weights()));
}
