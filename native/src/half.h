// Numbers in float16.
#pragma once

#include <cstdint>

namespace dart {

// The bits of a float16, as an array's elements; those of a bfloat16 are std::uint16_t.
enum class Half : std::uint16_t {};

namespace {

inline float of_bits(std::uint32_t bits) {
  float x;
  __builtin_memcpy(&x, &bits, sizeof x);
  return x;
}

// The number that a float16 has.
inline float of_half(std::uint16_t half) {
  const std::uint32_t sign = (half & 0x8000u) << 16, rest = half & 0x7fffu;
  if (rest >= 0x7c00u) return of_bits(sign | 0x7f800000u | (rest & 0x3ffu) << 13);
  if (rest >= 0x400u) return of_bits(sign | ((rest << 13) + (112u << 23)));
  // Not by a small float32, which XLA has rounded to 0.
  const float magnitude = static_cast<float>(rest) * 0x1p-24f;
  return sign == 0 ? magnitude : -magnitude;
}

// The float16 nearest to a number that is not negative; infinity beyond the largest.
inline std::uint16_t nearest_half(float x) {
  // Scaled so that float32, too, rounds at the last bit of a small float16.
  constexpr float kLargest = 65520.0f;
  if (!(x < kLargest)) return x != x ? 0x7e00 : 0x7c00;
  if (x < 0x1p-14f) return static_cast<std::uint16_t>(x * 0x1p24f + 12582912.0f - 12582912.0f);
  std::uint32_t bits;
  __builtin_memcpy(&bits, &x, sizeof bits);
  bits += 0xfffu + (bits >> 13 & 1);
  return static_cast<std::uint16_t>((bits >> 13) - (112u << 10));
}

}  // namespace
}  // namespace dart
