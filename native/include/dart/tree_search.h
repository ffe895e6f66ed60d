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
// Every scored node competes for the tree, those outside the beam too; a node that is already behind
// N others is not extended, which changes nothing but the time. No increment is positive,
// and ties go to the node created first - the shallower one, then the one of the better-ranked
// parent, then the smaller token - so a chosen node's parent is always chosen too.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "dart/ngram_model.h"

namespace dart {

struct TreeSearchConfig {
  int nodes = 59;  // N, the root not counted
  int beam = 20;
  double level_decay = 0.7;
  double logit_decay = 0.9;
  float ngram_weight = 0.5f;
  float eps = 1e-10f;
  std::vector<std::int32_t> eos;
};

// What is drafted for a batch of sequences. All arrays are contiguous.
struct DraftBatch {
  std::size_t rows = 0;        // B
  std::size_t context = 0;     // C >= 1
  std::size_t levels = 0;      // d
  std::size_t candidates = 0;  // k

  // [B, C] the newest known tokens. The last one is the tree's root; -1, on the left, is none.
  const std::int32_t* context_tokens = nullptr;
  // [B, d, k] in any order. A candidate is left out if its token is negative or its logit is not
  // finite; of one token given twice at a level, the higher logit counts.
  const std::int32_t* tokens = nullptr;
  const float* logits = nullptr;
};

class TreeSearch {
 public:
  // ngram may be null; otherwise it must outlive the search.
  // Throws std::invalid_argument unless nodes >= 0, beam >= 1, level_decay >= 0,
  // 0 <= logit_decay <= 1, 0 <= ngram_weight <= 1e6 and 0 < eps < 1.
  TreeSearch(const NgramModel* ngram, TreeSearchConfig config);

  const TreeSearchConfig& config() const { return config_; }

  // Writes each row's tree to out [B, 3, nodes + 1]: the nodes' tokens, parents (as places in this
  // array) and depths. Place 0 is the root, its own parent, at depth 0. The other nodes follow by
  // depth, then by descending score. Places left over are zero, so that depth > 0 tells a node from
  // padding. A row whose root is negative (a finished one) gets zeros only.
  // Throws std::length_error if a row could score 2^31 nodes or more.
  // Safe to call from several threads at once.
  void search(const DraftBatch& batch, std::int32_t* out) const;

 private:
  const NgramModel* ngram_;
  TreeSearchConfig config_;
};

}  // namespace dart
