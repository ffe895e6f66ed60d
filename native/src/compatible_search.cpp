#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "row_search.h"

namespace dart {
namespace {

struct Node {
  float score;
  std::int32_t token;
  std::int32_t parent;  // creation number
  std::int32_t depth;
  std::int32_t number;  // creation number; the root's is 0
  std::uint32_t column;  // its place among the drafts of its level
};

struct BeamEntry {
  Node node;
  NgramState state;
};

class CompatibleSearch final : public RowSearch {
 public:
  CompatibleSearch(const NgramModel* ngram, const TreeSearchConfig& config, const DraftBatch& batch)
      : ngram_(ngram), config_(config), batch_(batch) {}

  void run(const DraftRow& row, std::int32_t* out, float* scores) override {
    row_ = &row;
    const std::int32_t root = row.context[batch_.context - 1];
    all_.clear();
    BeamEntry start{{0.0f, root, 0, 0, 0, 0}, {}};
    if (ngram_ != nullptr) start.state = read_context(*ngram_, row, batch_.context);
    beam_.assign(1, start);
    for (std::size_t l = 0; l < batch_.levels; ++l) {
      read_candidates(row.tokens + l * batch_.candidates, row.logits + l * batch_.candidates);
      extend(l);
      choose_beam();
    }
    write_tree(root, out, scores);
  }

 private:
  void read_candidates(const std::int32_t* tokens, const float* logits) {
    tokens_.clear();
    columns_.clear();
    logits_.clear();
    for (std::size_t i = 0; i < batch_.candidates; ++i) {
      if (tokens[i] < 0 || !std::isfinite(logits[i])) continue;
      tokens_.push_back(tokens[i]);
      columns_.push_back(static_cast<std::uint32_t>(i));
      logits_.push_back(logits[i]);
    }
    seen_.resize(tokens_.size());
  }

  // The softmax over the candidates; pairs [k] as in LevelCandidates::weigh.
  void weigh(const float* pairs) {
    probability_ = logits_;
    for (std::size_t i = 0; pairs != nullptr && i < tokens_.size(); ++i) {
      probability_[i] = pair_logit(logits_[i], pairs[columns_[i]]);
    }
    if (tokens_.empty()) return;
    const float max = *std::max_element(probability_.begin(), probability_.end());
    float sum = 0.0f;
    for (float& p : probability_) {
      p = std::exp(p - max);
      sum += p;
    }
    for (float& p : probability_) p /= sum;
  }

  void extend(std::size_t level) {
    const LevelWeights weights(config_, level);
    level_.clear();
    for (std::size_t e = 0; e < beam_.size(); ++e) {
      const BeamEntry& entry = beam_[e];
      const float* pairs = pair_scores(batch_, *row_, level, entry.node.column);
      if (e == 0 || pairs != nullptr) weigh(pairs);
      const bool with_ngram = ngram_ != nullptr && level > 0;
      if (with_ngram) ngram_->probabilities(entry.state, tokens_, seen_.data());
      for (std::size_t i = 0; i < tokens_.size(); ++i) {
        float log_p = std::log(probability_[i] + config_.eps) * weights.logit;
        if (with_ngram) log_p += std::log(seen_[i] + config_.eps) * config_.ngram_weight;
        const Node node{entry.node.score + weights.level * log_p, tokens_[i], entry.node.number,
                        static_cast<std::int32_t>(level) + 1,
                        static_cast<std::int32_t>(all_.size()) + 1, columns_[i]};
        all_.push_back(node);
        level_.push_back({node, e});
      }
    }
  }

  void choose_beam() {
    std::sort(level_.begin(), level_.end(), [this](const auto& a, const auto& b) {
      const bool a_ends = is_eos(config_, a.first.token);
      const bool b_ends = is_eos(config_, b.first.token);
      return a_ends != b_ends ? b_ends : a.first.score > b.first.score;
    });
    level_.resize(std::min(level_.size(), std::size_t(config_.beam)));
    next_beam_.clear();
    for (const auto& [node, entry] : level_) {
      next_beam_.push_back({node, {}});
      if (ngram_ != nullptr) {
        next_beam_.back().state = ngram_->advance(beam_[entry].state, node.token);
      }
    }
    std::swap(beam_, next_beam_);
  }

  void write_tree(std::int32_t root, std::int32_t* out, float* scores) {
    place_.assign(all_.size() + 1, 0);
    std::sort(all_.begin(), all_.end(),
              [](const Node& a, const Node& b) { return a.score > b.score; });
    all_.resize(std::min(all_.size(), std::size_t(config_.nodes)));
    std::sort(all_.begin(), all_.end(),
              [](const Node& a, const Node& b) { return a.depth < b.depth; });
    const std::size_t places = std::size_t(config_.nodes) + 1;
    std::int32_t place = 0;
    out[0] = root;
    for (const Node& node : all_) {
      const std::int32_t parent = place_[std::size_t(node.parent)];
      if (parent == 0 && node.parent != 0) continue;
      place_[std::size_t(node.number)] = ++place;
      out[place] = node.token;
      out[places + std::size_t(place)] = parent;
      out[2 * places + std::size_t(place)] = node.depth;
      if (scores != nullptr) scores[place] = node.score;
    }
  }

  const NgramModel* ngram_;
  const TreeSearchConfig& config_;
  const DraftBatch& batch_;
  const DraftRow* row_ = nullptr;
  std::vector<Node> all_;
  std::vector<std::pair<Node, std::size_t>> level_;  // with the parent's index in the beam
  std::vector<BeamEntry> beam_;
  std::vector<BeamEntry> next_beam_;
  std::vector<std::int32_t> tokens_;
  std::vector<std::uint32_t> columns_;  // their places in the drafts
  std::vector<float> logits_;
  std::vector<float> probability_;  // under the drafter
  std::vector<float> seen_;         // under the n-gram model
  std::vector<std::int32_t> place_;  // creation number -> tree index
};

}  // namespace

std::unique_ptr<RowSearch> make_compatible_search(const NgramModel* ngram,
                                                  const TreeSearchConfig& config,
                                                  const DraftBatch& batch) {
  return std::make_unique<CompatibleSearch>(ngram, config, batch);
}

}  // namespace dart
