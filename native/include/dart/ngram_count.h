// Counting the n-grams of a corpus into the arrays of an NgramModel.
#pragma once

#include <cstdint>
#include <vector>

#include "dart/ngram_model.h"
#include "dart/span.h"

namespace dart {

// The arrays of one NgramLevel, owned.
struct CountedLevel {
  std::vector<std::int32_t> token;
  std::vector<std::int64_t> count;
  std::vector<std::int64_t> child_begin;
};

// Counts every n-gram of 1 .. order tokens, each at every position of every document; n-grams do
// not cross documents. Document i is tokens[offsets[i]] .. tokens[offsets[i + 1] - 1].
// Throws std::invalid_argument unless 1 <= order <= kMaxOrder, tokens are >= 0, and offsets ascend
// from 0 to tokens.size.
std::vector<CountedLevel> count_ngrams(Span<std::int32_t> tokens, Span<std::int64_t> offsets,
                                       int order);

}  // namespace dart
