// The inner loops of a model's layers, compiled for each instruction set.
#pragma once

#include <cstddef>
#include <cstdint>

#include "dart/attention.h"
#include "dart/blocks.h"
#include "dart/instructions.h"
#include "dart/noise.h"
#include "dart/packed_product.h"
#include "dart/rows.h"
#include "split_softmax.h"

namespace dart {

// Numbers that a vector holds, at most; and a count of numbers in whole vectors.
constexpr std::size_t kMostLanes = 16;
constexpr std::size_t in_vectors(std::size_t count) {
  return (count + kMostLanes - 1) / kMostLanes * kMostLanes;
}

// Attention takes keys of a block of positions at a time, and computes at most this many rows at a
// time.
constexpr std::size_t kKeyBlock = 128;
constexpr std::size_t kAttentionRows = 192;
constexpr std::size_t kRowGroup = 14;  // of which products are computed together

// Rows of the queries of one key head, and room for what is computed on the way.
struct AttentionRows {
  const Attention* attention;
  std::size_t sequence;
  std::size_t kv_head;
  std::size_t row;   // the first of `rows`; row r belongs to the group's head r / T
  std::size_t rows;  // 1 to kAttentionRows
  float* room;       // [room_of(attention, rows)]
  // Where only one part of all positions is computed (see split_softmax.h), its number, and where its
  // softmax is written, [rows, split_numbers(h)]; otherwise null.
  std::size_t split;
  float* partial;
};
using AttendRows = void (*)(const AttentionRows& rows);

// Numbers of the room for `rows` rows.
inline std::size_t room_of(const Attention& attention, std::size_t rows) {
  const std::size_t h = attention.head_size, words = in_vectors(h);
  const std::size_t fresh = (attention.new_rows + kKeyGroup - 1) / kKeyGroup * kKeyGroup;
  const std::size_t pairs = attention.bfloat16 ? (rows + kKeyBlock / 2 + 3) * h : 0;
  return rows * (2 * split_numbers(h) + fresh) + kRowGroup * kKeyBlock + (kKeyBlock + kKeyGroup) * words + pairs;
}

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
  AttendRows attend;        // keys and values in float32
  AttendRows attend_pairs;  // in bfloat16
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

// Attention with keys and values in bfloat16, by instructions made for it; null likewise.
extern const AttendRows kAttendPairsAvx512Bf16;

// Products with weights in blocks; null likewise.
extern const MultiplyTiles kMultiplyBlocksPortable;
extern const MultiplyTiles kMultiplyBlocksAvx2;
extern const MultiplyTiles kMultiplyBlocksAvx512Vnni;
extern const MultiplyTiles kMultiplyBlocksNeon;
extern const MultiplyTiles kMultiplyBlocksNeonDot;

// The kernels of an instruction set; null as above.
const Kernels* kernels(Instructions instructions);
AttendRows attend_rows(Instructions instructions, bool bfloat16);
MultiplyTiles multiply_blocks(Instructions instructions);

}  // namespace dart
