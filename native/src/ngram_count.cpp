#include "dart/ngram_count.h"

#include <algorithm>
#include <stdexcept>

namespace dart {
namespace {

// Ends every window that reaches the end of its document; sorts before all tokens.
constexpr std::int32_t kEnd = -1;

void check_corpus(Span<std::int32_t> tokens, Span<std::int64_t> offsets, int order) {
  if (order < 1 || order > kMaxOrder) {
    throw std::invalid_argument("n-gram order must be 1 to 5");
  }
  if (offsets.size == 0 || offsets[0] != 0 ||
      offsets[offsets.size - 1] != static_cast<std::int64_t>(tokens.size) ||
      !std::is_sorted(offsets.begin(), offsets.end())) {
    throw std::invalid_argument("document offsets must ascend from 0 to the number of tokens");
  }
  if (std::any_of(tokens.begin(), tokens.end(), [](std::int32_t token) { return token < 0; })) {
    throw std::invalid_argument("tokens must not be negative");
  }
}

// The corpus with `order` end marks after each document, so that a window of `order` tokens can be
// read, and compared, at every position without asking where its document ends.
std::vector<std::int32_t> with_end_marks(Span<std::int32_t> tokens, Span<std::int64_t> offsets,
                                         int order) {
  std::vector<std::int32_t> marked;
  marked.reserve(tokens.size + (offsets.size - 1) * order);
  for (std::size_t i = 0; i + 1 < offsets.size; ++i) {
    marked.insert(marked.end(), tokens.begin() + offsets[i], tokens.begin() + offsets[i + 1]);
    marked.insert(marked.end(), order, kEnd);
  }
  return marked;
}

}  // namespace

std::vector<CountedLevel> count_ngrams(Span<std::int32_t> tokens, Span<std::int64_t> offsets,
                                       int order) {
  check_corpus(tokens, offsets, order);
  const std::vector<std::int32_t> marked = with_end_marks(tokens, offsets, order);

  std::vector<const std::int32_t*> windows;
  windows.reserve(tokens.size);
  for (const std::int32_t& token : marked) {
    if (token != kEnd) windows.push_back(&token);
  }
  std::sort(windows.begin(), windows.end(), [order](const std::int32_t* a, const std::int32_t* b) {
    return std::lexicographical_compare(a, a + order, b, b + order);
  });

  // In sorted order a window opens new nodes only below the prefix it shares with the one before.
  std::vector<CountedLevel> levels(order);
  const std::int32_t* previous = nullptr;
  for (const std::int32_t* window : windows) {
    int depth = 0;
    if (previous != nullptr) {
      depth = static_cast<int>(std::mismatch(window, window + order, previous).first - window);
    }
    for (; depth < order && window[depth] != kEnd; ++depth) {
      levels[depth].token.push_back(window[depth]);
      levels[depth].count.push_back(0);
      if (depth + 1 < order) {
        levels[depth].child_begin.push_back(
            static_cast<std::int64_t>(levels[depth + 1].token.size()));
      }
    }
    for (int i = 0; i < order && window[i] != kEnd; ++i) ++levels[i].count.back();
    previous = window;
  }
  for (int i = 0; i + 1 < order; ++i) {
    levels[i].child_begin.push_back(static_cast<std::int64_t>(levels[i + 1].token.size()));
  }
  return levels;
}

}  // namespace dart
