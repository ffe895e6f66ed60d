#include "dart/text_search.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <queue>
#include <vector>

#include "dart/bits.h"
#include "dart/tree_search.h"
#include "elementary.h"
#include "row_search.h"

namespace dart {
namespace {

constexpr float kNever = -std::numeric_limits<float>::infinity();  // the logarithm of 0

float logarithm_or_never(float x) { return x > 0 ? logarithm(x) : kNever; }

// log(exp(a) + exp(b)).
float log_of_sum(float a, float b) {
  const float more = std::max(a, b), less = std::min(a, b);
  return less == kNever ? more : more + logarithm(1.0f + exponential(less - more));
}

struct Match {
  const std::int32_t* follower;
  std::int32_t length;
  float weight;
};

constexpr std::size_t kBlock = 32;  // tokens that are compared at once

// 2^i. Compilers vectorise choosing from a table, not shifts by different numbers.
constexpr auto kBits = [] {
  std::array<std::uint32_t, kBlock> bits{};
  for (std::size_t i = 0; i < kBlock; ++i) bits[i] = std::uint32_t{1} << i;
  return bits;
}();

// Which of at most kBlock tokens are a given one, as bits; fast for a count known to the compiler.
inline std::uint32_t equal_tokens(const std::int32_t* tokens, std::size_t count,
                                  std::int32_t token) {
  std::uint32_t equal = 0;
  for (std::size_t i = 0; i < count; ++i) equal |= kBits[i] & (0u - (tokens[i] == token));
  return equal;
}

// Adds the matches of tokens that end before `end`, the last `most` of them, in a text: the latest
// first. Those shorter than kMostMatches others are left out.
void add_matches(Span<std::int32_t> text, const std::int32_t* end, std::size_t most,
                 std::vector<Match>& matches) {
  std::array<std::size_t, kLongestMatch + 1> counts{};
  std::size_t least = 1, longer = 0;  // the shortest length that counts, and matches beyond it
  for (std::size_t stop = text.size == 0 ? 0 : text.size - 1; stop > 0;) {
    const std::size_t begin = stop > kBlock ? stop - kBlock : 0;
    std::uint32_t same = stop >= kBlock ? equal_tokens(text.data + begin, kBlock, end[-1])
                                        : equal_tokens(text.data, stop, end[-1]);
    for (std::size_t k = 1; k < least && k <= begin && same != 0; ++k) {
      same &= equal_tokens(text.data + begin - k, kBlock, end[-1 - std::ptrdiff_t(k)]);
    }
    while (same != 0) {
      const std::size_t bit = bit_length(same) - 1, i = begin + bit;
      same ^= kBits[bit];
      if (text[i + 1] < 0) continue;
      const std::size_t limit = std::min(i + 1, most);
      std::size_t length = 1;
      while (length < limit && text[i - length] == end[-1 - std::ptrdiff_t(length)]) ++length;
      matches.push_back({text.data + i + 1, static_cast<std::int32_t>(length), 0.0f});
      ++counts[length];
      longer += length > least;
      while (longer >= kMostMatches) longer -= counts[++least];
    }
    if (least == kLongestMatch) return;
    stop = begin;
  }
}

// Leaves out the shortest of too many matches, and of equal ones those added last.
void keep_longest(std::vector<Match>& matches) {
  if (matches.size() <= kMostMatches) return;
  std::array<std::size_t, kLongestMatch + 1> counts{};
  for (const Match& match : matches) ++counts[std::size_t(match.length)];
  std::int32_t shortest = kLongestMatch;
  std::size_t room = kMostMatches;
  while (counts[std::size_t(shortest)] <= room) room -= counts[std::size_t(shortest--)];
  const auto left_out = [&](const Match& match) {
    if (match.length != shortest || room == 0) return match.length <= shortest;
    --room;
    return false;
  };
  auto kept = matches.begin();
  for (const Match& match : matches) {
    if (!left_out(match)) *kept++ = match;
  }
  matches.erase(kept, matches.end());
}

// Finds the matches of a text's end that are kept.
void find_matches(Span<std::int32_t> text, Span<std::int32_t> shared, std::vector<Match>& matches) {
  matches.clear();
  std::size_t most = 0;
  while (most < std::min(text.size, std::size_t(kLongestMatch)) &&
         text[text.size - 1 - most] >= 0) {
    ++most;
  }
  if (most == 0) return;
  add_matches(text, text.end(), most, matches);
  add_matches(shared, text.end(), most, matches);
  keep_longest(matches);
}

// A run of matches, in `matches_`: those of a node.
struct Run {
  std::size_t begin;
  std::size_t end;
};

constexpr std::size_t kNowhere = ~std::size_t{0};

struct Node {
  float score;
  std::int32_t number;  // creation number
  std::int32_t token;
  std::int32_t parent;  // place in the tree
  std::int32_t depth;
  std::size_t base;  // place in the base, or kNowhere
  Run matches;       // of the parent
};

// Of equal scores, the node created first is better.
struct Worse {
  bool operator()(const Node& a, const Node& b) const {
    return a.score != b.score ? a.score < b.score : a.number > b.number;
  }
};

// What may come after a node.
struct Child {
  std::int32_t token;
  std::size_t base;      // place in the base, or kNowhere
  float log_base;        // logarithm of the probability in the base
  float weight = 0.0f;   // of the matches
  float share = kNever;  // logarithm
};

class TextSearch {
 public:
  TextSearch(const TextSearchConfig& config, const TextRow& row, std::int32_t* out)
      : config_(config),
        row_(row),
        out_(out),
        places_(std::size_t(config.nodes) + 1),
        draws_(row.draws) {}

  void run() {
    find_matches(row_.tokens, row_.shared, matches_);
    if (matches_.empty() && row_.base != nullptr) return copy_base();
    weigh_matches();
    Node node{0.0f, 0, row_.tokens[row_.tokens.size - 1], 0, 0, row_.base == nullptr ? kNowhere : 0,
              {0, matches_.size()}};
    for (std::size_t place = 0;; ++place) {
      write(place, node);
      if (place + 1 == places_) return;
      extend(place, node, place == 0 ? node.matches : matches_after(node.matches, node.token));
      if (open_.empty()) return;
      node = open_.top();
      open_.pop();
    }
  }

 private:
  void copy_base() {
    for (std::size_t r = 0; r < kTreeRows; ++r) {
      std::copy_n(row_.base + r * row_.base_places, std::min(places_, row_.base_places),
                  out_ + r * places_);
    }
  }

  // Gives each match its weight.
  void weigh_matches() {
    std::array<float, kLongestMatch + 1> weights{};  // N_l by length, then w(l)
    for (const Match& match : matches_) ++weights[std::size_t(match.length)];
    std::size_t shortest = kLongestMatch;
    float count = 0.0f, left = 1.0f, sum = 0.0f;
    for (std::size_t l = kLongestMatch; l > 0; --l) {
      if (weights[l] > 0) shortest = l;
      weights[l] = count += weights[l];
    }
    for (std::size_t l = kLongestMatch; l >= shortest; --l) {
      if (weights[l] == 0) continue;
      const float share = l == shortest ? left : left * config_.longer;
      weights[l] = share / weights[l];
      left -= share;
    }
    for (std::size_t l = shortest; l <= kLongestMatch; ++l) weights[l] = sum += weights[l];
    for (Match& match : matches_) match.weight = weights[std::size_t(match.length)];
  }

  // Adds what may come after a node to what may be chosen.
  void extend(std::size_t place, const Node& node, Run run) {
    children_.clear();
    add_base_children(node.base);
    const std::size_t in_base = children_.size();
    if (in_base == 0 && node.depth >= config_.depth) return;
    float trust = 0.0f;
    if (run.begin != run.end) {
      trust = config_.trust[std::size_t(add_followers(run)) - 1];
      if (draws_.scale > 0) add_noise(node.depth);
    }
    const float log_trust = logarithm_or_never(trust), log_rest = logarithm_or_never(1.0f - trust);
    if (node.depth >= config_.depth) children_.resize(in_base);
    for (const Child& each : children_) {
      const float step = log_of_sum(log_rest + each.log_base, log_trust + each.share);
      if (step == kNever) continue;
      open_.push({node.score + std::min(step, 0.0f), ++created_, each.token,
                  static_cast<std::int32_t>(place), node.depth + 1, each.base, run});
    }
  }

  // Adds the children of a place of the base.
  void add_base_children(std::size_t parent) {
    if (parent == kNowhere) return;
    for (std::size_t place = parent + 1; place < row_.base_places; ++place) {
      if (base(2, place) == 0 || base(1, place) != static_cast<std::int32_t>(parent)) continue;
      const float step = std::min(0.0f, base_score(place) - base_score(parent));
      children_.push_back({base(0, place), place, step});
    }
  }

  // Adds the followers of matches, and their shares; returns the length of the longest match.
  std::int32_t add_followers(Run run) {
    const std::size_t most = children_.size() + kMostFollowers;
    std::int32_t longest = 0;
    float total = 0.0f;
    for (std::size_t i = run.begin; i < run.end; ++i) {
      const Match& match = matches_[i];
      longest = std::max(longest, match.length);
      total += match.weight;
      auto found = std::find_if(children_.begin(), children_.end(),
                                [&](const Child& each) { return each.token == *match.follower; });
      if (found == children_.end()) {
        if (children_.size() == most) continue;
        found = children_.insert(found, {*match.follower, kNowhere, kNever});
      }
      found->weight += match.weight;
    }
    const float log_total = logarithm(total);
    for (Child& each : children_) {
      if (each.weight > 0) each.share = std::min(logarithm(each.weight) - log_total, 0.0f);
    }
    return longest;
  }

  // The matches of a run that go on with a token, and beyond it.
  Run matches_after(Run run, std::int32_t token) {
    const std::int32_t *const end = row_.tokens.end(), *const shared_end = row_.shared.end();
    const std::size_t begin = matches_.size();
    matches_.resize(begin + run.end - run.begin);
    Match* to = matches_.data() + begin;
    for (std::size_t i = run.begin; i < run.end; ++i) {
      const Match& match = matches_[i];
      if (*match.follower != token) continue;
      const std::int32_t* const next = match.follower + 1;
      if (next == end || next == shared_end || *next < 0) continue;
      *to++ = {next, std::min(match.length + 1, kLongestMatch), match.weight};
    }
    matches_.resize(std::size_t(to - matches_.data()));
    return {begin, matches_.size()};
  }

  // Replaces the followers' log shares by those with noise.
  void add_noise(std::int32_t depth) {
    const std::size_t count = children_.size();
    tokens_.resize(count);
    noise_.resize(count);
    for (std::size_t i = 0; i < count; ++i) tokens_[i] = children_[i].token;
    draws_.noise_after(depth, tokens_.data(), count, noise_.data());
    float total = kNever;
    for (std::size_t i = 0; i < count; ++i) {
      children_[i].share = children_[i].share * draws_.scale + noise_[i];
      total = log_of_sum(total, children_[i].share);
    }
    for (Child& each : children_) each.share = std::min(each.share - total, 0.0f);
  }

  std::int32_t base(std::size_t row, std::size_t place) const {
    return row_.base[row * row_.base_places + place];
  }

  float base_score(std::size_t place) const {
    float score;
    std::memcpy(&score, row_.base + 3 * row_.base_places + place, sizeof score);
    return score;
  }

  void write(std::size_t place, const Node& node) {
    out_[place] = node.token;
    out_[places_ + place] = node.parent;
    out_[2 * places_ + place] = node.depth;
    out_[3 * places_ + place] = score_bits(node.score);
  }

  // Followers of a node beside the base's, the latest ones: no more can be worth a row.
  static constexpr std::size_t kMostFollowers = 32;

  const TextSearchConfig& config_;
  const TextRow& row_;
  std::int32_t* const out_;
  const std::size_t places_;
  std::vector<Match> matches_;
  std::vector<Child> children_;
  std::priority_queue<Node, std::vector<Node>, Worse> open_;
  std::int32_t created_ = 0;
  std::vector<std::int32_t> tokens_;
  std::vector<float> noise_;
  const RowDraws draws_;
};

}  // namespace

void search_text(const TextSearchConfig& config, const TextRow& row, std::int32_t* out) {
  std::fill_n(out, kTreeRows * (std::size_t(config.nodes) + 1), 0);
  const std::size_t size = row.tokens.size;
  if (size > 0 && row.tokens[size - 1] >= 0) TextSearch(config, row, out).run();
}

void count_followers(Span<std::int32_t> tokens, std::size_t first, FollowerCounts& counts) {
  std::vector<Match> matches;
  for (std::size_t i = first; i < tokens.size; ++i) {
    if (tokens[i] < 0) continue;
    find_matches({tokens.data, i}, {}, matches);
    if (matches.empty()) continue;
    std::int32_t longest = 0;
    bool right = false;
    for (const Match& match : matches) {
      longest = std::max(longest, match.length);
      right = right || *match.follower == tokens[i];
    }
    std::uint32_t* const of_length = counts[longest - 1];
    ++of_length[0];
    of_length[1] += right;
  }
}

}  // namespace dart
