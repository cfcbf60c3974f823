// Bytes of the buffers that the kernels share with the DMAs. `src/layout.rs` holds the same numbers;
// a test compares them.
#pragma once

constexpr unsigned kRows = 8;          // rows of activations, always all of them
constexpr unsigned kSliceK = 512;      // columns of one activation slice
constexpr unsigned kGroup = 128;       // columns that share a scale
constexpr unsigned kGroups = kSliceK / kGroup;

// Activation slice: integers, then per group -sum(q) and the block exponents, both spread over the
// 8 x 8 lanes of a tile, then 16 header words. int8 integers fill the first half of their space.
constexpr unsigned kSumsAt = 8192;     // int32 [4 groups][8 rows][8 equal]
constexpr unsigned kExponentsAt = 9216; // bf16 [4 groups][8 rows][8 equal]
constexpr unsigned kHeaderAt = 9728;   // int32 [16]
constexpr unsigned kSliceBytes = 9792;

// Words of the header.
constexpr unsigned kStrips = 0;    // strips of each core in this row group
constexpr unsigned kFirst = 1;     // 1 on the first slice of K: accumulators start at zero
constexpr unsigned kLast = 2;      // 1 on the last slice of K: strips are sent
constexpr unsigned kMode = 3;      // 0: int16 activations, 1: int8
constexpr unsigned kLiveRows = 4;  // rows that carry data; the others are zeros

// Weights of one strip and slice: two t2 chunks of 32 rows by 256 columns.
constexpr unsigned kChunkBytes = 2176;
constexpr unsigned kCodesAt = 128;
constexpr unsigned kStripBytes = 2 * kChunkBytes;

// One strip of results: f32 [4 code fields][8 rows][8], output 8 * field + lane.
constexpr unsigned kStripFloats = 256;
