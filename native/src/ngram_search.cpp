// Trees drafted by the n-gram model only: the most likely paths, found best first.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <queue>
#include <vector>

#include "row_search.h"

namespace dart {
namespace {

struct Node {
  float score;  // log-probability of the path
  std::int32_t number;  // creation number
  std::int32_t token;
  std::int32_t parent;  // index in `chosen_`; 0 is the root
};

// A chosen node, which may be extended.
struct Chosen {
  Node node;
  std::int32_t depth;
  NgramState state;
};

// Of equal scores, the node created first is better.
struct Worse {
  bool operator()(const Node& a, const Node& b) const {
    return a.score != b.score ? a.score < b.score : a.number > b.number;
  }
};

class NgramSearch final : public RowSearch {
 public:
  NgramSearch(const NgramModel& ngram, const TreeSearchConfig& config, const DraftBatch& batch)
      : ngram_(ngram), config_(config), batch_(batch) {}

  void run(const DraftRow& row, std::int32_t* out) override {
    const std::int32_t root = row.context[batch_.context - 1];
    open_ = {};
    created_ = 0;
    chosen_.assign(1, {{0.0f, 0, root, 0}, 0, read_context(ngram_, row, batch_.context)});
    const std::size_t size = std::size_t(config_.nodes) + 1;
    while (chosen_.size() < size) {
      extend(chosen_.size() - 1);
      if (open_.empty()) break;
      const Node best = open_.top();
      open_.pop();
      const Chosen& parent = chosen_[std::size_t(best.parent)];
      const std::int32_t depth = parent.depth + 1;
      const NgramState state = ngram_.advance(parent.state, best.token);
      chosen_.push_back({best, depth, state});
    }
    write_tree(out);
  }

 private:
  // Adds the followers of the longest context that has any.
  void extend(std::size_t place) {
    const Chosen& chosen = chosen_[place];
    if (std::size_t(chosen.depth) >= batch_.levels) return;
    if (place > 0 && is_eos(config_, chosen.node.token)) return;
    const std::vector<Continuations> all = ngram_.continuations(chosen.state);
    const auto seen = std::find_if(all.rbegin(), all.rend(), [](const Continuations& found) {
      return found.count > 0 && !found.token.empty();
    });
    if (seen == all.rend()) return;
    // No more than the tree has room for can ever be chosen.
    order_.resize(seen->token.size());
    for (std::size_t i = 0; i < order_.size(); ++i) order_[i] = i;
    const std::size_t most = std::min(order_.size(), std::size_t(config_.nodes));
    std::partial_sort(order_.begin(), order_.begin() + std::ptrdiff_t(most), order_.end(),
                      [&](std::size_t a, std::size_t b) {
                        const auto& counts = seen->counts;
                        return counts[a] != counts[b] ? counts[a] > counts[b] : a < b;
                      });
    const float total = std::log(static_cast<float>(seen->count));
    for (std::size_t i = 0; i < most; ++i) {
      const std::size_t at = order_[i];
      // Rounded counts may exceed the count of their context.
      const float step = std::min(0.0f, std::log(static_cast<float>(seen->counts[at])) - total);
      open_.push({chosen.node.score + step, ++created_, seen->token[at],
                  static_cast<std::int32_t>(place)});
    }
  }

  void write_tree(std::int32_t* out) {
    order_.resize(chosen_.size());
    for (std::size_t i = 0; i < order_.size(); ++i) order_[i] = i;
    std::stable_sort(order_.begin(), order_.end(), [&](std::size_t a, std::size_t b) {
      return chosen_[a].depth < chosen_[b].depth;
    });
    place_.resize(chosen_.size());
    const std::size_t places = std::size_t(config_.nodes) + 1;
    for (std::size_t i = 0; i < order_.size(); ++i) {
      const Chosen& chosen = chosen_[order_[i]];
      place_[order_[i]] = static_cast<std::int32_t>(i);
      out[i] = chosen.node.token;
      out[places + i] = place_[std::size_t(chosen.node.parent)];
      out[2 * places + i] = chosen.depth;
    }
  }

  const NgramModel& ngram_;
  const TreeSearchConfig& config_;
  const DraftBatch& batch_;
  std::vector<Chosen> chosen_;  // by descending score
  std::priority_queue<Node, std::vector<Node>, Worse> open_;
  std::int32_t created_ = 0;
  std::vector<std::size_t> order_;
  std::vector<std::int32_t> place_;  // index in `chosen_` -> tree index
};

}  // namespace

std::unique_ptr<RowSearch> make_ngram_search(const NgramModel& ngram,
                                             const TreeSearchConfig& config,
                                             const DraftBatch& batch) {
  return std::make_unique<NgramSearch>(ngram, config, batch);
}

}  // namespace dart
