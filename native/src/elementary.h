// Logarithm and exponential that compilers vectorise, with the same bits on every platform.
//
// Sums and products in a fixed order, none of them fused (see CMakeLists.txt), with the polynomials of
// Cephes (S. Moshier). As in row_loops.h, nothing of the C++ library is called.
#pragma once

#include <cstdint>

namespace dart {
namespace {

// The natural logarithm of a positive normal number, to within 1 unit in the last place.
inline float logarithm(float x) {
  constexpr std::uint32_t kRootOfHalf = 0x3f3504f3u;
  std::uint32_t bits;
  __builtin_memcpy(&bits, &x, sizeof bits);
  // x = m 2^e, with m from sqrt(1/2) to sqrt(2).
  const std::int32_t e = static_cast<std::int32_t>(bits - kRootOfHalf) >> 23;
  bits -= static_cast<std::uint32_t>(e) << 23;
  float m;
  __builtin_memcpy(&m, &bits, sizeof m);
  const float f = m - 1.0f, square = f * f, exponent = static_cast<float>(e);
  float y = 7.0376836292e-2f;
  y = y * f - 1.1514610310e-1f;
  y = y * f + 1.1676998740e-1f;
  y = y * f - 1.2420140846e-1f;
  y = y * f + 1.4249322787e-1f;
  y = y * f - 1.6668057665e-1f;
  y = y * f + 2.0000714765e-1f;
  y = y * f - 2.4999993993e-1f;
  y = y * f + 3.3333331174e-1f;
  y = y * f * square - 2.12194440e-4f * exponent - 0.5f * square;
  return f + y + 0.693359375f * exponent;
}

// The exponential function, to within 1 unit in the last place; 0 below -87.3, where results are no
// longer normal, and for numbers above 88 what it is for 88.
inline float exponential(float x) {
  constexpr float kLeast = -87.3f, kMost = 88.0f;
  // x = n log 2 + r. Adding 1.5 * 2^23 + 127 rounds to an integer, n + 127 in the last bits.
  constexpr float kShift = 12582912.0f + 127.0f;
  const float inside = x < kLeast ? kLeast : x < kMost ? x : kMost;
  const float shifted = inside * 1.44269504f + kShift;
  const float n = shifted - kShift;
  const float r = (inside - n * 0.693359375f) + n * 2.12194440e-4f;
  float power = 1.9875691500e-4f;
  power = power * r + 1.3981999507e-3f;
  power = power * r + 8.3334519073e-3f;
  power = power * r + 4.1665795894e-2f;
  power = power * r + 1.6666665459e-1f;
  power = power * r + 5.0000001201e-1f;
  power = power * (r * r) + r + 1.0f;
  std::uint32_t bits;
  __builtin_memcpy(&bits, &shifted, sizeof bits);
  bits <<= 23;
  float two_to_n;
  __builtin_memcpy(&two_to_n, &bits, sizeof two_to_n);
  const float result = power * two_to_n;
  return x < kLeast ? 0.0f : result;
}

}  // namespace
}  // namespace dart
