//! `ternarize calib`, on files made by hand.

use std::convert::Infallible;
use std::path::{Path, PathBuf};

use assert_cmd::Command;
use formats::calib::{
    Document, Input, InputRecord, Models, Texts, Tile, Tiles, Units, WEIGHT_ONE, write,
};
use serde_json::Value;

/// A diagonal of `unit + 1`.
struct Made(i64);

impl Tiles<Infallible> for Made {
    fn tile(&mut self, _: Input, tile: Tile) -> Result<Vec<i64>, Infallible> {
        let mut values = vec![0; tile.len(8)];
        let mut at = 0;
        for i in 0..8 {
            values[at] = 256 * (self.0 + 1);
            at += 8 - i;
        }
        Ok(values)
    }
}

fn made(path: &Path, unit: u64, drafter: &str) {
    let mut units = Units::default();
    units.insert(unit);
    let texts = Texts {
        kind: "prompts".into(),
        sha256: "ab".repeat(32),
        template_sha256: None,
        think: None,
        decoding: "greedy".into(),
        draft_max: 7,
        max_tokens: 64,
        max_positions: None,
        n_units: 9,
        units,
        positions: 3,
        rounds: 1,
        context_rows: 2,
    };
    let record = InputRecord {
        width: 16,
        exponent: -8,
        rows: 2,
        weight: 2 * WEIGHT_ONE,
        full: false,
        sha256: Vec::new(),
    };
    let mut document = Document {
        program: "by hand".into(),
        models: Models {
            target_sha256: "cd".repeat(32),
            drafter_sha256: drafter.repeat(64),
            act: "a8".into(),
            kv: "f16".into(),
            block: 8,
            row_weights: vec![WEIGHT_ONE; 8],
        },
        texts: vec![texts],
        inputs: [("fc".into(), record)].into(),
    };
    let mut bytes = vec![0; formats::calib::file_len(&document) as usize];
    let Ok(()) = write(&mut document, &mut Made(unit as i64), &mut |at, part: &[u8]| {
        bytes[at as usize..][..part.len()].copy_from_slice(part);
        Ok::<_, Infallible>(())
    });
    std::fs::write(path, bytes).unwrap();
}

fn calib() -> Command {
    let mut command = Command::new(crate::harness::program());
    command.arg("calib");
    command
}

#[test]
fn parts_are_merged_shown_and_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| -> PathBuf { dir.path().join(name) };
    (0..3).for_each(|unit| made(&path(&unit.to_string()), unit, "1"));
    made(&path("other"), 3, "2");
    let merge = |files: &[&str], out: &str, more: &[&str]| {
        let mut command = calib();
        command.arg("merge").args(files.iter().map(|name| path(name)));
        command.arg("-o").arg(path(out)).args(more).output().unwrap()
    };
    assert!(merge(&["0", "1", "2"], "all", &[]).status.success());
    assert!(merge(&["2", "0", "1"], "again", &[]).status.success());
    let all = std::fs::read(path("all")).unwrap();
    assert_eq!(std::fs::read(path("again")).unwrap(), all);
    let output = calib().arg("show").arg(path("all")).arg("--json").output().unwrap();
    let shown: Value = serde_json::from_slice(&output.stdout).unwrap();
    // 1 + 2 + 3 per coordinate, over six rows.
    let fc = &shown["inputs"][0];
    assert_eq!(
        (&fc["mean_square"], &fc["peak"], &fc["rows"]),
        (&1.0.into(), &1.0.into(), &6.into())
    );
    assert_eq!(shown["document"]["texts"][0]["units"], serde_json::json!([[0, 2]]));
    let text = calib().arg("show").arg(path("all")).output().unwrap();
    assert!(String::from_utf8(text.stdout).unwrap().contains("3 of 9 units"));

    for (files, out, code, part) in [
        (&["0", "other"][..], "x", 3, "drafter_sha256"),
        (&["all", "1"], "x", 3, "units"),
        (&["0", "nothing"], "x", 3, "nothing"),
        (&["0", "1"], "all", 4, "exists"),
        (&["0", "1"], "1", 4, "input"),
    ] {
        let output = merge(files, out, &[]);
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(code), "{stderr}");
        assert!(stderr.lines().next().unwrap().contains(part), "{part} in {stderr}");
    }
    let mut damaged = all.clone();
    *damaged.last_mut().unwrap() ^= 1;
    std::fs::write(path("damaged"), damaged).unwrap();
    let output = merge(&["damaged", "other"], "x", &[]);
    assert_eq!(output.status.code(), Some(3));
    let output = calib().arg("show").arg(path("damaged")).output().unwrap();
    assert!(String::from_utf8(output.stderr).unwrap().contains("SHA-256"));
    assert!(!path("x").exists() && !path("x.partial").exists());
    assert!(merge(&["0", "1"], "all", &["--force"]).status.success());
}
