// Images of the simulated XRT.
#pragma once

#include <memory>
#include <vector>

namespace xrt {

// Names a registered image.
class uuid {
 public:
  uuid() = default;
  explicit uuid(int n) : number(n) {}
  int number = -1;
};

class xclbin_impl;

class xclbin {
 public:
  xclbin() = default;
  explicit xclbin(const std::vector<char> &data);
  const std::shared_ptr<xclbin_impl> &get_handle() const { return handle; }

 private:
  std::shared_ptr<xclbin_impl> handle;
};

}  // namespace xrt
