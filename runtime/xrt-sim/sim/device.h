// What the simulated XRT asks of `src/device.rs`: the array, the memory of the device, and whether
// something is to go wrong.
#pragma once

#include <cstdint>

extern "C" {

struct xrt_sim_array;
struct xrt_sim_memory;

// Texts of errors go to `text`, at most `capacity` bytes with their end.

// 0 if there is such a device.
int32_t xrt_sim_device_open(uint32_t device, char *text, uint64_t capacity);

// An array with the image, or null. Counts as one attempt.
xrt_sim_array *xrt_sim_array_new(uint32_t device, const uint8_t *image, uint64_t bytes, char *text,
                                 uint64_t capacity);
void xrt_sim_array_free(xrt_sim_array *array);

// 0 if `bytes` are an image.
int32_t xrt_sim_image_check(const uint8_t *image, uint64_t bytes);

// The device's copy of a buffer, or null.
xrt_sim_memory *xrt_sim_memory_new(uint32_t device, uint64_t bytes, char *text, uint64_t capacity);
uint8_t *xrt_sim_memory_bytes(xrt_sim_memory *memory);
void xrt_sim_memory_free(xrt_sim_memory *memory);

// Runs instructions, the first `words` words of `instructions`, on the objects; `reached` says whether
// the array may touch them. Gives the state of the command.
int32_t xrt_sim_array_run(xrt_sim_array *array, xrt_sim_memory *instructions, uint64_t words,
                          xrt_sim_memory *const *objects, uint64_t n, int32_t reached, char *text,
                          uint64_t capacity);
}
