// The inner loops of packed_product.h, written once for all instruction sets.
//
// Each kernels_<instructions>.cpp defines its `Lanes` and includes this file; it is compiled with
// that set's compiler options. Everything here has internal linkage, and nothing of the standard
// library is called: of a function that several files define, the linker keeps one copy, which
// might use instructions that the processor lacks.
#pragma once

#include <cstddef>
#include <cstdint>

#include "half.h"
#include "kernels.h"
#include "unroll.h"

namespace dart {
namespace {

// Inputs that rows of more than one group, or rows that are copied, are multiplied with at a time:
// the weights of a few tiles for them stay in the second cache.
constexpr std::size_t kPart = 512;

// The rows and weights that one call of `accumulate` multiplies.
template <class Weight>
struct Block {
  const float* x;  // its first row and input
  std::size_t x_stride;
  const Weight* w;  // its first tile's first input and output
  std::size_t w_stride;
  const Weight* ahead;  // weights to bring into the cache: the ones after the last input
  bool far;             // or instead, with each input, the next part's
  float* y;             // its first row and output
  std::size_t y_stride;
  std::size_t inputs;
  bool begins;  // whether sums begin here, or continue those in y
};

// Adds `inputs` products to Rows x (Tiles x Vectors x Lanes::kSize) sums, which registers hold.
template <class Lanes, class Weight, int Rows, int Tiles, int Vectors>
void accumulate(const Block<Weight>& block) {
  using Vector = typename Lanes::Vector;
  constexpr int kLine = 64 / sizeof(Weight);  // of the cache
  Vector sums[Rows][Tiles][Vectors];
  DART_UNROLL
  for (int r = 0; r < Rows; ++r) {
    DART_UNROLL
    for (int t = 0; t < Tiles; ++t) {
      DART_UNROLL
      for (int v = 0; v < Vectors; ++v) {
        const float* const y =
            block.y + r * block.y_stride + t * kTileWidth + v * Lanes::kSize;
        sums[r][t][v] = block.begins ? Lanes::broadcast(0.0f) : Lanes::load(y);
      }
    }
  }
  const float* const x = block.x;
  const std::size_t x_stride = block.x_stride;
  const Weight* const w = block.w;
  const std::size_t w_stride = block.w_stride;
  const Weight* const ahead = block.ahead;
  const std::size_t inputs = block.inputs;
  DART_UNROLL_BY_4
  for (std::size_t i = 0; i < inputs; ++i) {
    // A single row was read as fast or faster without: the processor sees what comes. Many rows
    // need all of the first cache, and go at the second's pace.
    if constexpr (Rows > 1) {
      DART_UNROLL
      for (int c = 0; c < Vectors * Lanes::kSize; c += kLine) {
        __builtin_prefetch(ahead + i * kTileWidth + c, 0, Rows < 8 ? 3 : 2);
      }
    }
    Vector weights[Tiles][Vectors];
    DART_UNROLL
    for (int t = 0; t < Tiles; ++t) {
      DART_UNROLL
      for (int v = 0; v < Vectors; ++v) {
        weights[t][v] = Lanes::load(w + t * w_stride + i * kTileWidth + v * Lanes::kSize);
      }
    }
    DART_UNROLL
    for (int r = 0; r < Rows; ++r) {
      const Vector value = Lanes::broadcast(x[r * x_stride + i]);
      DART_UNROLL
      for (int t = 0; t < Tiles; ++t) {
        DART_UNROLL
        for (int v = 0; v < Vectors; ++v) {
          sums[r][t][v] = Lanes::multiply_add(value, weights[t][v], sums[r][t][v]);
        }
      }
    }
  }
  DART_UNROLL
  for (int r = 0; r < Rows; ++r) {
    DART_UNROLL
    for (int t = 0; t < Tiles; ++t) {
      DART_UNROLL
      for (int v = 0; v < Vectors; ++v) {
        Lanes::store(block.y + r * block.y_stride + t * kTileWidth + v * Lanes::kSize,
                     sums[r][t][v]);
      }
    }
  }
}

// As `accumulate`, while the weights that come next are brought into the cache; those after the
// last input are at `block.ahead`.
template <class Lanes, class Weight, int Rows, int Tiles, int Vectors>
void accumulate_ahead(const Block<Weight>& block) {
  // About 1000 cycles ahead, and at most 16 KB: memory takes that long, and the first cache holds it.
  constexpr std::size_t kAhead = Rows < 8 ? 128 : 1024 / Rows;
  if (Rows == 1 || block.far || block.inputs <= kAhead) {
    accumulate<Lanes, Weight, Rows, Tiles, Vectors>(block);
    return;
  }
  Block<Weight> part = block;
  part.inputs -= kAhead;
  part.ahead = block.w + kAhead * kTileWidth;
  accumulate<Lanes, Weight, Rows, Tiles, Vectors>(part);
  part.x += part.inputs;
  part.w += part.inputs * kTileWidth;
  part.ahead = block.ahead;
  part.inputs = kAhead;
  part.begins = false;
  accumulate<Lanes, Weight, Rows, Tiles, Vectors>(part);
}

// Multiplies Rows rows with Tiles neighbouring tiles over a block's inputs.
template <class Lanes, class Weight, int Rows, int Tiles>
void add_tiles(Block<Weight> block) {
  constexpr int kVectors = Lanes::vectors(Rows);
  constexpr std::size_t kPass = kVectors * Lanes::kSize;  // outputs of a tile at a time
  for (std::size_t c = 0; c < kTileWidth; c += kPass) {
    accumulate_ahead<Lanes, Weight, Rows, Tiles, kVectors>(block);
    block.w += kPass;
    block.ahead += kPass;
    block.y += kPass;
  }
}

// As `add_tiles`, with a tile of which only the first `columns` outputs exist.
template <class Lanes, class Weight, int Rows>
void add_columns(Block<Weight> block, std::size_t columns) {
  float sums[Rows][kTileWidth] = {};
  float* const y = block.y;
  const std::size_t y_stride = block.y_stride;
  for (int r = 0; r < Rows; ++r) {
    for (std::size_t c = 0; c < columns; ++c) {
      if (!block.begins) sums[r][c] = y[r * y_stride + c];
    }
  }
  block.y = sums[0];
  block.y_stride = kTileWidth;
  add_tiles<Lanes, Weight, Rows, 1>(block);
  for (int r = 0; r < Rows; ++r) {
    for (std::size_t c = 0; c < columns; ++c) y[r * y_stride + c] = sums[r][c];
  }
}

// Multiplies `rows` rows, at most Rows, with a tile of which the first `columns` outputs exist.
template <class Lanes, class Weight, int Rows>
void add_rows(const Block<Weight>& block, std::size_t rows, std::size_t columns) {
  if (rows == Rows) {
    if (columns == kTileWidth) {
      add_tiles<Lanes, Weight, Rows, 1>(block);
    } else {
      add_columns<Lanes, Weight, Rows>(block, columns);
    }
  } else if constexpr (Rows > 1) {
    add_rows<Lanes, Weight, Rows - 1>(block, rows, columns);
  }
}

// A group of rows that are multiplied together.
template <class Weight>
struct Group {
  const PackedProduct& product;
  std::size_t row;       // its first
  std::size_t rows;
  std::size_t input;  // the first of `inputs`
  std::size_t inputs;
  const float* x;  // [rows, inputs], with a distance of x_stride between rows
  std::size_t x_stride;
  bool last;  // of the groups that read these weights, which another part follows
};

// Multiplies a group of rows with tiles [first, last).
template <class Lanes, class Weight>
void multiply_group(const Group<Weight>& group, std::size_t first, std::size_t last) {
  const PackedProduct& product = group.product;
  const std::size_t tile_size = product.in * kTileWidth;
  const Weight* const tiles = static_cast<const Weight*>(product.tiles);
  const std::size_t whole = product.out / kTileWidth;
  for (std::size_t t = first; t < last;) {
    const Weight* const w = tiles + t * tile_size + group.input * kTileWidth;
    const Block<Weight> block{group.x,
                              group.x_stride,
                              w,
                              tile_size,
                              group.last        ? w + group.inputs * kTileWidth
                              : t + 1 < last ? w + tile_size
                                             : w,
                              group.last,
                              product.y + group.row * product.stride + t * kTileWidth,
                              product.stride,
                              group.inputs,
                              group.input == 0};
    // The sums of one row and tile are too few to keep the multipliers busy.
    if (group.rows == 1 && t + Lanes::kTilesOfRow <= (last < whole ? last : whole)) {
      add_tiles<Lanes, Weight, 1, Lanes::kTilesOfRow>(block);
      t += Lanes::kTilesOfRow;
    } else {
      const std::size_t columns = t < whole ? kTileWidth : product.out % kTileWidth;
      add_rows<Lanes, Weight, Lanes::kRows>(block, group.rows, columns);
      ++t;
    }
  }
}

template <class Lanes, class Weight>
void multiply_tiles_of(const PackedProduct& product, std::size_t first, std::size_t last) {
  constexpr std::size_t kRows = Lanes::kRows;
  constexpr std::size_t kCopyStride = kPart + 64 / sizeof(float);
  float copy[kRows * kCopyStride];
  const std::size_t groups = (product.rows + kRows - 1) / kRows;
  // Rows at a distance of whole pages compete for the same places in the first cache.
  const bool copies = product.rows > 4 && product.in * sizeof(float) % 2048 == 0;
  const std::size_t most = groups > 1 || copies ? kPart : product.in;
  std::size_t i = 0;
  do {
    const std::size_t inputs = most < product.in - i ? most : product.in - i;
    for (std::size_t g = 0; g < groups; ++g) {
      const std::size_t row = product.rows * g / groups;
      const std::size_t rows = product.rows * (g + 1) / groups - row;
      const float* const x = product.x + row * product.in + i;
      // The last of several groups finds its weights in the cache: time to read the next from memory.
      const bool last_group = groups > 1 && g + 1 == groups && i + inputs < product.in;
      Group<Weight> group{product, row, rows, i, inputs, x, product.in, last_group};
      if (copies) {
        for (std::size_t r = 0; r < rows; ++r) {
          for (std::size_t k = 0; k < inputs; ++k) copy[r * kCopyStride + k] = x[r * product.in + k];
        }
        group.x = copy;
        group.x_stride = kCopyStride;
      }
      multiply_group<Lanes, Weight>(group, first, last);
    }
    i += inputs;
  } while (i < product.in);  // at least once: without inputs the sums are 0
}

// Computes the outputs of tiles [first, last).
template <class Lanes>
void multiply_tiles(const PackedProduct& product, std::size_t first, std::size_t last) {
  switch (product.weights) {
    case WeightType::kFloat16:
      return multiply_tiles_of<Lanes, Half>(product, first, last);
    case WeightType::kBfloat16:
      return multiply_tiles_of<Lanes, std::uint16_t>(product, first, last);
    default:
      return multiply_tiles_of<Lanes, float>(product, first, last);
  }
}

}  // namespace
}  // namespace dart
