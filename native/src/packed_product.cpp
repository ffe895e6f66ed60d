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

}  // namespace

void multiply(const PackedProduct& product, Instructions instructions, std::size_t threads) {
  const Kernels& kernels = *dart::kernels(instructions);
  const std::size_t tiles = (product.out + kTileWidth - 1) / kTileWidth;
  if (product.rows == 0 || tiles == 0) return;
  const std::size_t size = product.in * product.out;
  const std::size_t bytes = size * (product.weights == WeightType::kBfloat16 ? 2 : 4);
  threads = std::min(threads, std::max(bytes / kBytesPerThread,
                                       product.rows * size / kOperationsPerThread));
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
          kernels.multiply(product, first, last);
          add_to_tiles(product, first, last);
        });
}

}  // namespace dart
