/* The C interface of our shim over XRT's C++ classes. XRT's own C interface cannot make a hardware
 * context, and C++ classes cannot be opened at run time.
 *
 * Every function catches all exceptions. Handles are null, and numbers negative, where it failed; the
 * reason is then last_error() on the same thread, until the next call. Handles belong to the caller and
 * are freed in the order run, kernel, context, device; a buffer may go any time before its device. A
 * handle may move to another thread, but no two threads may use it at once.
 *
 * After any change here: DRAFTER_XRT_ABI + 1, and `cargo xtask bindings`. */
#ifndef DRAFTER_XRT_H
#define DRAFTER_XRT_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define DRAFTER_XRT_ABI 1

/* What device_info() tells. */
#define DRAFTER_XRT_NAME 0
#define DRAFTER_XRT_ADDRESS 1
#define DRAFTER_XRT_VERSION 2

/* Memory of a buffer. */
#define DRAFTER_XRT_INSTRUCTIONS 0
#define DRAFTER_XRT_HOST 1

/* Directions of buffer_sync(). */
#define DRAFTER_XRT_TO_DEVICE 0
#define DRAFTER_XRT_FROM_DEVICE 1

/* States of a command, ert_cmd_state. */
#define DRAFTER_XRT_COMPLETED 4
#define DRAFTER_XRT_ERROR 5
#define DRAFTER_XRT_ABORT 6
#define DRAFTER_XRT_TIMEOUT 8
#define DRAFTER_XRT_NO_RESPONSE 9

struct drafter_xrt_device;
struct drafter_xrt_context;
struct drafter_xrt_kernel;
struct drafter_xrt_buffer;
struct drafter_xrt_run;

struct drafter_xrt_api {
  /* DRAFTER_XRT_ABI, and the bytes of this table. */
  uint32_t abi;
  uint32_t bytes;

  const char *(*last_error)(void);

  struct drafter_xrt_device *(*device_open)(uint32_t index);
  void (*device_free)(struct drafter_xrt_device *device);
  /* Writes at most `capacity` bytes of text with its end; gives the length of the text. */
  int64_t (*device_info)(struct drafter_xrt_device *device, uint32_t what, char *text,
                         uint64_t capacity);

  /* Registers an image (an xclbin) and makes a context for it. */
  struct drafter_xrt_context *(*context_new)(struct drafter_xrt_device *device,
                                             const uint8_t *image, uint64_t bytes);
  void (*context_free)(struct drafter_xrt_context *context);

  struct drafter_xrt_kernel *(*kernel_new)(struct drafter_xrt_context *context, const char *name);
  /* The memory group that a buffer for this argument has to be in. */
  int32_t (*kernel_group)(struct drafter_xrt_kernel *kernel, uint32_t argument);
  void (*kernel_free)(struct drafter_xrt_kernel *kernel);

  struct drafter_xrt_buffer *(*buffer_new)(struct drafter_xrt_device *device, uint64_t bytes,
                                           uint32_t memory, int32_t group);
  /* The host's copy; the same address for as long as the buffer lives. */
  uint8_t *(*buffer_map)(struct drafter_xrt_buffer *buffer);
  int32_t (*buffer_sync)(struct drafter_xrt_buffer *buffer, uint32_t direction, uint64_t bytes,
                         uint64_t offset);
  void (*buffer_free)(struct drafter_xrt_buffer *buffer);

  struct drafter_xrt_run *(*run_new)(struct drafter_xrt_kernel *kernel);
  int32_t (*run_set_u64)(struct drafter_xrt_run *run, uint32_t argument, uint64_t value);
  int32_t (*run_set_i32)(struct drafter_xrt_run *run, uint32_t argument, int32_t value);
  /* The run keeps the buffer alive. */
  int32_t (*run_set_buffer)(struct drafter_xrt_run *run, uint32_t argument,
                            struct drafter_xrt_buffer *buffer);
  int32_t (*run_start)(struct drafter_xrt_run *run);
  /* The state; where it is not DRAFTER_XRT_COMPLETED, last_error() has the details. */
  int32_t (*run_wait)(struct drafter_xrt_run *run, uint32_t timeout_ms);
  void (*run_free)(struct drafter_xrt_run *run);
};

/* The only symbol of the library. */
const struct drafter_xrt_api *drafter_xrt(void);

#ifdef __cplusplus
}
#endif

#endif
