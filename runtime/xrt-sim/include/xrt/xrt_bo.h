// Buffer objects of the simulated XRT: two copies, the host's and the device's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "xrt/xrt_device.h"

enum xclBOSyncDirection { XCL_BO_SYNC_BO_TO_DEVICE = 0, XCL_BO_SYNC_BO_FROM_DEVICE };

namespace xrt {

using memory_group = uint32_t;

class bo_impl;

class bo {
 public:
  enum class flags : uint32_t { normal = 0, cacheable = 1u << 24, host_only = 1u << 29 };

  bo() = default;
  bo(const device &dev, size_t bytes, flags memory, memory_group group);
  void sync(xclBOSyncDirection direction, size_t bytes, size_t offset);
  void *map();

  template <typename T>
  T map() {
    return reinterpret_cast<T>(map());
  }

  const std::shared_ptr<bo_impl> &get_handle() const { return handle; }

 private:
  std::shared_ptr<bo_impl> handle;
};

}  // namespace xrt
