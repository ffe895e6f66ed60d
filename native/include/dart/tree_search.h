// The pruned draft tree: which drafted tokens, joined into paths, are worth verifying.
//
// The drafter proposes k candidates for each of d positions, independently of one another. The
// search joins them into paths scored by the drafter and an n-gram model together, and keeps the
// best N nodes (paper, arXiv 2601.19278; the arithmetic is that of the reference code):
//
//   score(child) = score(parent) + w_l * (g_l * log(p + eps) + ngram_weight * log(q + eps))
//   w_l = (l + 1) ** -level_decay,  g_l = logit_decay ** l,  l = 0 .. d - 1
//
// p is the softmax over the level's k logits alone, q the n-gram model's probability. The n-gram
// term is left out at level 0, and everywhere if there is no model. All in float32.
//
// A beam limits which nodes of a level are extended: those not ending in EOS first, then by score.
// Every scored node competes for the tree, those outside the beam too.
//
// Without candidates (k = 0) the n-gram model drafts alone: the tree of the N likeliest paths of at
// most d tokens, where a token's probability is its share of what followed the longest context that
// anything followed. Nothing is weighted, and there is no beam; behind EOS nothing is drafted.
//
// Ties, by default: no increment is positive, and of equal scores the node created first is the
// better one - the shallower, then the one of the better-ranked parent, then the smaller token. So a
// chosen node's parent is always chosen too, and a node that is already behind N others can be
// dropped together with all that would descend from it, which changes nothing but the time.
//
// Ties, compatible: what the reference's unstable sorts make of them (row_search.h). That depends
// on the C++ library, and only with its own, libstdc++, are they the reference's.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "dart/ngram_model.h"

namespace dart {

enum class Ties { kFirst, kCompatible };

struct TreeSearchConfig {
  int nodes = 59;  // N, the root not counted
  int beam = 20;
  double level_decay = 0.7;
  double logit_decay = 0.9;
  float ngram_weight = 0.5f;
  float eps = 1e-10f;
  std::vector<std::int32_t> eos;
  Ties ties = Ties::kFirst;
  int threads = 1;  // rows searched at the same time
};

// What is drafted for a batch of sequences. Inner axes are contiguous; from one row to the next are
// `stride` values, so that a batch can be read where it was packed.
struct DraftBatch {
  std::size_t rows = 0;        // B
  std::size_t context = 0;     // C >= 1
  std::size_t levels = 0;      // d
  std::size_t candidates = 0;  // k

  // [B, C] the newest known tokens. The last one is the tree's root; -1, on the left, is none.
  const std::int32_t* context_tokens = nullptr;
  std::size_t context_stride = 0;
  // [B, d, k] in any order. A candidate is left out if its token is negative or its logit is not
  // finite; of one token given twice at a level, the higher logit counts (but see Ties).
  const std::int32_t* tokens = nullptr;
  std::size_t tokens_stride = 0;
  const float* logits = nullptr;
  std::size_t logits_stride = 0;
};

class TreeSearch {
 public:
  // ngram may be null; otherwise it must outlive the search.
  // Throws std::invalid_argument unless nodes >= 0, beam >= 1, level_decay >= 0,
  // 0 <= logit_decay <= 1, 0 <= ngram_weight <= 1e6, 0 < eps < 1 and threads >= 1.
  TreeSearch(const NgramModel* ngram, TreeSearchConfig config);

  const TreeSearchConfig& config() const { return config_; }

  // Writes each row's tree to out [B, 3, nodes + 1]: the nodes' tokens, parents (as places in this
  // array) and depths. Place 0 is the root, its own parent, at depth 0. The other nodes follow by
  // depth, then (unless compatible) by descending score. Places left over are zero, so that
  // depth > 0 tells a node from padding. A row whose root is negative (a finished one) gets zeros
  // only.
  // Throws std::length_error if a row could score 2^31 nodes or more.
  // Safe to call from several threads at once.
  void search(const DraftBatch& batch, std::int32_t* out) const;

  // Wall time of all searches so far.
  double seconds() const { return 1e-9 * static_cast<double>(nanoseconds_); }
  void set_seconds(double seconds) { nanoseconds_ = static_cast<std::int64_t>(1e9 * seconds); }

 private:
  mutable std::atomic<std::int64_t> nanoseconds_{0};
  const NgramModel* ngram_;
  TreeSearchConfig config_;
};

}  // namespace dart
