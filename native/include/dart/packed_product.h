// Products of a few rows with weights in tiles, for CPUs: y = x W + bias + residual.
//
// Every value of x W is one chain of additions over the inputs in their order, starting from 0,
// whatever number of rows, tiles and threads there are. A row's result is therefore the same, bit
// for bit, computed alone or among others.
#pragma once

#include <cstddef>

#include "dart/instructions.h"

namespace dart {

// Outputs of a tile.
constexpr std::size_t kTileWidth = 32;

// How weights are stored; the arithmetic is float32.
enum class WeightType { kFloat32, kBfloat16 };

// One product. Arrays need only their elements' natural alignment and must not overlap.
struct PackedProduct {
  const float* x;         // [rows, in]
  const void* tiles;      // [ceil(out / 32), in, 32]: W[i, 32 t + c] at [t, i, c], then any values
  float* y;               // [rows, out]
  std::size_t rows;
  std::size_t in;
  std::size_t out;
  WeightType weights;
  const float* bias = nullptr;      // [out], or null for none
  const float* residual = nullptr;  // [rows, out], or null for none
};

// Computes a product in this thread and in at most `threads - 1` others, fewer if it is small.
void multiply(const PackedProduct& product, Instructions instructions, std::size_t threads);

}  // namespace dart
