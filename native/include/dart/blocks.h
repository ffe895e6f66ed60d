// Weights in blocks, as GGUF files have them, and inputs in 8 bits to multiply them with.
//
// A block's weights are small integers q that share numbers: a weight is scale * (q - zero), or
// scale * q + minimum. Tiles (see packed_product.h) hold them in another order, with the same values.
#pragma once

#include <cstddef>
#include <cstdint>

#include "dart/instructions.h"

namespace dart {

// Outputs of a tile.
constexpr std::size_t kTileWidth = 32;

// The form of stored weights: floats, or GGUF's blocks of these names.
enum class WeightType {
  kFloat32,
  kFloat16,
  kBfloat16,
  kQ4_0,
  kQ4_1,
  kQ5_0,
  kQ5_1,
  kQ8_0,
  kQ4_K,
  kQ5_K,
  kQ6_K,
};

constexpr bool in_blocks(WeightType type) { return type >= WeightType::kQ4_0; }

// Inputs of a group: a block's, or one of the eight parts of a block of a K type.
constexpr std::size_t kGroup = 32;
constexpr std::size_t kGroupsOfSuper = 8;

constexpr std::size_t groups_of(std::size_t inputs) { return (inputs + kGroup - 1) / kGroup; }

// The layout of a type's blocks, in a file and in tiles.
struct BlockForm {
  int bits;         // of an integer q
  int zero;         // Q8_0's are signed
  bool minimum;     // whether weights have one
  bool super;       // whether eight groups share factors of their scales and minima
  int scales;       // of a group: Q6_K's have two, for 16 inputs each
  std::size_t file_bytes;  // of a block of 32, or of 256 weights
};

constexpr BlockForm form_of(WeightType type) {
  switch (type) {
    case WeightType::kQ4_0:
      return {4, 8, false, false, 1, 18};
    case WeightType::kQ4_1:
      return {4, 0, true, false, 1, 20};
    case WeightType::kQ5_0:
      return {5, 16, false, false, 1, 22};
    case WeightType::kQ5_1:
      return {5, 0, true, false, 1, 24};
    case WeightType::kQ4_K:
      return {4, 0, true, true, 1, 144};
    case WeightType::kQ5_K:
      return {5, 0, true, true, 1, 176};
    case WeightType::kQ6_K:
      return {6, 32, false, true, 2, 210};
    default:
      return {8, 0, false, false, 1, 34};
  }
}

// Inputs of a block in a file.
constexpr std::size_t block_inputs(const BlockForm& form) {
  return form.super ? kGroup * kGroupsOfSuper : kGroup;
}

// A tile's bytes of one group, for 32 inputs 4 q + k and 32 outputs c, in this order:
// - q at [q, c, k] in 8 bits; or at [q / 2, c, k] the lowest 4 bits of both, of the odd q in the
//   upper half of the byte;
// - of 5 bits, at [c, k] the highest ones of all, in bit q; of 6 bits, at [q / 4, c, k] the two
//   highest ones of four, in bits 2 (q % 4) and the next;
// - at [c] the scale and then, also at [c], the minimum in float16; or, where groups share factors,
//   both as bytes, of which Q6_K has two scales, at [2, c], which are signed.
// After eight groups that share them follow the factors, in float16: at [c] of the scales and then
// of the minima, which are subtracted.
constexpr std::size_t value_bytes(const BlockForm& form) {
  return kGroup * kTileWidth / (form.bits == 8 ? 1 : 2);
}
constexpr std::size_t plane_bytes(const BlockForm& form) {
  return form.bits == 5 ? kTileWidth * 4 : form.bits == 6 ? 2 * kTileWidth * 4 : 0;
}
constexpr std::size_t group_bytes(const BlockForm& form) {
  const std::size_t numbers =
      static_cast<std::size_t>(form.scales + (form.minimum ? 1 : 0)) * (form.super ? 1 : 2);
  return value_bytes(form) + plane_bytes(form) + numbers * kTileWidth;
}
constexpr std::size_t factor_bytes(const BlockForm& form) {
  return form.super ? (form.minimum ? 4 : 2) * kTileWidth : 0;
}

// Bytes of a tile in blocks, with this number of inputs, a multiple of `block_inputs`.
constexpr std::size_t tile_bytes(const BlockForm& form, std::size_t inputs) {
  return groups_of(inputs) * group_bytes(form) +
         (form.super ? groups_of(inputs) / kGroupsOfSuper * factor_bytes(form) : 0);
}

// Stores blocks in tiles, in at most this number of threads.
//
// `rows`: [out, inputs / block_inputs] blocks of a file, each row the weights of an output.
// `tiles`: [ceil(out / 32), tile_bytes]; what is beyond the last output becomes 0.
void pack_blocks(WeightType type, const std::uint8_t* rows, std::size_t inputs, std::size_t out,
                 std::uint8_t* tiles, std::size_t threads = 1);

// The number of weights of blocks in a file that have a scale or minimum which is not finite.
std::size_t count_not_finite(WeightType type, const std::uint8_t* blocks, std::size_t count);

// Rounds weights [out, inputs] to Q8_0 in tiles: in each block the one of the largest magnitude
// becomes 127 or -127. The last block of a row may have fewer inputs.
void pack_q8_0(const float* weights, std::size_t inputs, std::size_t out, std::uint8_t* tiles,
               std::size_t threads = 1);

// The weights of one output, [inputs], out of tiles of any type.
void unpack_row(WeightType type, const void* tiles, std::size_t inputs, std::size_t output,
                float* weights);

// A group of a row's inputs: input i is about scale * values[i].
struct Int8Inputs {
  std::int8_t values[kGroup];  // -127 to 127; 0 after the row's last input
  float scale;                 // NaN if an input is not finite
  float sum;                   // of the inputs: scale times the sum of the values
  std::int32_t halves[2];      // sums of the first and the last 16 values
};

// Rounds rows x [rows, in] to y [rows, groups_of(in)]; in each group the input of the largest
// magnitude becomes 127 or -127. A row's result does not depend on the other rows.
void quantize(const float* x, std::size_t rows, std::size_t in, Int8Inputs* y,
              Instructions instructions);

}  // namespace dart
