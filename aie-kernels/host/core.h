// State of one core of the array as far as kernels see it: its memory, the rounding and saturation
// registers, and the first fault.
#pragma once
#include <cstddef>
#include <cstdint>

namespace aie_host {

constexpr std::size_t kMemoryBytes = 65536;

struct Core {
  alignas(64) std::uint8_t memory[kMemoryBytes];
  // Registers keep their values from call to call; what a core starts with is floor, no saturation.
  int rounding;
  int saturation;
  const char *fault;
};

// The core whose kernel runs on this thread.
extern thread_local Core *current;

// Notes the first fault of a kernel. The access does not take place.
inline void fail(const char *what) {
  if (current != nullptr && current->fault == nullptr) {
    current->fault = what;
  }
}

} // namespace aie_host
