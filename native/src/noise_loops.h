// The inner loops of noise.h, included by each kernels_<instructions>.cpp; see row_loops.h for what
// is alike.
#pragma once

#include <cstddef>
#include <cstdint>

#include "elementary.h"
#include "kernels.h"

namespace dart {
namespace {

// One block of Threefry-2x32 with 20 rounds (Salmon et al., 2011).
inline void threefry(const ThreefryKey& key, std::uint32_t& x0, std::uint32_t& x1) {
  const std::uint32_t keys[3] = {key.first, key.second, 0x1bd11bdau ^ key.first ^ key.second};
  const auto rounds = [&](int a, int b, int c, int d, int at) {
    const auto round = [&](int by) {
      x0 += x1;
      x1 = (x1 << by | x1 >> (32 - by)) ^ x0;
    };
    round(a);
    round(b);
    round(c);
    round(d);
    x0 += keys[at % 3];
    x1 += keys[(at + 1) % 3] + static_cast<std::uint32_t>(at);
  };
  x0 += keys[0];
  x1 += keys[1];
  rounds(13, 15, 26, 6, 1);
  rounds(17, 29, 16, 24, 2);
  rounds(13, 15, 26, 6, 3);
  rounds(17, 29, 16, 24, 4);
  rounds(13, 15, 26, 6, 5);
}

// A token's uniform number, from 0 to 1; 0 is the least normal number instead.
inline float uniform_number(const ThreefryKey& key, std::uint32_t token) {
  constexpr float kLeast = 1.17549435e-38f;  // does not change others than 0
  std::uint32_t x0 = 0, x1 = token;
  threefry(key, x0, x1);
  const std::uint32_t bits = (x0 ^ x1) >> 9 | 0x3f800000u;  // from 1 to 2
  float uniform;
  __builtin_memcpy(&uniform, &bits, sizeof uniform);
  return uniform - 1.0f + kLeast;
}

inline float gumbel_of_uniform(float uniform) { return -logarithm(-logarithm(uniform)); }

inline float gumbel_number(const ThreefryKey& key, std::uint32_t token) {
  return gumbel_of_uniform(uniform_number(key, token));
}

// The numbers of tokens [begin, end).
void gumbel_numbers(const ThreefryKey& key, std::size_t begin, std::size_t end, float* out) {
  for (std::size_t i = begin; i < end; ++i) {
    out[i - begin] = gumbel_number(key, static_cast<std::uint32_t>(i));
  }
}

void gumbel_numbers_of(const ThreefryKey& key, const std::int32_t* tokens, std::size_t count,
                       float* out) {
  for (std::size_t i = 0; i < count; ++i) {
    out[i] = gumbel_number(key, static_cast<std::uint32_t>(tokens[i]));
  }
}

ThreefryKey fold_key(const ThreefryKey& key, std::uint32_t data) {
  ThreefryKey folded{0, data};
  threefry(key, folded.first, folded.second);
  return folded;
}

}  // namespace
}  // namespace dart
