// Kernels and runs of the simulated XRT.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <exception>
#include <memory>
#include <string>

#include "xrt/xrt_bo.h"
#include "xrt/xrt_hw_context.h"

enum ert_cmd_state {
  ERT_CMD_STATE_NEW = 1,
  ERT_CMD_STATE_RUNNING = 3,
  ERT_CMD_STATE_COMPLETED = 4,
  ERT_CMD_STATE_ERROR = 5,
  ERT_CMD_STATE_ABORT = 6,
  ERT_CMD_STATE_TIMEOUT = 8,
  ERT_CMD_STATE_NORESPONSE = 9,
};

namespace xrt {

class kernel_impl;
class run_impl;

class kernel {
 public:
  kernel() = default;
  kernel(const hw_context &context, const std::string &name);
  int group_id(int argument) const;
  const std::shared_ptr<kernel_impl> &get_handle() const { return handle; }

 private:
  std::shared_ptr<kernel_impl> handle;
};

class run {
 public:
  class command_error : public std::exception {
   public:
    command_error(ert_cmd_state s, std::string text) : state(s), reason(std::move(text)) {}
    ert_cmd_state get_command_state() const { return state; }
    const char *what() const noexcept override { return reason.c_str(); }

   private:
    ert_cmd_state state;
    std::string reason;
  };

  run() = default;
  explicit run(const kernel &k);
  void start();
  std::cv_status wait2(const std::chrono::milliseconds &timeout) const;

  // As XRT does, a value is taken with as many bytes as its type has.
  template <typename T>
  void set_arg(int index, T &&value) {
    set_value(index, &value, sizeof(value));
  }
  void set_arg(int index, bo &buffer) { set_buffer(index, buffer); }
  void set_arg(int index, const bo &buffer) { set_buffer(index, buffer); }

 private:
  void set_value(int index, const void *value, size_t bytes);
  void set_buffer(int index, const bo &buffer);

  std::shared_ptr<run_impl> handle;
};

}  // namespace xrt
