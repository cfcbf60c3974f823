//! Paths of every kind work (UP-1503).

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;

use formats::safetensors::Dtype;

use crate::harness::{Case, Model, mini_config, run, sha256};

/// Ternarizes from and to `name` (a folder), and converts the result.
fn works(name: impl AsRef<OsStr>) {
    let case = Case::empty();
    let dir = case.root().join(name.as_ref());
    Model::noise(mini_config(), Dtype::BF16, 1).write(&dir);
    let mut file = name.as_ref().to_os_string();
    if file.len() > 100 {
        file = "m".into();
    }
    let beside = |suffix: &str| {
        let mut name: OsString = file.clone();
        name.push(suffix);
        dir.join(name)
    };
    let (q4nx, gguf, report) = (beside(".q4nx"), beside(".gguf"), beside(".json"));
    let result =
        run(&[&dir, &"--block=256", &"-o", &q4nx, &"-o", &gguf, &"--report", &report, &"--json"])
            .ok()
            .json();
    for (output, path) in result["outputs"].as_array().unwrap().iter().zip([&q4nx, &gguf]) {
        assert_eq!(output["sha256"], sha256(path));
        assert_eq!(output["path"], path.to_string_lossy().as_ref());
    }
    let report: serde_json::Value = serde_json::from_slice(&fs::read(report).unwrap()).unwrap();
    assert_eq!(report, result);
    run(&[&"convert", &q4nx, &"-o", &beside("2.gguf")]).ok();
    // The drafter's own config.json is in the way, and stays.
    let back = beside("3.q4nx");
    run(&[&"convert", &gguf, &"-o", &back]).refused(4, &["config.json", "exists"]);
    fs::remove_file(dir.join("config.json")).unwrap();
    run(&[&"convert", &gguf, &"-o", &back]).ok();
    assert!(fs::read(back).unwrap() == fs::read(q4nx).unwrap());
}

#[test]
fn up_1503_spaces() {
    works("my drafter ");
}

#[test]
fn up_1503_letters_beyond_ascii() {
    works("Željko");
}

#[test]
fn up_1503_emoji() {
    works("🙂 🧑‍🚀");
}

#[test]
fn up_1503_a_trailing_dot_and_a_leading_one() {
    works("model.");
    works(".hidden");
}

#[test]
fn up_1503_a_line_break_and_quotes() {
    works("a\n`b` \"c\"");
}

#[test]
fn up_1503_bytes_that_are_no_utf_8() {
    works(OsStr::from_bytes(b"d\xE9j\xE0 \xFF"));
}

#[test]
fn up_1503_a_path_of_300_characters() {
    let nested: PathBuf = (0..7).map(|_| "ž".repeat(50)).collect();
    assert!(nested.as_os_str().to_string_lossy().chars().count() > 300);
    works(nested.as_os_str());
}

#[test]
fn a_name_that_leaves_no_room_for_the_suffix_works_up_to_the_longest() {
    let case = Case::new(&Model::noise(mini_config(), Dtype::BF16, 1));
    let name = |n: usize| format!("{}.gguf", "n".repeat(n - 5));
    let report = format!("--report={}", case.out(format!("{}.json", "r".repeat(250))).display());
    case.ternarize(&[&name(247), &name(248), &name(254), &name(255)], &[&report]).ok();
    assert_eq!(case.made().len(), 5);
    let names = [name(247), name(248), name(254), name(255)];
    let bytes = names.map(|name| fs::read(case.out(name)).unwrap());
    assert!(bytes.windows(2).all(|pair| pair[0] == pair[1]));
    case.ternarize(&[&name(256)], &[]).refused(4, &["nnn.gguf", "File name too long"]);
    assert_eq!(case.made().len(), 5);
}

#[test]
fn relative_paths_are_those_of_the_working_folder() {
    let case = Case::new(&Model::noise(mini_config(), Dtype::BF16, 1));
    let mut command = std::process::Command::new(crate::harness::program());
    command.current_dir(case.input(""));
    command.args(["model.safetensors", "--block=256", "-o", "m.gguf"]);
    crate::harness::Run::of(command).ok();
    assert!(case.input("m.gguf").exists());
}
