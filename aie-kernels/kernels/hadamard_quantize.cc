// Block-Hadamard transform of 1024 columns, 8 rows, then integers for `ternary_matmul`: two slices
// without their headers.
//
// The transform scales by 1/32 (exact: an exponent) and adds pairs at strides 1, 2, 4, ..., 512, each
// sum rounded once, as the CPU does. Signs are folded into the weights before. A block of 128 then
// gets d = 2^(e - 14) (int8: 2^(e - 6)) with e the exponent of its largest magnitude, and
// q = x / d rounded to even; below 2^-100 all is zero.
#include <aie_api/aie.hpp>
#include <stdint.h>

#include "layout.h"

namespace {

constexpr unsigned kBlock = 1024;

inline void set_modes() {
  aie::set_rounding(aie::rounding_mode::conv_even);
  aie::set_saturation(aie::saturation_mode::saturate);
}

// x / 32; magnitudes that would leave the normal numbers become zero, as everywhere on this core.
inline aie::vector<float, 16> scaled(const aie::vector<float, 16> &x) {
  const aie::vector<int32, 16> bits = x.cast_to<int32>();
  const auto magnitude = aie::bit_and(bits, aie::broadcast<int32, 16>(0x7fffffff));
  const auto tiny = aie::lt(magnitude, aie::broadcast<int32, 16>(6 << 23));
  const auto less = aie::sub(bits, aie::broadcast<int32, 16>(5 << 23));
  return aie::select(less, aie::zeros<int32, 16>(), tiny).cast_to<float>();
}

// Strides below a vector: the pairs are brought face to face and back.
inline void stage_inside(float *x, unsigned stride) {
  for (unsigned i = 0; i < kBlock; i += 32) {
    const aie::vector<float, 16> a = aie::load_v<16>(x + i);
    const aie::vector<float, 16> b = aie::load_v<16>(x + i + 16);
    const auto [u, v] = aie::interleave_unzip(a, b, stride);
    const auto [low, high] = aie::interleave_zip(aie::add(u, v), aie::sub(u, v), stride);
    aie::store_v(x + i, low);
    aie::store_v(x + i + 16, high);
  }
}

inline void stage_across(float *x, unsigned stride) {
  for (unsigned i = 0; i < kBlock; i += 2 * stride) {
    for (unsigned k = i; k < i + stride; k += 16) {
      const aie::vector<float, 16> u = aie::load_v<16>(x + k);
      const aie::vector<float, 16> v = aie::load_v<16>(x + k + stride);
      aie::store_v(x + k, aie::add(u, v));
      aie::store_v(x + k + stride, aie::sub(u, v));
    }
  }
}

inline void transform(float *x) {
  for (unsigned i = 0; i < kBlock; i += 16) {
    const aie::vector<float, 16> v = aie::load_v<16>(x + i);
    aie::store_v(x + i, scaled(v));
  }
  for (unsigned stride = 1; stride < 16; stride *= 2) {
    stage_inside(x, stride);
  }
  for (unsigned stride = 16; stride < kBlock; stride *= 2) {
    stage_across(x, stride);
  }
}

// Bits of the largest magnitude of 128 values.
inline int32 largest(const float *x) {
  aie::vector<int32, 16> most = aie::zeros<int32, 16>();
  for (unsigned i = 0; i < kGroup; i += 16) {
    const aie::vector<float, 16> v = aie::load_v<16>(x + i);
    const auto magnitude = aie::bit_and(v.cast_to<int32>(), aie::broadcast<int32, 16>(0x7fffffff));
    most = aie::max(most, magnitude);
  }
  return aie::reduce_max(most);
}

inline void put_group(const float *x, uint8 *slice, unsigned g, unsigned row, bool wide) {
  const int32 bits = largest(x);
  const int32 top = wide ? 14 : 6;
  const int32 limit = wide ? 32767 : 127;
  const bool none = bits < (27 << 23); // 2^-100
  const int32 exponent = (bits >> 23) - 127 - top;
  int32 sum = 0;
  for (unsigned i = 0; i < kGroup; i += 16) {
    const aie::vector<float, 16> v = aie::load_v<16>(x + i);
    aie::vector<int32, 16> q = aie::zeros<int32, 16>();
    if (!none) {
      q = aie::to_fixed<int32>(v, -exponent);
      q = aie::min(q, aie::broadcast<int32, 16>(limit));
      q = aie::max(q, aie::broadcast<int32, 16>(-limit));
    }
    sum += aie::reduce_add(q);
    for (unsigned n = 0; n < 16; ++n) {
      const unsigned k = g * kGroup + i + n;
      if (wide) {
        reinterpret_cast<int16 *>(slice)[(k / 4) * 32 + row * 4 + k % 4] = int16(q.get(n));
      } else {
        reinterpret_cast<int8 *>(slice)[(k / 8) * 64 + row * 8 + k % 8] = int8(q.get(n));
      }
    }
  }
  int32 *sums = reinterpret_cast<int32 *>(slice + kSumsAt) + g * 64 + row * 8;
  uint16_t *exponents = reinterpret_cast<uint16_t *>(slice + kExponentsAt) + g * 64 + row * 8;
  for (unsigned n = 0; n < 8; ++n) {
    sums[n] = -sum;
    exponents[n] = none ? 0 : uint16_t((exponent + 127) << 7);
  }
}

} // namespace

// x: f32 [8 rows][1024], overwritten. slices: two slices of `kSliceBytes`; headers are left alone.
extern "C" void hadamard_quantize(float *x, int32_t *slices, int32_t mode) {
  set_modes();
  for (unsigned row = 0; row < kRows; ++row) {
    float *values = x + row * kBlock;
    transform(values);
    for (unsigned g = 0; g < kBlock / kGroup; ++g) {
      uint8 *slice = reinterpret_cast<uint8 *>(slices) + (g / kGroups) * kSliceBytes;
      put_group(values + g * kGroup, slice, g % kGroups, row, mode == 0);
    }
  }
}
