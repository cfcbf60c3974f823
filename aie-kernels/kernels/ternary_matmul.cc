// Ternary matmul of one strip: 32 outputs, 8 rows of activations, 512 columns.
//
// A code block is 64 bytes, [8 columns][8 outputs], and each byte holds four outputs: field j
// (bits 2j, 2j+1) belongs to output 8j + lane. A masked byte is code * 4^j, which the matrix unit takes
// as it is. The accumulator starts at -4^j * sum(q), so it ends at exactly
// 4^j * sum((code - 1) * q) = 4^j * isum, and 4^-j goes into the scale.
//
// Float part, the arithmetic `n16` (and `n8`, without the third part): 4^j * isum is split exactly into
// bf16 parts h + m + l; sc = s * d * 4^-j is a bf16; then acc = acc + h*sc, + m*sc, + l*sc, in this
// order, group after group. Each product is exact, each sum rounded once to nearest even.
#include <aie_api/aie.hpp>
#include <stdint.h>

#include "layout.h"

namespace {

using Lanes = aie::accum<accfloat, 64>;

inline void set_modes() {
  aie::set_rounding(aie::rounding_mode::conv_even);
  aie::set_saturation(aie::saturation_mode::saturate);
}

// 0x03, 0x0C, 0x30, 0xC0
inline aie::vector<uint8, 64> field(const aie::vector<uint8, 64> &codes, unsigned j) {
  return aie::bit_and(codes, aie::broadcast<uint8, 64>(uint8(3u << (2 * j))));
}

// acc + isum * sc; `parts` is 3 for sums of 24 bits, 2 for sums of 16.
inline Lanes add_scaled(Lanes acc, const aie::vector<int32, 64> &isum,
                        const aie::vector<bfloat16, 64> &sc, unsigned parts) {
  const auto ones = aie::broadcast<bfloat16, 64>(bfloat16(1.0f));
  Lanes rest;
  rest.from_vector(aie::to_float(isum, 0));
  for (unsigned i = 0; i < parts; ++i) {
    const aie::vector<bfloat16, 64> part = rest.to_vector<bfloat16>();
    rest = aie::msc(rest, part, ones);
    acc = aie::mac(acc, part, sc);
  }
  return acc;
}

// s * d * 4^-j over the 8 x 8 lanes of field j.
inline aie::vector<bfloat16, 64> scales(const bfloat16 *s, const bfloat16 *d, unsigned j) {
  const float quarters[4] = {1.0f, 0.25f, 0.0625f, 0.015625f};
  const aie::vector<bfloat16, 64> exponents = aie::load_v<64>(d);
  const auto quarter = aie::broadcast<bfloat16, 64>(bfloat16(quarters[j]));
  const aie::vector<bfloat16, 64> shifted = aie::mul(exponents, quarter).to_vector<bfloat16>();
  const aie::vector<bfloat16, 8> eight = aie::load_v<8>(s + 8 * j);
  const aie::vector<bfloat16, 64> spread = eight.grow_replicate<64>();
  return aie::mul(spread, shifted).to_vector<bfloat16>();
}

inline void store_field(float *acc, unsigned j, const aie::vector<int32, 64> &isum,
                        const aie::vector<bfloat16, 64> &sc, unsigned parts, bool zero) {
  Lanes lanes;
  if (zero) {
    lanes = aie::zeros<accfloat, 64>();
  } else {
    lanes.from_vector(aie::load_v<64>(acc + 64 * j));
  }
  aie::store_v(acc + 64 * j, add_scaled(lanes, isum, sc, parts).to_vector<float>());
}

// One group of 128 columns; q: [32 quads][8 rows][4]. Two fields at a time: four sets of accumulators
// and what feeds them would not fit the registers.
void group_int16(const int16 *q, const uint8 *codes, const int32 *sums, const bfloat16 *s,
                 const bfloat16 *d, float *acc, bool zero) {
  using Tile = aie::mmul<8, 4, 8, int16, uint8>;
  const aie::vector<int32, 64> start = aie::load_v<64>(sums);
  for (unsigned j = 0; j < 4; j += 2) {
    Tile even(start, 2 * j);
    Tile odd(start, 2 * j + 2);
    for (unsigned block = 0; block < 16; ++block) {
      const aie::vector<uint8, 64> b = aie::load_v<64>(codes + 64 * block);
      const aie::vector<uint8, 64> b0 = field(b, j);
      const aie::vector<uint8, 64> b1 = field(b, j + 1);
      const aie::vector<int16, 32> low = aie::load_v<32>(q + 64 * block);
      const aie::vector<int16, 32> high = aie::load_v<32>(q + 64 * block + 32);
      even.mac(low, b0.extract<32>(0));
      odd.mac(low, b1.extract<32>(0));
      even.mac(high, b0.extract<32>(1));
      odd.mac(high, b1.extract<32>(1));
    }
    store_field(acc, j, even.to_vector<int32>(0), scales(s, d, j), 3, zero);
    store_field(acc, j + 1, odd.to_vector<int32>(0), scales(s, d, j + 1), 3, zero);
  }
}

// The same with q: [16 octets][8 rows][8] of int8.
void group_int8(const int8 *q, const uint8 *codes, const int32 *sums, const bfloat16 *s,
                const bfloat16 *d, float *acc, bool zero) {
  using Tile = aie::mmul<8, 8, 8, int8, uint8>;
  const aie::vector<int32, 64> start = aie::load_v<64>(sums);
  for (unsigned j = 0; j < 4; j += 2) {
    Tile even(start, 2 * j);
    Tile odd(start, 2 * j + 2);
    for (unsigned block = 0; block < 16; ++block) {
      const aie::vector<uint8, 64> b = aie::load_v<64>(codes + 64 * block);
      const aie::vector<int8, 64> a = aie::load_v<64>(q + 64 * block);
      even.mac(a, field(b, j));
      odd.mac(a, field(b, j + 1));
    }
    store_field(acc, j, even.to_vector<int32>(0), scales(s, d, j), 2, zero);
    store_field(acc, j + 1, odd.to_vector<int32>(0), scales(s, d, j + 1), 2, zero);
  }
}

} // namespace

// Adds strip `strip` of slice `slice` (0 or 1 of the ring) times the weights in `slot` (0 or 1) to its
// accumulators in `acc`.
extern "C" void ternary_matmul(const int32_t *slices, int32_t slice, const int32_t *weights,
                               int32_t slot, float *acc, int32_t strip) {
  set_modes();
  const uint8 *x = reinterpret_cast<const uint8 *>(slices) + slice * kSliceBytes;
  const uint8 *w = reinterpret_cast<const uint8 *>(weights) + slot * kStripBytes;
  const int32_t *header = reinterpret_cast<const int32_t *>(x + kHeaderAt);
  const bool first = header[kFirst] != 0;
  const bool wide = header[kMode] == 0;
  float *out = acc + strip * kStripFloats;
  for (unsigned g = 0; g < kGroups; ++g) {
    const uint8 *chunk = w + (g / 2) * kChunkBytes;
    const uint8 *codes = chunk + kCodesAt + (g % 2) * 1024;
    const bfloat16 *s = reinterpret_cast<const bfloat16 *>(chunk) + (g % 2) * 32;
    const bfloat16 *d = reinterpret_cast<const bfloat16 *>(x + kExponentsAt) + 64 * g;
    const int32 *sums = reinterpret_cast<const int32 *>(x + kSumsAt) + 64 * g;
    const bool zero = first && g == 0;
    if (wide) {
      group_int16(reinterpret_cast<const int16 *>(x) + 1024 * g, codes, sums, s, d, out, zero);
    } else {
      group_int8(reinterpret_cast<const int8 *>(x) + 1024 * g, codes, sums, s, d, out, zero);
    }
  }
}

// Copies the results of strip `strip` to `slot` (0 or 1) of the output ring.
extern "C" void strip_out(const float *acc, int32_t strip, float *out, int32_t slot) {
  set_modes();
  for (unsigned i = 0; i < kStripFloats; i += 16) {
    const aie::vector<float, 16> v = aie::load_v<16>(acc + strip * kStripFloats + i);
    aie::store_v(out + slot * kStripFloats + i, v);
  }
}
