// A device of the simulated XRT: the members that the shim uses, under XRT's names.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "xrt/experimental/xrt_xclbin.h"

namespace xrt {

namespace info {
enum class device : unsigned int { bdf, name };
}

class device_impl;

class device {
 public:
  device() = default;
  explicit device(unsigned int index);
  uuid register_xclbin(const xclbin &image);

  template <info::device what>
  std::string get_info() const {
    return text(what);
  }

  const std::shared_ptr<device_impl> &get_handle() const { return handle; }

 private:
  std::string text(info::device what) const;

  std::shared_ptr<device_impl> handle;
};

}  // namespace xrt
