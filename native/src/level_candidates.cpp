#include "level_candidates.h"

#include <cstring>
#include <limits>

#include "row_search.h"

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

}  // namespace

LevelCandidates::LevelCandidates(const NgramModel* ngram, const TreeSearchConfig& config,
                                 std::size_t k)
    : ngram_(ngram), config_(config), k_(k) {
  candidates_.reserve(k);
}

void LevelCandidates::read(const std::int32_t* tokens, const float* logits, float logit_weight) {
  candidates_.clear();
  eos_ = 0;
  // By ascending token; of equal tokens, the most likely first.
  sorted_.clear();
  float max = -std::numeric_limits<float>::infinity();
  for (std::size_t i = 0; i < k_; ++i) {
    if (tokens[i] < 0 || !std::isfinite(logits[i])) continue;
    max = std::max(max, logits[i]);
    sorted_.push_back(std::uint64_t{static_cast<std::uint32_t>(tokens[i])} << 32 |
                      ~ascending(logits[i]));
  }
  std::sort(sorted_.begin(), sorted_.end());
  const auto same_token = [](std::uint64_t a, std::uint64_t b) { return a >> 32 == b >> 32; };
  sorted_.erase(std::unique(sorted_.begin(), sorted_.end(), same_token), sorted_.end());

  exponential_.clear();
  float sum = 0.0f;
  for (std::uint64_t key : sorted_) {
    exponential_.push_back(std::exp(from_ascending(~static_cast<std::uint32_t>(key)) - max));
    sum += exponential_.back();
  }
  for (std::size_t rank = 0; rank < sorted_.size(); ++rank) {
    const auto token = static_cast<std::int32_t>(sorted_[rank] >> 32);
    const float log_p = log_probability(exponential_[rank] / sum, config_.eps);
    const bool eos = is_eos(config_, token);
    eos_ += eos;
    candidates_.push_back({token, static_cast<std::uint32_t>(rank), log_p * logit_weight, eos});
    if (ngram_ != nullptr) ngram_->prefetch_unigram(token);
  }
  std::sort(candidates_.begin(), candidates_.end(),
            [](const Candidate& a, const Candidate& b) { return a.log_p > b.log_p; });
}

}  // namespace dart
