// The sum of numbers, in an order that vector processors can follow.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

namespace dart {

// The sum of x, which is overwritten. The upper half is added to the lower one until one number is
// left, as vector processors do it; the size counts as the next power of two, the rest as zeros.
inline float sum_in_halves(std::vector<float>& x) {
  std::size_t half = 1;
  while (half < x.size()) half *= 2;
  while ((half /= 2) > 0) {
    for (std::size_t i = half; i < std::min(2 * half, x.size()); ++i) x[i - half] += x[i];
  }
  return x.empty() ? 0.0f : x[0];
}

}  // namespace dart
