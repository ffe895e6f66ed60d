// The search of one row's tree, under either rule for ties.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "dart/ngram_model.h"
#include "dart/tree_search.h"

namespace dart {

// One row of a DraftBatch.
struct DraftRow {
  const std::int32_t* context;
  const std::int32_t* tokens;
  const float* logits;
};

// Searches one row at a time, in buffers that serve all rows.
class RowSearch {
 public:
  virtual ~RowSearch() = default;

  // Writes the tree of a row to out [3, nodes + 1], which holds zeros.
  virtual void run(const DraftRow& row, std::int32_t* out) = 0;
};

// Exact branch and bound, ties to the node created first.
std::unique_ptr<RowSearch> make_bounded_search(const NgramModel* ngram,
                                               const TreeSearchConfig& config,
                                               const DraftBatch& batch);

// As the reference computes: candidates as they come, duplicates and all, every node of every level
// scored, and its three sorts with its comparisons over the same numbers of elements in the same
// order. Where its cut keeps a node without the parent, which leaves it without a tree, ours leaves
// the node out.
std::unique_ptr<RowSearch> make_compatible_search(const NgramModel* ngram,
                                                  const TreeSearchConfig& config,
                                                  const DraftBatch& batch);

// No candidates: the likeliest paths of the n-gram model, up to batch.levels long.
std::unique_ptr<RowSearch> make_ngram_search(const NgramModel& ngram,
                                             const TreeSearchConfig& config,
                                             const DraftBatch& batch);

// The factors of one level's score: w_l and g_l.
struct LevelWeights {
  float level;
  float logit;

  LevelWeights(const TreeSearchConfig& config, std::size_t l);
};

// The most nodes one row's search can score, the root included.
// Throws std::length_error if they are 2^31 or more.
std::size_t max_pool_size(const TreeSearchConfig& config, const DraftBatch& batch);

bool is_eos(const TreeSearchConfig& config, std::int32_t token);

// The state after a row's context.
NgramState read_context(const NgramModel& ngram, const DraftRow& row, std::size_t size);

}  // namespace dart
