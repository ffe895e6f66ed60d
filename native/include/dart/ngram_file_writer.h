// Writes n-gram files.
#pragma once

#include <array>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <vector>

#include "dart/ngram_format.h"
#include "dart/ngram_levels.h"

namespace dart {

struct NgramFileOptions {
  std::uint64_t vocab_size = 0;
  // n-grams of n tokens counted less than min_count[n - 1] are left out. Must not descend, so that
  // all shorter n-grams within a kept one are kept.
  std::array<std::uint64_t, kMaxOrder> min_count{};
  std::uint32_t precision = format::kExact;  // significant bits of a count
  std::array<std::uint8_t, 32> fingerprint{};
};

// Writes the file to `out`, an empty seekable file. The same n-grams and options give the same
// bytes. Memory holds the n-grams that begin with one token at a time, and `release` is called now
// and then so that the caller can release pages of the levels that were read.
//
// Preconditions: 1 to 5 levels form a trie (see NgramLevel), with tokens in 0 .. vocab_size - 1,
// counts >= 0, and no n-gram counted less often than one that extends it.
// Throws std::invalid_argument for options out of range, and if an n-gram's shorter suffixes are
// missing; std::runtime_error if writing fails.
void write_ngram_file(const std::vector<NgramLevel>& levels, const NgramFileOptions& options,
                      std::FILE* out, const std::function<void()>& release = [] {});

}  // namespace dart
