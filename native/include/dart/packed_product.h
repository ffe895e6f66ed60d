// Products of a few rows with weights in tiles, for CPUs: y = x W + bias + residual.
//
// Every value of x W is one chain of additions, over the inputs in their order or, in blocks, over
// groups of inputs, starting from 0, for any number of rows, tiles and threads. A row's result is
// therefore the same, bit for bit, computed alone or among others.
#pragma once

#include <cstddef>

#include "dart/blocks.h"
#include "dart/instructions.h"
#include "dart/shared_work.h"

namespace dart {

// One product, whose arithmetic is float32; with weights in blocks the inputs are rounded to 8 bits,
// and products within a group of inputs are exact. Arrays need only their elements' natural
// alignment and must not overlap.
struct PackedProduct {
  const float* x;     // [rows, in]; not used with weights in blocks
  const void* tiles;  // [ceil(out / 32), in, 32]: W[i, 32 t + c] at [t, i, c], then any values;
                      // in blocks, [ceil(out / 32), tile_bytes]
  float* y;           // [rows, out], with a distance of `stride` between rows
  std::size_t rows;
  std::size_t in;
  std::size_t out;
  std::size_t stride;
  WeightType weights;
  const Int8Inputs* quantized = nullptr;  // [rows, groups_of(in)], for weights in blocks
  const float* bias = nullptr;            // [out], or null for none
  const float* residual = nullptr;        // as y, or null for none
};

// Size of the tiles of a matrix.
std::size_t bytes_of(WeightType type, std::size_t in, std::size_t out);

// Threads that products are worth, at most `threads`.
std::size_t threads_for(const PackedProduct* products, std::size_t count, std::size_t threads);

// Computes products of the same rows by a team, or by one of at most `threads`: fewer if they are
// small.
void multiply(const PackedProduct* products, std::size_t count, Instructions instructions,
              Team& team);
void multiply(const PackedProduct* products, std::size_t count, Instructions instructions,
              std::size_t threads);

}  // namespace dart
