// C functions through which tests and the simulator run kernels on a core's memory.
#include <cstring>
#include <new>

#include "core.h"

extern "C" void ternary_matmul(const int32_t *, int32_t, const int32_t *, int32_t, float *, int32_t);
extern "C" void strip_out(const float *, int32_t, float *, int32_t);
extern "C" void hadamard_quantize(float *, int32_t *, int32_t);

namespace aie_host {
thread_local Core *current = nullptr;
}

using aie_host::Core;

extern "C" Core *aie_host_core_new() {
  Core *core = new (std::nothrow) Core;
  if (core != nullptr) {
    std::memset(core->memory, 0xCD, sizeof core->memory);
    core->rounding = 0;
    core->saturation = 0;
    core->fault = nullptr;
  }
  return core;
}

extern "C" void aie_host_core_free(Core *core) { delete core; }

extern "C" std::uint8_t *aie_host_core_memory(Core *core) { return core->memory; }

// Calls kernel `id` with local byte addresses in the place of pointers. Null when all went well, else
// a constant text.
extern "C" const char *aie_host_core_call(Core *core, std::uint32_t id, const std::uint32_t *args,
                                          std::uint32_t n) {
  const std::uint32_t expected[] = {6, 4, 3};
  if (id > 2 || n != expected[id]) {
    return "no such kernel, or a wrong number of arguments";
  }
  const std::uint32_t pointers[3] = {0b010101, 0b0101, 0b011};
  for (std::uint32_t i = 0; i < n; ++i) {
    if ((pointers[id] >> i & 1) != 0 && args[i] >= aie_host::kMemoryBytes) {
      return "an address outside the core's memory";
    }
    if ((pointers[id] >> i & 1) != 0 && args[i] % 64 != 0) {
      return "an address that is no multiple of 64";
    }
  }
  aie_host::current = core;
  core->fault = nullptr;
  auto at = [&](std::uint32_t i) { return core->memory + args[i]; };
  auto ints = [&](std::uint32_t i) { return reinterpret_cast<std::int32_t *>(at(i)); };
  auto floats = [&](std::uint32_t i) { return reinterpret_cast<float *>(at(i)); };
  auto word = [&](std::uint32_t i) { return static_cast<std::int32_t>(args[i]); };
  // Scalar accesses are not checked one by one: indices are held to what the buffers can be.
  auto small = [&](std::uint32_t i, std::int32_t limit) { return word(i) >= 0 && word(i) < limit; };
  bool valid = true;
  switch (id) {
  case 0:
    valid = small(1, 2) && small(3, 2) && small(5, 64) && args[0] + 2 * 9792 <= 65536;
    if (valid) {
      ternary_matmul(ints(0), word(1), ints(2), word(3), floats(4), word(5));
    }
    break;
  case 1:
    valid = small(1, 64) && small(3, 2);
    if (valid) {
      strip_out(floats(0), word(1), floats(2), word(3));
    }
    break;
  default:
    valid = args[0] + 32768 <= 65536 && args[1] + 2 * 9792 <= 65536;
    if (valid) {
      hadamard_quantize(floats(0), ints(1), word(2));
    }
  }
  aie_host::current = nullptr;
  return valid ? core->fault : "an index or a buffer outside the core's memory";
}
