// The inner loops of draws.h, included by each kernels_<instructions>.cpp; see row_loops.h for what
// is alike.
//
// Rows are read once, to find the largest of every block. Most blocks hold nothing that is kept or
// could become one of the largest, and are not read again.
#pragma once

#include <cstddef>
#include <cstdint>

#include "elementary.h"
#include "kernels.h"
#include "noise_loops.h"
#include "row_loops.h"

namespace dart {
namespace {

constexpr float kInfinity = __builtin_huge_valf();
constexpr std::size_t kDrawRoom = 256;  // tokens whose noise is made together
constexpr std::size_t kLikely = 8;      // tokens that are looked at before all others

// Integers in the order of the numbers, -0 below 0; and back.
inline std::int32_t order_of(float x) {
  std::int32_t bits;
  __builtin_memcpy(&bits, &x, sizeof bits);
  return bits ^ (bits >> 31 & 0x7fffffff);
}

inline float number_of(std::int32_t order) {
  const std::int32_t bits = order ^ (order >> 31 & 0x7fffffff);
  float x;
  __builtin_memcpy(&x, &bits, sizeof x);
  return x;
}

// The largest of every block; returns whether there is a NaN.
inline bool largest_of_blocks(const float* x, std::size_t size, float* most) {
  std::int32_t nan = 0;
  for (std::size_t begin = 0; begin < size; begin += kDrawBlock) {
    const std::size_t end = begin + kDrawBlock < size ? begin + kDrawBlock : size;
    std::int32_t largest = order_of(x[begin]);
    const auto look = [&](std::size_t i) {
      const std::int32_t order = order_of(x[i]);
      largest = order > largest ? order : largest;
      nan |= x[i] != x[i];
    };
    if (end - begin == kDrawBlock) {
      for (std::size_t c = 0; c < kDrawBlock; ++c) look(begin + c);
    } else {
      for (std::size_t i = begin; i < end; ++i) look(i);
    }
    *most++ = number_of(largest);
  }
  return nan != 0;
}

// The k-th largest number, 1 <= k <= count: bit by bit.
inline float kth_largest(const float* x, std::size_t count, std::size_t k) {
  constexpr std::uint32_t kSign = 1u << 31;
  std::uint32_t found = 0;
  for (std::uint32_t bit = kSign; bit != 0; bit >>= 1) {
    const auto higher = static_cast<std::int32_t>((found | bit) ^ kSign);
    std::int32_t enough = 0;
    for (std::size_t i = 0; i < count; ++i) enough += order_of(x[i]) >= higher;
    if (static_cast<std::size_t>(enough) >= k) found |= bit;
  }
  return number_of(static_cast<std::int32_t>(found ^ kSign));
}

// A row whose logits are divided by a temperature.
struct Scaled {
  const float* x;
  std::size_t size;
  const float* blocks;  // the largest of every block
  float most;
  float scale;

  float at(float logit) const { return (logit - most) * scale; }
};

// Calls `take(begin, end)` for the blocks in which a token's y is at least `least`, which may grow
// meanwhile.
template <class Take>
inline void each_block(const Scaled& row, const float& least, const Take& take) {
  for (std::size_t begin = 0, b = 0; begin < row.size; begin += kDrawBlock, ++b) {
    if (row.at(row.blocks[b]) < least) continue;
    take(begin, begin + kDrawBlock < row.size ? begin + kDrawBlock : row.size);
  }
}

// Copies the y that are at least `least`; returns how many. There is room for all.
inline std::size_t copy_likely(const Scaled& row, float least, float* out) {
  std::size_t count = 0;
  each_block(row, least, [&](std::size_t begin, std::size_t end) {
    for (std::size_t i = begin; i < end; ++i) {
      out[count] = row.at(row.x[i]);
      count += out[count] >= least;
    }
  });
  return count;
}

// The least y that top-k keeps; `room` for `size` numbers is overwritten.
inline float least_of_top_k(const Scaled& row, std::size_t k, float* room) {
  const std::size_t blocks = blocks_of(row.size);
  // At least k tokens reach the k-th largest of the blocks' largest.
  const float low = k <= blocks ? row.at(kth_largest(row.blocks, blocks, k)) : -kInfinity;
  return kth_largest(room, copy_likely(row, low, room), k);
}

// The sum of the numbers that are at least `least`.
inline float mass_of(const float* odds, std::size_t count, float least) {
  float parts[kParts] = {};
  std::size_t i = 0;
  for (; i + kParts <= count; i += kParts) {
    for (std::size_t c = 0; c < kParts; ++c) {
      parts[c] += odds[i + c] >= least ? odds[i + c] : 0.0f;
    }
  }
  for (std::size_t c = 0; i + c < count; ++c) parts[c] += odds[i + c] >= least ? odds[i + c] : 0.0f;
  return sum_of(parts);
}

// The sum of exp(y) of tokens whose y is at least `least`.
inline float odds_of(const Scaled& row, float least) {
  float parts[kParts] = {};
  const auto add = [&](std::size_t c, std::size_t i) {
    const float y = row.at(row.x[i]), odds = exponential(y);
    parts[c] += y >= least ? odds : 0.0f;
  };
  each_block(row, least, [&](std::size_t begin, std::size_t end) {
    for (; begin + kParts <= end; begin += kParts) {
      for (std::size_t c = 0; c < kParts; ++c) add(c, begin + c);
    }
    for (std::size_t c = 0; begin + c < end; ++c) add(c, begin + c);
  });
  return sum_of(parts);
}

// The least odds, exp(y), that top-p keeps, of tokens whose y is at least `least`; `odds` is room for
// `size` numbers.
inline float least_of_top_p(const Scaled& row, float top_p, float least, float* odds) {
  const float total = odds_of(row, least), wanted = total * top_p;
  // All that are below this have less than what may be left out: half of it, for rounding.
  const float negligible = (total - wanted) / static_cast<float>(2 * row.size);
  if (negligible >= __FLT_MIN__) {
    const float of_odds = logarithm(negligible);
    least = of_odds > least ? of_odds : least;
  }
  const std::size_t kept = copy_likely(row, least, odds);
  for (std::size_t i = 0; i < kept; ++i) odds[i] = exponential(odds[i]);
  std::int32_t low = 0, high = order_of(1.0f) + 1;
  while (high - low > 1) {
    const std::int32_t middle = low + (high - low) / 2;
    (mass_of(odds, kept, number_of(middle)) >= wanted ? low : high) = middle;
  }
  return number_of(low);
}

// The search of a row for the largest y of tokens that are kept.
struct Sought {
  const DrawnRow* row;
  float least_odds;  // of tokens that are kept
  float known;       // that many tokens reach this
  std::size_t found;

  // The y that a token must reach.
  float bound() const {
    const float last = found == row->count ? row->values[found - 1] : -kInfinity;
    return last > known ? last : known;
  }
};

// A bound, and a little less: for rounding.
inline float a_little_below(float bound) {
  return bound - 1e-3f - 1e-6f * (bound < 0 ? -bound : bound);
}

// Moves what has a y above -infinity to the front; returns how many.
inline std::size_t move_to_front(std::int32_t* places, float* y, float* uniform, std::size_t count) {
  std::size_t kept = 0;
  for (std::size_t begin = 0; begin < count; begin += kParts) {
    const std::size_t end = begin + kParts < count ? begin + kParts : count;
    std::int32_t any = 0;
    for (std::size_t i = begin; i < end; ++i) any |= y[i] > -kInfinity;
    if (!any) continue;
    for (std::size_t i = begin; i < end; ++i) {
      places[kept] = places[i];
      uniform[kept] = uniform[i];
      y[kept] = y[i];
      kept += y[kept] > -kInfinity;
    }
  }
  return kept;
}

// Adds noise to tokens, and puts them among the largest.
inline void add_tokens(Sought& sought, const ThreefryKey& key, std::int32_t* places,
                       std::size_t count, float* y) {
  const DrawnRow& row = *sought.row;
  if (sought.least_odds > 0) {
    for (std::size_t i = 0; i < count; ++i) {
      y[i] = exponential(y[i]) >= sought.least_odds ? y[i] : -kInfinity;
    }
  }
  if (row.temperature != 0) {
    std::int32_t tokens[kDrawRoom];
    float uniform[kDrawRoom];
    for (std::size_t i = 0; i < count; ++i) {
      tokens[i] = row.ids == nullptr ? places[i] : row.ids[places[i]];
    }
    // The noise -log(-log(u)) is at most -log(1 - u), which most tokens would need more of.
    const float bound = a_little_below(sought.bound());
    for (std::size_t i = 0; i < count; ++i) {
      uniform[i] = uniform_number(key, static_cast<std::uint32_t>(tokens[i]));
      const float most = exponential(y[i] - bound);
      y[i] = 1.0f - uniform[i] <= most ? y[i] : -kInfinity;
    }
    count = move_to_front(places, y, uniform, count);
    for (std::size_t i = 0; i < count; ++i) y[i] += gumbel_of_uniform(uniform[i]);
  }
  for (std::size_t i = 0; i < count; ++i) {
    if (y[i] == -kInfinity) continue;
    if (sought.found < row.count) {
      insert(y[i], places[i], ++sought.found, row.values, row.indices);
    } else if (y[i] > row.values[row.count - 1]) {
      insert(y[i], places[i], row.count, row.values, row.indices);
    }
  }
}

// The least y that may become one of the largest, if these exceed `bound`.
inline float least_that_reaches(float bound) {
  constexpr float kMostNoise = 16;  // all is below
  return a_little_below(bound) - kMostNoise;
}

// Finds the largest of tokens whose y without noise is at least `least`; others may be left out
// that cannot become one of them.
inline void find(Sought& sought, const Scaled& scaled, const ThreefryKey& key, float least) {
  std::int32_t places[kDrawRoom];
  float y[kDrawRoom];
  std::size_t count = 0;
  sought.found = 0;
  each_block(scaled, least, [&](std::size_t begin, std::size_t end) {
    if (count + kDrawBlock > kDrawRoom) {
      add_tokens(sought, key, places, count, y);
      count = 0;
      const float reached = least_that_reaches(sought.bound());
      least = reached > least ? reached : least;
    }
    // Without a branch, which would often be mispredicted.
    for (std::size_t i = begin; i < end; ++i) {
      places[count] = static_cast<std::int32_t>(i);
      y[count] = scaled.at(scaled.x[i]);
      count += y[count] >= least;
    }
  });
  add_tokens(sought, key, places, count, y);
}

void draw_row(const DrawnRow& row) {
  if (row.count == 0) return;
  const auto fill = [&](std::size_t at, float value, std::int32_t place) {
    row.values[at] = value;
    row.indices[at] = place;
  };
  const std::size_t blocks = blocks_of(row.size);
  const bool nan = largest_of_blocks(row.x, row.size, row.blocks);
  const float most = kth_largest(row.blocks, blocks, 1);
  if (nan || most == kInfinity || most == -kInfinity) {
    for (std::size_t i = 0; i < row.count; ++i) {
      fill(i, __builtin_nanf(""), static_cast<std::int32_t>(i));
    }
    return;
  }
  const float scale = row.temperature == 0 ? 1.0f : 1.0f / row.temperature;
  const Scaled scaled{row.x, row.size, row.blocks, most, scale};
  float least = -__FLT_MAX__;  // logits of -infinity, too, are not kept
  const auto top_k = static_cast<std::size_t>(row.top_k > 0 ? row.top_k : 0);
  if (top_k > 0 && top_k < row.size) {
    const float of_top_k = least_of_top_k(scaled, top_k, row.room);
    least = of_top_k > least ? of_top_k : least;
  }
  Sought sought{&row, row.min_p, -kInfinity, 0};
  if (row.top_p < 1) {
    const float of_top_p = least_of_top_p(scaled, row.top_p, least, row.room);
    sought.least_odds = of_top_p > row.min_p ? of_top_p : row.min_p;
  }
  if (sought.least_odds > 0) {
    const float of_odds = logarithm(sought.least_odds) - 1e-3f;  // a little less: rounding
    least = of_odds > least ? of_odds : least;
  }
  const ThreefryKey key = fold_key(row.key, row.position);
  // The most likely tokens give a bound that the others must exceed.
  const std::size_t first = row.count > kLikely ? row.count : kLikely;
  const float likely = scaled.at(kth_largest(row.blocks, blocks, first < blocks ? first : blocks));
  find(sought, scaled, key, likely > least ? likely : least);
  sought.known = sought.bound();
  const float reached = least_that_reaches(sought.known);
  least = reached > least ? reached : least;
  find(sought, scaled, key, least);
  // Of those that are left out the first.
  for (std::int32_t i = 0; sought.found < row.count; ++i) {
    bool taken = false;
    for (std::size_t n = 0; n < sought.found; ++n) taken |= row.indices[n] == i;
    if (!taken) fill(sought.found++, -kInfinity, i);
  }
}

}  // namespace
}  // namespace dart
