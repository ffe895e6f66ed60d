#include "dart/packed_product.h"

#include <algorithm>

#include "kernels.h"

namespace dart {
namespace {

constexpr std::size_t kChunks = 12;  // of a thread, at least

std::size_t tiles_of(std::size_t out) { return (out + kTileWidth - 1) / kTileWidth; }

// Adds bias and residual to the outputs of tiles [first, last).
void add_to_tiles(const PackedProduct& product, std::size_t first, std::size_t last) {
  if (product.bias == nullptr && product.residual == nullptr) return;
  const std::size_t begin = first * kTileWidth, end = std::min(last * kTileWidth, product.out);
  for (std::size_t r = 0; r < product.rows; ++r) {
    float* const y = product.y + r * product.stride;
    if (product.bias != nullptr) {
      for (std::size_t o = begin; o < end; ++o) y[o] += product.bias[o];
    }
    if (product.residual != nullptr) {
      const float* const residual = product.residual + r * product.stride;
      for (std::size_t o = begin; o < end; ++o) y[o] += residual[o];
    }
  }
}

// Threads that products are worth, at most `threads`, where each must have this much to read or to
// compute.
std::size_t threads_for(const PackedProduct* products, std::size_t count, std::size_t threads,
                        std::size_t bytes_each, std::size_t operations_each) {
  std::size_t bytes = 0, operations = 0;
  for (std::size_t i = 0; i < count; ++i) {
    bytes += bytes_of(products[i].weights, products[i].in, products[i].out);
    operations += products[i].rows * products[i].in * products[i].out;
  }
  return std::min(threads, std::max(bytes / bytes_each, operations / operations_each));
}

}  // namespace

std::size_t bytes_of(WeightType type, std::size_t in, std::size_t out) {
  if (in_blocks(type)) return tiles_of(out) * tile_bytes(form_of(type), in);
  return tiles_of(out) * kTileWidth * in * (type == WeightType::kFloat32 ? 4 : 2);
}

std::size_t threads_for(const PackedProduct* products, std::size_t count, std::size_t threads) {
  return threads_for(products, count, threads, kBytesPerThread, kOperationsPerThread);
}

void multiply(const PackedProduct* products, std::size_t count, Instructions instructions,
              Team& team) {
  std::size_t tiles = 0;
  for (std::size_t i = 0; i < count; ++i) tiles += tiles_of(products[i].out);
  if (tiles == 0 || products[0].rows == 0) return;
  // Many chunks for each thread, as one may begin late or be interrupted, and all should end at the
  // same time; of 4 tiles, where single rows are multiplied with that many at once.
  const std::size_t threads =
      threads_for(products, count, team.threads(), kBytesInTeam, kOperationsInTeam);
  std::size_t chunk = threads <= 1 ? tiles : std::max<std::size_t>(1, tiles / (kChunks * threads));
  if (products[0].rows == 1 && !in_blocks(products[0].weights)) chunk = (chunk + 3) / 4 * 4;
  team.share((tiles + chunk - 1) / chunk, [&](std::size_t c) {
    // Tiles are counted over all products.
    std::size_t before = 0;
    for (std::size_t i = 0; i < count; ++i) {
      const PackedProduct& product = products[i];
      const std::size_t own = tiles_of(product.out), begin = std::max(c * chunk, before);
      const std::size_t end = std::min((c + 1) * chunk, before + own);
      if (begin < end) {
        const MultiplyTiles multiply = in_blocks(product.weights)
                                           ? multiply_blocks(instructions)
                                           : kernels(instructions)->multiply;
        multiply(product, begin - before, end - before);
        add_to_tiles(product, begin - before, end - before);
      }
      before += own;
    }
  });
}

void multiply(const PackedProduct* products, std::size_t count, Instructions instructions,
              std::size_t threads) {
  with_team(threads_for(products, count, threads),
            [&](Team& team) { multiply(products, count, instructions, team); });
}

}  // namespace dart
