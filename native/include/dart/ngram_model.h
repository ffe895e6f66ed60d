// A read-only n-gram count model: a trie stored level by level, each level a sorted array.
//
// Level n holds every distinct n-gram once, in lexicographic order of its tokens. A node is an
// index into its level; its children, the (n+1)-grams it is a prefix of, are one contiguous range
// of the next level, sorted by their last token. All candidates of one context are thus found in
// one short sorted array.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "dart/span.h"

namespace dart {

constexpr int kMaxOrder = 5;

// All n-grams of one length.
struct NgramLevel {
  Span<std::int32_t> token;        // last token of each n-gram
  Span<std::int64_t> count;        // times each n-gram occurs
  Span<std::int64_t> child_begin;  // size + 1 bounds into the next level; empty at the last level
};

// What the model remembers of a token sequence: the nodes of its suffixes of 1 .. order - 1 tokens.
// A plain value: copy it to follow several continuations of one sequence.
struct NgramState {
  static constexpr std::int64_t kUnseen = -1;
  // node[n - 1], an index into level n, is the suffix of n tokens
  std::array<std::int64_t, kMaxOrder - 1> node{kUnseen, kUnseen, kUnseen, kUnseen};
};

class NgramModel {
 public:
  // Reads but does not own the levels' arrays: they must outlive the model and must not change.
  // Throws std::invalid_argument unless they form a trie as described above, with tokens >= 0,
  // counts >= 1, and no node counted less often than its children together. No array content,
  // however hostile, makes a model that reads out of bounds.
  explicit NgramModel(std::vector<NgramLevel> levels);

  int order() const { return static_cast<int>(levels_.size()); }

  // The number of n-grams of length n, 1 <= n <= order().
  std::size_t size(int n) const { return levels_[n - 1].token.size; }

  // The state after one more token; any token the model does not know, such as -1, is unseen.
  // A default-constructed state is that of an empty sequence.
  NgramState advance(const NgramState& state, std::int32_t token) const;

  // probability[i] = count(context, tokens[i]) / count(context) for the longest context, of at
  // most order() - 1 and at least one token, that tokens[i] was seen after; 0 if there is none.
  // Not a distribution: there is neither discounting nor a unigram fallback (docs/method.md, section 3).
  // Precondition: tokens ascend. probability has room for tokens.size values.
  void probabilities(const NgramState& state, Span<std::int32_t> tokens, float* probability) const;

 private:
  std::vector<NgramLevel> levels_;
};

}  // namespace dart
