#include "dart/blocks.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <type_traits>
#include <vector>

#include "dart/shared_work.h"
#include "half.h"
#include "kernels.h"

namespace dart {
namespace {

constexpr std::size_t kQuadBytes = 4 * kTileWidth;

// A group of an output's weights.
struct Group {
  std::uint8_t values[kGroup];  // q; of 8 bits, as signed bytes
  std::uint16_t scale;          // float16; or bytes, the first one in the lower half
  std::uint16_t minimum;        // float16, or a byte
};

// Numbers that eight groups of an output share, in float16; of others the first two are not used.
struct Super {
  std::uint16_t scale;
  std::uint16_t minimum;
  Group groups[kGroupsOfSuper];  // or one
};

std::uint16_t half_at(const std::uint8_t* from) {
  return static_cast<std::uint16_t>(from[0] | from[1] << 8);
}

// Reads a block of 32 weights.
Super read_block(const BlockForm& form, const std::uint8_t* block) {
  Super result{};
  Group& group = result.groups[0];
  group.scale = half_at(block);
  block += 2;
  if (form.minimum) {
    group.minimum = half_at(block);
    block += 2;
  }
  if (form.bits == 8) {
    std::memcpy(group.values, block, kGroup);
    return result;
  }
  std::uint32_t upper = 0;
  if (form.bits == 5) {
    std::memcpy(&upper, block, sizeof upper);
    block += sizeof upper;
  }
  for (std::size_t i = 0; i < kGroup; ++i) {
    const int low = i < 16 ? block[i] & 15 : block[i - 16] >> 4;
    group.values[i] = static_cast<std::uint8_t>(low | (upper >> i & 1) << 4);
  }
  return result;
}

// Reads a block of Q4_K or Q5_K.
Super read_super_block(const BlockForm& form, const std::uint8_t* block) {
  Super result{};
  result.scale = half_at(block);
  result.minimum = half_at(block + 2);
  const std::uint8_t* const six = block + 4;  // scales and minima in 6 bits
  const std::uint8_t* const upper = block + 16;
  const std::uint8_t* const lower = upper + (form.bits == 5 ? 32 : 0);
  for (std::size_t g = 0; g < kGroupsOfSuper; ++g) {
    Group& group = result.groups[g];
    const auto six_bits = [&](std::size_t first) {
      if (g < 4) return six[first + g] & 63;
      const int low = first == 0 ? six[4 + g] & 15 : six[4 + g] >> 4;
      return low | six[first + g - 4] >> 6 << 4;
    };
    group.scale = static_cast<std::uint16_t>(six_bits(0));
    group.minimum = static_cast<std::uint16_t>(six_bits(4));
    for (std::size_t i = 0; i < kGroup; ++i) {
      const int byte = lower[g / 2 * kGroup + i], low = g % 2 == 0 ? byte & 15 : byte >> 4;
      const int high = form.bits == 5 ? upper[i] >> g & 1 : 0;
      group.values[i] = static_cast<std::uint8_t>(low | high << 4);
    }
  }
  return result;
}

Super read_q6_k(const std::uint8_t* block) {
  Super result{};
  const std::uint8_t* const scales = block + 192;
  result.scale = half_at(block + 208);
  for (std::size_t g = 0; g < kGroupsOfSuper; ++g) {
    Group& group = result.groups[g];
    const std::uint8_t* const lower = block + g / 4 * 64 + g % 2 * kGroup;
    const std::uint8_t* const upper = block + 128 + g / 4 * 32;
    for (std::size_t i = 0; i < kGroup; ++i) {
      const int low = g % 4 < 2 ? lower[i] & 15 : lower[i] >> 4;
      group.values[i] = static_cast<std::uint8_t>(low | (upper[i] >> 2 * (g % 4) & 3) << 4);
    }
    group.scale = static_cast<std::uint16_t>(scales[2 * g] | scales[2 * g + 1] << 8);
  }
  return result;
}

Super read(const BlockForm& form, const std::uint8_t* block) {
  if (!form.super) return read_block(form, block);
  return form.bits == 6 ? read_q6_k(block) : read_super_block(form, block);
}

void put_half(std::uint8_t* at, std::uint16_t half) { std::memcpy(at, &half, sizeof half); }

// Writes a group of output `c` of a tile.
void write(const BlockForm& form, const Group& group, std::size_t c, std::uint8_t* tile) {
  std::uint8_t* const plane = tile + value_bytes(form);
  for (std::size_t i = 0; i < kGroup; ++i) {
    const std::size_t quad = i / 4, at = c * 4 + i % 4;
    const int q = group.values[i];
    const auto put = [&](std::uint8_t* byte, int bits, std::size_t shift) {
      *byte = static_cast<std::uint8_t>(*byte | bits << shift);
    };
    if (form.bits == 8) {
      tile[quad * kQuadBytes + at] = group.values[i];
      continue;
    }
    put(tile + quad / 2 * kQuadBytes + at, q & 15, quad % 2 * 4);
    if (form.bits == 5) put(plane + at, q >> 4, quad);
    if (form.bits == 6) put(plane + quad / 4 * kQuadBytes + at, q >> 4, quad % 4 * 2);
  }
  std::uint8_t* const numbers = plane + plane_bytes(form);
  if (!form.super) {
    put_half(numbers + 2 * c, group.scale);
    if (form.minimum) put_half(numbers + 2 * (kTileWidth + c), group.minimum);
    return;
  }
  numbers[c] = static_cast<std::uint8_t>(group.scale);
  if (form.scales == 2) numbers[kTileWidth + c] = static_cast<std::uint8_t>(group.scale >> 8);
  if (form.minimum) numbers[kTileWidth + c] = static_cast<std::uint8_t>(group.minimum);
}

// Stores rows in tiles; `block(o, b)` is block b of output o.
template <class BlockAt>
void pack(const BlockForm& form, std::size_t inputs, std::size_t out, std::uint8_t* tiles,
          std::size_t threads, const BlockAt& block) {
  const std::size_t bytes = tile_bytes(form, inputs), groups = form.super ? kGroupsOfSuper : 1;
  const std::size_t blocks = groups_of(inputs) / groups, each = groups * group_bytes(form);
  if (blocks == 0) return;
  share((out + kTileWidth - 1) / kTileWidth, threads, [&](std::size_t t) {
    std::memset(tiles + t * bytes, 0, bytes);
    for (std::size_t o = t * kTileWidth; o < std::min(out, (t + 1) * kTileWidth); ++o) {
      const std::size_t c = o % kTileWidth;
      std::uint8_t* tile = tiles + t * bytes;
      for (std::size_t b = 0; b < blocks; ++b) {
        const Super read = block(o, b);
        for (std::size_t g = 0; g < groups; ++g) {
          write(form, read.groups[g], c, tile + g * group_bytes(form));
        }
        tile += each;
        if (form.super) {
          put_half(tile + 2 * c, read.scale);
          if (form.minimum) put_half(tile + 2 * (kTileWidth + c), read.minimum);
          tile += factor_bytes(form);
        }
      }
    }
  });
}

// The weights of one output out of tiles of floats.
template <class Weight>
void unpack_floats(const void* tiles, std::size_t inputs, std::size_t output, float* weights) {
  const Weight* const column = static_cast<const Weight*>(tiles) +
                               output / kTileWidth * inputs * kTileWidth + output % kTileWidth;
  for (std::size_t i = 0; i < inputs; ++i) {
    const Weight weight = column[i * kTileWidth];
    if constexpr (std::is_same_v<Weight, Half>) {
      weights[i] = of_half(static_cast<std::uint16_t>(weight));
    } else if constexpr (std::is_same_v<Weight, std::uint16_t>) {
      weights[i] = of_bits(static_cast<std::uint32_t>(weight) << 16);
    } else {
      weights[i] = weight;
    }
  }
}

}  // namespace

void pack_blocks(WeightType type, const std::uint8_t* rows, std::size_t inputs, std::size_t out,
                 std::uint8_t* tiles, std::size_t threads) {
  const BlockForm form = form_of(type);
  const std::size_t row = inputs / block_inputs(form) * form.file_bytes;
  pack(form, inputs, out, tiles, threads, [&](std::size_t o, std::size_t b) {
    return read(form, rows + o * row + b * form.file_bytes);
  });
}

std::size_t count_not_finite(WeightType type, const std::uint8_t* blocks, std::size_t count) {
  const BlockForm form = form_of(type);
  const std::size_t first = form.bits == 6 ? 208 : 0, last = form.minimum ? 2 : first;
  std::size_t found = 0;
  for (std::size_t b = 0; b < count; ++b, blocks += form.file_bytes) {
    const auto finite = [&](std::size_t at) { return (half_at(blocks + at) & 0x7c00) != 0x7c00; };
    if (!finite(first) || !finite(last)) found += block_inputs(form);
  }
  return found;
}

void pack_q8_0(const float* weights, std::size_t inputs, std::size_t out, std::uint8_t* tiles,
               std::size_t threads) {
  pack(form_of(WeightType::kQ8_0), inputs, out, tiles, threads, [&](std::size_t o, std::size_t b) {
    const float* const x = weights + o * inputs + b * kGroup;
    const std::size_t count = std::min(kGroup, inputs - b * kGroup);
    float largest = 0;
    for (std::size_t i = 0; i < count; ++i) largest = std::max(largest, std::fabs(x[i]));
    Super result{};
    Group& group = result.groups[0];
    group.scale = nearest_half(largest / 127.0f);
    // A scale in float16 may be a little too small.
    const float scale = of_half(group.scale), factor = scale > 0 ? 1 / scale : 0;
    for (std::size_t i = 0; i < count; ++i) {
      const float q = std::clamp(std::nearbyint(x[i] * factor), -127.0f, 127.0f);
      group.values[i] = static_cast<std::uint8_t>(static_cast<std::int8_t>(q));
    }
    return result;
  });
}

void unpack_row(WeightType type, const void* tiles, std::size_t inputs, std::size_t output,
                float* weights) {
  if (type == WeightType::kFloat32) return unpack_floats<float>(tiles, inputs, output, weights);
  if (type == WeightType::kFloat16) return unpack_floats<Half>(tiles, inputs, output, weights);
  if (type == WeightType::kBfloat16) {
    return unpack_floats<std::uint16_t>(tiles, inputs, output, weights);
  }
  const BlockForm form = form_of(type);
  const std::size_t c = output % kTileWidth;
  const std::uint8_t* tile = static_cast<const std::uint8_t*>(tiles) +
                             output / kTileWidth * tile_bytes(form, inputs);
  const std::uint8_t* factors = tile + kGroupsOfSuper * group_bytes(form);
  for (std::size_t first = 0; first < inputs; first += kGroup) {
    if (form.super && tile == factors) {
      tile += factor_bytes(form);
      factors = tile + kGroupsOfSuper * group_bytes(form);
    }
    const std::uint8_t* const plane = tile + value_bytes(form);
    const std::uint8_t* const numbers = plane + plane_bytes(form);
    float scales[2], minimum = 0;
    if (form.super) {
      const float factor = of_half(half_at(factors + 2 * c));
      for (int s = 0; s < 2; ++s) {
        const std::uint8_t* const byte = numbers + (form.scales == 2 ? s : 0) * kTileWidth + c;
        scales[s] = factor * (form.scales == 2 ? static_cast<std::int8_t>(*byte) : *byte);
      }
      if (form.minimum) {
        minimum = -of_half(half_at(factors + 2 * (kTileWidth + c))) * numbers[kTileWidth + c];
      }
    } else {
      scales[0] = scales[1] = of_half(half_at(numbers + 2 * c));
      if (form.minimum) minimum = of_half(half_at(numbers + 2 * (kTileWidth + c)));
    }
    for (std::size_t i = 0; i < kGroup && first + i < inputs; ++i) {
      const std::size_t quad = i / 4, at = c * 4 + i % 4;
      int q;
      if (form.bits == 8) {
        q = static_cast<std::int8_t>(tile[quad * kQuadBytes + at]);
      } else {
        q = tile[quad / 2 * kQuadBytes + at] >> quad % 2 * 4 & 15;
        if (form.bits == 5) q |= (plane[at] >> quad & 1) << 4;
        if (form.bits == 6) q |= (plane[quad / 4 * kQuadBytes + at] >> quad % 4 * 2 & 3) << 4;
      }
      weights[first + i] = scales[i / 16] * static_cast<float>(q - form.zero) + minimum;
    }
    tile += group_bytes(form);
  }
}

void quantize(const float* x, std::size_t rows, std::size_t in, Int8Inputs* y,
              Instructions instructions) {
  kernels(instructions)->quantize(x, rows, in, y);
}

}  // namespace dart
