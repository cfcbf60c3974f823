//! The floating-point environment: round to nearest even, subnormals kept.
//!
//! Rust code assumes these modes, and the promise of equal bits rests on them. They live in a
//! register of each thread, and a host program may have changed it: numeric libraries do so on load,
//! and threads inherit the modes of the one that starts them. Every public entry that computes, and
//! every worker thread, therefore begins with [`check`].

use crate::Error;

/// Reads the control register of this thread.
///
/// # Errors
/// [`Error::FloatEnvironment`] when rounding is not to nearest, or subnormals are flushed or read as
/// zero.
pub fn check() -> Result<(), Error> {
    let wrong = |expected, found| Err(Error::FloatEnvironment { expected, found });
    let modes = control::modes();
    if !modes.nearest {
        return wrong("rounding to nearest", "another rounding mode");
    }
    if modes.flush {
        return wrong("subnormal results kept", "flush to zero");
    }
    if modes.daz {
        return wrong("subnormal inputs kept", "denormals are zero");
    }
    Ok(())
}

/// What the control register says.
struct Modes {
    nearest: bool,
    flush: bool,
    daz: bool,
}

#[cfg(target_arch = "x86_64")]
#[expect(unsafe_code, reason = "the register can only be read by an instruction")]
mod control {
    use std::arch::asm;

    const DAZ: u32 = 1 << 6;
    const ROUNDING: u32 = 3 << 13;
    const FLUSH: u32 = 1 << 15;

    pub(super) fn modes() -> super::Modes {
        let mxcsr = mxcsr();
        super::Modes {
            nearest: mxcsr & ROUNDING == 0,
            flush: mxcsr & FLUSH != 0,
            daz: mxcsr & DAZ != 0,
        }
    }

    fn mxcsr() -> u32 {
        let mut mxcsr = 0_u32;
        // SAFETY: the instruction stores 4 bytes at the address, which is that of a live, writable
        // and aligned u32. It touches no stack and no flags, and exists on every x86-64 CPU (SSE).
        unsafe {
            asm!("stmxcsr [{}]", in(reg) &raw mut mxcsr, options(nostack, preserves_flags));
        }
        mxcsr
    }
}

#[cfg(target_arch = "aarch64")]
#[expect(unsafe_code, reason = "the register can only be read by an instruction")]
mod control {
    use std::arch::asm;

    const ROUNDING: u64 = 3 << 22;
    /// Flushes inputs as well as results.
    const FLUSH: u64 = 1 << 24;

    pub(super) fn modes() -> super::Modes {
        let fpcr: u64;
        // SAFETY: the instruction moves a register that every program may read into another; it
        // touches no memory, no stack and no flags.
        unsafe {
            asm!("mrs {}, fpcr", out(reg) fpcr, options(nomem, nostack, preserves_flags));
        }
        let flush = fpcr & FLUSH != 0;
        super::Modes { nearest: fpcr & ROUNDING == 0, flush, daz: flush }
    }
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
mod control {
    /// No way to change the modes is known here.
    pub(super) fn modes() -> super::Modes {
        super::Modes { nearest: true, flush: false, daz: false }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_environment_passes() {
        assert!(check().is_ok());
    }

    #[cfg(target_arch = "x86_64")]
    #[test]
    #[expect(unsafe_code, reason = "sets the modes that the check is for")]
    fn changed_modes_are_named() {
        use std::arch::asm;

        fn load(mxcsr: u32) {
            // SAFETY: loads the control register of this test's own thread from a live u32 whose
            // reserved bits are zero and whose exceptions are masked.
            unsafe {
                asm!("ldmxcsr [{}]", in(reg) &raw const mxcsr, options(nostack, preserves_flags));
            }
        }

        const DEFAULT: u32 = 0x1F80;
        for (bit, name) in [
            (1 << 6, "denormals are zero"),
            (1 << 13, "another rounding mode"),
            (2 << 13, "another rounding mode"),
            (3 << 13, "another rounding mode"),
            (1 << 15, "flush to zero"),
        ] {
            load(DEFAULT | bit);
            let result = check();
            load(DEFAULT);
            let message = result.unwrap_err().to_string();
            assert!(message.contains(name), "{message}");
        }
        assert!(check().is_ok());
    }
}
