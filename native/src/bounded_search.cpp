#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "best_keys.h"
#include "dart/span.h"
#include "level_candidates.h"
#include "row_search.h"

namespace dart {
namespace {

// The state of a candidate's lookup in the list of one token.
enum class Seen : std::uint8_t { kUnknown, kLocated, kNo, kYes };

// A scored node that could still be among the best when it was scored.
struct Node {
  Key key;
  float score;
  std::int32_t token;
  std::int32_t parent;  // index in the pool
  std::int32_t depth;
  std::uint32_t entry;      // index of the parent in the beam
  std::uint32_t candidate;  // place among its level's candidates
};

// A node to extend.
struct BeamEntry {
  std::int32_t node;
  float score;
  std::uint32_t group;  // entries that end in the same token share a group
  NgramState state;
};

class BoundedSearch final : public RowSearch {
 public:
  BoundedSearch(const NgramModel* ngram, const TreeSearchConfig& config, const DraftBatch& batch)
      : ngram_(ngram),
        config_(config),
        batch_(batch),
        log_unseen_(log_probability(0.0f, config.eps)),
        best_(std::size_t(config.nodes)),
        candidates_(ngram, config, batch) {
    const std::size_t beam = std::min(std::size_t(config.beam), max_pool_size(config, batch));
    for (std::size_t l = 0; l < batch.levels; ++l) weights_.emplace_back(config, l);
    pool_.reserve(512);
    beam_.reserve(beam);
    next_beam_.reserve(beam);
    columns_.reserve(beam);
  }

  void run(const DraftRow& row, std::int32_t* out) override {
    start(row);
    for (std::size_t level = 0; level < batch_.levels && !beam_.empty(); ++level) {
      candidates_.read(row.tokens + level * batch_.candidates,
                       row.logits + level * batch_.candidates, weights_[level].logit);
      const auto first = static_cast<std::int32_t>(pool_.size());
      extend(level);
      if (level + 1 < batch_.levels) choose_beam(first);
    }
    write_tree(out);
  }

 private:
  // Starts with the root as the only node and the only beam entry.
  void start(const DraftRow& row) {
    row_ = &row;
    BeamEntry root{0, 0.0f, 0, {}};
    if (ngram_ != nullptr) root.state = read_context(*ngram_, row, batch_.context);
    beam_.assign(1, root);
    groups_ = 1;
    columns_.assign(1, 0);
    width_ = 1;
    created_ = 1;
    pool_.clear();
    pool_.push_back({0, 0.0f, row.context[batch_.context - 1], 0, 0, 0, 0});
    best_.clear();
  }

  // Adds the children of all beam entries that can still be among the best.
  void extend(std::size_t level) {
    const bool with_ngram = ngram_ != nullptr && level > 0;
    const float weight = weights_[level].level;
    const std::size_t k = candidates_.size();
    choices_.resize(std::max(choices_.size(), groups_ * k));
    lists_.assign(groups_, {});
    if (ngram_ != nullptr) open_groups();
    for (std::size_t e = 0; e < beam_.size(); ++e) {
      const BeamEntry& entry = beam_[e];
      if (cost(entry.score) > best_.limit() >> 32) continue;  // no child is better
      const Span<Choice> choices = choices_after(entry, level);
      const auto creation = static_cast<std::uint32_t>(created_ + e * k);
      longer_.begin(&entry);
      std::size_t ahead = 0;
      for (std::size_t i = 0; i < choices.size; ++i) {
        const std::uint32_t c = choices[i].candidate;
        // An upper bound: the score with an n-gram probability of 1. It holds despite rounding.
        float score = entry.score + weight * choices[i].log_p;
        if (cost(score) > best_.limit() >> 32) break;  // so are all less likely ones
        Key key = make_key(score, creation + c);
        if (key > best_.limit()) continue;
        if (with_ngram) {
          for (; ahead < choices.size && ahead <= i + kAhead; ++ahead) {
            if (cost(entry.score + weight * choices[ahead].log_p) > best_.limit() >> 32) break;
            locate(entry.group, choices[ahead].candidate);
          }
          const float q = longer_.probability(c);
          const float log_q = q > 0.0f ? log_probability(q, config_.eps) : log_unseen_;
          score = entry.score + weight * (choices[i].log_p + log_q * config_.ngram_weight);
          key = make_key(score, creation + c);
          if (key > best_.limit()) continue;
        }
        best_.offer(key);
        pool_.push_back({key, score, candidates_[c].token, entry.node,
                         static_cast<std::int32_t>(level) + 1, static_cast<std::uint32_t>(e), c});
      }
    }
    created_ += beam_.size() * k;
  }

  // The children of a beam entry that can still be among the best, the most likely first, and
  // perhaps others. With pair scores its group's, otherwise the same for all entries.
  Span<Choice> choices_after(const BeamEntry& entry, std::size_t level) {
    const bool pairs = row_->pairs != nullptr;
    const std::uint32_t group = pairs ? entry.group : 0;
    Span<Choice>& list = lists_[group];
    if (list.data != nullptr) return list;
    Choice* begin = choices_.data() + group * candidates_.size();
    candidates_.weigh(pair_scores(batch_, *row_, level, columns_[group]), begin);
    // A group's first entry is its best.
    const float score = pairs ? entry.score : best_beam_score();
    Choice* end = std::partition(begin, begin + candidates_.size(), [&](const Choice& choice) {
      return cost(score + weights_[level].level * choice.log_p) <= best_.limit() >> 32;
    });
    std::sort(begin, end, [](const Choice& a, const Choice& b) { return a.log_p > b.log_p; });
    return list = {begin, static_cast<std::size_t>(end - begin)};
  }

  float best_beam_score() const {
    float best = beam_[0].score;
    for (const BeamEntry& entry : beam_) best = std::max(best, entry.score);
    return best;
  }

  // Opens the list of followers of each token that beam entries end in.
  void open_groups() {
    const std::size_t size = groups_ * candidates_.size();
    seen_.assign(size, Seen::kUnknown);
    if (bigrams_.size() < size) bigrams_.resize(size);
    bigram_lists_.resize(groups_);
    std::uint32_t opened = 0;
    for (const BeamEntry& entry : beam_) {
      // Groups are numbered in the order of their first entry in the beam.
      if (entry.group < opened) continue;
      bigram_lists_[opened++] = ngram_->list(entry.state, 1, ngram_->header().vocab_size);
    }
  }

  // The n-gram probabilities after one beam entry. Bigram lookups are shared between the entries of
  // a group; only the lists of longer contexts are searched per entry.
  class Longer {
   public:
    explicit Longer(BoundedSearch* search) : search_(*search) {}

    void begin(const BeamEntry* entry) {
      entry_ = entry;
      opened_ = false;
    }

    float probability(std::size_t c) {
      if (!search_.seen(entry_->group, c)) return 0.0f;
      if (!opened_) open();
      NgramList::Entry found = search_.bigram(entry_->group, c);
      std::uint64_t code = found.code;
      float reciprocal = reciprocal_[0];
      for (int n = 0; n < longer_ && lists_[n].find(found.index, &found); ++n) {
        if (found.code == 0) continue;
        code = found.code;
        reciprocal = reciprocal_[n + 1];
      }
      return static_cast<float>(search_.ngram_->count(code)) * reciprocal;
    }

   private:
    void open() {
      const NgramModel& ngram = *search_.ngram_;
      opened_ = true;
      reciprocal_[0] = ngram.reciprocal(entry_->state.context[0]);
      std::uint64_t universe = search_.bigram_lists_[entry_->group].size();
      for (longer_ = 0; longer_ + 2 < ngram.order();) {
        lists_[longer_] = ngram.list(entry_->state, longer_ + 2, universe);
        if (lists_[longer_].size() == 0) break;
        universe = lists_[longer_].size();
        ++longer_;
        reciprocal_[longer_] = ngram.reciprocal(entry_->state.context[longer_]);
      }
    }

    BoundedSearch& search_;
    const BeamEntry* entry_ = nullptr;
    bool opened_ = false;
    int longer_ = 0;  // lists of contexts longer than one token
    std::array<NgramList, kMaxOrder - 2> lists_;
    std::array<float, kMaxOrder - 1> reciprocal_{};
  };

  // Candidate c's entry in a group's list: its chunk if kLocated, all of it if kYes.
  NgramList::Entry& bigram(std::uint32_t group, std::size_t c) {
    return bigrams_[group * candidates_.size() + c];
  }

  // Locates the chunk that must hold candidate c if it was seen after the group's token, and
  // prefetches it.
  void locate(std::uint32_t group, std::size_t c) {
    Seen& seen = seen_[group * candidates_.size() + c];
    if (seen != Seen::kUnknown) return;
    const NgramList& list = bigram_lists_[group];
    seen = Seen::kNo;
    if (list.size() == 0) return;
    const std::uint32_t chunk = list.locate(static_cast<std::uint64_t>(candidates_[c].token));
    list.prefetch(chunk);
    bigram(group, c).chunk = chunk;
    seen = Seen::kLocated;
  }

  // True if candidate c was seen after the group's token.
  bool seen(std::uint32_t group, std::size_t c) {
    locate(group, c);
    Seen& seen = seen_[group * candidates_.size() + c];
    if (seen == Seen::kLocated) {
      const auto token = static_cast<std::uint64_t>(candidates_[c].token);
      NgramList::Entry& entry = bigram(group, c);
      const bool found = bigram_lists_[group].find_in(entry.chunk, token, &entry);
      seen = found ? Seen::kYes : Seen::kNo;
    }
    return seen == Seen::kYes;
  }

  // Fills order_ with the nodes from index `first` on that are among the best N so far.
  void collect_best(std::size_t first) {
    order_.clear();
    for (std::size_t i = first; i < pool_.size(); ++i) {
      if (pool_[i].key <= best_.limit()) {
        order_.emplace_back(pool_[i].key, static_cast<std::int32_t>(i));
      }
    }
  }

  // Replaces the beam by the best nodes of the level just added, which begins at index `first`.
  // Nodes not among the best N so far are dropped: their descendants score no better and could
  // never enter the tree. They still use up places of the beam, which go to nodes not ending in EOS
  // first.
  void choose_beam(std::int32_t first) {
    const std::size_t beam = std::size_t(config_.beam);
    const std::size_t places = std::min(beam, width_ * (candidates_.size() - candidates_.eos()));
    const std::size_t eos_places = std::min(beam - places, width_ * candidates_.eos());
    width_ = places + eos_places;

    collect_best(std::size_t(first));
    const auto eos_begin = std::partition(order_.begin(), order_.end(), [this](const auto& node) {
      return !candidates_[pool_[std::size_t(node.second)].candidate].eos;
    });
    next_beam_.clear();
    group_of_.assign(candidates_.size(), kNoGroup);
    groups_ = 0;
    columns_.clear();
    add_to_beam(order_.begin(), eos_begin, places);
    add_to_beam(eos_begin, order_.end(), eos_places);
    std::swap(beam_, next_beam_);
  }

  using Order = std::vector<std::pair<Key, std::int32_t>>;

  // Adds the best `places` of the given nodes to the next beam.
  void add_to_beam(Order::iterator begin, Order::iterator end, std::size_t places) {
    if (static_cast<std::size_t>(end - begin) > places) {
      const auto cut = begin + static_cast<std::ptrdiff_t>(places);
      std::nth_element(begin, cut, end);
      end = cut;
    }
    std::sort(begin, end);
    for (; begin != end; ++begin) {
      const Node& node = pool_[std::size_t(begin->second)];
      std::uint32_t& group = group_of_[node.candidate];
      if (group == kNoGroup) {
        group = groups_++;
        columns_.push_back(candidates_[node.candidate].column);
      }
      next_beam_.push_back({begin->second, node.score, group, {}});
      if (ngram_ != nullptr) {
        next_beam_.back().state = advance(beam_[node.entry], node.candidate);
        ngram_->prefetch(next_beam_.back().state);
      }
    }
  }

  // As NgramModel::advance, but reuses the bigram lookup of the candidate.
  NgramState advance(const BeamEntry& entry, std::uint32_t c) {
    NgramState state;
    if (ngram_->order() < 2) return state;
    state.context[0] = ngram_->unigram(candidates_[c].token);
    if (ngram_->order() < 3) return state;
    if (!seen(entry.group, c)) return state;
    NgramList::Entry found = bigram(entry.group, c);
    state.context[1] = bigram_lists_[entry.group].child(found);
    std::uint64_t universe = bigram_lists_[entry.group].size();
    for (int n = 2; n + 1 < ngram_->order(); ++n) {
      const NgramList list = ngram_->list(entry.state, n, universe);
      if (!list.find(found.index, &found)) break;
      state.context[n] = list.child(found);
      universe = list.size();
    }
    return state;
  }

  void write_tree(std::int32_t* out) {
    const std::size_t places = std::size_t(config_.nodes) + 1;
    collect_best(1);
    std::sort(order_.begin(), order_.end());
    place_.resize(pool_.size());
    out[0] = pool_[0].token;
    place_[0] = 0;
    for (std::size_t i = 0; i < order_.size(); ++i) {
      const auto index = std::size_t(order_[i].second);
      const Node& node = pool_[index];
      place_[index] = static_cast<std::int32_t>(i) + 1;
      out[i + 1] = node.token;
      out[places + i + 1] = place_[std::size_t(node.parent)];  // a better key: placed already
      out[2 * places + i + 1] = node.depth;
      out[3 * places + i + 1] = score_bits(node.score);
    }
  }

  static constexpr std::size_t kAhead = 2;
  static constexpr std::uint32_t kNoGroup = std::numeric_limits<std::uint32_t>::max();

  const NgramModel* ngram_;
  const TreeSearchConfig& config_;
  const DraftBatch& batch_;
  const float log_unseen_;
  std::vector<LevelWeights> weights_;

  BestKeys best_;
  std::vector<Node> pool_;   // parents before their children
  std::size_t created_ = 1;  // nodes scored so far, dropped ones included
  std::vector<BeamEntry> beam_;
  std::vector<BeamEntry> next_beam_;
  std::size_t width_ = 1;  // the beam's size, dropped nodes included
  const DraftRow* row_ = nullptr;
  LevelCandidates candidates_;
  std::uint32_t groups_ = 1;
  std::vector<std::uint32_t> columns_;     // by group: the place of its token in the drafts
  std::vector<Choice> choices_;            // by group; without pair scores only of the first one
  std::vector<Span<Choice>> lists_;  // of choices_, by group; of null before they are needed
  std::vector<std::uint32_t> group_of_;    // by candidate
  std::vector<NgramList> bigram_lists_;    // by group
  std::vector<Seen> seen_;                 // by group and candidate
  std::vector<NgramList::Entry> bigrams_;  // by group and candidate
  Longer longer_{this};
  Order order_;
  std::vector<std::int32_t> place_;  // pool index -> tree index
};

}  // namespace

std::unique_ptr<RowSearch> make_bounded_search(const NgramModel* ngram,
                                               const TreeSearchConfig& config,
                                               const DraftBatch& batch) {
  return std::make_unique<BoundedSearch>(ngram, config, batch);
}

}  // namespace dart
