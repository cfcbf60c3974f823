//! One core's memory and the kernels compiled for this machine.
//!
//! The memory starts as poison, and the rounding and saturation registers keep their values from call
//! to call, starting at floor and no saturation: a kernel that relies on either gives wrong data.

use std::ffi::{CStr, c_char};
use std::ptr::NonNull;

/// Bytes of a core's memory.
pub const MEMORY_BYTES: usize = 65536;

#[repr(C)]
struct RawCore {
    _opaque: [u8; 0],
}

unsafe extern "C" {
    fn aie_host_core_new() -> *mut RawCore;
    fn aie_host_core_free(core: *mut RawCore);
    fn aie_host_core_memory(core: *mut RawCore) -> *mut u8;
    fn aie_host_core_call(core: *mut RawCore, id: u32, args: *const u32, n: u32) -> *const c_char;
}

/// A kernel, and how it is called.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum Kernel {
    /// `(slices, slice, weights, slot, acc, strip)`
    TernaryMatmul = 0,
    /// `(acc, strip, out, slot)`
    StripOut = 1,
    /// `(x, slices, mode)`
    HadamardQuantize = 2,
}

impl Kernel {
    /// All of them, by number.
    pub const ALL: [Self; 3] = [Self::TernaryMatmul, Self::StripOut, Self::HadamardQuantize];

    /// The C symbol.
    #[must_use]
    pub fn symbol(self) -> &'static str {
        match self {
            Self::TernaryMatmul => "ternary_matmul",
            Self::StripOut => "strip_out",
            Self::HadamardQuantize => "hadamard_quantize",
        }
    }

    /// The file of `kernels/` that defines it, without its extension.
    #[must_use]
    pub fn source(self) -> &'static str {
        match self {
            Self::TernaryMatmul | Self::StripOut => "ternary_matmul",
            Self::HadamardQuantize => "hadamard_quantize",
        }
    }

    /// Types of the arguments: the elements of a buffer, or a number.
    #[must_use]
    pub fn arguments(self) -> &'static [Argument] {
        use Argument::{Floats, Number, Words};
        match self {
            Self::TernaryMatmul => &[Words, Number, Words, Number, Floats, Number],
            Self::StripOut => &[Floats, Number, Floats, Number],
            Self::HadamardQuantize => &[Floats, Words, Number],
        }
    }
}

/// Type of a kernel's argument.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Argument {
    /// A buffer of int32.
    Words,
    /// A buffer of f32.
    Floats,
    /// An int32.
    Number,
}

/// A kernel touched what it must not.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("kernel `{}`: {reason}", kernel.symbol())]
pub struct KernelFault {
    /// The kernel.
    pub kernel: Kernel,
    /// What it did.
    pub reason: String,
}

/// One core.
#[derive(Debug)]
pub struct Core {
    raw: NonNull<RawCore>,
}

// SAFETY: the C++ object is plain memory without ties to the thread that made it; calls need `&mut`.
unsafe impl Send for Core {}

impl Core {
    /// A core with poisoned memory.
    ///
    /// # Panics
    /// If memory is exhausted.
    #[must_use]
    pub fn new() -> Self {
        // SAFETY: the function takes nothing and returns an owned object or null.
        let raw = unsafe { aie_host_core_new() };
        Self { raw: NonNull::new(raw).expect("64 KiB are there") }
    }

    fn base(&self) -> *mut u8 {
        // SAFETY: `raw` is alive until `drop`; the function only computes an address in it.
        unsafe { aie_host_core_memory(self.raw.as_ptr()) }
    }

    /// Its memory.
    #[must_use]
    pub fn memory(&self) -> &[u8] {
        let base = self.base();
        // SAFETY: the object holds `MEMORY_BYTES` initialised bytes at `base`; they live as long as
        // `self`, and nothing writes to them while `self` is borrowed.
        unsafe { std::slice::from_raw_parts(base, MEMORY_BYTES) }
    }

    /// Its memory, to write.
    pub fn memory_mut(&mut self) -> &mut [u8] {
        let base = self.base();
        // SAFETY: as in `memory`, and `&mut self` makes this the only reference.
        unsafe { std::slice::from_raw_parts_mut(base, MEMORY_BYTES) }
    }

    /// Runs `kernel`; buffers are byte addresses in the core's memory.
    ///
    /// # Errors
    /// An access outside of the memory or out of alignment, or arguments that are not the kernel's.
    pub fn call(&mut self, kernel: Kernel, args: &[u32]) -> Result<(), KernelFault> {
        let fail = |reason: String| Err(KernelFault { kernel, reason });
        if args.len() != kernel.arguments().len() {
            return fail(format!("called with {} arguments", args.len()));
        }
        // SAFETY: `raw` is alive and borrowed for this call alone; `args` holds as many words as said;
        // the callee checks addresses and indices against its memory before it uses them.
        let fault = unsafe {
            // At most 6 arguments.
            aie_host_core_call(self.raw.as_ptr(), kernel as u32, args.as_ptr(), args.len() as u32)
        };
        if fault.is_null() {
            return Ok(());
        }
        // SAFETY: a non-null result is a string constant of the C++ code.
        let text = unsafe { CStr::from_ptr(fault) };
        fail(text.to_string_lossy().into_owned())
    }
}

impl Default for Core {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for Core {
    fn drop(&mut self) {
        // SAFETY: `raw` came from `aie_host_core_new` and is freed once, here.
        unsafe { aie_host_core_free(self.raw.as_ptr()) }
    }
}
