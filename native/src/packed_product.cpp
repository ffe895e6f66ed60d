#include "dart/packed_product.h"

#include <algorithm>

#include "dart/shared_work.h"
#include "kernels.h"

namespace dart {
namespace {

// Adds bias and residual to the outputs of tiles [first, last).
void add_to_tiles(const PackedProduct& product, std::size_t first, std::size_t last) {
  if (product.bias == nullptr && product.residual == nullptr) return;
  const std::size_t begin = first * kTileWidth, end = std::min(last * kTileWidth, product.out);
  for (std::size_t r = 0; r < product.rows; ++r) {
    float* const y = product.y + r * product.out;
    if (product.bias != nullptr) {
      for (std::size_t o = begin; o < end; ++o) y[o] += product.bias[o];
    }
    if (product.residual != nullptr) {
      const float* const residual = product.residual + r * product.out;
      for (std::size_t o = begin; o < end; ++o) y[o] += residual[o];
    }
  }
}

// Of the weights.
std::size_t size_in_bytes(const PackedProduct& product) {
  const std::size_t size = product.in * product.out;
  switch (product.weights) {
    case WeightType::kInt8:
      return size;
    case WeightType::kBfloat16:
      return 2 * size;
    case WeightType::kFloat32:
      break;
  }
  return 4 * size;
}

}  // namespace

void multiply(const PackedProduct& product, Instructions instructions, std::size_t threads) {
  const MultiplyTiles multiply = product.weights == WeightType::kInt8
                                     ? multiply_int8(instructions)
                                     : kernels(instructions)->multiply;
  const std::size_t tiles = (product.out + kTileWidth - 1) / kTileWidth;
  if (product.rows == 0 || tiles == 0) return;
  const std::size_t operations = product.rows * product.in * product.out;
  threads = std::min(threads, std::max(size_in_bytes(product) / kBytesPerThread,
                                       operations / kOperationsPerThread));
  // Several chunks for each thread, as one may begin late or be interrupted; of 4 tiles, as single
  // rows are multiplied with so many at once.
  std::size_t chunk = tiles;
  if (threads > 1) {
    chunk = std::max<std::size_t>(1, tiles / (4 * threads));
    if (product.rows == 1) chunk = (chunk + 3) / 4 * 4;
  }
  share((tiles + chunk - 1) / chunk, threads,
        [&](std::size_t c) {
          const std::size_t first = c * chunk, last = std::min(first + chunk, tiles);
          multiply(product, first, last);
          add_to_tiles(product, first, last);
        });
}

}  // namespace dart
