// Tree search: joins drafted candidates into paths and keeps the nodes most worth verifying.
//
// The drafter proposes k candidates for each of d positions independently. The search joins them
// into paths, scores these with the drafter and an n-gram model, and keeps the best N nodes (paper:
// arXiv 2601.19278; the arithmetic follows the reference code):
//
//   score(child) = score(parent) + w_l * (g_l * log(p + eps) + ngram_weight * log(q + eps))
//   w_l = (l + 1) ** -level_decay,  g_l = logit_decay ** l,  l = 0 .. d - 1
//
// p is the softmax over the level's k logits only, q the n-gram model's probability. The n-gram
// term is omitted at level 0, and at all levels without a model. All arithmetic is in float32.
//
// The drafter may also score pairs of candidates of successive levels. From level 1 on, p is then
// the softmax over the level's k sums of a candidate's logit and its pair score with the parent.
//
// A beam limits which nodes of a level are extended: nodes not ending in EOS first, then by score.
// All scored nodes compete for the tree, including those outside the beam.
//
// Without candidates (k = 0) only the n-gram model drafts: the tree of the N most likely nodes of
// depth at most d, where a token's probability is its share of the counts after the longest context
// with any follower. There are no weights and no beam; nothing is drafted after EOS. Where the target
// samples, its noise is added to the followers' log-probabilities divided by the temperature, and a
// token's probability is the softmax of these sums: mostly that of what will be drawn.
//
// Ties: of equal scores, the node created first wins: the shallower one, then the one of the
// better-ranked parent, then the smaller token. As no increment is positive, a chosen node's parent
// is always chosen too, and a node that is worse than N others can be dropped together with its
// subtree, which saves time without changing the result.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "dart/ngram_model.h"

namespace dart {

struct TreeSearchConfig {
  int nodes = 60;  // N, the root not counted
  int beam = 20;
  double level_decay = 0.7;
  double logit_decay = 0.9;
  float ngram_weight = 0.5f;
  float eps = 1e-10f;
  std::vector<std::int32_t> eos;
  int threads = 1;  // rows searched at the same time
};

constexpr std::size_t kTreeRows = 4;  // numbers of each node in a tree

constexpr std::size_t kDraws = 4;  // numbers that say how the target draws in a row

// One row of a batch.
struct DraftRow {
  // [C] the newest tokens of the sequence, padded with -1 on the left. The last one is the root.
  const std::int32_t* context;
  // [d, k] in any order. A candidate is skipped if its token is negative or its logit is not finite.
  // Of duplicates within a level, the higher logit counts.
  const std::int32_t* tokens;
  const float* logits;
  // [d - 1, k, k], or null: scores of pairs of candidates. Entry [l - 1, a, b] is that of candidate
  // a of level l - 1, as the parent, and candidate b of level l, in the order of `tokens`. One that
  // is not finite counts as 0. A duplicate that does not count has no say here either; of duplicates
  // with equal logits the first one counts.
  const float* pairs;
  // [4], or null: how the target draws, for drafting with only the n-gram model. The key of its
  // noise (2 numbers; dart/noise.h), the position of the first draw after the root, and the bits of
  // the float32 1 / temperature, 0 for greedy decoding.
  const std::int32_t* draws;
};

// The drafts of a batch of sequences in one array, int32 [B, width()], as the host buffer has them
// (dart_jax/decoding/host_buffer.py). The columns are the arrays of a row, in their order, floats as
// their bits.
struct DraftBatch {
  const std::int32_t* packed = nullptr;
  std::size_t rows = 0;        // B
  std::size_t context = 0;     // C >= 1
  std::size_t levels = 0;      // d
  std::size_t candidates = 0;  // k
  bool pairs = false;
  bool draws = false;

  std::size_t pair_count() const {
    return pairs && levels > 0 ? (levels - 1) * candidates * candidates : 0;
  }
  std::size_t width() const {
    return context + 2 * levels * candidates + pair_count() + (draws ? kDraws : 0);
  }
  DraftRow row(std::size_t i) const;
};

class TreeSearch {
 public:
  // ngram may be null; otherwise it must outlive the search.
  // Throws std::invalid_argument unless nodes >= 0, beam >= 1, level_decay >= 0,
  // 0 <= logit_decay <= 1, 0 <= ngram_weight <= 1e6, 0 < eps < 1, no subnormal number, and
  // threads >= 1.
  TreeSearch(const NgramModel* ngram, TreeSearchConfig config);
  ~TreeSearch();
  TreeSearch(const TreeSearch&) = delete;
  TreeSearch& operator=(const TreeSearch&) = delete;

  const TreeSearchConfig& config() const { return config_; }

  // Writes each row's tree to out [B, kTreeRows, nodes + 1]: the nodes' tokens, parents (as indices
  // into this array), depths, and the bits of their scores, float32 of at most 0. Index 0 is the
  // root, its own parent, at depth 0, with score 0. The other nodes follow by descending score,
  // parents first, so the first n of them are the tree of n nodes. Unused places are zero, so
  // depth > 0 distinguishes nodes from padding.
  // A row whose root is negative (a finished one) gets only zeros.
  // Throws std::length_error if a row could score 2^31 nodes or more.
  // Safe to call from several threads at once.
  void search(const DraftBatch& batch, std::int32_t* out) const;

  // A number that compiled programs take as an argument, and by which they find the search at every
  // call: its address would be useless to other processes, and dangerous once it is destroyed. Never
  // used again.
  std::int32_t handle() const { return handle_; }

  // Calls `use` with the search of a handle, which is not destroyed meanwhile. Throws
  // std::invalid_argument if there is none.
  static void with(std::int32_t handle, const std::function<void(const TreeSearch&)>& use);

  // Wall time of all searches so far.
  double seconds() const { return 1e-9 * static_cast<double>(nanoseconds_); }

 private:
  mutable std::atomic<std::int64_t> nanoseconds_{0};
  const NgramModel* ngram_;
  TreeSearchConfig config_;
  std::int32_t handle_;
};

}  // namespace dart
