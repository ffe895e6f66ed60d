// One level's candidates, prepared for the bounded search.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "dart/ngram_model.h"
#include "dart/tree_search.h"

namespace dart {

// At most 0, whatever eps, so that no child outscores its parent.
inline float log_probability(float probability, float eps) {
  return std::min(std::log(probability + eps), 0.0f);
}

// One token that may follow at the level being extended.
struct Candidate {
  std::int32_t token;
  std::uint32_t rank;  // by ascending token
  float log_p;         // weighted log-probability under the drafter
  bool eos;
};

// The usable candidates of a level, each token once, the most likely first.
class LevelCandidates {
 public:
  // ngram may be null; otherwise the tokens' contexts are prefetched from it.
  LevelCandidates(const NgramModel* ngram, const TreeSearchConfig& config, std::size_t k);

  // Replaces the candidates by those of another level; logit_weight is its g_l.
  void read(const std::int32_t* tokens, const float* logits, float logit_weight);

  std::size_t size() const { return candidates_.size(); }
  std::size_t eos() const { return eos_; }  // how many are EOS
  const Candidate& operator[](std::size_t i) const { return candidates_[i]; }

 private:
  const NgramModel* ngram_;
  const TreeSearchConfig& config_;
  const std::size_t k_;
  std::vector<Candidate> candidates_;
  std::size_t eos_ = 0;
  std::vector<std::uint64_t> sorted_;
  std::vector<float> exponential_;
};

}  // namespace dart
