// The simulated XRT: what it demands of its callers is what XRT and the NPU's firmware demand.

#include <array>
#include <cstring>
#include <map>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "device.h"
#include "xrt/experimental/xrt_xclbin.h"
#include "xrt/xrt_bo.h"
#include "xrt/xrt_device.h"
#include "xrt/xrt_hw_context.h"
#include "xrt/xrt_kernel.h"

namespace xrt {

namespace {

// The text of an error that the device gives.
struct Text {
  std::array<char, 2048> bytes{};
  char *at() { return bytes.data(); }
  uint64_t capacity() const { return bytes.size(); }
  std::string string() const { return bytes.data(); }
};

// Arguments of an image's kernel: what to do, the instructions, their number, then buffers.
constexpr int kOpcode = 0;
constexpr int kInstructions = 1;
constexpr int kWords = 2;
constexpr int kFirstBuffer = 3;
constexpr uint64_t kRunInstructions = 3;
// Buffers whose addresses the firmware translates.
constexpr int kMaxBuffers = 5;
constexpr const char *kKernelName = "MLIR_AIE";

// Groups differ by argument, so that a buffer for another one is noticed.
uint32_t group_of(int argument) {
  return argument == kInstructions ? 1 : 16 + static_cast<uint32_t>(argument);
}

}  // namespace

class xclbin_impl {
 public:
  std::vector<char> bytes;
};

class device_impl {
 public:
  explicit device_impl(uint32_t i) : index(i) {}
  const uint32_t index;
  std::vector<std::shared_ptr<xclbin_impl>> images;
};

class hw_context_impl {
 public:
  hw_context_impl(std::shared_ptr<device_impl> d, const uuid &image) : device(std::move(d)) {
    const auto &bytes = device->images.at(static_cast<size_t>(image.number))->bytes;
    Text text;
    const auto *data = reinterpret_cast<const uint8_t *>(bytes.data());
    array = xrt_sim_array_new(device->index, data, bytes.size(), text.at(), text.capacity());
    if (array == nullptr) throw std::runtime_error(text.string());
  }
  hw_context_impl(const hw_context_impl &) = delete;
  ~hw_context_impl() { xrt_sim_array_free(array); }

  std::shared_ptr<device_impl> device;
  xrt_sim_array *array = nullptr;
  bool dead = false;
};

class kernel_impl {
 public:
  std::shared_ptr<hw_context_impl> context;
};

class bo_impl {
 public:
  bo_impl(std::shared_ptr<device_impl> d, size_t bytes, bo::flags m, memory_group g)
      : device(std::move(d)), memory(m), group(g) {
    if (bytes == 0) throw std::runtime_error("bo size of 0 (err=-22): Invalid argument");
    Text text;
    copy = xrt_sim_memory_new(device->index, bytes, text.at(), text.capacity());
    if (copy == nullptr) throw std::runtime_error(text.string());
    // Nobody wrote to it.
    host.assign(bytes, 0xA5);
  }
  bo_impl(const bo_impl &) = delete;
  ~bo_impl() { xrt_sim_memory_free(copy); }

  std::shared_ptr<device_impl> device;
  bo::flags memory;
  memory_group group;
  std::vector<uint8_t> host;
  xrt_sim_memory *copy = nullptr;
};

class run_impl {
 public:
  std::shared_ptr<kernel_impl> kernel;
  std::map<int, std::vector<uint8_t>> values;
  std::map<int, std::shared_ptr<bo_impl>> buffers;
  ert_cmd_state state = ERT_CMD_STATE_NEW;
  std::string reason;

  void end(ert_cmd_state s, std::string text) {
    state = s;
    reason = std::move(text);
  }

  // The value of a scalar argument, if it was given with as many bytes as it has.
  template <typename T>
  std::optional<T> value(int index) const {
    const auto found = values.find(index);
    if (found == values.end() || found->second.size() != sizeof(T)) return std::nullopt;
    T out;
    std::memcpy(&out, found->second.data(), sizeof(T));
    return out;
  }

  void execute() {
    auto &context = *kernel->context;
    if (context.dead) {
      return end(ERT_CMD_STATE_ABORT, "the context died with an earlier command");
    }
    run_arguments();
    if (state != ERT_CMD_STATE_COMPLETED) context.dead = true;
  }

 private:
  void run_arguments() {
    const auto opcode = value<uint64_t>(kOpcode);
    if (!opcode || *opcode != kRunInstructions) {
      return end(ERT_CMD_STATE_ERROR, "argument 0 is not the 64-bit opcode 3");
    }
    const auto words = value<int32_t>(kWords);
    if (!words || *words <= 0) {
      return end(ERT_CMD_STATE_ERROR, "argument 2 is not the 32-bit number of instruction words");
    }
    const auto code = buffers.find(kInstructions);
    if (code == buffers.end() || code->second->memory != bo::flags::cacheable ||
        code->second->group != group_of(kInstructions)) {
      return end(ERT_CMD_STATE_ERROR, "argument 1 is no buffer for instructions");
    }
    if (static_cast<size_t>(*words) * 4 > code->second->host.size()) {
      return end(ERT_CMD_STATE_ERROR, "more instruction words than their buffer has");
    }
    const int n = static_cast<int>(buffers.size()) - 1;
    if (n > kMaxBuffers) {
      return end(ERT_CMD_STATE_ABORT, "more than 5 buffers");
    }
    std::vector<xrt_sim_memory *> objects;
    bool reached = true;
    for (int i = 0; i < n; ++i) {
      const auto found = buffers.find(kFirstBuffer + i);
      if (found == buffers.end()) {
        return end(ERT_CMD_STATE_ERROR, "a gap in the arguments");
      }
      const auto &buffer = *found->second;
      // The array does not see a buffer in the wrong memory; the command completes all the same.
      reached = reached && buffer.memory == bo::flags::host_only &&
                buffer.group == group_of(kFirstBuffer + i);
      objects.push_back(buffer.copy);
    }
    Text text;
    const int32_t found = xrt_sim_array_run(
        kernel->context->array, code->second->copy, static_cast<uint64_t>(*words), objects.data(),
        objects.size(), reached ? 1 : 0, text.at(), text.capacity());
    end(static_cast<ert_cmd_state>(found), text.string());
  }
};

xclbin::xclbin(const std::vector<char> &data) {
  if (xrt_sim_image_check(reinterpret_cast<const uint8_t *>(data.data()), data.size()) != 0) {
    throw std::runtime_error("Invalid xclbin: not an image of the simulated array");
  }
  handle = std::make_shared<xclbin_impl>();
  handle->bytes = data;
}

device::device(unsigned int index) {
  Text text;
  if (xrt_sim_device_open(index, text.at(), text.capacity()) != 0) {
    throw std::runtime_error(text.string());
  }
  handle = std::make_shared<device_impl>(index);
}

uuid device::register_xclbin(const xclbin &image) {
  handle->images.push_back(image.get_handle());
  return uuid(static_cast<int>(handle->images.size()) - 1);
}

std::string device::text(info::device what) const {
  return what == info::device::name ? "NPU simulator" : "sim:" + std::to_string(handle->index);
}

hw_context::hw_context(const device &dev, const uuid &image)
    : handle(std::make_shared<hw_context_impl>(dev.get_handle(), image)) {}

kernel::kernel(const hw_context &context, const std::string &name) {
  if (name != kKernelName) throw std::runtime_error("No such kernel '" + name + "'");
  handle = std::make_shared<kernel_impl>();
  handle->context = context.get_handle();
}

int kernel::group_id(int argument) const { return static_cast<int>(group_of(argument)); }

bo::bo(const device &dev, size_t bytes, flags memory, memory_group group)
    : handle(std::make_shared<bo_impl>(dev.get_handle(), bytes, memory, group)) {}

void bo::sync(xclBOSyncDirection direction, size_t bytes, size_t offset) {
  auto &buffer = *handle;
  if (offset > buffer.host.size() || bytes > buffer.host.size() - offset) {
    throw std::runtime_error("Invalid offset or size for sync (err=-22): Invalid argument");
  }
  uint8_t *host = buffer.host.data() + offset;
  uint8_t *device = xrt_sim_memory_bytes(buffer.copy) + offset;
  if (direction == XCL_BO_SYNC_BO_TO_DEVICE) {
    std::memcpy(device, host, bytes);
  } else {
    std::memcpy(host, device, bytes);
  }
}

void *bo::map() { return handle->host.data(); }

run::run(const kernel &k) : handle(std::make_shared<run_impl>()) {
  handle->kernel = k.get_handle();
}

void run::start() {
  if (handle->state == ERT_CMD_STATE_RUNNING) throw std::runtime_error("the run is still going");
  handle->state = ERT_CMD_STATE_RUNNING;
}

std::cv_status run::wait2(const std::chrono::milliseconds &) const {
  if (handle->state == ERT_CMD_STATE_NEW) throw std::runtime_error("the run was not started");
  if (handle->state == ERT_CMD_STATE_RUNNING) handle->execute();
  if (handle->state != ERT_CMD_STATE_COMPLETED) {
    throw command_error(handle->state, handle->reason);
  }
  return std::cv_status::no_timeout;
}

void run::set_value(int index, const void *value, size_t bytes) {
  const auto *at = static_cast<const uint8_t *>(value);
  handle->values[index].assign(at, at + bytes);
}

void run::set_buffer(int index, const bo &buffer) { handle->buffers[index] = buffer.get_handle(); }

}  // namespace xrt
