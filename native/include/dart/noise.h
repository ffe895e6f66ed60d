// The Gumbel noise of draws from a vocabulary.
#pragma once

#include <cstddef>
#include <cstdint>

#include "dart/instructions.h"

namespace dart {

// A key of JAX's "threefry2x32" random numbers.
struct ThreefryKey {
  std::uint32_t first;
  std::uint32_t second;
};

// Noise of B x P rows of V numbers: that of row b and column p is what jax.random.gumbel gives, up
// to rounding, with the key fold_in(keys[b], position).
struct Noise {
  const ThreefryKey* keys;        // [B]
  const std::int32_t* positions;  // [B, P]
  std::size_t sequences;          // B
  std::size_t columns;            // P
  std::size_t vocabulary;         // V
  float* out;                     // [B, P, V]
};

// Computes noise in this thread and in at most `threads - 1` others, fewer if there is little.
void make_noise(const Noise& noise, Instructions instructions, std::size_t threads);

// The noise of some tokens at a position, out [count].
void noise_of_tokens(const ThreefryKey& key, std::int32_t position, const std::int32_t* tokens,
                     std::size_t count, float* out, Instructions instructions);

}  // namespace dart
