//! The calls of the C interface, each with its failure as a [`Failure`].

use std::ffi::{CStr, CString, OsString, c_char};
use std::fmt;
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::sync::Arc;

use crate::sys;

/// What XRT could not do, and its words for the reason.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{call}: {reason}")]
pub struct Failure {
    /// What was tried.
    pub call: &'static str,
    /// The reason.
    pub reason: String,
}

impl Failure {
    /// The number of the system's error that XRT names in its reason, positive: 11 in `err=-11`.
    #[must_use]
    pub fn errno(&self) -> Option<u32> {
        let at = self.reason.find("err=")?;
        let rest = self.reason[at + 4..].trim_start_matches('-');
        let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
        rest[..digits].parse().ok()
    }
}

/// The shim could not be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The system did not load it; XRT itself may be what is missing.
    #[error("`{}`: {reason}", path.display())]
    Load {
        /// The library.
        path: PathBuf,
        /// What the system said.
        reason: String,
    },
    /// It has another interface than this program.
    #[error("`{}`: interface {found} of {bytes} bytes, expected {expected} of {expected_bytes}", path.display())]
    Version {
        /// The library.
        path: PathBuf,
        /// Its version.
        found: u32,
        /// The bytes of its table.
        bytes: u32,
        /// This program's version.
        expected: u32,
        /// The bytes of this program's table.
        expected_bytes: usize,
    },
    /// It lacks a function.
    #[error("`{}`: the table lacks a function", path.display())]
    Incomplete {
        /// The library.
        path: PathBuf,
    },
}

/// How a command ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// It is done. In every other state its context is dead.
    Completed,
    /// It failed: wrong arguments, or an error of the array.
    Error,
    /// It was aborted.
    Abort,
    /// It did not end in time.
    Timeout,
    /// The device did not come back from a reset.
    NoResponse,
    /// Another number.
    Other(u32),
}

impl From<u32> for State {
    fn from(state: u32) -> Self {
        match state {
            sys::DRAFTER_XRT_COMPLETED => Self::Completed,
            sys::DRAFTER_XRT_ERROR => Self::Error,
            sys::DRAFTER_XRT_ABORT => Self::Abort,
            sys::DRAFTER_XRT_TIMEOUT => Self::Timeout,
            sys::DRAFTER_XRT_NO_RESPONSE => Self::NoResponse,
            other => Self::Other(other),
        }
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Completed => f.write_str("completed"),
            Self::Error => f.write_str("error (5)"),
            Self::Abort => f.write_str("abort (6)"),
            Self::Timeout => f.write_str("timeout (8)"),
            Self::NoResponse => f.write_str("no response (9)"),
            Self::Other(state) => write!(f, "state {state}"),
        }
    }
}

/// Declares the functions of the table, all of them present.
macro_rules! functions {
    ($($name:ident: fn($($arg:ty),*) $(-> $ret:ty)?;)*) => {
        /// The table without gaps.
        #[derive(Debug, Clone, Copy)]
        struct Functions {
            $($name: unsafe extern "C" fn($($arg),*) $(-> $ret)?,)*
        }

        impl Functions {
            fn of(table: &sys::drafter_xrt_api) -> Option<Self> {
                Some(Self { $($name: table.$name?,)* })
            }
        }
    };
}

functions! {
    last_error: fn() -> *const c_char;
    device_open: fn(u32) -> *mut sys::drafter_xrt_device;
    device_free: fn(*mut sys::drafter_xrt_device);
    device_info: fn(*mut sys::drafter_xrt_device, u32, *mut c_char, u64) -> i64;
    context_new: fn(*mut sys::drafter_xrt_device, *const u8, u64) -> *mut sys::drafter_xrt_context;
    context_free: fn(*mut sys::drafter_xrt_context);
    kernel_new: fn(*mut sys::drafter_xrt_context, *const c_char) -> *mut sys::drafter_xrt_kernel;
    kernel_group: fn(*mut sys::drafter_xrt_kernel, u32) -> i32;
    kernel_free: fn(*mut sys::drafter_xrt_kernel);
    buffer_new: fn(*mut sys::drafter_xrt_device, u64, u32, i32) -> *mut sys::drafter_xrt_buffer;
    buffer_map: fn(*mut sys::drafter_xrt_buffer) -> *mut u8;
    buffer_sync: fn(*mut sys::drafter_xrt_buffer, u32, u64, u64) -> i32;
    buffer_free: fn(*mut sys::drafter_xrt_buffer);
    run_new: fn(*mut sys::drafter_xrt_kernel) -> *mut sys::drafter_xrt_run;
    run_set_u64: fn(*mut sys::drafter_xrt_run, u32, u64) -> i32;
    run_set_i32: fn(*mut sys::drafter_xrt_run, u32, i32) -> i32;
    run_set_buffer: fn(*mut sys::drafter_xrt_run, u32, *mut sys::drafter_xrt_buffer) -> i32;
    run_start: fn(*mut sys::drafter_xrt_run) -> i32;
    run_wait: fn(*mut sys::drafter_xrt_run, u32) -> i32;
    run_free: fn(*mut sys::drafter_xrt_run);
}

/// An opened shim.
#[derive(Debug, Clone)]
pub struct Api {
    functions: Functions,
    /// Where the functions are; none for those that are linked into the program.
    _library: Option<Arc<libloading::Library>>,
}

impl Api {
    /// Opens the shim at `path`, and with it XRT.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn open(path: &Path) -> Result<Self, OpenError> {
        let load = |error: &libloading::Error| OpenError::Load {
            path: path.to_path_buf(),
            reason: error.to_string(),
        };
        // A name without a folder would be looked for elsewhere.
        let name: OsString = std::path::absolute(path).unwrap_or_else(|_| path.into()).into();
        // SAFETY: initialisers of the shim and of XRT run; both are libraries made to be loaded, and
        // the caller chose the file as he chose this program.
        let library = unsafe { libloading::Library::new(name) }.map_err(|e| load(&e))?;
        // SAFETY: the symbol is declared with this type in drafter_xrt.h, and no other library has it.
        let table = unsafe {
            library.get::<unsafe extern "C" fn() -> *const sys::drafter_xrt_api>(c"drafter_xrt")
        };
        let table = *table.map_err(|e| load(&e))?;
        // SAFETY: the function takes nothing and returns the address of a constant.
        let table = unsafe { table() };
        // SAFETY: the constant lives as long as the library, which is kept.
        let functions = unsafe { Self::functions(table, path) }?;
        Ok(Self { functions, _library: Some(Arc::new(library)) })
    }

    /// The shim whose table is linked into this program; `name` is for messages.
    ///
    /// # Errors
    /// [`OpenError::Version`] if it is not of this version.
    ///
    /// # Safety
    /// `table` is null or the address of a table that lives as long as the program, whose functions keep
    /// the promises of drafter_xrt.h.
    pub unsafe fn linked(
        table: *const sys::drafter_xrt_api,
        name: &str,
    ) -> Result<Self, OpenError> {
        // SAFETY: as the caller promises.
        let functions = unsafe { Self::functions(table, Path::new(name)) }?;
        Ok(Self { functions, _library: None })
    }

    /// # Safety
    /// `table` is null or the address of a table, of which nothing is read but the version if that is
    /// another one.
    unsafe fn functions(
        table: *const sys::drafter_xrt_api,
        path: &Path,
    ) -> Result<Functions, OpenError> {
        let incomplete = || OpenError::Incomplete { path: path.to_path_buf() };
        let Some(table) = NonNull::new(table.cast_mut()) else { return Err(incomplete()) };
        // The first two words are those of every version.
        // SAFETY: the address of a table; both words are within the shortest one.
        let [found, bytes] = unsafe { table.cast::<[u32; 2]>().read() };
        let expected_bytes = size_of::<sys::drafter_xrt_api>();
        if (found, bytes as usize) != (sys::DRAFTER_XRT_ABI, expected_bytes) {
            let (path, expected) = (path.to_path_buf(), sys::DRAFTER_XRT_ABI);
            return Err(OpenError::Version { path, found, bytes, expected, expected_bytes });
        }
        // SAFETY: it has the version and the length of this type.
        let table = unsafe { table.as_ref() };
        Functions::of(table).ok_or_else(incomplete)
    }

    fn failure(&self, call: &'static str) -> Failure {
        // SAFETY: the function takes nothing and returns a string that lives until the next call.
        let text = unsafe { (self.functions.last_error)() };
        let reason = match NonNull::new(text.cast_mut()) {
            None => String::new(),
            // SAFETY: not null, ends with a zero, and is copied before the next call.
            Some(text) => unsafe { CStr::from_ptr(text.as_ptr()) }.to_string_lossy().into_owned(),
        };
        let reason = if reason.is_empty() { "no reason is given".to_owned() } else { reason };
        Failure { call, reason }
    }

    fn handle<T>(&self, call: &'static str, handle: *mut T) -> Result<NonNull<T>, Failure> {
        NonNull::new(handle).ok_or_else(|| self.failure(call))
    }

    fn number(&self, call: &'static str, number: i32) -> Result<u32, Failure> {
        u32::try_from(number).map_err(|_| self.failure(call))
    }

    /// Opens a device.
    ///
    /// # Errors
    /// A [`Failure`].
    pub fn device_open(&self, index: u32) -> Result<NonNull<sys::drafter_xrt_device>, Failure> {
        // SAFETY: the function takes a number.
        let device = unsafe { (self.functions.device_open)(index) };
        self.handle("opening the device", device)
    }

    /// Closes a device.
    ///
    /// # Safety
    /// `device` is open and is not used afterwards.
    pub unsafe fn device_free(&self, device: NonNull<sys::drafter_xrt_device>) {
        // SAFETY: as the caller promises.
        unsafe { (self.functions.device_free)(device.as_ptr()) }
    }

    /// A text about a device.
    ///
    /// # Errors
    /// A [`Failure`].
    ///
    /// # Safety
    /// `device` is open.
    pub unsafe fn device_info(
        &self,
        device: NonNull<sys::drafter_xrt_device>,
        what: u32,
    ) -> Result<String, Failure> {
        let mut text = vec![0u8; 4096];
        let (at, capacity) = (text.as_mut_ptr().cast(), text.len() as u64);
        // SAFETY: the device is open, and `text` has the capacity that is told.
        let len = unsafe { (self.functions.device_info)(device.as_ptr(), what, at, capacity) };
        let Ok(len) = usize::try_from(len) else {
            return Err(self.failure("asking the device"));
        };
        text.truncate(len.min(4095));
        Ok(String::from_utf8_lossy(&text).into_owned())
    }

    /// Makes a context with an image.
    ///
    /// # Errors
    /// A [`Failure`].
    ///
    /// # Safety
    /// `device` is open.
    pub unsafe fn context_new(
        &self,
        device: NonNull<sys::drafter_xrt_device>,
        image: &[u8],
    ) -> Result<NonNull<sys::drafter_xrt_context>, Failure> {
        let (at, len) = (image.as_ptr(), image.len() as u64);
        // SAFETY: the device is open, and `image` has as many bytes as told, which are copied.
        let context = unsafe { (self.functions.context_new)(device.as_ptr(), at, len) };
        self.handle("making a hardware context", context)
    }

    /// Frees a context.
    ///
    /// # Safety
    /// `context` exists and is not used afterwards; its kernels are freed.
    pub unsafe fn context_free(&self, context: NonNull<sys::drafter_xrt_context>) {
        // SAFETY: as the caller promises.
        unsafe { (self.functions.context_free)(context.as_ptr()) }
    }

    /// Finds a kernel of the image.
    ///
    /// # Errors
    /// A [`Failure`].
    ///
    /// # Safety
    /// `context` exists.
    pub unsafe fn kernel_new(
        &self,
        context: NonNull<sys::drafter_xrt_context>,
        name: &str,
    ) -> Result<NonNull<sys::drafter_xrt_kernel>, Failure> {
        let call = "finding the kernel";
        let Ok(name) = CString::new(name) else {
            return Err(Failure { call, reason: "a name with a zero byte".to_owned() });
        };
        // SAFETY: the context exists, and the name ends with a zero.
        let kernel = unsafe { (self.functions.kernel_new)(context.as_ptr(), name.as_ptr()) };
        self.handle(call, kernel)
    }

    /// The memory group of an argument.
    ///
    /// # Errors
    /// A [`Failure`].
    ///
    /// # Safety
    /// `kernel` exists.
    pub unsafe fn kernel_group(
        &self,
        kernel: NonNull<sys::drafter_xrt_kernel>,
        argument: u32,
    ) -> Result<i32, Failure> {
        // SAFETY: the kernel exists.
        let group = unsafe { (self.functions.kernel_group)(kernel.as_ptr(), argument) };
        // It came from an i32 that is not negative.
        self.number("finding the memory of an argument", group).map(|group| group as i32)
    }

    /// Frees a kernel.
    ///
    /// # Safety
    /// `kernel` exists and is not used afterwards; its runs are freed.
    pub unsafe fn kernel_free(&self, kernel: NonNull<sys::drafter_xrt_kernel>) {
        // SAFETY: as the caller promises.
        unsafe { (self.functions.kernel_free)(kernel.as_ptr()) }
    }

    /// Allocates a buffer.
    ///
    /// # Errors
    /// A [`Failure`].
    ///
    /// # Safety
    /// `device` is open.
    pub unsafe fn buffer_new(
        &self,
        device: NonNull<sys::drafter_xrt_device>,
        bytes: u64,
        memory: u32,
        group: i32,
    ) -> Result<NonNull<sys::drafter_xrt_buffer>, Failure> {
        // SAFETY: the device is open.
        let buffer = unsafe { (self.functions.buffer_new)(device.as_ptr(), bytes, memory, group) };
        self.handle("allocating a buffer", buffer)
    }

    /// Where the host's copy of a buffer lies.
    ///
    /// # Errors
    /// A [`Failure`].
    ///
    /// # Safety
    /// `buffer` exists.
    pub unsafe fn buffer_map(
        &self,
        buffer: NonNull<sys::drafter_xrt_buffer>,
    ) -> Result<NonNull<u8>, Failure> {
        // SAFETY: the buffer exists.
        let bytes = unsafe { (self.functions.buffer_map)(buffer.as_ptr()) };
        self.handle("mapping a buffer", bytes)
    }

    /// Makes one copy of a part of a buffer that of the other side.
    ///
    /// # Errors
    /// A [`Failure`].
    ///
    /// # Safety
    /// `buffer` exists, has these bytes, and nobody else looks at the host's copy.
    pub unsafe fn buffer_sync(
        &self,
        buffer: NonNull<sys::drafter_xrt_buffer>,
        direction: u32,
        bytes: u64,
        offset: u64,
    ) -> Result<(), Failure> {
        let buffer = buffer.as_ptr();
        // SAFETY: as the caller promises.
        let done = unsafe { (self.functions.buffer_sync)(buffer, direction, bytes, offset) };
        self.number("synchronising a buffer", done).map(drop)
    }

    /// Frees a buffer.
    ///
    /// # Safety
    /// `buffer` exists and is not used afterwards, nor is its host's copy.
    pub unsafe fn buffer_free(&self, buffer: NonNull<sys::drafter_xrt_buffer>) {
        // SAFETY: as the caller promises.
        unsafe { (self.functions.buffer_free)(buffer.as_ptr()) }
    }

    /// Makes a run of a kernel.
    ///
    /// # Errors
    /// A [`Failure`].
    ///
    /// # Safety
    /// `kernel` exists.
    pub unsafe fn run_new(
        &self,
        kernel: NonNull<sys::drafter_xrt_kernel>,
    ) -> Result<NonNull<sys::drafter_xrt_run>, Failure> {
        // SAFETY: the kernel exists.
        let run = unsafe { (self.functions.run_new)(kernel.as_ptr()) };
        self.handle("making a run", run)
    }

    /// Sets an argument that is a 64-bit number.
    ///
    /// # Errors
    /// A [`Failure`].
    ///
    /// # Safety
    /// `run` exists.
    pub unsafe fn run_set_u64(
        &self,
        run: NonNull<sys::drafter_xrt_run>,
        argument: u32,
        value: u64,
    ) -> Result<(), Failure> {
        // SAFETY: the run exists.
        let done = unsafe { (self.functions.run_set_u64)(run.as_ptr(), argument, value) };
        self.number("setting an argument", done).map(drop)
    }

    /// Sets an argument that is a 32-bit number.
    ///
    /// # Errors
    /// A [`Failure`].
    ///
    /// # Safety
    /// `run` exists.
    pub unsafe fn run_set_i32(
        &self,
        run: NonNull<sys::drafter_xrt_run>,
        argument: u32,
        value: i32,
    ) -> Result<(), Failure> {
        // SAFETY: the run exists.
        let done = unsafe { (self.functions.run_set_i32)(run.as_ptr(), argument, value) };
        self.number("setting an argument", done).map(drop)
    }

    /// Sets an argument that is a buffer.
    ///
    /// # Errors
    /// A [`Failure`].
    ///
    /// # Safety
    /// `run` and `buffer` exist.
    pub unsafe fn run_set_buffer(
        &self,
        run: NonNull<sys::drafter_xrt_run>,
        argument: u32,
        buffer: NonNull<sys::drafter_xrt_buffer>,
    ) -> Result<(), Failure> {
        let (run, buffer) = (run.as_ptr(), buffer.as_ptr());
        // SAFETY: both exist.
        let done = unsafe { (self.functions.run_set_buffer)(run, argument, buffer) };
        self.number("setting an argument", done).map(drop)
    }

    /// Starts a run.
    ///
    /// # Errors
    /// A [`Failure`].
    ///
    /// # Safety
    /// `run` exists, and nobody looks at the host's copies of its buffers before it ends.
    pub unsafe fn run_start(&self, run: NonNull<sys::drafter_xrt_run>) -> Result<(), Failure> {
        // SAFETY: as the caller promises.
        let done = unsafe { (self.functions.run_start)(run.as_ptr()) };
        self.number("starting a run", done).map(drop)
    }

    /// Waits for the end of a run. The text says more where it did not complete.
    ///
    /// # Errors
    /// A [`Failure`].
    ///
    /// # Safety
    /// `run` exists and was started.
    pub unsafe fn run_wait(
        &self,
        run: NonNull<sys::drafter_xrt_run>,
        timeout_ms: u32,
    ) -> Result<(State, String), Failure> {
        let call = "waiting for a run";
        // SAFETY: as the caller promises.
        let state = unsafe { (self.functions.run_wait)(run.as_ptr(), timeout_ms) };
        let state = State::from(self.number(call, state)?);
        let text = match state {
            State::Completed => String::new(),
            _ => self.failure(call).reason,
        };
        Ok((state, text))
    }

    /// Frees a run.
    ///
    /// # Safety
    /// `run` exists and is not used afterwards.
    pub unsafe fn run_free(&self, run: NonNull<sys::drafter_xrt_run>) {
        // SAFETY: as the caller promises.
        unsafe { (self.functions.run_free)(run.as_ptr()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_errors_are_found() {
        let errno = |reason: &str| {
            let reason = reason.to_owned();
            Failure { call: "", reason }.errno()
        };
        assert_eq!(errno("mmap(...) failed (err=-11): Resource temporarily unavailable"), Some(11));
        assert_eq!(errno("IOCTL failed (err=22)"), Some(22));
        assert_eq!(errno("No such device with index '0'"), None);
        assert_eq!(errno("err="), None);
    }

    #[test]
    fn what_is_no_shim_is_not_opened() {
        let error = Api::open(Path::new("/nowhere/libdrafter_xrt.so")).unwrap_err();
        assert!(matches!(error, OpenError::Load { .. }), "{error}");
        assert!(error.to_string().contains("/nowhere/libdrafter_xrt.so"), "{error}");
        let mut table = sys::drafter_xrt_api { abi: 99, ..Default::default() };
        // SAFETY: the table outlives the call, and nothing is kept of it.
        let error = unsafe { Api::linked(&raw const table, "test") }.unwrap_err();
        assert!(matches!(error, OpenError::Version { found: 99, .. }), "{error}");
        table.abi = sys::DRAFTER_XRT_ABI;
        table.bytes = size_of_val(&table) as u32;
        // SAFETY: as above.
        let error = unsafe { Api::linked(&raw const table, "test") }.unwrap_err();
        assert!(matches!(error, OpenError::Incomplete { .. }), "{error}");
    }
}
