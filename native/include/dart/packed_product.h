// Products of a few rows with weights that are stored in tiles, for CPUs: y = x W.
//
// Every value of y is one chain of additions over the inputs in their order, starting from 0,
// whatever number of rows, tiles and threads there are. A row's result is therefore the same, bit
// for bit, computed alone or among others.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

namespace dart {

// Outputs of a tile.
constexpr std::size_t kTileWidth = 32;

// How weights are stored; the arithmetic is float32.
enum class WeightType { kFloat32, kBfloat16 };

// Instructions that products are computed with. All but the portable one fuse each multiplication
// with its addition, so that they agree with each other, but not with the portable one.
enum class Instructions { kPortable, kAvx2, kAvx512, kNeon };

// One product. Arrays need only their elements' natural alignment and must not overlap.
struct PackedProduct {
  const float* x;         // [rows, in]
  const void* tiles;      // [ceil(out / 32), in, 32]: W[i, 32 t + c] at [t, i, c], then any values
  float* y;               // [rows, out]
  std::size_t rows;
  std::size_t in;
  std::size_t out;
  WeightType weights;
};

// Whether this processor has them, and this library was built for them.
bool supported(Instructions instructions);

// The fastest that is supported.
Instructions best_instructions();

// Starts a task in another thread.
using Schedule = std::function<void(std::function<void()>)>;

// Computes a product in this thread and in at most `threads - 1` others, fewer if it is small.
//
// A task that does not begin, or begins late, is not waited for, so the threads may be those of the
// pool that this thread belongs to.
void multiply(const PackedProduct& product, Instructions instructions, std::size_t threads,
              const Schedule& schedule);

}  // namespace dart
