// The softmax of a row over a part of its positions, and how parts are joined.
//
// As in attention_loops.h, everything has internal linkage.
#pragma once

#include <cstddef>

#include "elementary.h"
#include "sum_of_parts.h"

namespace dart {

// Positions that are weighed with one largest score; others are joined with them afterwards. So bits are
// the same whether one thread computes all of them or several share them.
constexpr std::size_t kSplit = 512;

namespace {

// The largest score, sums of exponentials by position, and sums of values, [h].
constexpr std::size_t kAtSums = 1 + kParts;
constexpr std::size_t split_numbers(std::size_t head_size) { return kAtSums + head_size; }

// Joins the next part of a row with all before it, of which there may be none.
inline void join_split(const float* next, std::size_t head_size, float* all) {
  constexpr float kUnseen = -__builtin_huge_valf();
  const std::size_t count = split_numbers(head_size);
  if (next[0] == kUnseen) return;
  if (all[0] == kUnseen) {
    for (std::size_t i = 0; i < count; ++i) all[i] = next[i];
    return;
  }
  float of_all = 1, of_next = 1;
  if (next[0] > all[0]) {
    of_all = exponential(all[0] - next[0]);
    all[0] = next[0];
  } else {
    of_next = exponential(next[0] - all[0]);
  }
  for (std::size_t i = 1; i < count; ++i) all[i] = all[i] * of_all + next[i] * of_next;
}

inline void write_attended(const float* split, std::size_t head_size, float* out) {
  const float factor = 1.0f / sum_of(split + 1);
  for (std::size_t i = 0; i < head_size; ++i) out[i] = split[kAtSums + i] * factor;
}

}  // namespace
}  // namespace dart
