#include "dart/tree_search.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <mutex>
#include <shared_mutex>
#include <stdexcept>
#include <unordered_map>
#include <utility>

#include "dart/shared_work.h"
#include "require.h"
#include "row_search.h"

namespace dart {
namespace {

// Rows that are worth waking a thread for.
constexpr std::size_t kRowsTogether = 4;

// All searches by their handles.
struct Searches {
  std::shared_mutex mutex;
  std::unordered_map<std::int32_t, const TreeSearch*> by_handle;
  std::int32_t next = 0;
};

// Never destroyed: a program may still be running while the process exits.
Searches& searches() {
  static Searches& searches = *new Searches;
  return searches;
}

std::unique_ptr<RowSearch> make_row_search(const NgramModel* ngram, const TreeSearchConfig& config,
                                           const DraftBatch& batch) {
  if (batch.candidates == 0 && ngram != nullptr) return make_ngram_search(*ngram, config, batch);
  return make_bounded_search(ngram, config, batch);
}

}  // namespace

DraftRow DraftBatch::row(std::size_t i) const {
  const std::size_t size = levels * candidates;
  const std::int32_t* const begin = packed + i * width();
  const std::int32_t* const tokens = begin + context;
  const auto* const logits = reinterpret_cast<const float*>(tokens + size);
  const float* const after = logits + size;
  return {begin, tokens, logits, pairs ? after : nullptr,
          draws ? begin + width() - kDraws : nullptr};
}

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
  const std::unique_lock lock(searches().mutex);
  handle_ = searches().next++;
  searches().by_handle.emplace(handle_, this);
}

TreeSearch::~TreeSearch() {
  const std::unique_lock lock(searches().mutex);
  searches().by_handle.erase(handle_);
}

void TreeSearch::with(std::int32_t handle, const std::function<void(const TreeSearch&)>& use) {
  const std::shared_lock lock(searches().mutex);
  const auto found = searches().by_handle.find(handle);
  require(found != searches().by_handle.end(), "the search no longer exists");
  use(*found->second);
}

void TreeSearch::search(const DraftBatch& batch, std::int32_t* out) const {
  const auto start = std::chrono::steady_clock::now();
  const std::size_t row_size = kTreeRows * (std::size_t(config_.nodes) + 1);
  std::fill_n(out, batch.rows * row_size, 0);
  max_pool_size(config_, batch);  // throw here rather than in a thread

  share((batch.rows + kRowsTogether - 1) / kRowsTogether, std::size_t(config_.threads),
        [&](std::size_t part) {
          const auto search = make_row_search(ngram_, config_, batch);
          const std::size_t end = std::min(batch.rows, (part + 1) * kRowsTogether);
          for (std::size_t i = part * kRowsTogether; i < end; ++i) {
            const DraftRow row = batch.row(i);
            if (row.context[batch.context - 1] >= 0) search->run(row, out + i * row_size);
          }
        });
  const std::chrono::nanoseconds spent = std::chrono::steady_clock::now() - start;
  nanoseconds_ += spent.count();
}

}  // namespace dart
