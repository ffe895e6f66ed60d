// The search for one row's tree: its two implementations and what they share.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>

#include "dart/instructions.h"
#include "dart/ngram_model.h"
#include "dart/noise.h"
#include "dart/tree_search.h"

namespace dart {

// Searches one row at a time, with buffers that are reused across rows.
class RowSearch {
 public:
  virtual ~RowSearch() = default;

  // Writes the tree of a row to out [kTreeRows, nodes + 1], which the caller has zeroed.
  virtual void run(const DraftRow& row, std::int32_t* out) = 0;
};

// Exact branch and bound, ties to the node created first.
std::unique_ptr<RowSearch> make_bounded_search(const NgramModel* ngram,
                                               const TreeSearchConfig& config,
                                               const DraftBatch& batch);

// Without candidates: the most likely paths of the n-gram model, up to batch.levels long.
std::unique_ptr<RowSearch> make_ngram_search(const NgramModel& ngram,
                                             const TreeSearchConfig& config,
                                             const DraftBatch& batch);

// How the target draws in a row: `DraftRow::draws`, null for greedy decoding.
struct RowDraws {
  float scale = 0.0f;  // 1 / temperature; 0 without noise

  explicit RowDraws(const std::int32_t* draws = nullptr) {
    if (draws == nullptr) return;
    key_ = {static_cast<std::uint32_t>(draws[0]), static_cast<std::uint32_t>(draws[1])};
    position_ = draws[2];
    std::memcpy(&scale, draws + 3, sizeof scale);
  }

  // Writes the noise of tokens in the draw after a node of a depth to out [count].
  void noise_after(std::int32_t depth, const std::int32_t* tokens, std::size_t count,
                   float* out) const {
    noise_of_tokens(key_, position_ + depth, tokens, count, out, best_instructions());
  }

 private:
  ThreefryKey key_{};
  std::int32_t position_ = 0;
};

// The weights of one level: w_l and g_l.
struct LevelWeights {
  float level;
  float logit;

  LevelWeights(const TreeSearchConfig& config, std::size_t l);
};

// The scores [k] of the pairs of a level's candidates with their parent, which holds place `column`
// in the drafts; null at level 0 and without pair scores.
const float* pair_scores(const DraftBatch& batch, const DraftRow& row, std::size_t level,
                         std::size_t column);

// A logit with a pair score, which need not be finite; the sum is.
inline float pair_logit(float logit, float pair) {
  using Float = std::numeric_limits<float>;
  return std::isfinite(pair) ? std::clamp(logit + pair, Float::lowest(), Float::max()) : logit;
}

// The largest number of nodes that the search of one row can score, the root included.
// Throws std::length_error if they are 2^31 or more.
std::size_t max_pool_size(const TreeSearchConfig& config, const DraftBatch& batch);

bool is_eos(const TreeSearchConfig& config, std::int32_t token);

// The bits of a node's score; -0 counts as 0.
inline std::int32_t score_bits(float score) {
  score += 0.0f;
  std::int32_t bits;
  std::memcpy(&bits, &score, sizeof bits);
  return bits;
}

// The state after a row's context.
NgramState read_context(const NgramModel& ngram, const DraftRow& row, std::size_t size);

}  // namespace dart
