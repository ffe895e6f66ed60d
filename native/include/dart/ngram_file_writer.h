// Writing the n-gram file.
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
  // with an n-gram all shorter ones in it stay.
  std::array<std::uint64_t, kMaxOrder> min_count{};
  std::uint32_t precision = format::kExact;  // significant bits of a count
  std::array<std::uint8_t, 32> fingerprint{};
};

// Writes the file's bytes to `out`, an empty file that can be sought in. The same n-grams and
// options give the same bytes. Memory holds what follows one token at a time, and `release` is
// called now and then for the caller to let go of pages of the levels that were read.
//
// Preconditions: check_levels holds.
// Throws std::invalid_argument for options out of range, and if an n-gram lacks the shorter ones it
// ends in; std::runtime_error if writing fails.
void write_ngram_file(const std::vector<NgramLevel>& levels, const NgramFileOptions& options,
                      std::FILE* out, const std::function<void()>& release = [] {});

}  // namespace dart
