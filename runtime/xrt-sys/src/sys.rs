// By `cargo xtask bindings` from shim/drafter_xrt.h with SHA-256
// 0b1dc9375179e7ebb96c3b201cd9e0ff888f485fd18a42ed5ce8e34851171bd4

pub const DRAFTER_XRT_ABI: u32 = 1;
pub const DRAFTER_XRT_NAME: u32 = 0;
pub const DRAFTER_XRT_ADDRESS: u32 = 1;
pub const DRAFTER_XRT_VERSION: u32 = 2;
pub const DRAFTER_XRT_INSTRUCTIONS: u32 = 0;
pub const DRAFTER_XRT_HOST: u32 = 1;
pub const DRAFTER_XRT_TO_DEVICE: u32 = 0;
pub const DRAFTER_XRT_FROM_DEVICE: u32 = 1;
pub const DRAFTER_XRT_COMPLETED: u32 = 4;
pub const DRAFTER_XRT_ERROR: u32 = 5;
pub const DRAFTER_XRT_ABORT: u32 = 6;
pub const DRAFTER_XRT_TIMEOUT: u32 = 8;
pub const DRAFTER_XRT_NO_RESPONSE: u32 = 9;
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct drafter_xrt_device {
    _unused: [u8; 0],
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct drafter_xrt_context {
    _unused: [u8; 0],
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct drafter_xrt_kernel {
    _unused: [u8; 0],
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct drafter_xrt_buffer {
    _unused: [u8; 0],
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct drafter_xrt_run {
    _unused: [u8; 0],
}
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct drafter_xrt_api {
    pub abi: u32,
    pub bytes: u32,
    pub last_error: ::std::option::Option<unsafe extern "C" fn() -> *const ::std::os::raw::c_char>,
    pub device_open:
        ::std::option::Option<unsafe extern "C" fn(index: u32) -> *mut drafter_xrt_device>,
    pub device_free: ::std::option::Option<unsafe extern "C" fn(device: *mut drafter_xrt_device)>,
    pub device_info: ::std::option::Option<
        unsafe extern "C" fn(
            device: *mut drafter_xrt_device,
            what: u32,
            text: *mut ::std::os::raw::c_char,
            capacity: u64,
        ) -> i64,
    >,
    pub context_new: ::std::option::Option<
        unsafe extern "C" fn(
            device: *mut drafter_xrt_device,
            image: *const u8,
            bytes: u64,
        ) -> *mut drafter_xrt_context,
    >,
    pub context_free:
        ::std::option::Option<unsafe extern "C" fn(context: *mut drafter_xrt_context)>,
    pub kernel_new: ::std::option::Option<
        unsafe extern "C" fn(
            context: *mut drafter_xrt_context,
            name: *const ::std::os::raw::c_char,
        ) -> *mut drafter_xrt_kernel,
    >,
    pub kernel_group: ::std::option::Option<
        unsafe extern "C" fn(kernel: *mut drafter_xrt_kernel, argument: u32) -> i32,
    >,
    pub kernel_free: ::std::option::Option<unsafe extern "C" fn(kernel: *mut drafter_xrt_kernel)>,
    pub buffer_new: ::std::option::Option<
        unsafe extern "C" fn(
            device: *mut drafter_xrt_device,
            bytes: u64,
            memory: u32,
            group: i32,
        ) -> *mut drafter_xrt_buffer,
    >,
    pub buffer_map:
        ::std::option::Option<unsafe extern "C" fn(buffer: *mut drafter_xrt_buffer) -> *mut u8>,
    pub buffer_sync: ::std::option::Option<
        unsafe extern "C" fn(
            buffer: *mut drafter_xrt_buffer,
            direction: u32,
            bytes: u64,
            offset: u64,
        ) -> i32,
    >,
    pub buffer_free: ::std::option::Option<unsafe extern "C" fn(buffer: *mut drafter_xrt_buffer)>,
    pub run_new: ::std::option::Option<
        unsafe extern "C" fn(kernel: *mut drafter_xrt_kernel) -> *mut drafter_xrt_run,
    >,
    pub run_set_u64: ::std::option::Option<
        unsafe extern "C" fn(run: *mut drafter_xrt_run, argument: u32, value: u64) -> i32,
    >,
    pub run_set_i32: ::std::option::Option<
        unsafe extern "C" fn(run: *mut drafter_xrt_run, argument: u32, value: i32) -> i32,
    >,
    pub run_set_buffer: ::std::option::Option<
        unsafe extern "C" fn(
            run: *mut drafter_xrt_run,
            argument: u32,
            buffer: *mut drafter_xrt_buffer,
        ) -> i32,
    >,
    pub run_start: ::std::option::Option<unsafe extern "C" fn(run: *mut drafter_xrt_run) -> i32>,
    pub run_wait: ::std::option::Option<
        unsafe extern "C" fn(run: *mut drafter_xrt_run, timeout_ms: u32) -> i32,
    >,
    pub run_free: ::std::option::Option<unsafe extern "C" fn(run: *mut drafter_xrt_run)>,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of drafter_xrt_api"][::std::mem::size_of::<drafter_xrt_api>() - 168usize];
    ["Alignment of drafter_xrt_api"][::std::mem::align_of::<drafter_xrt_api>() - 8usize];
    ["Offset of field: drafter_xrt_api::abi"]
        [::std::mem::offset_of!(drafter_xrt_api, abi) - 0usize];
    ["Offset of field: drafter_xrt_api::bytes"]
        [::std::mem::offset_of!(drafter_xrt_api, bytes) - 4usize];
    ["Offset of field: drafter_xrt_api::last_error"]
        [::std::mem::offset_of!(drafter_xrt_api, last_error) - 8usize];
    ["Offset of field: drafter_xrt_api::device_open"]
        [::std::mem::offset_of!(drafter_xrt_api, device_open) - 16usize];
    ["Offset of field: drafter_xrt_api::device_free"]
        [::std::mem::offset_of!(drafter_xrt_api, device_free) - 24usize];
    ["Offset of field: drafter_xrt_api::device_info"]
        [::std::mem::offset_of!(drafter_xrt_api, device_info) - 32usize];
    ["Offset of field: drafter_xrt_api::context_new"]
        [::std::mem::offset_of!(drafter_xrt_api, context_new) - 40usize];
    ["Offset of field: drafter_xrt_api::context_free"]
        [::std::mem::offset_of!(drafter_xrt_api, context_free) - 48usize];
    ["Offset of field: drafter_xrt_api::kernel_new"]
        [::std::mem::offset_of!(drafter_xrt_api, kernel_new) - 56usize];
    ["Offset of field: drafter_xrt_api::kernel_group"]
        [::std::mem::offset_of!(drafter_xrt_api, kernel_group) - 64usize];
    ["Offset of field: drafter_xrt_api::kernel_free"]
        [::std::mem::offset_of!(drafter_xrt_api, kernel_free) - 72usize];
    ["Offset of field: drafter_xrt_api::buffer_new"]
        [::std::mem::offset_of!(drafter_xrt_api, buffer_new) - 80usize];
    ["Offset of field: drafter_xrt_api::buffer_map"]
        [::std::mem::offset_of!(drafter_xrt_api, buffer_map) - 88usize];
    ["Offset of field: drafter_xrt_api::buffer_sync"]
        [::std::mem::offset_of!(drafter_xrt_api, buffer_sync) - 96usize];
    ["Offset of field: drafter_xrt_api::buffer_free"]
        [::std::mem::offset_of!(drafter_xrt_api, buffer_free) - 104usize];
    ["Offset of field: drafter_xrt_api::run_new"]
        [::std::mem::offset_of!(drafter_xrt_api, run_new) - 112usize];
    ["Offset of field: drafter_xrt_api::run_set_u64"]
        [::std::mem::offset_of!(drafter_xrt_api, run_set_u64) - 120usize];
    ["Offset of field: drafter_xrt_api::run_set_i32"]
        [::std::mem::offset_of!(drafter_xrt_api, run_set_i32) - 128usize];
    ["Offset of field: drafter_xrt_api::run_set_buffer"]
        [::std::mem::offset_of!(drafter_xrt_api, run_set_buffer) - 136usize];
    ["Offset of field: drafter_xrt_api::run_start"]
        [::std::mem::offset_of!(drafter_xrt_api, run_start) - 144usize];
    ["Offset of field: drafter_xrt_api::run_wait"]
        [::std::mem::offset_of!(drafter_xrt_api, run_wait) - 152usize];
    ["Offset of field: drafter_xrt_api::run_free"]
        [::std::mem::offset_of!(drafter_xrt_api, run_free) - 160usize];
};
