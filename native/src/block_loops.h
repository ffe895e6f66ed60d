// The inner loops of products with weights in blocks, written once for all instruction sets.
//
// Products of a group are summed as integers, so that their order does not matter; groups are added
// in their order, as float32. Each blocks_<instructions>.cpp defines its `Dots` and includes this
// file; see product_tiles.h for what that forbids.
#pragma once

#include <cstddef>
#include <cstdint>

#include "dart/blocks.h"
#include "kernels.h"
#include "unroll.h"

namespace dart {
namespace {

// Inputs whose products with a weight each are summed by one instruction.
constexpr std::size_t kQuad = 4;
constexpr std::size_t kQuadBytes = kQuad * kTileWidth;

struct BlockOfRows {
  const Int8Inputs* x;    // its first row
  const std::uint8_t* w;  // its first tile
  std::size_t tile_bytes;
  std::size_t groups;
  float* y;  // its first row and output
  std::size_t y_stride;
  std::size_t columns;  // of the last tile that exist
  // Weights to bring into the cache, in bytes from those that are read: the lines from `first_line`
  // on, at a distance of `lines`.
  std::size_t ahead;
  std::size_t first_line;
  std::size_t lines;
};

// Adds the products of inputs [4 Quad, 4 Quad + 4) to the sums of Rows rows.
template <class Dots, class Sum, int Rows, int Tiles, int Vectors, class Weights>
DART_INLINE void add_quad(const Int8Inputs* x, std::size_t groups, std::size_t quad,
                          const Weights (&weights)[Tiles][Vectors],
                          Sum (&dots)[Rows][Tiles][Vectors]) {
  DART_UNROLL
  for (int r = 0; r < Rows; ++r) {
    const std::int8_t* const value = x[r * groups].values + quad * kQuad;
    DART_UNROLL
    for (int t = 0; t < Tiles; ++t) {
      DART_UNROLL
      for (int v = 0; v < Vectors; ++v) {
        dots[r][t][v] = Dots::add(dots[r][t][v], weights[t][v], value);
      }
    }
  }
}

// The upper bits of quad Quad, put above its lowest four.
template <class Dots, WeightType Type, std::size_t Quad>
DART_INLINE typename Dots::Bytes with_upper(typename Dots::Bytes low,
                                            const std::uint8_t* plane) {
  constexpr BlockForm kForm = form_of(Type);
  if constexpr (kForm.bits == 5) {
    return Dots::template merge<4 - static_cast<int>(Quad), 0x10>(Dots::load(plane), low);
  } else if constexpr (kForm.bits == 6) {
    const std::uint8_t* const from = plane + Quad / 4 * kQuadBytes;
    return Dots::template merge<4 - 2 * static_cast<int>(Quad % 4), 0x30>(Dots::load(from), low);
  } else {
    return low;
  }
}

// The sums of products of quads [Quad, End) of one group, for the outputs from `c` on.
template <class Dots, WeightType Type, std::size_t Quad, std::size_t End, class Sum, int Rows,
          int Tiles, int Vectors>
DART_INLINE void add_quads(const Int8Inputs* x, std::size_t groups, const std::uint8_t* w,
                           std::size_t tile_bytes, std::size_t c,
                           Sum (&dots)[Rows][Tiles][Vectors]) {
  if constexpr (Quad < End) {
    constexpr BlockForm kForm = form_of(Type);
    const auto at = [&](int t, int v) {
      return w + t * tile_bytes + (c + v * Dots::kSize) * kQuad;
    };
    if constexpr (kForm.bits == 8) {
      typename Dots::Signed weights[Tiles][Vectors];
      DART_UNROLL
      for (int t = 0; t < Tiles; ++t) {
        DART_UNROLL
        for (int v = 0; v < Vectors; ++v) {
          weights[t][v] = Dots::signed_weights(Dots::load(at(t, v) + Quad * kQuadBytes));
        }
      }
      add_quad<Dots>(x, groups, Quad, weights, dots);
      add_quads<Dots, Type, Quad + 1, End>(x, groups, w, tile_bytes, c, dots);
    } else {
      typename Dots::Bytes low[Tiles][Vectors], high[Tiles][Vectors];
      DART_UNROLL
      for (int t = 0; t < Tiles; ++t) {
        DART_UNROLL
        for (int v = 0; v < Vectors; ++v) {
          const std::uint8_t* const plane = at(t, v) + value_bytes(kForm);
          const auto both = Dots::load(at(t, v) + Quad / 2 * kQuadBytes);
          low[t][v] = with_upper<Dots, Type, Quad>(Dots::low(both), plane);
          high[t][v] = with_upper<Dots, Type, Quad + 1>(Dots::high(both), plane);
        }
      }
      add_quad<Dots>(x, groups, Quad, low, dots);
      add_quad<Dots>(x, groups, Quad + 1, high, dots);
      add_quads<Dots, Type, Quad + 2, End>(x, groups, w, tile_bytes, c, dots);
    }
  }
}

// The same where a few quads at a time are summed in fewer bits.
template <class Dots, WeightType Type, std::size_t Quad, std::size_t End, int Rows, int Tiles,
          int Vectors>
DART_INLINE void add_quads_together(const Int8Inputs* x, std::size_t groups, const std::uint8_t* w,
                                    std::size_t tile_bytes, std::size_t c,
                                    typename Dots::Ints (&dots)[Rows][Tiles][Vectors]) {
  constexpr std::size_t kTogether = Dots::quads_together(form_of(Type).bits);
  if constexpr (kTogether == 0) {
    add_quads<Dots, Type, Quad, End>(x, groups, w, tile_bytes, c, dots);
  } else if constexpr (Quad < End) {
    constexpr std::size_t kEnd = Quad + kTogether < End ? Quad + kTogether : End;
    typename Dots::Pairs pairs[Rows][Tiles][Vectors] = {};
    add_quads<Dots, Type, Quad, kEnd>(x, groups, w, tile_bytes, c, pairs);
    DART_UNROLL
    for (int r = 0; r < Rows; ++r) {
      DART_UNROLL
      for (int t = 0; t < Tiles; ++t) {
        DART_UNROLL
        for (int v = 0; v < Vectors; ++v) dots[r][t][v] = Dots::add(dots[r][t][v], pairs[r][t][v]);
      }
    }
    add_quads_together<Dots, Type, kEnd, End>(x, groups, w, tile_bytes, c, dots);
  }
}

// Adds scaled products of part Part of one group to the sums; parts are those with their own scales.
template <class Dots, WeightType Type, int Part, int Rows, int Tiles, int Vectors>
DART_INLINE void add_part(const Int8Inputs* x, std::size_t groups, const std::uint8_t* w,
                          const std::uint8_t* factors, std::size_t tile_bytes, std::size_t c,
                          typename Dots::Floats (&sums)[Rows][Tiles][Vectors]) {
  constexpr BlockForm kForm = form_of(Type);
  constexpr std::size_t kQuads = kGroup / kQuad / kForm.scales;
  constexpr int kZero = kForm.bits == 8 ? Dots::kSignedZero : kForm.zero;
  typename Dots::Ints dots[Rows][Tiles][Vectors];
  DART_UNROLL
  for (int r = 0; r < Rows; ++r) {
    const std::int32_t(&halves)[2] = x[r * groups].halves;
    DART_UNROLL
    for (int t = 0; t < Tiles; ++t) {
      DART_UNROLL
      for (int v = 0; v < Vectors; ++v) {
        if constexpr (kZero == 0) {
          dots[r][t][v] = Dots::zero();
        } else {
          dots[r][t][v] =
              Dots::broadcast(-kZero * (kForm.scales == 2 ? halves[Part] : halves[0] + halves[1]));
        }
      }
    }
  }
  add_quads_together<Dots, Type, Part * kQuads, (Part + 1) * kQuads>(x, groups, w, tile_bytes, c,
                                                                     dots);
  DART_UNROLL
  for (int t = 0; t < Tiles; ++t) {
    DART_UNROLL
    for (int v = 0; v < Vectors; ++v) {
      const std::size_t o = c + v * Dots::kSize;
      const std::uint8_t* const numbers =
          w + t * tile_bytes + value_bytes(kForm) + plane_bytes(kForm);
      typename Dots::Floats scale;
      if constexpr (!kForm.super) {
        scale = Dots::halves(numbers + 2 * o);
      } else {
        const std::uint8_t* const from = numbers + Part * kTileWidth + o;
        const auto factor = Dots::halves(factors + t * tile_bytes + 2 * o);
        scale = Dots::multiply(factor, kForm.scales == 2 ? Dots::signed_bytes(from)
                                                         : Dots::unsigned_bytes(from));
      }
      DART_UNROLL
      for (int r = 0; r < Rows; ++r) {
        const auto both = Dots::multiply(scale, Dots::broadcast(x[r * groups].scale));
        sums[r][t][v] = Dots::multiply_add(Dots::floats(dots[r][t][v]), both, sums[r][t][v]);
      }
      if constexpr (kForm.minimum) {
        typename Dots::Floats minimum;
        if constexpr (!kForm.super) {
          minimum = Dots::halves(numbers + 2 * (kTileWidth + o));
        } else {
          const auto factor = Dots::halves(factors + t * tile_bytes + 2 * (kTileWidth + o));
          minimum = Dots::multiply(Dots::negative(factor),
                                   Dots::unsigned_bytes(numbers + kTileWidth + o));
        }
        DART_UNROLL
        for (int r = 0; r < Rows; ++r) {
          sums[r][t][v] = Dots::multiply_add(minimum, Dots::broadcast(x[r * groups].sum),
                                             sums[r][t][v]);
        }
      }
    }
  }
}

// Multiplies Rows rows with Tiles neighbouring tiles.
template <class Dots, WeightType Type, int Rows, int Tiles>
void multiply_blocks(const BlockOfRows& block) {
  constexpr BlockForm kForm = form_of(Type);
  constexpr int kVectors = Dots::vectors(Rows);
  constexpr std::size_t kPass = kVectors * Dots::kSize;  // outputs of a tile at a time
  constexpr std::size_t kGroupBytes = group_bytes(kForm), kFactorBytes = factor_bytes(kForm);
  const Int8Inputs* const x = block.x;
  const std::size_t groups = block.groups, tile_bytes = block.tile_bytes;
  for (std::size_t c = 0; c < kTileWidth; c += kPass) {
    typename Dots::Floats sums[Rows][Tiles][kVectors];
    DART_UNROLL
    for (int r = 0; r < Rows; ++r) {
      DART_UNROLL
      for (int t = 0; t < Tiles; ++t) {
        DART_UNROLL
        for (int v = 0; v < kVectors; ++v) sums[r][t][v] = Dots::broadcast(0.0f);
      }
    }
    const std::uint8_t* w = block.w;
    const std::uint8_t* factors = w + kGroupsOfSuper * kGroupBytes;
    for (std::size_t g = 0; g < groups; ++g, w += kGroupBytes) {
      if constexpr (kForm.super) {
        if (w == factors) {
          w += kFactorBytes;
          factors = w + kGroupsOfSuper * kGroupBytes;
        }
      }
      // A single row was read as fast without: the processor sees what comes.
      if (Rows > 1 && c == 0) {
        for (std::size_t i = block.first_line; i < kGroupBytes; i += block.lines) {
          Dots::prefetch(w + block.ahead + i);
        }
      }
      add_part<Dots, Type, 0>(x + g, groups, w, factors, tile_bytes, c, sums);
      if constexpr (kForm.scales == 2) {
        add_part<Dots, Type, 1>(x + g, groups, w, factors, tile_bytes, c, sums);
      }
    }
    DART_UNROLL
    for (int r = 0; r < Rows; ++r) {
      DART_UNROLL
      for (int t = 0; t < Tiles; ++t) {
        float* const y = block.y + r * block.y_stride + t * kTileWidth + c;
        const std::size_t columns = t + 1 < Tiles ? kTileWidth : block.columns;
        DART_UNROLL
        for (int v = 0; v < kVectors; ++v) {
          const std::size_t o = c + v * Dots::kSize;
          if (o + Dots::kSize <= columns) {
            Dots::store(y + v * Dots::kSize, sums[r][t][v]);
          } else {
            float last[Dots::kSize];
            Dots::store(last, sums[r][t][v]);
            for (std::size_t i = 0; o + i < columns; ++i) y[v * Dots::kSize + i] = last[i];
          }
        }
      }
    }
  }
}

// Multiplies `rows` rows, at most Rows, with a tile.
template <class Dots, WeightType Type, int Rows>
void multiply_rows(const BlockOfRows& block, std::size_t rows) {
  if (rows == Rows) {
    multiply_blocks<Dots, Type, Rows, 1>(block);
  } else if constexpr (Rows > 1) {
    multiply_rows<Dots, Type, Rows - 1>(block, rows);
  }
}

template <class Dots, WeightType Type>
void multiply_tiles_of_blocks(const PackedProduct& product, std::size_t first, std::size_t last) {
  constexpr std::size_t kRows = Dots::kRows, kTiles = Dots::kTilesOfRow;
  const std::size_t groups = groups_of(product.in), parts = (product.rows + kRows - 1) / kRows;
  const std::size_t bytes = tile_bytes(form_of(Type), product.in);
  constexpr std::size_t kLine = 64;
  // Memory takes as long as a few groups. The first of several blocks of rows that read a tile brings
  // in that one, if it is not there yet, and each of the others its share of the next one.
  constexpr std::size_t kAhead = 12 * group_bytes(form_of(Type));
  const std::uint8_t* const tiles = static_cast<const std::uint8_t*>(product.tiles);
  for (std::size_t t = first; t < last;) {
    const std::size_t left = product.out - t * kTileWidth;
    BlockOfRows block{product.quantized,
                      tiles + t * bytes,
                      bytes,
                      groups,
                      product.y + t * kTileWidth,
                      product.stride,
                      left < kTileWidth ? left : kTileWidth,
                      kAhead,
                      0,
                      kLine};
    // The sums of one row and tile are too few to keep the multipliers busy.
    if (product.rows == 1 && t + kTiles <= last && left >= kTiles * kTileWidth) {
      multiply_blocks<Dots, Type, 1, Dots::kTilesOfRow>(block);
      t += kTiles;
      continue;
    }
    for (std::size_t p = 0; p < parts; ++p) {
      const std::size_t row = product.rows * p / parts;
      block.x = product.quantized + row * groups;
      block.y = product.y + row * product.stride + t * kTileWidth;
      if (p == 1) {
        block.ahead = bytes;
        block.lines = (parts - 1) * kLine;
      }
      if (p > 0) block.first_line = (p - 1) * kLine;
      multiply_rows<Dots, Type, Dots::kRows>(block, product.rows * (p + 1) / parts - row);
    }
    ++t;
  }
}

// Computes the outputs of tiles [first, last).
template <class Dots>
void multiply_tiles_in_blocks(const PackedProduct& product, std::size_t first, std::size_t last) {
  switch (product.weights) {
    case WeightType::kQ4_0:
      return multiply_tiles_of_blocks<Dots, WeightType::kQ4_0>(product, first, last);
    case WeightType::kQ4_1:
      return multiply_tiles_of_blocks<Dots, WeightType::kQ4_1>(product, first, last);
    case WeightType::kQ5_0:
      return multiply_tiles_of_blocks<Dots, WeightType::kQ5_0>(product, first, last);
    case WeightType::kQ5_1:
      return multiply_tiles_of_blocks<Dots, WeightType::kQ5_1>(product, first, last);
    case WeightType::kQ4_K:
      return multiply_tiles_of_blocks<Dots, WeightType::kQ4_K>(product, first, last);
    case WeightType::kQ5_K:
      return multiply_tiles_of_blocks<Dots, WeightType::kQ5_K>(product, first, last);
    case WeightType::kQ6_K:
      return multiply_tiles_of_blocks<Dots, WeightType::kQ6_K>(product, first, last);
    default:
      return multiply_tiles_of_blocks<Dots, WeightType::kQ8_0>(product, first, last);
  }
}

}  // namespace
}  // namespace dart
