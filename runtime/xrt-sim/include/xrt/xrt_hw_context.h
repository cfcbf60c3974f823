// Hardware contexts of the simulated XRT.
#pragma once

#include <memory>

#include "xrt/xrt_device.h"

namespace xrt {

class hw_context_impl;

class hw_context {
 public:
  hw_context() = default;
  hw_context(const device &dev, const uuid &image);
  const std::shared_ptr<hw_context_impl> &get_handle() const { return handle; }

 private:
  std::shared_ptr<hw_context_impl> handle;
};

}  // namespace xrt
