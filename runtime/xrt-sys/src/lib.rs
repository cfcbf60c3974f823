//! XRT, AMD's runtime of the NPU, opened at run time: the programs build and run where it is not.
//!
//! XRT's C++ classes are behind a C interface of our own, `shim/drafter_xrt.h`, that is compiled where
//! XRT's headers are:
//!
//! ```text
//! g++ -std=c++17 -O2 -fPIC -shared shim/drafter_xrt.cpp -lxrt_coreutil -o libdrafter_xrt.so
//! ```
//!
//! Three layers: [`sys`] is what bindgen makes of the header, [`result`] calls it and turns failures
//! into [`Failure`]s, and the types of this level own their handles: a [`Device`], a [`Context`] with an
//! image, its [`Kernel`], [`Buffer`]s that know which argument they are, and a [`Run`].
//!
//! One device is used by one thread at a time: all types are `Send`, none is `Sync`.

mod owned;
pub mod result;
#[allow(missing_docs, non_camel_case_types, clippy::all, reason = "generated from the header")]
pub mod sys;

pub use owned::{Argument, Buffer, Context, Device, Kernel, Memory, Run};
pub use result::{Api, Failure, OpenError, State};

#[cfg(test)]
mod tests {
    use sha2::{Digest as _, Sha256};

    /// CI also compares with what bindgen makes of it.
    #[test]
    fn the_bindings_are_those_of_the_header() {
        let found = include_str!("sys.rs").lines().nth(1).unwrap();
        let header = Sha256::digest(include_bytes!("../shim/drafter_xrt.h"));
        let expected: String = header.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(found, format!("// {expected}"), "run `cargo xtask bindings`");
    }
}
