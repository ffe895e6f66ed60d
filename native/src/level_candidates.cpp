#include "level_candidates.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <limits>

#include "dart/exact_math.h"
#include "row_search.h"
#include "sum_in_halves.h"

namespace dart {
namespace {

// Maps floats to integers of the same order.
std::uint32_t ascending(float value) {
  std::uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

// The inverse of ascending().
float from_ascending(std::uint32_t bits) {
  bits = bits & 0x80000000u ? bits & 0x7fffffffu : ~bits;
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

// The keys of usable candidates: by ascending token; of equal tokens, the most likely first. A logit
// of -0 equals 0.
std::uint64_t key_of(std::int32_t token, float logit) {
  return std::uint64_t{static_cast<std::uint32_t>(token)} << 32 | ~ascending(logit + 0.0f);
}

bool usable(std::int32_t token, float logit) { return token >= 0 && std::isfinite(logit); }

}  // namespace

LevelCandidates::LevelCandidates(const NgramModel* ngram, const TreeSearchConfig& config,
                                 const DraftBatch& batch)
    : ngram_(ngram), config_(config), k_(batch.candidates), with_pairs_(batch.pairs != nullptr) {
  candidates_.reserve(k_);
}

void LevelCandidates::read(const std::int32_t* tokens, const float* logits, float logit_weight) {
  logit_weight_ = logit_weight;
  candidates_.clear();
  eos_ = 0;
  sorted_.clear();
  for (std::size_t i = 0; i < k_; ++i) {
    if (usable(tokens[i], logits[i])) sorted_.push_back(key_of(tokens[i], logits[i]));
  }
  std::sort(sorted_.begin(), sorted_.end());
  const auto same_token = [](std::uint64_t a, std::uint64_t b) { return a >> 32 == b >> 32; };
  sorted_.erase(std::unique(sorted_.begin(), sorted_.end(), same_token), sorted_.end());

  for (std::uint64_t key : sorted_) {
    const auto token = static_cast<std::int32_t>(key >> 32);
    const float logit = from_ascending(~static_cast<std::uint32_t>(key));
    const bool eos = is_eos(config_, token);
    eos_ += eos;
    candidates_.push_back({token, eos, logit, 0});
    if (ngram_ != nullptr) ngram_->prefetch_unigram(token);
  }
  if (with_pairs_) find_columns(tokens, logits);
}

// Of equal tokens with equal logits the first column counts.
void LevelCandidates::find_columns(const std::int32_t* tokens, const float* logits) {
  for (std::size_t i = k_; i-- > 0;) {
    if (!usable(tokens[i], logits[i])) continue;
    const std::uint64_t key = key_of(tokens[i], logits[i]);
    const auto found = std::lower_bound(sorted_.begin(), sorted_.end(), key);
    if (found == sorted_.end() || *found != key) continue;  // another one of its token counts
    candidates_[std::size_t(found - sorted_.begin())].column = static_cast<std::uint32_t>(i);
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
  for (float& x : exponential_) x = exponential(x - max);
  sums_ = exponential_;
  const float share = size == 0 ? 0.0f : reciprocal(sum_in_halves(sums_));
  for (std::size_t i = 0; i < size; ++i) {
    const float log_p = log_probability(exponential_[i] * share, config_.eps);
    choices[i] = {static_cast<std::uint32_t>(i), log_p * logit_weight_};
  }
}

}  // namespace dart
