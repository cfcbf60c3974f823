// The part of AMD's aie_api that our kernels use, for a host compiler.
//
// Integers are exact. Floats follow what the kernels rely on: a product of two bf16 is exact, a sum is
// rounded once to nearest even, denormals become zero on the way in and out. Conversions obey the
// rounding and saturation registers, which start at floor and no saturation and keep their values from
// call to call. Shapes that AIE2P lacks do not compile. Vector accesses have to lie in the memory of
// the current core, aligned to their size, at most 64 bytes.
#pragma once
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>
#include <utility>

#include "core.h"

using int8 = std::int8_t;
using uint8 = std::uint8_t;
using int16 = std::int16_t;
using int32 = std::int32_t;
struct acc32 {};
struct accfloat {};

namespace aie {

enum class rounding_mode { floor = 0, conv_even = 12 };
enum class saturation_mode { none = 0, saturate = 1 };

inline void set_rounding(rounding_mode mode) {
  if (aie_host::current != nullptr) {
    aie_host::current->rounding = static_cast<int>(mode);
  }
}
inline void set_saturation(saturation_mode mode) {
  if (aie_host::current != nullptr) {
    aie_host::current->saturation = static_cast<int>(mode);
  }
}

namespace detail {

inline bool conv_even() {
  return aie_host::current != nullptr &&
         aie_host::current->rounding == static_cast<int>(rounding_mode::conv_even);
}
inline bool saturates() {
  return aie_host::current != nullptr && aie_host::current->saturation != 0;
}

inline float flush(float x) {
  return std::fabs(x) < std::numeric_limits<float>::min() ? std::copysign(0.0f, x) : x;
}

inline std::uint16_t to_bf16(float value, bool nearest_even) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(flush(value));
  std::uint32_t up = 0;
  if (nearest_even) {
    up = 0x7fff + (bits >> 16 & 1);
  } else if ((bits >> 31) != 0) {
    up = 0xffff; // floor: a negative value grows in magnitude
  }
  return static_cast<std::uint16_t>((bits + up) >> 16);
}

inline float from_bf16(std::uint16_t bits) {
  return flush(std::bit_cast<float>(std::uint32_t(bits) << 16));
}

} // namespace detail
} // namespace aie

// Conversions of constants round to nearest: the compiler makes them.
struct bfloat16 {
  std::uint16_t bits;
  bfloat16() = default;
  explicit bfloat16(float value) : bits(aie::detail::to_bf16(value, true)) {}
};

namespace aie {

template <typename T, unsigned N> struct vector {
  static_assert(N * sizeof(T) == 16 || N * sizeof(T) == 32 || N * sizeof(T) == 64 ||
                    N * sizeof(T) == 128 || N * sizeof(T) == 256,
                "no vector of this size on AIE2P");
  T data[N];

  T get(unsigned i) const { return data[i]; }

  template <unsigned M> vector<T, M> extract(unsigned part) const {
    static_assert(N % M == 0);
    vector<T, M> out;
    std::memcpy(out.data, data + part * M, sizeof out.data);
    return out;
  }

  template <unsigned M> vector<T, M> grow_replicate() const {
    static_assert(M % N == 0);
    vector<T, M> out;
    for (unsigned i = 0; i < M; ++i) {
      out.data[i] = data[i % N];
    }
    return out;
  }

  template <typename U> vector<U, N * sizeof(T) / sizeof(U)> cast_to() const {
    vector<U, N * sizeof(T) / sizeof(U)> out;
    std::memcpy(out.data, data, sizeof out.data);
    return out;
  }
};

template <unsigned N> struct mask {
  bool data[N];
};

namespace detail {

template <unsigned Bytes> bool accessible(const void *at) {
  const auto address = reinterpret_cast<std::uintptr_t>(at);
  if (aie_host::current == nullptr) {
    return false;
  }
  const auto base = reinterpret_cast<std::uintptr_t>(aie_host::current->memory);
  if (address < base || address + Bytes > base + aie_host::kMemoryBytes) {
    aie_host::fail("a vector access outside the core's memory");
    return false;
  }
  if (address % (Bytes < 64 ? Bytes : 64) != 0) {
    aie_host::fail("a vector access that is not aligned");
    return false;
  }
  return true;
}

} // namespace detail

template <unsigned N, typename T> vector<T, N> load_v(const T *at) {
  vector<T, N> out{};
  if (detail::accessible<N * sizeof(T)>(at)) {
    std::memcpy(static_cast<void *>(out.data), at, sizeof out.data);
  }
  return out;
}

template <typename T, unsigned N> void store_v(T *at, const vector<T, N> &v) {
  if (detail::accessible<N * sizeof(T)>(at)) {
    std::memcpy(static_cast<void *>(at), v.data, sizeof v.data);
  }
}

template <typename T, unsigned N> vector<T, N> broadcast(T value) {
  vector<T, N> out;
  for (T &x : out.data) {
    x = value;
  }
  return out;
}

template <typename T, unsigned N> vector<T, N> bit_and(const vector<T, N> &a, const vector<T, N> &b) {
  vector<T, N> out;
  for (unsigned i = 0; i < N; ++i) {
    out.data[i] = static_cast<T>(a.data[i] & b.data[i]);
  }
  return out;
}

namespace detail {

template <typename T> T wrap_add(T a, T b) {
  if constexpr (std::is_same_v<T, float>) {
    return flush(flush(a) + flush(b));
  } else {
    return static_cast<T>(std::uint32_t(a) + std::uint32_t(b));
  }
}
template <typename T> T wrap_sub(T a, T b) {
  if constexpr (std::is_same_v<T, float>) {
    return flush(flush(a) - flush(b));
  } else {
    return static_cast<T>(std::uint32_t(a) - std::uint32_t(b));
  }
}

template <typename T, unsigned N, typename F>
vector<T, N> zip_with(const vector<T, N> &a, const vector<T, N> &b, F f) {
  vector<T, N> out;
  for (unsigned i = 0; i < N; ++i) {
    out.data[i] = f(a.data[i], b.data[i]);
  }
  return out;
}

} // namespace detail

template <typename T, unsigned N> vector<T, N> add(const vector<T, N> &a, const vector<T, N> &b) {
  return detail::zip_with(a, b, detail::wrap_add<T>);
}
template <typename T, unsigned N> vector<T, N> sub(const vector<T, N> &a, const vector<T, N> &b) {
  return detail::zip_with(a, b, detail::wrap_sub<T>);
}
template <typename T, unsigned N> vector<T, N> max(const vector<T, N> &a, const vector<T, N> &b) {
  return detail::zip_with(a, b, [](T x, T y) { return x < y ? y : x; });
}
template <typename T, unsigned N> vector<T, N> min(const vector<T, N> &a, const vector<T, N> &b) {
  return detail::zip_with(a, b, [](T x, T y) { return y < x ? y : x; });
}

template <typename T, unsigned N> mask<N> lt(const vector<T, N> &a, const vector<T, N> &b) {
  mask<N> out;
  for (unsigned i = 0; i < N; ++i) {
    out.data[i] = a.data[i] < b.data[i];
  }
  return out;
}

// Lane of `b` where the mask is set, as in aie_api.
template <typename T, unsigned N>
vector<T, N> select(const vector<T, N> &a, const vector<T, N> &b, const mask<N> &m) {
  vector<T, N> out;
  for (unsigned i = 0; i < N; ++i) {
    out.data[i] = m.data[i] ? b.data[i] : a.data[i];
  }
  return out;
}

template <typename T, unsigned N> T reduce_max(const vector<T, N> &v) {
  T most = v.data[0];
  for (T x : v.data) {
    most = most < x ? x : most;
  }
  return most;
}
template <typename T, unsigned N> T reduce_add(const vector<T, N> &v) {
  static_assert(std::is_integral_v<T>, "an order of float sums is not promised");
  T sum = 0;
  for (T x : v.data) {
    sum = detail::wrap_add(sum, x);
  }
  return sum;
}

// Runs of `step` elements, taken alternately from a and b.
template <typename T, unsigned N>
std::pair<vector<T, N>, vector<T, N>> interleave_zip(const vector<T, N> &a, const vector<T, N> &b,
                                                     unsigned step) {
  T all[2 * N];
  for (unsigned i = 0; i < N; ++i) {
    all[(i / step) * 2 * step + i % step] = a.data[i];
    all[(i / step) * 2 * step + step + i % step] = b.data[i];
  }
  std::pair<vector<T, N>, vector<T, N>> out;
  std::memcpy(out.first.data, all, sizeof out.first.data);
  std::memcpy(out.second.data, all + N, sizeof out.second.data);
  return out;
}
template <typename T, unsigned N>
std::pair<vector<T, N>, vector<T, N>> interleave_unzip(const vector<T, N> &a, const vector<T, N> &b,
                                                       unsigned step) {
  T all[2 * N];
  std::memcpy(all, a.data, sizeof a.data);
  std::memcpy(all + N, b.data, sizeof b.data);
  std::pair<vector<T, N>, vector<T, N>> out;
  for (unsigned i = 0; i < N; ++i) {
    out.first.data[i] = all[(i / step) * 2 * step + i % step];
    out.second.data[i] = all[(i / step) * 2 * step + step + i % step];
  }
  return out;
}

template <unsigned N> vector<float, N> to_float(const vector<int32, N> &v, int shift = 0) {
  vector<float, N> out;
  for (unsigned i = 0; i < N; ++i) {
    out.data[i] = std::ldexp(static_cast<float>(v.data[i]), -shift);
  }
  return out;
}

// x * 2^shift as an integer, by the registers.
template <typename T, unsigned N> vector<T, N> to_fixed(const vector<float, N> &v, int shift = 0) {
  static_assert(std::is_same_v<T, int32>);
  vector<T, N> out;
  for (unsigned i = 0; i < N; ++i) {
    const double x = std::ldexp(double(detail::flush(v.data[i])), shift);
    double rounded = std::floor(x);
    if (detail::conv_even()) {
      const double rest = x - rounded;
      const bool odd = std::fmod(rounded, 2.0) != 0.0;
      rounded += rest > 0.5 || (rest == 0.5 && odd) ? 1.0 : 0.0;
    }
    if (rounded >= -2147483648.0 && rounded <= 2147483647.0) {
      out.data[i] = static_cast<T>(rounded);
    } else if (detail::saturates()) {
      out.data[i] = rounded < 0 ? std::numeric_limits<T>::min() : std::numeric_limits<T>::max();
    } else {
      const double low = std::fmod(rounded, 4294967296.0);
      out.data[i] = static_cast<T>(static_cast<std::uint32_t>(static_cast<std::int64_t>(low)));
    }
  }
  return out;
}

template <typename Tag, unsigned N> struct accum {
  static_assert(std::is_same_v<Tag, accfloat>, "only float accumulators outside of mmul");
  static_assert(N * 4 <= 256, "an accumulator has at most 2048 bits");
  float data[N];

  void from_vector(const vector<float, N> &v) {
    for (unsigned i = 0; i < N; ++i) {
      data[i] = detail::flush(v.data[i]);
    }
  }

  template <typename T> vector<T, N> to_vector() const {
    vector<T, N> out;
    for (unsigned i = 0; i < N; ++i) {
      if constexpr (std::is_same_v<T, bfloat16>) {
        out.data[i].bits = detail::to_bf16(data[i], detail::conv_even());
      } else {
        static_assert(std::is_same_v<T, float>);
        out.data[i] = data[i];
      }
    }
    return out;
  }
};

// The real function of this name makes vectors and accumulators.
template <typename T, unsigned N> auto zeros() {
  if constexpr (std::is_same_v<T, accfloat>) {
    return accum<accfloat, N>{};
  } else {
    return vector<T, N>{};
  }
}

template <unsigned N>
accum<accfloat, N> mul(const vector<bfloat16, N> &a, const vector<bfloat16, N> &b) {
  accum<accfloat, N> out;
  for (unsigned i = 0; i < N; ++i) {
    out.data[i] = detail::flush(detail::from_bf16(a.data[i].bits) * detail::from_bf16(b.data[i].bits));
  }
  return out;
}
template <unsigned N>
accum<accfloat, N> mac(const accum<accfloat, N> &acc, const vector<bfloat16, N> &a,
                       const vector<bfloat16, N> &b) {
  accum<accfloat, N> out = mul(a, b);
  for (unsigned i = 0; i < N; ++i) {
    out.data[i] = detail::flush(acc.data[i] + out.data[i]);
  }
  return out;
}
template <unsigned N>
accum<accfloat, N> msc(const accum<accfloat, N> &acc, const vector<bfloat16, N> &a,
                       const vector<bfloat16, N> &b) {
  accum<accfloat, N> out = mul(a, b);
  for (unsigned i = 0; i < N; ++i) {
    out.data[i] = detail::flush(acc.data[i] - out.data[i]);
  }
  return out;
}

namespace detail {

// Shapes with 32-bit sums that the AIE2P matrix unit has, as far as they are used here.
template <unsigned M, unsigned K, unsigned N, typename A, typename B> constexpr bool legal() {
  constexpr bool wide = std::is_same_v<A, int16> && std::is_same_v<B, uint8>;
  constexpr bool narrow = std::is_same_v<A, int8> && std::is_same_v<B, uint8>;
  return (wide && M == 8 && K == 4 && N == 8) || (narrow && M == 8 && K == 8 && N == 8);
}

} // namespace detail

template <unsigned M, unsigned K, unsigned N, typename A, typename B> struct mmul {
  static_assert(detail::legal<M, K, N, A, B>(), "AIE2P has no matrix product of this shape");
  static constexpr unsigned size_A = M * K;
  static constexpr unsigned size_B = K * N;
  static constexpr unsigned size_C = M * N;
  std::uint32_t data[size_C];

  explicit mmul(const vector<int32, size_C> &v, int shift = 0) {
    for (unsigned i = 0; i < size_C; ++i) {
      data[i] = std::uint32_t(v.data[i]) << shift;
    }
  }

  void mac(const vector<A, size_A> &a, const vector<B, size_B> &b) {
    for (unsigned m = 0; m < M; ++m) {
      for (unsigned k = 0; k < K; ++k) {
        const std::int32_t x = a.data[m * K + k];
        for (unsigned n = 0; n < N; ++n) {
          data[m * N + n] += std::uint32_t(x * std::int32_t(b.data[k * N + n]));
        }
      }
    }
  }

  template <typename T> vector<T, size_C> to_vector(int shift = 0) const {
    static_assert(std::is_same_v<T, int32>);
    if (shift != 0) {
      aie_host::fail("a shift on the way out of an accumulator");
    }
    vector<T, size_C> out;
    std::memcpy(out.data, data, sizeof out.data);
    return out;
  }
};

} // namespace aie
