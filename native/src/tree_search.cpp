#include "dart/tree_search.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <string>
#include <utility>

#include "row_search.h"
#include "thread_pool.h"

namespace dart {
namespace {

// Rows that are worth waking a thread for.
constexpr std::size_t kRowsPerThread = 4;

void require(bool condition, const char* message) {
  if (!condition) throw std::invalid_argument(std::string("tree search: ") + message);
}

std::unique_ptr<RowSearch> make_row_search(const NgramModel* ngram, const TreeSearchConfig& config,
                                           const DraftBatch& batch) {
  if (batch.candidates == 0 && ngram != nullptr) return make_ngram_search(*ngram, config, batch);
  return make_bounded_search(ngram, config, batch);
}

}  // namespace

LevelWeights::LevelWeights(const TreeSearchConfig& config, std::size_t l)
    : level(static_cast<float>(std::pow(double(l) + 1.0, -config.level_decay))),
      logit(static_cast<float>(std::pow(config.logit_decay, double(l)))) {}

std::size_t max_pool_size(const TreeSearchConfig& config, const DraftBatch& batch) {
  std::size_t size = 1;
  std::size_t width = 1;
  for (std::size_t l = 0; l < batch.levels; ++l) {
    const std::size_t added = width * batch.candidates;
    size += added;
    width = std::min(added, std::size_t(config.beam));
    if (size > std::size_t(std::numeric_limits<std::int32_t>::max())) {
      throw std::length_error("tree search: beam times candidates is too large");
    }
  }
  return size;
}

const float* pair_scores(const DraftBatch& batch, const DraftRow& row, std::size_t level,
                         std::size_t column) {
  if (row.pairs == nullptr || level == 0) return nullptr;
  return row.pairs + ((level - 1) * batch.candidates + column) * batch.candidates;
}

bool is_eos(const TreeSearchConfig& config, std::int32_t token) {
  return std::find(config.eos.begin(), config.eos.end(), token) != config.eos.end();
}

NgramState read_context(const NgramModel& ngram, const DraftRow& row, std::size_t size) {
  const std::size_t used = std::min(size, std::size_t(ngram.order() - 1));
  NgramState state;
  for (std::size_t i = size - used; i < size; ++i) state = ngram.advance(state, row.context[i]);
  return state;
}

TreeSearch::TreeSearch(const NgramModel* ngram, TreeSearchConfig config)
    : ngram_(ngram), config_(std::move(config)) {
  require(config_.nodes >= 0, "nodes must not be negative");
  require(config_.beam >= 1, "beam must be at least 1");
  require(config_.level_decay >= 0.0, "level_decay must not be negative");
  require(config_.logit_decay >= 0.0 && config_.logit_decay <= 1.0,
          "logit_decay must lie in [0, 1]");
  require(config_.ngram_weight >= 0.0f && config_.ngram_weight <= 1e6f,
          "ngram_weight must lie in [0, 1e6]");
  require(config_.eps >= std::numeric_limits<float>::min() && config_.eps < 1.0f,
          "eps must be a normal number in (0, 1)");
  require(config_.threads >= 1, "threads must be at least 1");
}

void TreeSearch::search(const DraftBatch& batch, std::int32_t* out) const {
  const auto start = std::chrono::steady_clock::now();
  const std::size_t row_size = std::size_t(kTreeRows) * (std::size_t(config_.nodes) + 1);
  std::fill_n(out, batch.rows * row_size, 0);
  max_pool_size(config_, batch);  // throw here rather than in a thread

  std::atomic<std::size_t> next{0};
  const auto work = [&] {
    const auto search = make_row_search(ngram_, config_, batch);
    for (std::size_t i; (i = next++) < batch.rows;) {
      const DraftRow row{batch.context_tokens + i * batch.context_stride,
                         batch.tokens + i * batch.tokens_stride,
                         batch.logits + i * batch.logits_stride,
                         batch.pairs == nullptr ? nullptr : batch.pairs + i * batch.pairs_stride,
                         batch.draws == nullptr ? nullptr : batch.draws + i * batch.draws_stride};
      if (row.context[batch.context - 1] < 0) continue;
      search->run(row, out + i * row_size);
    }
  };

  run_parallel(std::min(std::size_t(config_.threads),
                        (batch.rows + kRowsPerThread - 1) / kRowsPerThread),
               work);
  const std::chrono::nanoseconds spent = std::chrono::steady_clock::now() - start;
  nanoseconds_ += spent.count();
}

}  // namespace dart
