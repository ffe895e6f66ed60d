// A perfect hash of pairs of integers: every key has a place of its own in a table, found with two
// reads, wherever the table is kept (dart_jax/ngram/device_table.py).
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "dart/span.h"

namespace dart {

// Numbers from 0 to size - 1, of which each key has one to itself.
struct PerfectHash {
  std::uint32_t size = 0;            // about a ninth more than there are keys
  std::vector<std::uint16_t> seeds;  // by the bucket that a key falls into
  std::vector<std::int32_t> place;   // by key
};

// Hash and displace (Belazzougui, Botelho, Dietzfelbinger 2009): keys fall into small buckets, and
// each bucket gets the first seed that sends all its keys to free places, large buckets first.
//
// With `hash(first, second, seed)` and `scale(h, n)`, a number below n, below:
//   place = scale(hash(first, second, seeds[scale(hash(first, second, 0), seeds.size)] + 1), size)
//
// Keys are the pairs (first[i], second[i]). Throws std::invalid_argument if two are equal or there
// are 2^30 or more.
PerfectHash make_perfect_hash(Span<std::int32_t> first, Span<std::int32_t> second);

// Sums, products and shifts of 32 bits, which any device has.
inline std::uint32_t pair_hash(std::uint32_t first, std::uint32_t second, std::uint32_t seed) {
  std::uint32_t x = (first ^ seed * 0x9e3779b1u) * 0x85ebca6bu;
  x = (x ^ x >> 15) + second;
  x *= 0xc2b2ae35u;
  x = (x ^ x >> 16) * 0x27d4eb2fu;
  return x ^ x >> 15;
}

// A number below n. Devices compute it in parts of 32 bits.
inline std::uint32_t scale_hash(std::uint32_t h, std::uint32_t n) {
  return static_cast<std::uint32_t>(std::uint64_t{h} * n >> 32);
}

}  // namespace dart
