//! The crate graph is the architecture: edges go downwards, and only these.

use std::collections::{BTreeMap, BTreeSet};

use cargo_metadata::{DependencyKind, MetadataCommand};

/// Which crates of the workspace a crate is built from.
const EDGES: [(&str, &[&str]); 11] = [
    ("hadamard", &[]),
    ("formats", &[]),
    // Its simulator must not be able to call the runtime or the transform.
    ("aie-kernels", &[]),
    ("report", &[]),
    ("command-line", &["formats", "hadamard"]),
    ("compiler", &["command-line", "formats", "hadamard", "report"]),
    ("runtime", &["formats", "hadamard"]),
    ("server", &["formats", "hadamard", "runtime"]),
    ("drafter", &["command-line", "formats", "hadamard", "report", "runtime", "server"]),
    ("xtask", &["aie-kernels", "formats", "hadamard"]),
    ("integration-tests", &[]),
];

/// Crates that nothing but tests may see.
const TOP: [&str; 2] = ["integration-tests", "xtask"];

#[test]
fn edges_go_downwards_only() {
    let metadata = MetadataCommand::new()
        .manifest_path(concat!(env!("CARGO_MANIFEST_DIR"), "/../Cargo.toml"))
        .no_deps()
        .exec()
        .unwrap();
    let packages = metadata.workspace_packages();
    let names: BTreeSet<&str> = packages.iter().map(|p| p.name.as_str()).collect();
    let allowed: BTreeMap<&str, BTreeSet<&str>> =
        EDGES.map(|(name, edges)| (name, edges.iter().copied().collect())).into();
    assert!(names.iter().eq(allowed.keys()), "every crate of the workspace has its edges here");

    for package in &packages {
        let name = package.name.as_str();
        for dependency in package.dependencies.iter().filter(|d| names.contains(d.name.as_str())) {
            let other = dependency.name.as_str();
            let allowed = match dependency.kind {
                DependencyKind::Development if name == "integration-tests" => true,
                DependencyKind::Development if name == "aie-kernels" => {
                    ["formats", "hadamard"].contains(&other)
                }
                _ => allowed[name].contains(other),
            };
            assert!(allowed, "{name} must not depend on {other} ({})", dependency.kind);
            assert!(!TOP.contains(&other) || TOP.contains(&name), "{other} is above {name}");
        }
    }
}
