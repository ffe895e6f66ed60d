#include "dart/ngram_levels.h"

#include "dart/ngram_format.h"
#include "require.h"

namespace dart {
namespace {

// Siblings are the children of one n-gram, or all of level 1.
void check_siblings(const NgramLevel& level, std::int64_t begin, std::int64_t end,
                    std::uint64_t vocab_size) {
  for (std::int64_t i = begin; i < end; ++i) {
    require(level.token[i] >= 0 && std::uint64_t(level.token[i]) < vocab_size,
            "token outside the vocabulary");
    require(i == begin || level.token[i - 1] < level.token[i], "siblings out of order");
    require(level.count[i] >= 0, "negative count");
  }
}

void check_children(const NgramLevel& level, const NgramLevel& next, std::uint64_t vocab_size) {
  const auto& bound = level.child_begin;
  const auto end = static_cast<std::int64_t>(next.token.size);
  require(bound.size == level.token.size + 1, "child bounds of the wrong length");
  require(bound[0] == 0 && bound[level.token.size] == end, "children do not cover the next level");
  for (std::size_t node = 0; node < level.token.size; ++node) {
    require(bound[node] <= bound[node + 1] && bound[node + 1] <= end, "child bounds out of order");
    check_siblings(next, bound[node], bound[node + 1], vocab_size);
    // Subtract: a sum of hostile counts could overflow.
    std::int64_t unclaimed = level.count[node];
    for (std::int64_t i = bound[node]; i < bound[node + 1]; ++i) {
      require(next.count[i] <= unclaimed, "children counted more often than their parent");
      unclaimed -= next.count[i];
    }
  }
}

}  // namespace

void check_levels(const std::vector<NgramLevel>& levels, std::uint64_t vocab_size) {
  require(!levels.empty() && levels.size() <= kMaxOrder, "order must be 1 to 5");
  for (const NgramLevel& level : levels) {
    require(level.token.size == level.count.size, "tokens and counts differ in number");
  }
  require(vocab_size >= 1 && vocab_size <= format::kMaxVocabulary,
          "vocabulary size must be 1 to 2^24");
  check_siblings(levels.front(), 0, static_cast<std::int64_t>(levels.front().token.size),
                 vocab_size);
  for (std::size_t i = 0; i + 1 < levels.size(); ++i) {
    check_children(levels[i], levels[i + 1], vocab_size);
  }
  require(levels.back().child_begin.size == 0, "the last level has no children");
}

}  // namespace dart
