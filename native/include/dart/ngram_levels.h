// The n-grams of a corpus as plain sorted arrays, one set for each length: what the n-gram file is
// written from, and what it can be read back into.
#pragma once

#include <cstdint>
#include <vector>

#include "dart/span.h"

namespace dart {

// All n-grams of one length, in lexicographic order of their tokens. The children of an n-gram, the
// longer ones it is a prefix of, are one contiguous range of the next level.
struct NgramLevel {
  Span<std::int32_t> token;        // last token of each n-gram
  Span<std::int64_t> count;        // times each n-gram occurs
  Span<std::int64_t> child_begin;  // size + 1 bounds into the next level; empty at the last level
};

// Throws std::invalid_argument unless the levels, 1 to 5 of them, form a trie as described, with
// tokens in 0 .. vocab_size - 1, counts >= 0, and no n-gram counted less often than its children
// together.
void check_levels(const std::vector<NgramLevel>& levels, std::uint64_t vocab_size);

}  // namespace dart
