//! Compiles the shim of `xrt-sys` against the simulated XRT, under another name than the real one's.

fn main() {
    let shim = "../xrt-sys/shim";
    for path in ["include", "sim", shim] {
        println!("cargo::rerun-if-changed={path}");
    }
    cc::Build::new()
        .cpp(true)
        .std("c++17")
        .file(format!("{shim}/drafter_xrt.cpp"))
        .file("sim/xrt.cpp")
        .include("include")
        .include("sim")
        .include(shim)
        .define("drafter_xrt", "drafter_xrt_sim")
        .opt_level(1)
        .warnings(true)
        .extra_warnings(true)
        .warnings_into_errors(false)
        .compile("drafter_xrt_sim");
}
