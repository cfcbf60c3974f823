//! Compiles the kernels for this machine, against `host/aie_api` in the place of the vendor's header.
//!
//! No `-march` and no contraction: a fused multiply-add would give other bits on other machines.

fn main() {
    let sources = ["kernels/ternary_matmul.cc", "kernels/hadamard_quantize.cc", "host/core.cc"];
    let headers = ["kernels/layout.h", "host/aie_api/aie.hpp", "host/core.h"];
    for path in sources.iter().chain(&headers) {
        println!("cargo::rerun-if-changed={path}");
    }
    cc::Build::new()
        .cpp(true)
        .std("c++20")
        .files(sources)
        .include("host")
        .include("kernels")
        .flag("-ffp-contract=off")
        .flag("-fno-fast-math")
        .flag("-fno-strict-aliasing")
        .flag_if_supported("-Wno-unknown-pragmas")
        .opt_level(2)
        .warnings(true)
        .warnings_into_errors(false)
        .compile("aie_kernels_host");
}
