// One level's candidates, prepared for the bounded search.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "dart/ngram_model.h"
#include "dart/tree_search.h"
#include "elementary.h"

namespace dart {

// At most 0 for any eps, so that no child outscores its parent.
static inline float log_probability(float probability, float eps) {
  return std::min(logarithm(probability + eps), 0.0f);
}

// One token that may follow at the level being extended.
struct Candidate {
  std::int32_t token;
  bool eos;
  float logit;
  std::uint32_t column;  // where the drafts hold it
};

// A candidate as a child: its place among the level's candidates, and its weighted log-probability
// under the drafter.
struct Choice {
  std::uint32_t candidate;
  float log_p;
};

// The usable candidates of a level by ascending token, each token once.
class LevelCandidates {
 public:
  // ngram may be null; otherwise the tokens' contexts are prefetched from it.
  LevelCandidates(const NgramModel* ngram, const TreeSearchConfig& config, const DraftBatch& batch);

  // Replaces the candidates by another level's; logit_weight is its g_l.
  void read(const std::int32_t* tokens, const float* logits, float logit_weight);

  std::size_t size() const { return candidates_.size(); }
  std::size_t eos() const { return eos_; }  // how many are EOS
  const Candidate& operator[](std::size_t i) const { return candidates_[i]; }

  // Writes all candidates to choices [size()], in their order. pairs [k] are the scores of the pairs
  // that they form with their parent, by column; null for none.
  void weigh(const float* pairs, Choice* choices);

 private:
  const NgramModel* ngram_;
  const TreeSearchConfig& config_;
  const std::size_t k_;
  float logit_weight_ = 1.0f;
  std::vector<Candidate> candidates_;
  std::size_t eos_ = 0;
  std::vector<float> exponential_;
};

}  // namespace dart
