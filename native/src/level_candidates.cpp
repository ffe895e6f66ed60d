#include "level_candidates.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <tuple>

#include "row_search.h"

namespace dart {
LevelCandidates::LevelCandidates(const NgramModel* ngram, const TreeSearchConfig& config,
                                 const DraftBatch& batch)
    : ngram_(ngram), config_(config), k_(batch.candidates) {
  candidates_.reserve(k_);
}

void LevelCandidates::read(const std::int32_t* tokens, const float* logits, float logit_weight) {
  logit_weight_ = logit_weight;
  candidates_.clear();
  for (std::size_t i = 0; i < k_; ++i) {
    if (tokens[i] < 0 || !std::isfinite(logits[i])) continue;
    candidates_.push_back(
        {tokens[i], is_eos(config_, tokens[i]), logits[i], static_cast<std::uint32_t>(i)});
  }
  // Of equal tokens the most likely first, of equal logits the first column.
  std::sort(candidates_.begin(), candidates_.end(), [](const Candidate& a, const Candidate& b) {
    return std::tie(a.token, b.logit, a.column) < std::tie(b.token, a.logit, b.column);
  });
  const auto same_token = [](const Candidate& a, const Candidate& b) { return a.token == b.token; };
  candidates_.erase(std::unique(candidates_.begin(), candidates_.end(), same_token),
                    candidates_.end());
  eos_ = 0;
  for (const Candidate& candidate : candidates_) {
    eos_ += candidate.eos;
    if (ngram_ != nullptr) ngram_->prefetch_unigram(candidate.token);
  }
}

void LevelCandidates::weigh(const float* pairs, Choice* choices) {
  const std::size_t size = candidates_.size();
  exponential_.resize(size);
  float max = -std::numeric_limits<float>::infinity();
  for (std::size_t i = 0; i < size; ++i) {
    const Candidate& candidate = candidates_[i];
    exponential_[i] =
        pairs == nullptr ? candidate.logit : pair_logit(candidate.logit, pairs[candidate.column]);
    max = std::max(max, exponential_[i]);
  }
  float sum = 0;
  for (float& x : exponential_) sum += x = exponential(x - max);
  for (std::size_t i = 0; i < size; ++i) {
    const float log_p = log_probability(exponential_[i] / sum, config_.eps);
    choices[i] = {static_cast<std::uint32_t>(i), log_p * logit_weight_};
  }
}

}  // namespace dart
