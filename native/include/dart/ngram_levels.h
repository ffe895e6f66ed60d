// The n-grams of a corpus as plain sorted arrays, one set per length. N-gram files are written from
// this form and can be decoded into it.
#pragma once

#include <cstdint>

#include "dart/span.h"

namespace dart {

// All n-grams of one length, in lexicographic order of their tokens. The children of an n-gram,
// that is, its extensions by one token, are a contiguous range of the next level.
struct NgramLevel {
  Span<std::int32_t> token;        // last token of each n-gram
  Span<std::int64_t> count;        // times each n-gram occurs
  Span<std::int64_t> child_begin;  // size + 1 bounds into the next level; empty at the last level
};

}  // namespace dart
