// Weights and inputs in 8 bits, in groups of inputs that share a scale.
#pragma once

#include <cstddef>
#include <cstdint>

#include "dart/instructions.h"

namespace dart {

// Inputs that share a scale.
constexpr std::size_t kInt8Group = 64;

constexpr std::size_t int8_groups(std::size_t inputs) {
  return (inputs + kInt8Group - 1) / kInt8Group;
}

// A group of a row's inputs: input i is about scale * values[i].
struct Int8Inputs {
  std::int8_t values[kInt8Group];  // -127 to 127; 0 after the row's last input
  float scale;         // NaN if an input is not finite
  std::int32_t begin;  // -128 times the sum of the values: see int8_avx512_vnni.cpp
};

// Rounds rows x [rows, in] to y [rows, int8_groups(in)]; in each group the input of the largest
// magnitude becomes 127 or -127. A row's result does not depend on the other rows.
void quantize(const float* x, std::size_t rows, std::size_t in, Int8Inputs* y,
              Instructions instructions);

}  // namespace dart
