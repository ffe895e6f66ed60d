// Sums in a fixed number of parts, which vector processors add to at once.
#pragma once

#include <cstddef>

namespace dart {
namespace {

// Parts of a sum, which are added to each other at the end.
constexpr std::size_t kParts = 16;

inline float sum_of(const float* parts) {
  float sum = 0;
  for (std::size_t c = 0; c < kParts; ++c) sum += parts[c];
  return sum;
}

}  // namespace
}  // namespace dart
