#include "dart/ngram_model.h"

#include <algorithm>
#include <stdexcept>
#include <string>
#include <utility>

namespace dart {
namespace {

void require(bool condition, const char* message) {
  if (!condition) throw std::invalid_argument(std::string("n-gram model: ") + message);
}

// Siblings are the children of one node, or all of level 1.
void check_siblings(const NgramLevel& level, std::int64_t begin, std::int64_t end) {
  for (std::int64_t i = begin; i < end; ++i) {
    require(level.token[i] >= 0, "negative token");
    require(i == begin || level.token[i - 1] < level.token[i], "siblings out of order");
    require(level.count[i] >= 1, "count below 1");
  }
}

void check_children(const NgramLevel& level, const NgramLevel& next) {
  const auto& bound = level.child_begin;
  const auto end = static_cast<std::int64_t>(next.token.size);
  require(bound.size == level.token.size + 1, "child bounds of the wrong length");
  require(bound[0] == 0 && bound[level.token.size] == end, "children do not cover the next level");
  for (std::size_t node = 0; node < level.token.size; ++node) {
    require(bound[node] <= bound[node + 1] && bound[node + 1] <= end, "child bounds out of order");
    check_siblings(next, bound[node], bound[node + 1]);
    // Subtracting, since a sum of hostile counts could overflow.
    std::int64_t unclaimed = level.count[node];
    for (std::int64_t i = bound[node]; i < bound[node + 1]; ++i) {
      require(next.count[i] <= unclaimed, "children counted more often than their parent");
      unclaimed -= next.count[i];
    }
  }
}

}  // namespace

NgramModel::NgramModel(std::vector<NgramLevel> levels) : levels_(std::move(levels)) {
  require(!levels_.empty() && levels_.size() <= kMaxOrder, "order must be 1 to 5");
  for (const NgramLevel& level : levels_) {
    require(level.token.size == level.count.size, "as many counts as tokens are needed");
  }
  check_siblings(levels_.front(), 0, static_cast<std::int64_t>(levels_.front().token.size));
  for (std::size_t i = 0; i + 1 < levels_.size(); ++i) check_children(levels_[i], levels_[i + 1]);
  require(levels_.back().child_begin.size == 0, "the last level has no children");
}

NgramState NgramModel::advance(const NgramState& state, std::int32_t token) const {
  NgramState next;
  for (int n = 1; n < order(); ++n) {
    // The suffix of n tokens is a child of the previous suffix of n - 1, or of the root.
    const NgramLevel& level = levels_[n - 1];
    const std::int32_t* first = level.token.begin();
    const std::int32_t* last = level.token.end();
    if (n > 1) {
      const std::int64_t parent = state.node[n - 2];
      if (parent == NgramState::kUnseen) continue;
      last = first + levels_[n - 2].child_begin[parent + 1];
      first += levels_[n - 2].child_begin[parent];
    }
    const std::int32_t* found = std::lower_bound(first, last, token);
    if (found != last && *found == token) next.node[n - 1] = found - level.token.begin();
  }
  return next;
}

void NgramModel::probabilities(const NgramState& state, Span<std::int32_t> tokens,
                               float* probability) const {
  std::fill_n(probability, tokens.size, 0.0f);
  for (int n = order() - 1; n >= 1; --n) {
    const std::int64_t context = state.node[n - 1];
    if (context == NgramState::kUnseen) continue;
    const NgramLevel& level = levels_[n - 1];
    const NgramLevel& next = levels_[n];
    const float reciprocal = 1.0f / static_cast<float>(level.count[context]);
    const std::int32_t* child = next.token.begin() + level.child_begin[context];
    const std::int32_t* const last = next.token.begin() + level.child_begin[context + 1];
    // Both sides ascend, so each search starts where the one before it ended.
    for (std::size_t i = 0; i < tokens.size && child != last; ++i) {
      if (probability[i] > 0.0f) continue;  // answered by a longer context
      child = std::lower_bound(child, last, tokens[i]);
      if (child == last || *child != tokens[i]) continue;
      const std::int64_t count = next.count[child - next.token.begin()];
      probability[i] = static_cast<float>(count) * reciprocal;
    }
  }
}

}  // namespace dart
