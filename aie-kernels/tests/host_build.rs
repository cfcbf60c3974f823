//! What the host's compiler makes of the kernels: under sanitizers, with a fault planted, and with a
//! shape that the cores lack.

#![allow(clippy::unwrap_used, reason = "helpers of tests are parts of tests")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn compiler() -> Command {
    let mut command = Command::new(std::env::var_os("CXX").unwrap_or_else(|| "c++".into()));
    command.args(["-std=c++20", "-ffp-contract=off", "-fno-fast-math", "-fno-strict-aliasing"]);
    command.arg("-I").arg(root().join("host")).arg("-I").arg(root().join("kernels"));
    command
}

/// Builds the driver with `kernel` in the place of `ternary_matmul.cc` and runs it.
fn drive(folder: &Path, kernel: &Path, flags: &[&str]) -> Output {
    let program = folder.join(format!("driver{}", flags.len()));
    let sources: [PathBuf; 4] = [
        root().join("tests/kernels_driver.cc"),
        root().join("host/core.cc"),
        root().join("kernels/hadamard_quantize.cc"),
        kernel.to_owned(),
    ];
    let built = compiler().args(flags).args(sources).arg("-o").arg(&program).output().unwrap();
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    Command::new(program).output().unwrap()
}

#[test]
fn sanitizers_find_nothing_and_optimisation_changes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let kernel = root().join("kernels/ternary_matmul.cc");
    let plain = drive(folder.path(), &kernel, &["-O2"]);
    let sanitizers = ["-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"];
    let checked = drive(folder.path(), &kernel, &sanitizers);
    assert!(checked.status.success(), "{}", String::from_utf8_lossy(&checked.stderr));
    assert!(plain.status.success() && checked.stderr.is_empty());
    assert_eq!(plain.stdout, checked.stdout);
    assert_eq!(plain.stdout.len(), 17);
}

/// A core starts at floor: a kernel that does not set its modes has other bits.
#[test]
fn up_1401_a_kernel_that_forgets_the_rounding_mode_is_seen() {
    let folder = tempfile::tempdir().unwrap();
    let path = root().join("kernels/ternary_matmul.cc");
    let text = std::fs::read_to_string(&path).unwrap();
    let good = drive(folder.path(), &path, &["-O1"]);
    let call = "\n  set_modes();";
    assert_eq!(text.matches(call).count(), 2, "one call at each entry");
    let broken = folder.path().join("broken.cc");
    std::fs::write(
        &broken,
        text.replace("aie::rounding_mode::conv_even", "aie::rounding_mode::floor"),
    )
    .unwrap();
    let floor = drive(folder.path(), &broken, &["-O1"]);
    assert_ne!(good.stdout, floor.stdout);
}

/// Faults in the kernel itself have other bits, too.
#[test]
fn faults_in_the_kernel_are_seen() {
    let folder = tempfile::tempdir().unwrap();
    let path = root().join("kernels/ternary_matmul.cc");
    let text = std::fs::read_to_string(&path).unwrap();
    let good = drive(folder.path(), &path, &["-O0"]);
    for (right, wrong) in [
        ("3u << (2 * j)", "1u << (2 * j)"),
        ("3u << (2 * j)", "3u << (2 * j + 1)"),
        ("if (zero) {", "if (false) {"),
        ("if (zero) {", "if (true) {"),
        ("first && g == 0", "first"),
        ("Tile odd(start, 2 * j + 2)", "Tile odd(start, 2 * j)"),
        ("odd.mac(high, b1.extract<32>(1))", "odd.mac(high, b1.extract<32>(0))"),
        ("scales(s, d, j), 3, zero", "scales(s, d, j), 1, zero"),
        ("0.0625f, 0.015625f", "0.0625f, 0.0625f"),
        ("header[kMode] == 0", "header[kMode] != 0"),
        ("(g / 2) * kChunkBytes", "0 * kChunkBytes"),
        ("slot * kStripBytes", "0 * kStripBytes"),
    ] {
        assert!(text.contains(right), "{right}");
        let broken = folder.path().join("broken.cc");
        std::fs::write(&broken, text.replace(right, wrong)).unwrap();
        assert_ne!(drive(folder.path(), &broken, &["-O0"]).stdout, good.stdout, "{wrong}");
    }
}

#[test]
fn a_shape_that_aie2p_lacks_does_not_compile() {
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("shape.cc");
    let build = |shape: &str| {
        let text = format!(
            "#include <aie_api/aie.hpp>\nusing T = aie::mmul<{shape}>;\nauto n = sizeof(T);\n"
        );
        std::fs::write(&source, text).unwrap();
        compiler().arg("-fsyntax-only").arg(&source).output().unwrap()
    };
    for good in ["8, 4, 8, int16, uint8", "8, 8, 8, int8, uint8"] {
        assert!(build(good).status.success(), "{good}");
    }
    for bad in ["4, 8, 8, int8, uint8", "8, 8, 8, int16, uint8", "16, 8, 8, int8, uint8"] {
        let output = build(bad);
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && text.contains("AIE2P has no matrix product"), "{text}");
    }
}
