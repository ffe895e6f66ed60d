// Trees drafted by the n-gram model only: the most likely paths, found best first.
#include <algorithm>
#include <cstddef>
#include <cstring>
#include <limits>
#include <queue>
#include <vector>

#include "elementary.h"
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
    draws_ = RowDraws(row.draws);
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
    // No more than the tree has room for can ever be chosen; with noise, any of the likelier ones.
    order_.resize(seen->token.size());
    for (std::size_t i = 0; i < order_.size(); ++i) order_[i] = i;
    const std::size_t nodes = std::size_t(config_.nodes);
    const std::size_t most =
        std::min(order_.size(), draws_.scale > 0 ? std::max(nodes, kMostWithNoise) : nodes);
    std::partial_sort(order_.begin(), order_.begin() + std::ptrdiff_t(most), order_.end(),
                      [&](std::size_t a, std::size_t b) {
                        const auto& counts = seen->counts;
                        return counts[a] != counts[b] ? counts[a] > counts[b] : a < b;
                      });
    order_.resize(most);
    steps_.resize(most);
    const float total = logarithm(static_cast<float>(seen->count));
    for (std::size_t i = 0; i < most; ++i) {
      // Rounded counts may exceed the count of their context.
      const float count = static_cast<float>(seen->counts[order_[i]]);
      steps_[i] = std::min(0.0f, logarithm(count) - total);
    }
    if (draws_.scale > 0) add_noise(*seen, chosen.depth);
    for (std::size_t i = 0; i < most; ++i) {
      open_.push({chosen.node.score + steps_[i], ++created_, seen->token[order_[i]],
                  static_cast<std::int32_t>(place)});
    }
  }

  // Replaces the log-probabilities of followers, the likeliest first, by those with noise.
  void add_noise(const Continuations& seen, std::int32_t depth) {
    const std::size_t count = order_.size();
    tokens_.resize(count);
    noise_.resize(count);
    for (std::size_t i = 0; i < count; ++i) tokens_[i] = seen.token[order_[i]];
    draws_.noise_after(depth, tokens_.data(), count, noise_.data());
    const float first = steps_[0];
    float largest = -std::numeric_limits<float>::infinity();
    for (std::size_t i = 0; i < count; ++i) {
      steps_[i] = (steps_[i] - first) * draws_.scale + noise_[i];
      largest = std::max(largest, steps_[i]);
    }
    float sum = 0;
    for (float step : steps_) sum += exponential(step - largest);
    const float total = logarithm(sum);
    for (float& step : steps_) step = std::min(0.0f, step - largest - total);
  }

  void write_tree(std::int32_t* out) const {
    const std::size_t places = std::size_t(config_.nodes) + 1;
    for (std::size_t i = 0; i < chosen_.size(); ++i) {
      const Chosen& chosen = chosen_[i];
      out[i] = chosen.node.token;
      out[places + i] = chosen.node.parent;
      out[2 * places + i] = chosen.depth;
      out[3 * places + i] = score_bits(chosen.node.score);
    }
  }

  // Followers that noise may make the likeliest.
  static constexpr std::size_t kMostWithNoise = 256;

  const NgramModel& ngram_;
  const TreeSearchConfig& config_;
  const DraftBatch& batch_;
  std::vector<Chosen> chosen_;  // by descending score
  std::priority_queue<Node, std::vector<Node>, Worse> open_;
  std::int32_t created_ = 0;
  std::vector<std::size_t> order_;
  std::vector<float> steps_;  // log-probabilities
  std::vector<std::int32_t> tokens_;
  std::vector<float> noise_;
  RowDraws draws_;
};

}  // namespace

std::unique_ptr<RowSearch> make_ngram_search(const NgramModel& ngram,
                                             const TreeSearchConfig& config,
                                             const DraftBatch& batch) {
  return std::make_unique<NgramSearch>(ngram, config, batch);
}

}  // namespace dart
