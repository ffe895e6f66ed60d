// The inner loops of products with weights in 8 bits, written once for all instruction sets.
//
// Products of a group are summed as integers, so that their order does not matter; groups are added
// in their order, as float32. Each int8_<instructions>.cpp defines its `Dots` and includes this
// file; see product_tiles.h for what that forbids.
#pragma once

#include <cstddef>
#include <cstdint>

#include "dart/int8.h"
#include "kernels.h"
#include "unroll.h"

namespace dart {
namespace {

// Inputs whose products with a weight each are summed by one instruction.
constexpr std::size_t kQuad = 4;
constexpr std::size_t kQuads = kInt8Group / kQuad;

// A tile's weights for one group of inputs: values [kQuads, kTileWidth, kQuad], then the scales of
// the tile's outputs, float32 [kTileWidth].
constexpr std::size_t kValueBytes = kInt8Group * kTileWidth;
static_assert(kInt8TileBytes == kValueBytes + kTileWidth * sizeof(float));

struct Int8Block {
  const Int8Inputs* x;  // its first row
  const std::int8_t* w;  // its first tile
  std::size_t groups;
  float* y;  // its first row and output
  std::size_t y_stride;
  std::size_t columns;  // of the last tile that exist
};

// The sums of products of one group, [Rows, Tiles, kVectors * kSize], for the outputs from c on.
// Apart from what follows it, so that compilers keep the sums in registers.
template <class Dots, int Rows, int Tiles>
inline void dot_group(const Int8Inputs* x, std::size_t groups, const std::int8_t* w,
                                 std::size_t c, typename Dots::Ints* sums) {
  using Ints = typename Dots::Ints;
  constexpr int kVectors = Dots::kVectors;
  // Of weights to bring into the cache: memory takes as long as a few groups. A single row was read
  // as fast without.
  constexpr std::size_t kAhead = 4 * kInt8TileBytes;
  Ints dots[Rows][Tiles][kVectors];
  DART_UNROLL
  for (int r = 0; r < Rows; ++r) {
    DART_UNROLL
    for (int t = 0; t < Tiles; ++t) {
      DART_UNROLL
      for (int v = 0; v < kVectors; ++v) dots[r][t][v] = Dots::begin(x[r * groups].begin);
    }
  }
  for (std::size_t q = 0; q < kQuads; ++q) {
    typename Dots::Weights weights[Tiles][kVectors];
    DART_UNROLL
    for (int t = 0; t < Tiles; ++t) {
      DART_UNROLL
      for (int v = 0; v < kVectors; ++v) {
        const std::int8_t* const from =
            w + t * groups * kInt8TileBytes + (q * kTileWidth + c + v * Dots::kSize) * kQuad;
        weights[t][v] = Dots::weights(from);
        if constexpr (Rows > 1) Dots::prefetch(from + kAhead);
      }
    }
    DART_UNROLL
    for (int r = 0; r < Rows; ++r) {
      const auto value = Dots::broadcast(x[r * groups].values + q * kQuad);
      DART_UNROLL
      for (int t = 0; t < Tiles; ++t) {
        DART_UNROLL
        for (int v = 0; v < kVectors; ++v) {
          dots[r][t][v] = Dots::add(dots[r][t][v], weights[t][v], value);
        }
      }
    }
  }
  DART_UNROLL
  for (int r = 0; r < Rows; ++r) {
    DART_UNROLL
    for (int t = 0; t < Tiles; ++t) {
      DART_UNROLL
      for (int v = 0; v < kVectors; ++v) sums[(r * Tiles + t) * kVectors + v] = dots[r][t][v];
    }
  }
}

// Multiplies Rows rows with Tiles neighbouring tiles.
template <class Dots, int Rows, int Tiles>
void multiply_int8_block(const Int8Block& block) {
  using Ints = typename Dots::Ints;
  using Floats = typename Dots::Floats;
  constexpr int kVectors = Dots::kVectors, kSize = Dots::kSize;
  constexpr int kPass = kVectors * kSize;  // outputs of a tile at a time
  const std::size_t groups = block.groups;
  for (std::size_t c = 0; c < kTileWidth; c += kPass) {
    float sums[Rows][Tiles][kPass] = {};
    for (std::size_t g = 0; g < groups; ++g) {
      const Int8Inputs* const x = block.x + g;
      const std::int8_t* const w = block.w + g * kInt8TileBytes;
      Ints dots[Rows][Tiles][kVectors];
      dot_group<Dots, Rows, Tiles>(x, groups, w, c, dots[0][0]);
      for (int t = 0; t < Tiles; ++t) {
        const float* const scales = reinterpret_cast<const float*>(
            w + t * groups * kInt8TileBytes + kValueBytes);
        for (int v = 0; v < kVectors; ++v) {
          const Floats of_weights = Dots::load(scales + c + v * kSize);
          for (int r = 0; r < Rows; ++r) {
            float* const sum = sums[r][t] + v * kSize;
            const Floats scale = Dots::multiply(Dots::broadcast(x[r * groups].scale), of_weights);
            Dots::store(sum, Dots::multiply_add(Dots::floats(dots[r][t][v]), scale,
                                                Dots::load(sum)));
          }
        }
      }
    }
    for (int r = 0; r < Rows; ++r) {
      for (int t = 0; t < Tiles; ++t) {
        float* const y = block.y + r * block.y_stride + t * kTileWidth;
        const std::size_t columns = t + 1 < Tiles ? kTileWidth : block.columns;
        for (std::size_t o = 0; o < kPass && c + o < columns; ++o) y[c + o] = sums[r][t][o];
      }
    }
  }
}

// Multiplies `rows` rows, at most Rows, with a tile.
template <class Dots, int Rows>
void multiply_int8_rows(const Int8Block& block, std::size_t rows) {
  if (rows == Rows) {
    multiply_int8_block<Dots, Rows, 1>(block);
  } else if constexpr (Rows > 1) {
    multiply_int8_rows<Dots, Rows - 1>(block, rows);
  }
}

// Computes the outputs of tiles [first, last).
template <class Dots>
void multiply_int8_tiles(const PackedProduct& product, std::size_t first, std::size_t last) {
  constexpr std::size_t kRows = Dots::kRows, kTiles = Dots::kTilesOfRow;
  const std::size_t groups = int8_groups(product.in), parts = (product.rows + kRows - 1) / kRows;
  const std::int8_t* const tiles = static_cast<const std::int8_t*>(product.tiles);
  for (std::size_t t = first; t < last;) {
    const std::size_t left = product.out - t * kTileWidth;
    Int8Block block{product.quantized,
                    tiles + t * groups * kInt8TileBytes,
                    groups,
                    product.y + t * kTileWidth,
                    product.out,
                    left < kTileWidth ? left : kTileWidth};
    // The sums of one row and tile are too few to keep the multipliers busy.
    if (product.rows == 1 && t + kTiles <= last && left >= kTiles * kTileWidth) {
      multiply_int8_block<Dots, 1, Dots::kTilesOfRow>(block);
      t += kTiles;
      continue;
    }
    for (std::size_t p = 0; p < parts; ++p) {
      const std::size_t row = product.rows * p / parts;
      block.x = product.quantized + row * groups;
      block.y = product.y + row * product.out + t * kTileWidth;
      multiply_int8_rows<Dots, Dots::kRows>(block, product.rows * (p + 1) / parts - row);
    }
    ++t;
  }
}

}  // namespace
}  // namespace dart
