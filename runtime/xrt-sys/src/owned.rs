//! Handles with owners: freed once, in the order XRT wants.

use std::marker::PhantomData;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;

use crate::result::{Api, Failure, State};
use crate::sys;

/// Which memory a buffer lies in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Memory {
    /// For instructions; cached on the device's side.
    Instructions,
    /// For data that the array reads and writes; the host's memory.
    Host,
}

/// A buffer's place among the arguments of a kernel. Types that have it keep buffers of different
/// meaning apart.
pub trait Argument: std::fmt::Debug {
    /// The number of the argument.
    const INDEX: u32;
    /// Where it lies.
    const MEMORY: Memory;
}

/// An opened device.
#[derive(Debug, Clone)]
pub struct Device(Arc<DeviceHandle>);

#[derive(Debug)]
struct DeviceHandle {
    api: Api,
    raw: NonNull<sys::drafter_xrt_device>,
}

// SAFETY: drafter_xrt.h allows handles to move between threads.
unsafe impl Send for DeviceHandle {}
// SAFETY: shared handles are used for making others only, and XRT's device class locks for that.
unsafe impl Sync for DeviceHandle {}

impl Drop for DeviceHandle {
    fn drop(&mut self) {
        // SAFETY: open until here; everything made of it keeps it alive and is gone.
        unsafe { self.api.device_free(self.raw) }
    }
}

impl Device {
    /// Opens the device with this number.
    ///
    /// # Errors
    /// A [`Failure`].
    pub fn open(api: &Api, index: u32) -> Result<Self, Failure> {
        let raw = api.device_open(index)?;
        Ok(Self(Arc::new(DeviceHandle { api: api.clone(), raw })))
    }

    fn info(&self, what: u32) -> Result<String, Failure> {
        // SAFETY: open as long as `self`.
        unsafe { self.0.api.device_info(self.0.raw, what) }
    }

    /// Its name.
    ///
    /// # Errors
    /// A [`Failure`].
    pub fn name(&self) -> Result<String, Failure> {
        self.info(sys::DRAFTER_XRT_NAME)
    }

    /// Where on the bus it is.
    ///
    /// # Errors
    /// A [`Failure`].
    pub fn address(&self) -> Result<String, Failure> {
        self.info(sys::DRAFTER_XRT_ADDRESS)
    }

    /// The version of XRT.
    ///
    /// # Errors
    /// A [`Failure`].
    pub fn xrt_version(&self) -> Result<String, Failure> {
        self.info(sys::DRAFTER_XRT_VERSION)
    }
}

/// A hardware context: a partition of the array with an image.
#[derive(Debug, Clone)]
pub struct Context(Arc<ContextHandle>);

#[derive(Debug)]
struct ContextHandle {
    device: Device,
    raw: NonNull<sys::drafter_xrt_context>,
}

// SAFETY: as for the device.
unsafe impl Send for ContextHandle {}
// SAFETY: shared handles are used for making kernels only, which XRT locks for.
unsafe impl Sync for ContextHandle {}

impl Drop for ContextHandle {
    fn drop(&mut self) {
        // SAFETY: it exists until here; its kernels keep it alive and are gone.
        unsafe { self.device.0.api.context_free(self.raw) }
    }
}

impl Context {
    /// A context on `device` with `image`, the bytes of an xclbin.
    ///
    /// # Errors
    /// A [`Failure`].
    pub fn new(device: &Device, image: &[u8]) -> Result<Self, Failure> {
        // SAFETY: the device is open as long as `device`.
        let raw = unsafe { device.0.api.context_new(device.0.raw, image) }?;
        Ok(Self(Arc::new(ContextHandle { device: device.clone(), raw })))
    }
}

/// A kernel of an image.
#[derive(Debug, Clone)]
pub struct Kernel(Arc<KernelHandle>);

#[derive(Debug)]
struct KernelHandle {
    context: Context,
    raw: NonNull<sys::drafter_xrt_kernel>,
}

// SAFETY: as for the device.
unsafe impl Send for KernelHandle {}
// SAFETY: shared handles are used for making runs and asking for groups only, which XRT locks for.
unsafe impl Sync for KernelHandle {}

impl Drop for KernelHandle {
    fn drop(&mut self) {
        // SAFETY: it exists until here; its runs keep it alive and are gone.
        unsafe { self.api().kernel_free(self.raw) }
    }
}

impl KernelHandle {
    fn device(&self) -> &Device {
        &self.context.0.device
    }

    fn api(&self) -> &Api {
        &self.device().0.api
    }
}

impl Kernel {
    /// The kernel of this name.
    ///
    /// # Errors
    /// A [`Failure`].
    pub fn new(context: &Context, name: &str) -> Result<Self, Failure> {
        // SAFETY: the context exists as long as `context`.
        let raw = unsafe { context.0.device.0.api.kernel_new(context.0.raw, name) }?;
        Ok(Self(Arc::new(KernelHandle { context: context.clone(), raw })))
    }

    /// A buffer of `bytes` bytes in the memory that argument `A` has to be in.
    ///
    /// It belongs to the device: it outlives the context, and fits the same argument of the same
    /// image in another one.
    ///
    /// # Errors
    /// A [`Failure`].
    pub fn buffer<A: Argument>(&self, bytes: usize) -> Result<Buffer<A>, Failure> {
        let (api, device) = (self.0.api(), self.0.device());
        // SAFETY: the kernel exists as long as `self`.
        let group = unsafe { api.kernel_group(self.0.raw, A::INDEX) }?;
        let memory = match A::MEMORY {
            Memory::Instructions => sys::DRAFTER_XRT_INSTRUCTIONS,
            Memory::Host => sys::DRAFTER_XRT_HOST,
        };
        // SAFETY: the device is open as long as `self`.
        let raw = unsafe { api.buffer_new(device.0.raw, bytes as u64, memory, group) }?;
        let mut buffer = Buffer {
            device: device.clone(),
            raw,
            host: NonNull::dangling(),
            bytes,
            of: PhantomData,
        };
        // SAFETY: the buffer was just made.
        buffer.host = unsafe { api.buffer_map(raw) }?;
        Ok(buffer)
    }
}

/// Memory that host and device each have a copy of, for argument `A` of a kernel.
#[derive(Debug)]
pub struct Buffer<A> {
    device: Device,
    raw: NonNull<sys::drafter_xrt_buffer>,
    host: NonNull<u8>,
    bytes: usize,
    of: PhantomData<A>,
}

// SAFETY: drafter_xrt.h allows handles to move between threads; the host's copy is plain memory.
unsafe impl<A> Send for Buffer<A> {}

impl<A> Drop for Buffer<A> {
    fn drop(&mut self) {
        // SAFETY: it exists until here. A run that still has it as an argument keeps its memory alive
        // on the side of XRT.
        unsafe { self.device.0.api.buffer_free(self.raw) }
    }
}

impl<A: Argument> Buffer<A> {
    /// Its size.
    #[must_use]
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// Whether it has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// The host's copy.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: `buffer_map` gave the address of `bytes` bytes that live as long as the buffer; they
        // are written through `&mut self` and by `fetch` only, since runs end before they return.
        unsafe { std::slice::from_raw_parts(self.host.as_ptr(), self.bytes) }
    }

    /// The host's copy, to write. The device sees it after [`Buffer::send`].
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `bytes`, and `&mut self` makes this the only reference.
        unsafe { std::slice::from_raw_parts_mut(self.host.as_ptr(), self.bytes) }
    }

    fn sync(&mut self, direction: u32, range: Range<usize>) -> Result<(), Failure> {
        assert!(range.start <= range.end && range.end <= self.bytes, "within the buffer");
        let (bytes, offset) = (range.len() as u64, range.start as u64);
        // SAFETY: the buffer has these bytes, and `&mut self` keeps others away from the host's copy.
        unsafe { self.device.0.api.buffer_sync(self.raw, direction, bytes, offset) }
    }

    /// Makes the device's copy of `range` that of the host.
    ///
    /// # Errors
    /// A [`Failure`].
    ///
    /// # Panics
    /// If the buffer has no such bytes.
    pub fn send(&mut self, range: Range<usize>) -> Result<(), Failure> {
        self.sync(sys::DRAFTER_XRT_TO_DEVICE, range)
    }

    /// Makes the host's copy of `range` that of the device.
    ///
    /// # Errors
    /// A [`Failure`].
    ///
    /// # Panics
    /// If the buffer has no such bytes.
    pub fn fetch(&mut self, range: Range<usize>) -> Result<(), Failure> {
        self.sync(sys::DRAFTER_XRT_FROM_DEVICE, range)
    }
}

/// A command with its arguments, to be run again and again.
#[derive(Debug)]
pub struct Run {
    kernel: Kernel,
    raw: NonNull<sys::drafter_xrt_run>,
}

// SAFETY: drafter_xrt.h allows handles to move between threads.
unsafe impl Send for Run {}

impl Drop for Run {
    fn drop(&mut self) {
        // SAFETY: it exists until here.
        unsafe { self.kernel.0.api().run_free(self.raw) }
    }
}

impl Run {
    /// A run without arguments.
    ///
    /// # Errors
    /// A [`Failure`].
    pub fn new(kernel: &Kernel) -> Result<Self, Failure> {
        // SAFETY: the kernel exists as long as `kernel`.
        let raw = unsafe { kernel.0.api().run_new(kernel.0.raw) }?;
        Ok(Self { kernel: kernel.clone(), raw })
    }

    /// Sets an argument that is a 64-bit number.
    ///
    /// # Errors
    /// A [`Failure`].
    pub fn set_u64(&mut self, argument: u32, value: u64) -> Result<(), Failure> {
        // SAFETY: the run exists as long as `self`.
        unsafe { self.kernel.0.api().run_set_u64(self.raw, argument, value) }
    }

    /// Sets an argument that is a 32-bit number.
    ///
    /// # Errors
    /// A [`Failure`].
    pub fn set_i32(&mut self, argument: u32, value: i32) -> Result<(), Failure> {
        // SAFETY: the run exists as long as `self`.
        unsafe { self.kernel.0.api().run_set_i32(self.raw, argument, value) }
    }

    /// Sets argument `A`.
    ///
    /// # Errors
    /// A [`Failure`].
    pub fn set<A: Argument>(&mut self, buffer: &Buffer<A>) -> Result<(), Failure> {
        // SAFETY: run and buffer exist as long as the references to them.
        unsafe { self.kernel.0.api().run_set_buffer(self.raw, A::INDEX, buffer.raw) }
    }

    /// Runs the command to its end, or for `timeout_ms` at most. Where it did not complete, the text
    /// says more, and the context with all its runs is dead.
    ///
    /// A command that timed out may still write into the device's copies of its buffers; results are
    /// to be fetched only after [`State::Completed`].
    ///
    /// # Errors
    /// A [`Failure`].
    pub fn execute(&mut self, timeout_ms: u32) -> Result<(State, String), Failure> {
        let api = self.kernel.0.api();
        // SAFETY: the run exists; references to the host's copies of its buffers cannot be written
        // through while this thread waits, except for buffers the caller has lent out to others, whose
        // writes reach the device by `send` only.
        unsafe { api.run_start(self.raw) }?;
        // SAFETY: it was started above.
        unsafe { api.run_wait(self.raw, timeout_ms) }
    }
}
