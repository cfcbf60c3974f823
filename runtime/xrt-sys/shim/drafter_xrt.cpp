// The shim: drafter_xrt.h over XRT's C++ classes. Compiles against XRT 2.21 or newer, and against the
// headers of the simulator in runtime/xrt-sim:
//
//   g++ -std=c++17 -O2 -fPIC -shared drafter_xrt.cpp -lxrt_coreutil -o libdrafter_xrt.so

#include "drafter_xrt.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <exception>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

#include "xrt/experimental/xrt_version.h"
#include "xrt/experimental/xrt_xclbin.h"
#include "xrt/xrt_bo.h"
#include "xrt/xrt_device.h"
#include "xrt/xrt_hw_context.h"
#include "xrt/xrt_kernel.h"

struct drafter_xrt_device {
  xrt::device device;
};

struct drafter_xrt_context {
  xrt::hw_context context;
};

struct drafter_xrt_kernel {
  xrt::kernel kernel;
};

struct drafter_xrt_buffer {
  xrt::bo bo;
};

struct drafter_xrt_run {
  xrt::run run;
  // XRT does not promise to keep the buffers of a run.
  std::map<uint32_t, xrt::bo> buffers;
};

namespace {

thread_local std::string last_error_text;

// What `f` returns, or `failed` with the reason in last_error().
template <typename T, typename F>
T guarded(T failed, F f) noexcept {
  try {
    last_error_text.clear();
    return f();
  } catch (const std::exception &e) {
    try {
      last_error_text = e.what();
    } catch (...) {
    }
  } catch (...) {
    try {
      last_error_text = "an exception of an unknown type";
    } catch (...) {
    }
  }
  return failed;
}

const char *last_error() { return last_error_text.c_str(); }

drafter_xrt_device *device_open(uint32_t index) {
  return guarded<drafter_xrt_device *>(
      nullptr, [&] { return new drafter_xrt_device{xrt::device(index)}; });
}

template <typename T>
void free_handle(T *handle) {
  guarded(0, [&] {
    delete handle;
    return 0;
  });
}

std::string text_of(const xrt::device &device, uint32_t what) {
  switch (what) {
    case DRAFTER_XRT_NAME:
      return device.get_info<xrt::info::device::name>();
    case DRAFTER_XRT_ADDRESS:
      return device.get_info<xrt::info::device::bdf>();
    case DRAFTER_XRT_VERSION:
      return std::to_string(xrt::version::major()) + "." +
             std::to_string(xrt::version::minor()) + "." + std::to_string(xrt::version::patch());
    default:
      throw std::invalid_argument("no such information");
  }
}

int64_t device_info(drafter_xrt_device *device, uint32_t what, char *text, uint64_t capacity) {
  return guarded<int64_t>(-1, [&]() -> int64_t {
    const std::string found = text_of(device->device, what);
    if (capacity > 0) {
      const size_t n = std::min<size_t>(found.size(), capacity - 1);
      std::memcpy(text, found.data(), n);
      text[n] = 0;
    }
    return static_cast<int64_t>(found.size());
  });
}

drafter_xrt_context *context_new(drafter_xrt_device *device, const uint8_t *image,
                                 uint64_t bytes) {
  return guarded<drafter_xrt_context *>(nullptr, [&] {
    const auto *begin = reinterpret_cast<const char *>(image);
    const xrt::xclbin xclbin(std::vector<char>(begin, begin + bytes));
    const auto uuid = device->device.register_xclbin(xclbin);
    return new drafter_xrt_context{xrt::hw_context(device->device, uuid)};
  });
}

drafter_xrt_kernel *kernel_new(drafter_xrt_context *context, const char *name) {
  return guarded<drafter_xrt_kernel *>(
      nullptr, [&] { return new drafter_xrt_kernel{xrt::kernel(context->context, name)}; });
}

int32_t kernel_group(drafter_xrt_kernel *kernel, uint32_t argument) {
  return guarded<int32_t>(
      -1, [&] { return kernel->kernel.group_id(static_cast<int>(argument)); });
}

drafter_xrt_buffer *buffer_new(drafter_xrt_device *device, uint64_t bytes, uint32_t memory,
                               int32_t group) {
  return guarded<drafter_xrt_buffer *>(nullptr, [&] {
    const auto flags = memory == DRAFTER_XRT_INSTRUCTIONS ? xrt::bo::flags::cacheable
                                                          : xrt::bo::flags::host_only;
    return new drafter_xrt_buffer{
        xrt::bo(device->device, bytes, flags, static_cast<xrt::memory_group>(group))};
  });
}

uint8_t *buffer_map(drafter_xrt_buffer *buffer) {
  return guarded<uint8_t *>(nullptr, [&] { return buffer->bo.map<uint8_t *>(); });
}

int32_t buffer_sync(drafter_xrt_buffer *buffer, uint32_t direction, uint64_t bytes,
                    uint64_t offset) {
  return guarded<int32_t>(-1, [&] {
    const auto to = direction == DRAFTER_XRT_TO_DEVICE ? XCL_BO_SYNC_BO_TO_DEVICE
                                                       : XCL_BO_SYNC_BO_FROM_DEVICE;
    buffer->bo.sync(to, bytes, offset);
    return 0;
  });
}

drafter_xrt_run *run_new(drafter_xrt_kernel *kernel) {
  return guarded<drafter_xrt_run *>(
      nullptr, [&] { return new drafter_xrt_run{xrt::run(kernel->kernel), {}}; });
}

// XRT copies as many bytes as the argument's type has: the types are part of the interface.
template <typename T>
int32_t set(drafter_xrt_run *run, uint32_t argument, T value) {
  return guarded<int32_t>(-1, [&] {
    run->run.set_arg(static_cast<int>(argument), value);
    return 0;
  });
}

int32_t run_set_u64(drafter_xrt_run *run, uint32_t argument, uint64_t value) {
  return set(run, argument, value);
}

int32_t run_set_i32(drafter_xrt_run *run, uint32_t argument, int32_t value) {
  return set(run, argument, value);
}

int32_t run_set_buffer(drafter_xrt_run *run, uint32_t argument, drafter_xrt_buffer *buffer) {
  return guarded<int32_t>(-1, [&] {
    run->run.set_arg(static_cast<int>(argument), buffer->bo);
    run->buffers[argument] = buffer->bo;
    return 0;
  });
}

int32_t run_start(drafter_xrt_run *run) {
  return guarded<int32_t>(-1, [&] {
    run->run.start();
    return 0;
  });
}

int32_t run_wait(drafter_xrt_run *run, uint32_t timeout_ms) {
  return guarded<int32_t>(-1, [&]() -> int32_t {
    try {
      const auto status = run->run.wait2(std::chrono::milliseconds(timeout_ms));
      if (status == std::cv_status::no_timeout) return DRAFTER_XRT_COMPLETED;
      last_error_text = "no completion within " + std::to_string(timeout_ms) + " ms";
      return DRAFTER_XRT_TIMEOUT;
    } catch (const xrt::run::command_error &e) {
      last_error_text = e.what();
      const auto state = static_cast<int32_t>(e.get_command_state());
      // It failed, whatever it says.
      return state == DRAFTER_XRT_COMPLETED ? DRAFTER_XRT_ERROR : state;
    }
  });
}

const drafter_xrt_api table = {
    DRAFTER_XRT_ABI,
    sizeof(drafter_xrt_api),
    last_error,
    device_open,
    free_handle<drafter_xrt_device>,
    device_info,
    context_new,
    free_handle<drafter_xrt_context>,
    kernel_new,
    kernel_group,
    free_handle<drafter_xrt_kernel>,
    buffer_new,
    buffer_map,
    buffer_sync,
    free_handle<drafter_xrt_buffer>,
    run_new,
    run_set_u64,
    run_set_i32,
    run_set_buffer,
    run_start,
    run_wait,
    free_handle<drafter_xrt_run>,
};

}  // namespace

const drafter_xrt_api *drafter_xrt(void) { return &table; }
