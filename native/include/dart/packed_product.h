// Products of a few rows with weights in tiles, for CPUs: y = x W + bias + residual.
//
// Every value of x W is one chain of additions, over the inputs in their order or, in 8 bits, over
// groups of inputs, starting from 0, whatever number of rows, tiles and threads there are. A row's
// result is therefore the same, bit for bit, computed alone or among others.
#pragma once

#include <cstddef>

#include "dart/instructions.h"
#include "dart/int8.h"

namespace dart {

// Outputs of a tile.
constexpr std::size_t kTileWidth = 32;

// How weights are stored. The arithmetic is float32; with weights in 8 bits the inputs are rounded to
// 8 bits too, and products within a group of inputs are exact.
enum class WeightType { kFloat32, kBfloat16, kInt8 };

// Of a tile's weights for a group of inputs in 8 bits: those of four inputs for each of 32 outputs,
// then of the next four; then the outputs' scales, float32.
constexpr std::size_t kInt8TileBytes = kInt8Group * kTileWidth + kTileWidth * sizeof(float);

// One product. Arrays need only their elements' natural alignment and must not overlap.
struct PackedProduct {
  const float* x;         // [rows, in]; not used with weights in 8 bits
  const void* tiles;      // [ceil(out / 32), in, 32]: W[i, 32 t + c] at [t, i, c], then any values;
                          // in 8 bits, [ceil(out / 32), int8_groups(in)] of kInt8TileBytes
  float* y;               // [rows, out]
  std::size_t rows;
  std::size_t in;
  std::size_t out;
  WeightType weights;
  const Int8Inputs* quantized = nullptr;  // [rows, int8_groups(in)], for weights in 8 bits
  const float* bias = nullptr;      // [out], or null for none
  const float* residual = nullptr;  // [rows, out], or null for none
};

// Computes a product in this thread and in at most `threads - 1` others, fewer if it is small.
void multiply(const PackedProduct& product, Instructions instructions, std::size_t threads);

}  // namespace dart
