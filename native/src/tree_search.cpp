#include "dart/tree_search.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <stdexcept>
#include <string>
#include <utility>

namespace dart {
namespace {

void require(bool condition, const char* message) {
  if (!condition) throw std::invalid_argument(std::string("tree search: ") + message);
}

// At most 0, whatever eps, so that no child outscores its parent.
float log_probability(float probability, float eps) {
  return std::min(std::log(probability + eps), 0.0f);
}

// The factors of one level's score: w_l and g_l.
struct LevelWeights {
  float level;
  float logit;

  LevelWeights(const TreeSearchConfig& config, std::size_t l)
      : level(static_cast<float>(std::pow(double(l) + 1.0, -config.level_decay))),
        logit(static_cast<float>(std::pow(config.logit_decay, double(l)))) {}
};

// The most nodes one row's search can score, the root included.
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

// The candidates of one level, by ascending token as NgramModel::probabilities wants them.
struct Candidates {
  std::vector<std::int32_t> token;
  std::vector<float> log_p;  // under the drafter
  std::vector<char> is_eos;

  std::size_t size() const { return token.size(); }

  void clear() {
    token.clear();
    log_p.clear();
    is_eos.clear();
  }
};

// All nodes scored so far, the root first, in order of creation: parents before their children.
struct Pool {
  std::vector<float> score;
  std::vector<std::int32_t> token;
  std::vector<std::int32_t> parent;
  std::vector<std::int32_t> depth;
  std::vector<char> is_eos;

  std::int32_t size() const { return static_cast<std::int32_t>(token.size()); }

  void reserve(std::size_t n) {
    score.reserve(n);
    token.reserve(n);
    parent.reserve(n);
    depth.reserve(n);
    is_eos.reserve(n);
  }

  void clear() {
    score.clear();
    token.clear();
    parent.clear();
    depth.clear();
    is_eos.clear();
  }

  void add(float node_score, std::int32_t node_token, std::int32_t node_parent,
           std::int32_t node_depth, bool node_is_eos) {
    score.push_back(node_score);
    token.push_back(node_token);
    parent.push_back(node_parent);
    depth.push_back(node_depth);
    is_eos.push_back(node_is_eos);
  }

  // A strict order in which no two nodes tie.
  bool better(std::int32_t a, std::int32_t b) const {
    return score[a] != score[b] ? score[a] > score[b] : a < b;
  }
};

// A node to extend, with what the n-gram model knows of the path to it.
struct BeamEntry {
  std::int32_t node;
  NgramState state;
};

// Searches one row at a time, in buffers that serve all rows.
class RowSearch {
 public:
  RowSearch(const NgramModel* ngram, const TreeSearchConfig& config, const DraftBatch& batch)
      : ngram_(ngram),
        config_(config),
        batch_(batch),
        log_unseen_(log_probability(0.0f, config.eps)),
        ngram_probability_(batch.candidates) {
    pool_.reserve(max_pool_size(config, batch));
  }

  void run(std::size_t row, std::int32_t* out) {
    std::fill_n(out, 3 * (std::size_t(config_.nodes) + 1), 0);
    const std::int32_t* context = batch_.context_tokens + row * batch_.context;
    if (context[batch_.context - 1] < 0) return;

    start(context);
    for (std::size_t level = 0; level < batch_.levels; ++level) {
      const std::size_t offset = (row * batch_.levels + level) * batch_.candidates;
      read_candidates(batch_.tokens + offset, batch_.logits + offset);
      const std::int32_t first = pool_.size();
      const LevelWeights weights(config_, level);
      for (const BeamEntry& entry : beam_) extend(entry, level, weights);
      rank(first);
      if (level + 1 < batch_.levels) choose_beam(first);
    }
    write_tree(out);
  }

 private:
  // The root is the only node, and the beam.
  void start(const std::int32_t* context) {
    BeamEntry root{0, {}};
    if (ngram_ != nullptr) {
      for (std::size_t i = 0; i < batch_.context; ++i) {
        root.state = ngram_->advance(root.state, context[i]);
      }
    }
    beam_.assign(1, root);
    pool_.clear();
    pool_.add(0.0f, context[batch_.context - 1], 0, 0, false);
    best_.clear();
    beam_width_ = 1;
  }

  void read_candidates(const std::int32_t* tokens, const float* logits) {
    logits_.clear();
    for (std::size_t i = 0; i < batch_.candidates; ++i) {
      if (tokens[i] >= 0 && std::isfinite(logits[i])) logits_.emplace_back(tokens[i], logits[i]);
    }
    std::sort(logits_.begin(), logits_.end(), [](const auto& a, const auto& b) {
      return a.first != b.first ? a.first < b.first : a.second > b.second;
    });
    const auto same_token = [](const auto& a, const auto& b) { return a.first == b.first; };
    logits_.erase(std::unique(logits_.begin(), logits_.end(), same_token), logits_.end());

    candidates_.clear();
    if (logits_.empty()) return;
    const auto by_logit = [](const auto& a, const auto& b) { return a.second < b.second; };
    const float max = std::max_element(logits_.begin(), logits_.end(), by_logit)->second;
    float sum = 0.0f;
    for (auto& [token, logit] : logits_) sum += std::exp(logit - max);
    for (const auto& [token, logit] : logits_) {
      candidates_.token.push_back(token);
      candidates_.log_p.push_back(log_probability(std::exp(logit - max) / sum, config_.eps));
      candidates_.is_eos.push_back(std::find(config_.eos.begin(), config_.eos.end(), token) !=
                                   config_.eos.end());
    }
  }

  // Adds one child of the entry for every candidate.
  void extend(const BeamEntry& entry, std::size_t level, const LevelWeights& weights) {
    const bool with_ngram = ngram_ != nullptr && level > 0;
    if (with_ngram) {
      ngram_->probabilities(entry.state, candidates_.token, ngram_probability_.data());
    }
    const float parent_score = pool_.score[entry.node];
    for (std::size_t i = 0; i < candidates_.size(); ++i) {
      float log_p = candidates_.log_p[i] * weights.logit;
      if (with_ngram) {
        const float q = ngram_probability_[i];
        const float log_q = q > 0.0f ? log_probability(q, config_.eps) : log_unseen_;
        log_p += log_q * config_.ngram_weight;
      }
      pool_.add(parent_score + weights.level * log_p, candidates_.token[i], entry.node,
                static_cast<std::int32_t>(level) + 1, candidates_.is_eos[i]);
    }
  }

  // Merges the level just added, which begins at `first`, into the best N nodes so far.
  void rank(std::int32_t first) {
    const std::size_t kept = best_.size();
    best_.resize(kept + static_cast<std::size_t>(pool_.size() - first));
    std::iota(best_.begin() + static_cast<std::ptrdiff_t>(kept), best_.end(), first);
    const std::size_t size = std::size_t(config_.nodes);
    if (best_.size() <= size) return;
    const auto better = [this](std::int32_t a, std::int32_t b) { return pool_.better(a, b); };
    std::nth_element(best_.begin(), best_.begin() + config_.nodes, best_.end(), better);
    best_.resize(size);
  }

  // Replaces the beam by the best nodes of the level just added, which begins at `first`. Those not
  // among the best N so far are left out: their descendants, which are worse still, could never
  // enter the tree. They count in the beam all the same, since its places go to nodes that do not
  // end in EOS first.
  void choose_beam(std::int32_t first) {
    const std::size_t beam = std::size_t(config_.beam);
    const auto eos = static_cast<std::size_t>(
        std::count(candidates_.is_eos.begin(), candidates_.is_eos.end(), char{1}));
    const std::size_t places = std::min(beam, beam_width_ * (candidates_.size() - eos));
    const std::size_t eos_places = std::min(beam - places, beam_width_ * eos);
    beam_width_ = places + eos_places;

    order_.clear();
    for (std::int32_t node : best_) {
      if (node >= first) order_.push_back(node);
    }
    std::sort(order_.begin(), order_.end(), [this](std::int32_t a, std::int32_t b) {
      if (pool_.is_eos[a] != pool_.is_eos[b]) return pool_.is_eos[b] != 0;
      return pool_.better(a, b);
    });
    std::size_t left[] = {places, eos_places};
    next_beam_.clear();
    for (std::int32_t node : order_) {
      std::size_t& places_left = left[pool_.is_eos[node] != 0];
      if (places_left == 0) continue;
      --places_left;
      BeamEntry entry{node, {}};
      if (ngram_ != nullptr) {
        // extend() added the same number of children for each entry of the beam, in its order.
        const std::size_t parent = static_cast<std::size_t>(node - first) / candidates_.size();
        entry.state = ngram_->advance(beam_[parent].state, pool_.token[node]);
      }
      next_beam_.push_back(entry);
    }
    std::swap(beam_, next_beam_);
  }

  void write_tree(std::int32_t* out) {
    std::sort(best_.begin(), best_.end(), [this](std::int32_t a, std::int32_t b) {
      if (pool_.depth[a] != pool_.depth[b]) return pool_.depth[a] < pool_.depth[b];
      return pool_.better(a, b);
    });

    const std::size_t places = std::size_t(config_.nodes) + 1;
    place_.resize(pool_.size());
    out[0] = pool_.token[0];
    place_[0] = 0;
    for (std::size_t i = 0; i < best_.size(); ++i) {
      const std::int32_t node = best_[i];
      place_[node] = static_cast<std::int32_t>(i) + 1;
      out[i + 1] = pool_.token[node];
      out[places + i + 1] = place_[pool_.parent[node]];  // a parent's depth is less: placed already
      out[2 * places + i + 1] = pool_.depth[node];
    }
  }

  const NgramModel* ngram_;
  const TreeSearchConfig& config_;
  const DraftBatch& batch_;
  const float log_unseen_;

  Pool pool_;
  std::vector<BeamEntry> beam_;
  std::vector<BeamEntry> next_beam_;
  std::size_t beam_width_ = 1;  // the beam's size, counting what is left out of it
  Candidates candidates_;
  std::vector<std::pair<std::int32_t, float>> logits_;
  std::vector<float> ngram_probability_;  // one per candidate
  std::vector<std::int32_t> order_;       // nodes of a level that may be extended
  std::vector<std::int32_t> best_;        // the best N nodes so far, in no order
  std::vector<std::int32_t> place_;       // pool node -> its place in the tree
};

}  // namespace

TreeSearch::TreeSearch(const NgramModel* ngram, TreeSearchConfig config)
    : ngram_(ngram), config_(std::move(config)) {
  require(config_.nodes >= 0, "nodes must not be negative");
  require(config_.beam >= 1, "beam must be at least 1");
  require(config_.level_decay >= 0.0, "level_decay must not be negative");
  require(config_.logit_decay >= 0.0 && config_.logit_decay <= 1.0,
          "logit_decay must lie in [0, 1]");
  require(config_.ngram_weight >= 0.0f && config_.ngram_weight <= 1e6f,
          "ngram_weight must lie in [0, 1e6]");
  require(config_.eps > 0.0f && config_.eps < 1.0f, "eps must lie in (0, 1)");
}

void TreeSearch::search(const DraftBatch& batch, std::int32_t* out) const {
  const std::size_t row_size = 3 * (std::size_t(config_.nodes) + 1);
  RowSearch search(ngram_, config_, batch);
  for (std::size_t row = 0; row < batch.rows; ++row) search.run(row, out + row * row_size);
}

}  // namespace dart
