// Draws from the logits of a vocabulary: temperature, filters, Gumbel noise, and the largest.
#pragma once

#include <cstddef>
#include <cstdint>

#include "dart/instructions.h"
#include "dart/noise.h"

namespace dart {

// T rows of logits in each of B sequences. With `most` the largest of a row,
//
//   y[b, t, i] = (x[b, t, i] - most) / temperature[b] + noise[b, t, i],
//
// where the noise is that of the token at position first[b] + levels[b, t]; it is made only for
// tokens that may be among the largest. With temperature 0, of greedy decoding, nothing is divided
// or added.
//
// Tokens that filters leave out get -infinity; those tied with the last one kept are kept. A row
// that holds NaN, or whose largest is not finite, becomes NaN.
struct Draws {
  const float* x;              // [B, T, size]
  const float* temperature;    // [B]
  const std::int32_t* top_k;   // [B], the k most likely are kept; 0 for all; null for all
  const float* top_p;          // [B], the likeliest, until they have this much; null for all
  const float* min_p;          // [B], those this likely, of the likeliest; null for all
  const ThreefryKey* keys;     // [B]
  const std::int32_t* first;   // [B]
  const std::int32_t* levels;  // [B, T]
  const std::int32_t* ids;     // [size], the tokens; null for the numbers from 0
  std::size_t sequences;       // B
  std::size_t rows;            // T
  std::size_t size;            // at least 1
  std::size_t count;           // at most `size`
  float* values;               // [B, T, count], the largest y, as `largest` orders them
  std::int32_t* indices;       // [B, T, count], and where they are
};

// Computes them in this thread and in at most `threads - 1` others, fewer if there is little. What
// is drawn from a row does not depend on other rows.
void draw(const Draws& draws, Instructions instructions, std::size_t threads);

}  // namespace dart
