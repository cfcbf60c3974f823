//! `cargo xtask aie`: the emitted folder, and the run of a toolchain that is played by scripts.

#![allow(clippy::unwrap_used, reason = "helpers of tests are parts of tests")]

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;
use sha2::{Digest as _, Sha256};

fn xtask(arguments: &[&str], folder: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_xtask"));
    command.arg("aie").args(arguments).current_dir(folder);
    command.env_remove("PEANO_INSTALL_DIR").env_remove("MLIR_AIE_INSTALL_DIR");
    command
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&[&output.stdout[..], &output.stderr].concat()).into_owned()
}

#[test]
fn emits_the_same_folder_twice_and_replaces_only_its_own() {
    let folder = tempfile::tempdir().unwrap();
    let emit = |arguments: &[&str]| {
        xtask(&[&["emit", "-o"], arguments].concat(), folder.path()).output().unwrap()
    };
    assert!(emit(&["a"]).status.success() && emit(&["b"]).status.success());
    let manifest = fs::read(folder.path().join("a/manifest.json")).unwrap();
    assert_eq!(manifest, fs::read(folder.path().join("b/manifest.json")).unwrap());
    let manifest: Value = serde_json::from_slice(&manifest).unwrap();
    let files = manifest["files"].as_array().unwrap();
    assert!(files.len() > 10 && manifest["schema"] == 1);
    for file in files {
        let bytes = fs::read(folder.path().join("a").join(file["path"].as_str().unwrap())).unwrap();
        let sha256: String = Sha256::digest(&bytes).iter().map(|b| format!("{b:02x}")).collect();
        assert_eq!(file["sha256"].as_str(), Some(sha256.as_str()));
        assert_eq!(file["size_bytes"].as_u64(), Some(bytes.len() as u64));
    }

    let again = emit(&["a"]);
    assert!(!again.status.success() && text(&again).contains("--force"));
    fs::write(folder.path().join("a/array.mlir"), "").unwrap();
    assert!(emit(&["a", "--force"]).status.success());
    assert!(fs::metadata(folder.path().join("a/array.mlir")).unwrap().len() > 100_000);
    fs::create_dir(folder.path().join("c")).unwrap();
    fs::write(folder.path().join("c/thesis.txt"), "mine").unwrap();
    let other = emit(&["c", "--force"]);
    assert!(!other.status.success() && text(&other).contains("something else"));
    assert_eq!(fs::read(folder.path().join("c/thesis.txt")).unwrap(), b"mine");
    // Nothing else is left behind.
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 3);
}

#[test]
fn without_the_toolchain_it_says_what_to_install() {
    let folder = tempfile::tempdir().unwrap();
    let output = xtask(&["build"], folder.path()).env("PATH", "").output().unwrap();
    assert_eq!(output.status.code(), Some(5));
    for part in ["clang++", "mlir_aie 1.4.2", "aie_api/aie.hpp", "xclbinutil", "docs/npu.md"] {
        assert!(text(&output).contains(part), "no `{part}` in {}", text(&output));
    }
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
}

/// A toolchain of scripts: `insts` is what its compiler does about instruction words, `size` of a program.
fn toolchain(root: &Path, insts: &str, size: u32) {
    let script = |path: &str, body: &str| {
        let path = root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, format!("#!/bin/sh\nset -eu\n{body}\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    };
    // The object is the last argument.
    script(
        "peano/bin/clang++",
        "for last; do :; done\ntest -f ../kernels/layout.h\ntouch \"$last\"",
    );
    script("peano/bin/llvm-size", &format!("echo '.text {size} 0'\necho '.data 99999 0'"));
    let aiecc = "test -f ternary_matmul.o\nfor last; do :; done\ngrep -q 'aie.device(npu2)' \"$last\"\n\
                 mkdir project\ntouch project/core_0_2.elf array.xclbin";
    script("mlir/bin/aiecc", &format!("{aiecc}\n{insts}"));
    script("mlir/include/aie_api/aie.hpp", "");
    script("bin/xclbinutil", "");
}

#[test]
fn the_compilers_words_are_held_against_ours() {
    let copy = "cp ../jobs/34816x5120.bin insts.bin";
    let mutate = "printf '\\001' | dd of=insts.bin bs=1 seek=40 conv=notrunc 2>/dev/null";
    for (insts, size, code, said) in [
        (copy.to_owned(), 8000, 0, "instruction words are ours"),
        (format!("{copy}\n{mutate}"), 8000, 1, "word 10: the compiler has"),
        (format!("{copy}\nprintf '\\0\\0\\0\\0' >> insts.bin"), 8000, 1, "we have none"),
        (copy.to_owned(), 16388, 1, "16388 bytes of program, a core has 16384"),
        ("exit 3".to_owned(), 8000, 4, "build.sh` failed"),
        (String::new(), 8000, 4, "insts.bin"),
    ] {
        let folder = tempfile::tempdir().unwrap();
        toolchain(folder.path(), &insts, size);
        let path = format!("{}:/usr/bin:/bin", folder.path().join("bin").display());
        let output = xtask(&["build", "-o", "out"], folder.path())
            .env("PATH", path)
            .env("PEANO_INSTALL_DIR", "peano")
            .env("MLIR_AIE_INSTALL_DIR", "mlir")
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(code), "{}", text(&output));
        assert!(text(&output).contains(said), "no `{said}` in {}", text(&output));
    }
}
