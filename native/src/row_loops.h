// The inner loops of rows.h, included by each kernels_<instructions>.cpp.
//
// Plain loops that compilers vectorise. As products and sums are never fused here and sums have a
// fixed number of parts, all instruction sets agree bit for bit. Rounding to 8 bits has instructions
// of each set. As in product_tiles.h, nothing of the C++ library is called.
#pragma once

#include <cstddef>
#include <cstdint>

#include "elementary.h"
#include "kernels.h"
#include "sum_of_parts.h"

namespace dart {
namespace {

// The sum of the squares of x.
inline float sum_of_squares(const float* x, std::size_t size) {
  float parts[kParts] = {};
  std::size_t i = 0;
  for (; i + kParts <= size; i += kParts) {
    for (std::size_t c = 0; c < kParts; ++c) parts[c] += x[i + c] * x[i + c];
  }
  for (std::size_t c = 0; i + c < size; ++c) parts[c] += x[i + c] * x[i + c];
  return sum_of(parts);
}

// The factor that normalises the elements of x.
inline float normalizer(const float* x, std::size_t size, float eps) {
  return 1.0f / __builtin_sqrtf(sum_of_squares(x, size) / static_cast<float>(size) + eps);
}

void normalize_rows(const Norm& norm, const float* x, std::size_t rows, float* y) {
  for (std::size_t r = 0; r < rows; ++r, x += norm.size, y += norm.size) {
    const float factor = normalizer(x, norm.size, norm.eps);
    for (std::size_t i = 0; i < norm.size; ++i) {
      y[i] = x[i] * factor * (norm.scale[i] + norm.offset);
    }
  }
}

void gate_rows(Activation activation, const float* x, std::size_t rows, std::size_t size,
               float* y) {
  for (std::size_t r = 0; r < rows; ++r, x += 2 * size, y += size) {
    const float* const up = x + size;
    if (activation == Activation::kSilu) {
      for (std::size_t i = 0; i < size; ++i) y[i] = x[i] / (1.0f + exponential(-x[i])) * up[i];
    } else {
      // (1 + tanh(u)) / 2 = 1 / (1 + exp(-2 u)), with 2 u = 2 sqrt(2 / pi) (x + 0.044715 x^3).
      for (std::size_t i = 0; i < size; ++i) {
        const float twice = 1.5957691216f * (x[i] + 0.044715f * x[i] * x[i] * x[i]);
        y[i] = x[i] / (1.0f + exponential(-twice)) * up[i];
      }
    }
  }
}

// How a group of inputs is rounded, for processors without instructions of their own for it here.
struct PlainRounding {
  // The largest of 32 numbers without their signs, compared by their bits: NaN is the largest, and
  // infinity the next.
  static std::uint32_t largest_bits(const float* x) {
    std::uint32_t largest = 0;
    for (std::size_t i = 0; i < kGroup; ++i) {
      std::uint32_t bits;
      __builtin_memcpy(&bits, x + i, sizeof bits);
      bits &= 0x7fffffffu;
      largest = bits > largest ? bits : largest;
    }
    return largest;
  }

  // Rounds 16 numbers times a factor to the nearest integers, at most 127, to the even one of two;
  // returns their sum.
  static std::int32_t round_half(const float* x, float factor, std::int8_t* y) {
    constexpr float kShift = 12582912.0f;  // 1.5 * 2^23: integers are in the last bits
    constexpr std::int32_t kBits = 0x4b400000;
    std::int32_t sum = 0;
    for (std::size_t i = 0; i < kGroup / 2; ++i) {
      const float shifted = x[i] * factor + kShift;
      std::int32_t value;
      __builtin_memcpy(&value, &shifted, sizeof value);
      value -= kBits;
      sum += value;
      y[i] = static_cast<std::int8_t>(value);
    }
    return sum;
  }
};

// Rounds a whole group of inputs.
template <class Rounding>
inline void quantize_group(const float* x, Int8Inputs& y) {
  const std::uint32_t largest = Rounding::largest_bits(x);
  if (largest >= 0x7f800000u) {
    y = {};
    y.scale = y.sum = __builtin_nanf("");
    return;
  }
  float magnitude;
  __builtin_memcpy(&magnitude, &largest, sizeof magnitude);
  const bool zero = magnitude <= 1e-30f;  // dividing by it might overflow
  const float factor = zero ? 0.0f : 127.0f / magnitude;
  constexpr std::size_t kHalf = kGroup / 2;
  for (std::size_t h = 0; h < 2; ++h) {
    y.halves[h] = Rounding::round_half(x + h * kHalf, factor, y.values + h * kHalf);
  }
  y.scale = zero ? 0.0f : magnitude / 127.0f;
  y.sum = y.scale * static_cast<float>(y.halves[0] + y.halves[1]);
}

template <class Rounding>
void quantize_rows(const float* x, std::size_t rows, std::size_t in, Int8Inputs* y) {
  for (std::size_t r = 0; r < rows; ++r, x += in) {
    std::size_t i = 0;
    for (; i + kGroup <= in; i += kGroup) quantize_group<Rounding>(x + i, *y++);
    if (i == in) continue;
    float last[kGroup] = {};
    for (std::size_t c = 0; i + c < in; ++c) last[c] = x[i + c];
    quantize_group<Rounding>(last, *y++);
  }
}

// Copies a head's elements; normalised, if there is a scale.
inline void copy_head(const float* __restrict x, const float* __restrict scale, float factor,
                      float offset, std::size_t size, float* __restrict y) {
  if (scale == nullptr) {
    for (std::size_t i = 0; i < size; ++i) y[i] = x[i];
  } else {
    for (std::size_t i = 0; i < size; ++i) y[i] = x[i] * factor * (scale[i] + offset);
  }
}

// Rotates a head's pairs in place.
inline void rotate_head(float* __restrict x, const float* __restrict cos,
                        const float* __restrict sin, std::size_t half) {
  for (std::size_t i = 0; i < half; ++i) {
    const float first = x[i], second = x[half + i];
    x[i] = first * cos[i] - second * sin[i];
    x[half + i] = second * cos[i] + first * sin[i];
  }
}

void rotate_all_heads(const Heads& heads) {
  const std::size_t h = heads.head_size, half = heads.rotated / 2;
  const float* x = heads.x;
  for (std::size_t b = 0; b < heads.sequences; ++b) {
    for (std::size_t t = 0; t < heads.rows; ++t) {
      const std::size_t row = b * heads.rows + t;
      const auto rotate = [&](std::size_t count, const float* scale, float* out) {
        float factor = 1;
        if (scale != nullptr && heads.together) factor = normalizer(x, count * h, heads.eps);
        for (std::size_t i = 0; i < count; ++i, x += h) {
          if (scale != nullptr && !heads.together) factor = normalizer(x, h, heads.eps);
          float* const y = out + ((b * count + i) * heads.rows + t) * h;
          copy_head(x, scale, factor, heads.offset, h, y);
          rotate_head(y, heads.cos + row * half, heads.sin + row * half, half);
          if (scale != nullptr && heads.together) scale += h;
        }
      };
      rotate(heads.heads, heads.q_scale, heads.q);
      rotate(heads.kv_heads, heads.k_scale, heads.k);
      for (std::size_t i = 0; i < heads.kv_heads; ++i, x += h) {
        copy_head(x, nullptr, 1, 0, h, heads.v + ((b * heads.kv_heads + i) * heads.rows + t) * h);
      }
    }
  }
}

inline bool precedes(float one, float other) {
  const bool nan = other != other;
  return one > other || (one != one && !nan);
}

// Puts a value in its place among the `count` largest so far, whose last one falls out.
inline void insert(float value, std::int32_t index, std::size_t count, float* values,
                   std::int32_t* indices) {
  std::size_t at = count - 1;
  for (; at > 0 && precedes(value, values[at - 1]); --at) {
    values[at] = values[at - 1];
    indices[at] = indices[at - 1];
  }
  values[at] = value;
  indices[at] = index;
}

void largest_of_rows(const float* x, std::size_t rows, std::size_t size, std::size_t count,
                     float* values, std::int32_t* indices) {
  if (count == 0) return;
  for (std::size_t r = 0; r < rows; ++r, x += size, values += count, indices += count) {
    std::size_t i = 0;
    for (; i < count; ++i) insert(x[i], static_cast<std::int32_t>(i), i + 1, values, indices);
    while (i < size) {
      // Most blocks have nothing that is larger than the last of the largest so far.
      constexpr std::size_t kBlock = 64;
      const float last = values[count - 1];
      if (i + kBlock <= size) {
        int any = 0;
        for (std::size_t c = 0; c < kBlock; ++c) any |= !(x[i + c] <= last);
        if (any == 0) {
          i += kBlock;
          continue;
        }
      }
      const std::size_t end = i + kBlock < size ? i + kBlock : size;
      for (; i < end; ++i) {
        if (precedes(x[i], values[count - 1])) {
          insert(x[i], static_cast<std::int32_t>(i), count, values, indices);
        }
      }
    }
  }
}

}  // namespace
}  // namespace dart
