//! Elementary functions and sums whose bits are the same everywhere.
//!
//! The platform's `exp` and `sin` differ between systems and versions, and with them the tokens of a
//! model. The functions here are polynomials with `+` and `×` after a fixed range reduction, in f64;
//! results that are f32 are rounded once. None uses a fused multiply-add. A test holds the library
//! to them: nothing outside tests calls a transcendental function of the standard library.
//!
//! Square roots and divisions are IEEE operations with one right answer, and are used as they are.

mod exp;
mod log;
mod sum;
mod trig;

pub use exp::{exp, exp_f64, sigmoid, silu, softplus, tanh};
pub use log::{ln, pow};
pub use sum::{Sum16, dot16, sum_squares};
pub use trig::sin_cos;

#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};

    /// What the sources may not call: everything whose last bit is the platform's choice, and the
    /// fused multiply-add.
    const FORBIDDEN: [&str; 27] = [
        "exp", "exp2", "exp_m1", "ln", "ln_1p", "log", "log2", "log10", "powf", "powi", "sin",
        "cos", "tan", "sin_cos", "asin", "acos", "atan", "atan2", "sinh", "cosh", "tanh", "asinh",
        "acosh", "atanh", "cbrt", "hypot", "mul_add",
    ];

    fn sources(dir: &Path, out: &mut Vec<PathBuf>) {
        for entry in std::fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                sources(&path, out);
            } else if path.extension().is_some_and(|ext| ext == "rs") && !path.ends_with("tests.rs")
            {
                out.push(path);
            }
        }
    }

    #[test]
    fn the_library_calls_no_transcendental_function_of_the_platform() {
        let mut paths = Vec::new();
        sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), &mut paths);
        assert!(paths.len() > 4);
        for path in paths {
            let text = std::fs::read_to_string(&path).unwrap();
            // Tests stand at the end of a file.
            let code = text.split("#[cfg(test)]").next().unwrap();
            for line in code.lines().filter(|line| !line.trim_start().starts_with("//")) {
                for name in FORBIDDEN {
                    for call in
                        [format!(".{name}("), format!("f32::{name}"), format!("f64::{name}")]
                    {
                        assert!(!line.contains(&call), "{}: {line}", path.display());
                    }
                }
            }
        }
    }
}
