//! Simulated devices: the array, the device's copies of buffers, and what goes wrong.

use std::collections::BTreeMap;
use std::ffi::c_char;
use std::sync::{Mutex, MutexGuard, PoisonError};

use aie_kernels::array::Configuration;
use aie_kernels::design::configuration;
use aie_kernels::simulator::{Schedule, Simulator, SimulatorError};
use xrt_sys::sys;

/// How images of the simulator begin.
const MAGIC: &[u8; 8] = b"AIESIM1\0";

/// Contexts that a device has at the same time.
const CONTEXTS: u64 = 16;

/// The image of the design of [`aie_kernels`].
#[must_use]
pub fn image() -> Vec<u8> {
    let mut out = MAGIC.to_vec();
    out.extend(configuration().encode());
    out
}

/// What goes wrong with a dispatch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DispatchFault {
    /// It does not end in time.
    Timeout,
    /// It is aborted.
    Abort,
    /// It fails.
    Error,
    /// It does not end, and the device does not come back: no context can be made any more.
    Hang,
    /// It is said to be complete, and nothing was written.
    Nothing,
}

impl DispatchFault {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Timeout, Self::Abort, Self::Error, Self::Hang, Self::Nothing];
}

/// What goes wrong when a context is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ContextFault {
    /// The driver refuses the image: error 22.
    Invalid,
    /// Others have all contexts: error 16.
    Busy,
}

/// What goes wrong on a device, and when.
#[derive(Debug, Clone, Default)]
pub struct Faults {
    /// By the number of the dispatch, from 0, over all contexts.
    pub dispatches: BTreeMap<u64, DispatchFault>,
    /// By the number of the attempt to make a context, from 0.
    pub contexts: BTreeMap<u64, ContextFault>,
    /// Bytes of buffers that may be locked; none: as many as there is memory.
    pub memlock_bytes: Option<u64>,
}

/// What was done on a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    /// Commands that reached the array.
    pub dispatches: u64,
    /// Attempts to make a context.
    pub contexts: u64,
    /// Bytes of buffers that exist.
    pub buffer_bytes: u64,
}

#[derive(Debug, Default)]
struct State {
    faults: Faults,
    counts: Counts,
    open_contexts: u64,
    hung: bool,
}

static DEVICES: Mutex<BTreeMap<u32, State>> = Mutex::new(BTreeMap::new());

fn devices() -> MutexGuard<'static, BTreeMap<u32, State>> {
    DEVICES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A device that exists as long as this.
#[derive(Debug)]
pub struct Simulated {
    index: u32,
}

impl Simulated {
    /// A device on which `faults` go wrong.
    #[must_use]
    pub fn new(faults: Faults) -> Self {
        let mut devices = devices();
        let index = devices.keys().next_back().map_or(0, |last| last + 1);
        devices.insert(index, State { faults, ..State::default() });
        Self { index }
    }

    /// The number it is opened by.
    #[must_use]
    pub fn index(&self) -> u32 {
        self.index
    }

    /// What was done so far.
    #[must_use]
    pub fn counts(&self) -> Counts {
        devices().get(&self.index).map(|state| state.counts).unwrap_or_default()
    }

    /// From now on other things go wrong; dispatches and attempts are counted on.
    pub fn set_faults(&self, faults: Faults) {
        if let Some(state) = devices().get_mut(&self.index) {
            state.faults = faults;
        }
    }
}

impl Drop for Simulated {
    fn drop(&mut self) {
        devices().remove(&self.index);
    }
}

/// Where the C++ side wants its text.
struct Text {
    at: *mut c_char,
    capacity: u64,
}

impl Text {
    /// # Safety
    /// `at` has room for `capacity` bytes.
    unsafe fn new(at: *mut c_char, capacity: u64) -> Self {
        Self { at, capacity }
    }

    fn write(&self, text: &str) {
        let Some(room) = (self.capacity as usize).checked_sub(1) else { return };
        let n = text.len().min(room);
        // SAFETY: `at` has room for `capacity` bytes, of which `n + 1` are written here.
        let out = unsafe { std::slice::from_raw_parts_mut(self.at.cast::<u8>(), n + 1) };
        out[..n].copy_from_slice(&text.as_bytes()[..n]);
        out[n] = 0;
    }
}

/// # Safety
/// As `sim/device.h` says.
#[unsafe(no_mangle)]
unsafe extern "C" fn xrt_sim_device_open(device: u32, text: *mut c_char, capacity: u64) -> i32 {
    // SAFETY: the caller's promise.
    let text = unsafe { Text::new(text, capacity) };
    if devices().contains_key(&device) {
        return 0;
    }
    text.write(&format!("No such device with index '{device}'"));
    -1
}

fn configuration_of(image: &[u8]) -> Option<&[u8]> {
    image.strip_prefix(MAGIC).filter(|bytes| Configuration::decode(bytes).is_ok())
}

/// # Safety
/// As `sim/device.h` says: `image` has `bytes` bytes.
#[unsafe(no_mangle)]
unsafe extern "C" fn xrt_sim_image_check(image: *const u8, bytes: u64) -> i32 {
    if image.is_null() || bytes == 0 {
        return -1;
    }
    // SAFETY: the caller's promise; not null.
    let image = unsafe { std::slice::from_raw_parts(image, bytes as usize) };
    if configuration_of(image).is_some() { 0 } else { -1 }
}

/// A context's array.
#[derive(Debug)]
struct Array {
    device: u32,
    simulator: Simulator,
}

/// # Safety
/// As `sim/device.h` says: `image` has `bytes` bytes and was checked.
#[unsafe(no_mangle)]
unsafe extern "C" fn xrt_sim_array_new(
    device: u32,
    image: *const u8,
    bytes: u64,
    text: *mut c_char,
    capacity: u64,
) -> *mut Array {
    // SAFETY: the caller's promise.
    let text = unsafe { Text::new(text, capacity) };
    // SAFETY: the caller's promise; a checked image is not empty.
    let image = unsafe { std::slice::from_raw_parts(image, bytes as usize) };
    let mut devices = devices();
    let Some(state) = devices.get_mut(&device) else {
        text.write("the device is gone (err=-19): No such device");
        return std::ptr::null_mut();
    };
    let attempt = state.counts.contexts;
    state.counts.contexts += 1;
    let fault = state.faults.contexts.get(&attempt);
    let refusal = if state.hung {
        Some("DRM_IOCTL_AMDXDNA_CONFIG_HWCTX IOCTL failed (err=-62): Timer expired")
    } else if fault == Some(&ContextFault::Busy) || state.open_contexts >= CONTEXTS {
        Some("DRM_IOCTL_AMDXDNA_CREATE_HWCTX IOCTL failed (err=-16): Device or resource busy")
    } else if fault == Some(&ContextFault::Invalid) {
        Some("DRM_IOCTL_AMDXDNA_CREATE_HWCTX IOCTL failed (err=-22): Invalid argument")
    } else {
        None
    };
    if let Some(refusal) = refusal {
        text.write(refusal);
        return std::ptr::null_mut();
    }
    let blob = configuration_of(image).unwrap_or_default();
    match Simulator::new(blob, Schedule::RoundRobin) {
        Ok(simulator) => {
            state.open_contexts += 1;
            Box::into_raw(Box::new(Array { device, simulator }))
        }
        Err(error) => {
            text.write(&format!("{error} (err=-22): Invalid argument"));
            std::ptr::null_mut()
        }
    }
}

/// # Safety
/// `array` is null or came from `xrt_sim_array_new`, and is not used afterwards.
#[unsafe(no_mangle)]
unsafe extern "C" fn xrt_sim_array_free(array: *mut Array) {
    if array.is_null() {
        return;
    }
    // SAFETY: the caller's promise.
    let array = unsafe { Box::from_raw(array) };
    if let Some(state) = devices().get_mut(&array.device) {
        state.open_contexts -= 1;
    }
}

/// The device's copy of a buffer.
#[derive(Debug)]
struct Memory {
    device: u32,
    bytes: Vec<u8>,
}

/// # Safety
/// As `sim/device.h` says.
#[unsafe(no_mangle)]
unsafe extern "C" fn xrt_sim_memory_new(
    device: u32,
    bytes: u64,
    text: *mut c_char,
    capacity: u64,
) -> *mut Memory {
    // SAFETY: the caller's promise.
    let text = unsafe { Text::new(text, capacity) };
    let mut devices = devices();
    let Some(state) = devices.get_mut(&device) else {
        text.write("the device is gone (err=-19): No such device");
        return std::ptr::null_mut();
    };
    let locked = state.counts.buffer_bytes.saturating_add(bytes);
    if state.faults.memlock_bytes.is_some_and(|limit| locked > limit) {
        text.write(&format!(
            "mmap(len={bytes}) failed (err=-11): Resource temporarily unavailable"
        ));
        return std::ptr::null_mut();
    }
    state.counts.buffer_bytes = locked;
    // Nobody sent anything.
    let bytes = vec![0x5A; bytes as usize];
    Box::into_raw(Box::new(Memory { device, bytes }))
}

/// # Safety
/// `memory` came from `xrt_sim_memory_new`.
#[unsafe(no_mangle)]
unsafe extern "C" fn xrt_sim_memory_bytes(memory: *mut Memory) -> *mut u8 {
    // SAFETY: the caller's promise; nobody else uses it at the same time.
    let memory = unsafe { &mut *memory };
    memory.bytes.as_mut_ptr()
}

/// # Safety
/// `memory` is null or came from `xrt_sim_memory_new`, and is not used afterwards.
#[unsafe(no_mangle)]
unsafe extern "C" fn xrt_sim_memory_free(memory: *mut Memory) {
    if memory.is_null() {
        return;
    }
    // SAFETY: the caller's promise.
    let memory = unsafe { Box::from_raw(memory) };
    if let Some(state) = devices().get_mut(&memory.device) {
        state.counts.buffer_bytes -= memory.bytes.len() as u64;
    }
}

/// # Safety
/// As `sim/device.h` says: handles of this module, the objects distinct from each other and from the
/// instructions.
#[unsafe(no_mangle)]
unsafe extern "C" fn xrt_sim_array_run(
    array: *mut Array,
    instructions: *mut Memory,
    words: u64,
    objects: *const *mut Memory,
    n: u64,
    reached: i32,
    text: *mut c_char,
    capacity: u64,
) -> i32 {
    // SAFETY: the caller's promise.
    let text = unsafe { Text::new(text, capacity) };
    // SAFETY: the caller's promise; one thread at a time.
    let array = unsafe { &mut *array };
    // SAFETY: as above.
    let instructions = unsafe { &*instructions };
    let handles: &[*mut Memory] = if n == 0 {
        &[]
    } else {
        // SAFETY: `objects` has `n` handles.
        unsafe { std::slice::from_raw_parts(objects, n as usize) }
    };
    let (state, message) = match fault_of(array.device) {
        Some(fault) => fault,
        None if reached == 0 => (sys::DRAFTER_XRT_COMPLETED, String::new()),
        None => {
            let code = &instructions.bytes[..4 * words as usize];
            let code: Vec<u32> =
                code.as_chunks::<4>().0.iter().map(|word| u32::from_le_bytes(*word)).collect();
            let mut objects: Vec<Vec<u8>> = handles
                .iter()
                .map(|memory| {
                    // SAFETY: a handle of this module that nobody else uses now.
                    let memory = unsafe { &mut **memory };
                    std::mem::take(&mut memory.bytes)
                })
                .collect();
            let result = array.simulator.run(&code, &mut objects);
            for (memory, bytes) in handles.iter().zip(objects) {
                // SAFETY: as above.
                let memory = unsafe { &mut **memory };
                memory.bytes = bytes;
            }
            match result {
                Ok(_) => (sys::DRAFTER_XRT_COMPLETED, String::new()),
                Err(error @ (SimulatorError::Deadlock(_) | SimulatorError::Unfinished(_))) => {
                    (sys::DRAFTER_XRT_TIMEOUT, error.to_string())
                }
                Err(error) => (sys::DRAFTER_XRT_ERROR, error.to_string()),
            }
        }
    };
    text.write(&message);
    // Below 16.
    state as i32
}

/// Counts a dispatch; gives the state and the text of what goes wrong with it.
fn fault_of(device: u32) -> Option<(u32, String)> {
    let mut devices = devices();
    let state = devices.get_mut(&device)?;
    let n = state.counts.dispatches;
    state.counts.dispatches += 1;
    let fault = *state.faults.dispatches.get(&n)?;
    let (code, text) = match fault {
        DispatchFault::Timeout => (sys::DRAFTER_XRT_TIMEOUT, "the command timed out"),
        DispatchFault::Abort => (sys::DRAFTER_XRT_ABORT, "the command was aborted"),
        DispatchFault::Error => (sys::DRAFTER_XRT_ERROR, "the array reports an error"),
        DispatchFault::Hang => {
            state.hung = true;
            (sys::DRAFTER_XRT_NO_RESPONSE, "the device does not respond")
        }
        DispatchFault::Nothing => (sys::DRAFTER_XRT_COMPLETED, ""),
    };
    Some((code, text.to_owned()))
}
