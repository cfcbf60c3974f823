//! `ternarize --calib` as a program: bytes, reports, refusals.

#![allow(clippy::unwrap_used, reason = "helpers of tests are parts of tests")]

#[path = "../src/testing.rs"]
#[allow(dead_code, reason = "shared with the unit tests")]
mod testing;

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::Value;
use tempfile::TempDir;

/// Exit code, standard output, standard error.
fn run(dir: &Path, args: &[&str]) -> (i32, String, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_ternarize"))
        .args(args)
        .current_dir(dir)
        .env_remove("TERNARIZE_THREADS")
        .env_remove("TERNARIZE_ISA")
        .output()
        .unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
}

/// Moments of random rows for every input of a drafter.
struct MadeMoments {
    exponent: i32,
    rows: usize,
    block: usize,
}

impl formats::calib::Tiles<std::convert::Infallible> for MadeMoments {
    fn tile(
        &mut self,
        input: formats::calib::Input,
        tile: formats::calib::Tile,
    ) -> Result<Vec<i64>, std::convert::Infallible> {
        let formats::calib::Tile::Diagonal(index) = tile else { unreachable!("not full") };
        let name: u64 = input.to_string().bytes().map(u64::from).sum();
        let mut next = testing::uniform(1000 * name + index as u64);
        let n = self.block;
        // Rows of three directions and noise.
        let directions: Vec<f64> = (0..3 * n).map(|_| next()).collect();
        let mut sum = vec![0.0; n * n];
        for _ in 0..self.rows {
            let part = [3.0 * next(), 2.0 * next(), next()];
            let row: Vec<f64> = (0..n)
                .map(|c| {
                    0.3 * next() + (0..3).map(|d| part[d] * directions[d * n + c]).sum::<f64>()
                })
                .collect();
            for i in 0..n {
                for j in i..n {
                    sum[i * n + j] += row[i] * row[j];
                }
            }
        }
        let units = (0..n).flat_map(|i| (i..n).map(move |j| (i, j)));
        let exponent = self.exponent;
        Ok(units
            .map(|(i, j)| formats::calib::to_units(sum[i * n + j], exponent).unwrap())
            .collect())
    }
}

/// Writes calibration data for the drafter at `weights`, `rows` rows of each input, those of the context
/// seen `context_rows` times in all.
fn write_calib(path: &Path, weights: &Path, block: usize, rows: usize, context_rows: u64) {
    use formats::calib::{Document, InputRecord, Models, Texts, Units, WEIGHT_ONE, inputs_of};
    let drafter = formats::dflash2::drafter::Drafter::open(weights, None).unwrap();
    let sha256 = formats::digest::of_files(&drafter.files, &mut |_| true).unwrap().unwrap();
    let exponent = formats::calib::exponent_of(1.0);
    let mut units = Units::default();
    units.insert(0);
    let record = |width| InputRecord {
        width,
        exponent,
        rows: rows as u64,
        weight: rows as u64 * WEIGHT_ONE,
        full: false,
        sha256: Vec::new(),
    };
    let mut document = Document {
        program: "test 1".into(),
        models: Models {
            target_sha256: "ab".repeat(32),
            drafter_sha256: sha256,
            act: "a8".into(),
            kv: "f16".into(),
            block,
            row_weights: vec![WEIGHT_ONE; drafter.config.block_size],
        },
        texts: vec![Texts {
            kind: "prompts".into(),
            sha256: "cd".repeat(32),
            template_sha256: None,
            think: None,
            decoding: "greedy".into(),
            draft_max: 7,
            max_tokens: 64,
            max_positions: None,
            n_units: 1,
            units,
            positions: 77,
            rounds: 20,
            context_rows,
        }],
        inputs: inputs_of(&drafter.config)
            .into_iter()
            .map(|input| (input.to_string(), record(input.width(&drafter.config))))
            .collect(),
    };
    let mut bytes = vec![0; formats::calib::file_len(&document) as usize];
    let mut put = |at: u64, part: &[u8]| {
        bytes[at as usize..at as usize + part.len()].copy_from_slice(part);
        Ok(())
    };
    let mut made = MadeMoments { exponent, rows, block };
    formats::calib::write(&mut document, &mut made, &mut put).unwrap();
    std::fs::write(path, bytes).unwrap();
}

/// `float/` with `c.calib`, moments of 300 rows.
fn drafter() -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    let weights = testing::write_drafter(&dir.path().join("float"), 1, |_| {});
    write_calib(&dir.path().join("c.calib"), &weights, 256, 300, 2000);
    dir
}

const BASE: [&str; 6] = ["float", "-o", "m.gguf", "--block", "256", "--force"];

#[test]
fn bytes_depend_on_neither_threads_nor_instructions() {
    let dir = drafter();
    for source in ["c.calib", "prior"] {
        let mut reference: Option<(Vec<u8>, Value)> = None;
        for more in [
            &["--threads", "1"][..],
            &["--threads", "2"],
            &["--threads", "3"],
            &["--threads", "4"],
            &["--threads", "2", "--isa", "scalar"],
            &["--threads", "1", "--isa", "avx2"],
        ] {
            let args = [&BASE[..], &["--calib", source, "--json", "--rounds", "3"], more].concat();
            let (code, out, err) = run(dir.path(), &args);
            assert_eq!(code, 0, "{err}");
            let json: Value = serde_json::from_str(&out).unwrap();
            let found = (fs::read(dir.path().join("m.gguf")).unwrap(), json["matrices"].clone());
            match &reference {
                None => reference = Some(found),
                Some(reference) => assert!(found == *reference, "{source} {more:?}"),
            }
        }
    }
}

#[test]
fn the_report_says_what_was_gained_and_the_file_how_it_was_made() {
    let dir = drafter();
    let (code, out, err) =
        run(dir.path(), &[&BASE[..], &["--calib", "c.calib", "--json"]].concat());
    assert_eq!(code, 0, "{err}");
    let json: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(json["rule"], "calibrated");
    let calibration = &json["calibration"];
    assert_eq!(calibration["source"], "c.calib");
    assert_eq!(calibration["positions"], 77);
    assert_eq!(calibration["rounds"], 8);
    assert_eq!(calibration["matrices"], 11);
    for matrix in json["matrices"].as_array().unwrap() {
        let of = &matrix["calibration"];
        let (plain, chosen) = (of["optimal_loss"].as_f64().unwrap(), of["loss"].as_f64().unwrap());
        assert!(chosen < 0.8 * plain, "{matrix}");
        let is_kv = matrix["name"].as_str().unwrap().contains("_proj.weight")
            && ["k_proj", "v_proj"].iter().any(|kv| matrix["name"].as_str().unwrap().contains(kv));
        assert_eq!(of["inputs"].as_array().unwrap().len(), if is_kv { 2 } else { 1 });
        assert_eq!(of["rows"], if is_kv { 600 } else { 300 });
        let damping = of["damping"].as_f64().unwrap();
        assert!(if is_kv { damping < 0.11 } else { (0.5..1.0).contains(&damping) }, "{damping}");
    }
    let (_, out, _) = run(dir.path(), &["inspect", "m.gguf", "--json"]);
    let inspected: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(inspected["lineage"]["rule"], "calibrated");
    // The file is the input's by `verify`'s measure, and holds what the report says.
    let (code, out, _) = run(dir.path(), &["verify", "m.gguf", "--against", "float", "--json"]);
    assert_eq!(code, 0, "{out}");
    let verified: Value = serde_json::from_str(&out).unwrap();
    let found = verified["total"]["relative_error"].as_f64().unwrap();
    let stated = json["total"]["relative_error"].as_f64().unwrap();
    assert!((found - stated).abs() < 1e-6 * stated, "{found} {stated}");
}

#[test]
fn context_rows_count_as_often_as_they_were_seen() {
    let dir = drafter();
    let weights = dir.path().join("float/model.safetensors");
    let losses = |seen: u64| -> Vec<(String, f64)> {
        write_calib(&dir.path().join("c.calib"), &weights, 256, 300, seen);
        let args = [&BASE[..], &["--calib", "c.calib", "--json", "--rounds", "0"]].concat();
        let (code, out, err) = run(dir.path(), &args);
        assert_eq!(code, 0, "{err}");
        let json: Value = serde_json::from_str(&out).unwrap();
        let of = |matrix: &Value| {
            let name = matrix["name"].as_str().unwrap().to_owned();
            (name, matrix["calibration"]["optimal_loss"].as_f64().unwrap())
        };
        json["matrices"].as_array().unwrap().iter().map(of).collect()
    };
    // 300 rows that are there were seen once at least.
    let (equal, often, most) = (losses(300), losses(3_000), losses(30_000_000));
    assert_eq!(losses(0), equal);
    for ((equal, often), most) in equal.iter().zip(&often).zip(&most) {
        let name = &equal.0;
        if name.contains("k_proj") || name.contains("v_proj") {
            // Between the two ends, and nearer to the one where the context is everything.
            assert!((often.1 - most.1).abs() < (often.1 - equal.1).abs(), "{name}");
            assert_ne!(often.1, most.1, "{name}");
        } else {
            assert_eq!((equal.1, often.1), (often.1, most.1), "{name}");
        }
    }
}

#[test]
fn the_prior_leaves_matrices_without_a_norm_at_the_optimum() {
    let dir = drafter();
    let json = |more: &[&str]| -> Value {
        let (code, out, err) = run(dir.path(), &[&BASE[..], &["--json"], more].concat());
        assert_eq!(code, 0, "{err}");
        serde_json::from_str(&out).unwrap()
    };
    let (plain, prior) = (json(&[]), json(&["--calib", "prior"]));
    assert_eq!(prior["rule"], "prior");
    let pairs =
        plain["matrices"].as_array().unwrap().iter().zip(prior["matrices"].as_array().unwrap());
    let mut without = Vec::new();
    for (plain, prior) in pairs {
        if prior.get("calibration").is_none() {
            assert_eq!(plain, prior);
            without.push(prior["name"].as_str().unwrap().to_owned());
        }
    }
    let expected =
        ["fc.weight", "layers.0.self_attn.o_proj.weight", "layers.0.mlp.down_proj.weight"];
    assert_eq!(without, expected);
}

#[test]
fn what_does_not_fit_is_refused_and_nothing_is_left() {
    let dir = drafter();
    let other = testing::write_drafter(&dir.path().join("other"), 2, |_| {});
    write_calib(&dir.path().join("other.calib"), &other, 256, 20, 90);
    let weights = dir.path().join("float/model.safetensors");
    write_calib(&dir.path().join("narrow.calib"), &weights, 128, 20, 90);
    let whole = fs::read(dir.path().join("c.calib")).unwrap();
    let mut damaged = whole.clone();
    *damaged.last_mut().unwrap() ^= 1;
    fs::write(dir.path().join("damaged.calib"), damaged).unwrap();
    fs::write(dir.path().join("cut.calib"), &whole[..whole.len() / 2]).unwrap();
    for (more, code, words) in [
        (&["--calib", "other.calib"][..], 3, &["other.calib", "drafter_sha256"][..]),
        (&["--calib", "narrow.calib"], 3, &["narrow.calib", "block", "--block 128"]),
        (&["--calib", "damaged.calib"], 3, &["damaged.calib", "damaged"]),
        (&["--calib", "cut.calib"], 3, &["cut.calib"]),
        (&["--calib", "none.calib"], 3, &["none.calib"]),
        (&["--calib", "prior", "--rule", "twn"], 2, &["--rule twn", "--calib"]),
        (&["--damping", "0.1"], 2, &["--calib"]),
        (&["--rounds", "1"], 2, &["--calib"]),
        (&["--calib", "prior", "--damping=-1"], 2, &["--damping"]),
    ] {
        let (found, _, err) = run(dir.path(), &[&BASE[..], more].concat());
        assert_eq!(found, code, "{more:?}: {err}");
        for word in words {
            assert!(err.contains(word), "{more:?}: {err}");
        }
        let left: Vec<_> = fs::read_dir(dir.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .filter(|name| name.starts_with("m.") || name.ends_with(".partial"))
            .collect();
        assert_eq!(left, Vec::<String>::new(), "{more:?}");
    }
    // Nor may an output replace the calibration data.
    let args = ["float", "-o", "c.calib", "--format", "pq2_0", "--block", "256", "--force"];
    let (code, _, err) = run(dir.path(), &[&args[..], &["--calib", "c.calib"]].concat());
    assert_eq!(code, 4, "{err}");
    assert!(fs::read(dir.path().join("c.calib")).unwrap() == whole);
}
