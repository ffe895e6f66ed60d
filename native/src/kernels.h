// The inner loops of a model's layers, compiled for each instruction set.
#pragma once

#include <cstddef>
#include <cstdint>

#include "dart/attention.h"
#include "dart/instructions.h"
#include "dart/int8.h"
#include "dart/noise.h"
#include "dart/packed_product.h"
#include "dart/rows.h"

namespace dart {

// Numbers that a vector holds, at most; and a count of numbers in whole vectors.
constexpr std::size_t kMostLanes = 16;
constexpr std::size_t in_vectors(std::size_t count) {
  return (count + kMostLanes - 1) / kMostLanes * kMostLanes;
}

// Rows of the queries of one key head, and room for what is computed on the way.
struct AttentionRows {
  const Attention* attention;
  std::size_t sequence;
  std::size_t kv_head;
  std::size_t used;     // cached rows
  std::size_t row;      // the first of `rows`; row r belongs to the group's head r / T
  std::size_t rows;
  float* scores;        // [rows, stride]
  float* fresh;         // [rows, fresh_stride]: scores of new keys, seen or not
  float* keys;          // [h, kMostLanes]: keys, one a column
  float* gathered;      // [kMostLanes, h]: keys of several pages
  std::size_t stride;
  std::size_t fresh_stride;
};

// A row of dart::Draws, and room for what is computed on the way.
constexpr std::size_t kDrawBlock = 64;  // logits that are looked at or left out together
constexpr std::size_t blocks_of(std::size_t size) { return (size + kDrawBlock - 1) / kDrawBlock; }
struct DrawnRow {
  const float* x;  // [size]
  std::size_t size;
  float temperature;
  std::int32_t top_k;
  float top_p;
  float min_p;
  ThreefryKey key;
  std::uint32_t position;
  const std::int32_t* ids;  // [size]; null for the numbers from 0
  std::size_t count;
  float* blocks;  // [blocks_of(size)]
  float* room;    // [size]; null without top-k and top-p
  float* values;  // [count]
  std::int32_t* indices;
};

// Computes a product's outputs of tiles [first, last), without bias and residual.
using MultiplyTiles = void (*)(const PackedProduct& product, std::size_t first, std::size_t last);

struct Kernels {
  MultiplyTiles multiply;  // weights in float32 or bfloat16
  void (*normalize)(const Norm& norm, const float* x, std::size_t rows, float* y);
  void (*gate)(Activation activation, const float* x, std::size_t rows, std::size_t size, float* y);
  void (*quantize)(const float* x, std::size_t rows, std::size_t in, Int8Inputs* y);
  void (*rotate_heads)(const Heads& heads);
  void (*largest)(const float* x, std::size_t rows, std::size_t size, std::size_t count,
                  float* values, std::int32_t* indices);
  void (*attend)(const AttentionRows& rows);
  ThreefryKey (*fold)(const ThreefryKey& key, std::uint32_t data);
  void (*gumbel)(const ThreefryKey& key, std::size_t begin, std::size_t end, float* out);
  void (*gumbel_of)(const ThreefryKey& key, const std::int32_t* tokens, std::size_t count,
                    float* out);
  void (*draw)(const DrawnRow& row);
};

// Null if not built for this kind of processor.
extern const Kernels* const kPortableKernels;
extern const Kernels* const kAvx2Kernels;
extern const Kernels* const kAvx512Kernels;
extern const Kernels* const kNeonKernels;

// Products with weights in 8 bits; null likewise.
extern const MultiplyTiles kMultiplyInt8Portable;
extern const MultiplyTiles kMultiplyInt8Avx2;
extern const MultiplyTiles kMultiplyInt8Avx512Vnni;
extern const MultiplyTiles kMultiplyInt8Neon;

// Those of an instruction set; null as above.
const Kernels* kernels(Instructions instructions);
MultiplyTiles multiply_int8(Instructions instructions);

}  // namespace dart
