// Trees of texts and bases, and counts of what followed, against literal computations in float64.
#include "dart/text_search.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <map>
#include <numeric>
#include <random>
#include <vector>

#include "check.h"
#include "dart/noise.h"
#include "dart/tree_search.h"

namespace {

using Text = std::vector<std::int32_t>;
using Path = std::vector<std::int32_t>;
using Scores = std::map<Path, double>;

float float_of(std::int32_t bits) {
  float x;
  std::memcpy(&x, &bits, sizeof x);
  return x;
}

std::int32_t bits_of(float x) {
  std::int32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  return bits;
}

dart::TextSearchConfig config_of(int nodes, int depth) {
  dart::TextSearchConfig config;
  config.nodes = nodes;
  config.depth = depth;
  for (int i = 0; i < dart::kLongestMatch; ++i) config.trust[i] = (i + 1.0f) / (i + 3.0f);
  return config;
}

struct Row {
  Text text, shared, base, draws;

  dart::TextRow view() const {
    return {text, shared, base.empty() ? nullptr : base.data(), base.size() / dart::kTreeRows,
            draws.empty() ? nullptr : draws.data()};
  }
};

// The nodes of a packed tree but the root.
struct Tree {
  std::vector<Path> paths;
  std::vector<float> scores;
};

Tree tree_of(const std::vector<std::int32_t>& packed) {
  const std::size_t places = packed.size() / dart::kTreeRows;
  Tree tree;
  std::vector<Path> paths{{}};
  for (std::size_t i = 1; i < places; ++i) {
    const std::int32_t depth = packed[2 * places + i], parent = packed[places + i];
    if (depth == 0) {
      CHECK(packed[i] == 0 && parent == 0 && packed[3 * places + i] == 0);
      continue;
    }
    CHECK(i == paths.size() && std::size_t(parent) < i);
    Path path = paths[std::size_t(parent)];
    path.push_back(packed[i]);
    CHECK(std::int32_t(path.size()) == depth);
    paths.push_back(path);
    tree.scores.push_back(float_of(packed[3 * places + i]));
  }
  tree.paths.assign(paths.begin() + 1, paths.end());
  return tree;
}

struct Match {
  const std::int32_t* follower;
  const std::int32_t* end;  // of its text
  int length;
  double weight;
};

// The matches of a text's end that are kept.
std::vector<Match> matches_of(const Text& text, const Text& shared) {
  std::vector<Match> matches;
  for (const Text* in : {&text, &shared}) {
    for (std::size_t place = in->size(); place-- > 1;) {
      int length = 0;
      while (length < dart::kLongestMatch && std::size_t(length) < std::min(place, text.size()) &&
             (*in)[place - 1 - length] == text[text.size() - 1 - length] &&
             (*in)[place - 1 - length] != -1) {
        ++length;
      }
      if (length == 0 || (*in)[place] == -1) continue;
      matches.push_back({in->data() + place, in->data() + in->size(), length, 0});
    }
  }
  std::stable_sort(matches.begin(), matches.end(),
                   [](const Match& a, const Match& b) { return a.length > b.length; });
  if (matches.size() > dart::kMostMatches) matches.resize(dart::kMostMatches);
  return matches;
}

// The scores of all paths that may be drafted, by the formula.
Scores all_paths(const dart::TextSearchConfig& config, const Row& row) {
  std::vector<Match> matches = matches_of(row.text, row.shared);
  double left = 1;
  for (int l = matches.empty() ? 0 : matches[0].length; l > 0 && left > 0; --l) {
    const double share = l == matches.back().length ? left : left * config.longer;
    left -= share;
    double count = 0;
    for (const Match& match : matches) count += match.length >= l;
    for (Match& match : matches) match.weight += match.length >= l ? share / count : 0;
  }
  Scores base{{{}, 0.0}};
  const Tree tree = tree_of(row.base);
  for (std::size_t i = 0; i < tree.paths.size(); ++i) base[tree.paths[i]] = tree.scores[i];
  const double scale = row.draws.empty() ? 0 : float_of(row.draws[3]);
  std::vector<Path> open{{}};
  Scores scores{{{}, 0.0}};
  while (!open.empty()) {
    const Path path = open.back();
    open.pop_back();
    double total = 0, trust = 0;
    std::map<std::int32_t, double> shares, steps;
    int longest = 0;
    for (const Match& match : matches) {
      if (match.end - match.follower <= std::ptrdiff_t(path.size())) continue;
      if (!std::equal(path.begin(), path.end(), match.follower)) continue;
      const std::int32_t token = match.follower[path.size()];
      if (token == -1) continue;
      shares[token] += match.weight;
      total += match.weight;
      longest = std::max(longest, std::min(match.length + int(path.size()), dart::kLongestMatch));
    }
    if (longest > 0) trust = config.trust[longest - 1];
    for (auto& [token, share] : shares) share /= total;
    if (scale > 0) {
      double sum = 0;
      for (auto& [token, share] : shares) {
        float noise;
        dart::noise_of_tokens({std::uint32_t(row.draws[0]), std::uint32_t(row.draws[1])},
                              row.draws[2] + int(path.size()), &token, 1, &noise,
                              dart::best_instructions());
        sum += share = std::exp(std::log(share) * scale + noise);
      }
      for (auto& [token, share] : shares) share /= sum;
    }
    for (const auto& [token, share] : shares) {
      if (int(path.size()) < config.depth) steps[token] = trust * share;
    }
    for (const auto& [child, score] : base) {
      if (child.size() != path.size() + 1 || !std::equal(path.begin(), path.end(), child.begin())) {
        continue;
      }
      const auto found = shares.find(child.back());
      steps[child.back()] = (1 - trust) * std::exp(score - base.at(path)) +
                            (found == shares.end() ? 0 : trust * found->second);
    }
    for (const auto& [token, probability] : steps) {
      if (probability == 0) continue;
      Path longer = path;
      longer.push_back(token);
      scores[longer] = scores[path] + std::min(std::log(probability), 0.0);
      open.push_back(longer);
    }
  }
  scores.erase(Path{});
  return scores;
}

std::vector<std::int32_t> search(const dart::TextSearchConfig& config, const Row& row) {
  std::vector<std::int32_t> out(dart::kTreeRows * (std::size_t(config.nodes) + 1), -7);
  dart::search_text(config, row.view(), out.data());
  return out;
}

Text random_text(std::mt19937& random, std::size_t size, unsigned tokens, unsigned gaps) {
  Text text(size);
  for (std::int32_t& token : text) {
    token = random() % 100 < gaps ? -1 : std::int32_t(random() % tokens);
  }
  return text;
}

// A packed tree after a root, with unused places at its end.
Text random_base(std::mt19937& random, std::int32_t root, unsigned tokens) {
  struct Node {
    std::int32_t token;
    std::size_t parent;
    std::int32_t depth;
    float score;
  };
  std::vector<Node> nodes{{root, 0, 0, 0.0f}};
  const std::size_t most = random() % 24, unused = random() % 3;
  for (std::size_t i = 0; i < most; ++i) {
    const std::size_t parent = random() % nodes.size();
    const auto token = std::int32_t(random() % tokens);
    bool taken = false;
    for (std::size_t n = 1; n < nodes.size(); ++n) {
      taken = taken || (nodes[n].parent == parent && nodes[n].token == token);
    }
    const float step = random() % 8 == 0 ? 0.0f : -float(random() % 4000) / 1000.0f;
    if (!taken) {
      nodes.push_back({token, parent, nodes[parent].depth + 1, nodes[parent].score + step});
    }
  }
  std::vector<std::size_t> order(nodes.size()), place(nodes.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return nodes[a].score > nodes[b].score;
  });
  const std::size_t places = nodes.size() + unused;
  Text packed(dart::kTreeRows * places);
  for (std::size_t i = 0; i < order.size(); ++i) {
    const Node& node = nodes[order[i]];
    place[order[i]] = i;
    packed[i] = node.token;
    packed[places + i] = std::int32_t(place[node.parent]);
    packed[2 * places + i] = node.depth;
    packed[3 * places + i] = bits_of(node.score);
  }
  return packed;
}

// The best nodes, the best first.
void check_search(const dart::TextSearchConfig& config, const Row& row) {
  const auto packed = search(config, row);
  CHECK(packed[0] == row.text.back());
  const Tree tree = tree_of(packed);
  Scores all = all_paths(config, row);
  CHECK(tree.paths.size() == std::min(all.size(), std::size_t(config.nodes)));
  std::vector<double> best;
  for (const auto& [path, score] : all) best.push_back(score);
  std::sort(best.rbegin(), best.rend());
  for (std::size_t i = 0; i < std::min(tree.paths.size(), best.size()); ++i) {
    CHECK(all.count(tree.paths[i]) == 1);
    CHECK(std::abs(tree.scores[i] - all[tree.paths[i]]) < 2e-4);
    CHECK(std::abs(tree.scores[i] - best[i]) < 2e-4);
    CHECK(i == 0 || tree.scores[i] <= tree.scores[i - 1]);
  }
}

void test_random_rows() {
  std::mt19937 random(1);
  for (int run = 0; run < 1000; ++run) {
    const unsigned tokens = 2 + random() % 6;
    const unsigned gaps = random() % 2 * 5;
    const std::size_t size = 1 + random() % 150;
    Row row;
    row.text = random_text(random, run % 50 == 0 ? 1000 : size, tokens, gaps);
    if (row.text.back() < 0) row.text.back() = 0;
    if (random() % 2) row.shared = random_text(random, random() % 100, tokens, 5);
    if (random() % 3) row.base = random_base(random, row.text.back(), tokens + 2);
    if (random() % 2) {
      const float scale = float(random() % 4) / 2.0f;
      row.draws = {std::int32_t(random()), std::int32_t(random()), std::int32_t(random() % 9999),
                   bits_of(scale)};
    }
    auto config = config_of(int(random() % 30), int(random() % 8));
    if (run % 4 == 0) config.trust[0] = 0.0f, config.trust[1] = 1.0f;
    check_search(config, row);
  }
}

// Without matches of the text's end, the base itself.
void test_base_alone() {
  std::mt19937 random(4);
  for (int run = 0; run < 100; ++run) {
    Row row;
    row.text = {1, 2, 3, -1, run % 2 ? 7 : 3, -1, 9};
    row.shared = {9, -1, 4, 9};
    row.base = random_base(random, 9, 5);
    const std::size_t nodes = random() % 30, places = row.base.size() / dart::kTreeRows;
    const auto out = search(config_of(int(nodes), 2), row);
    for (std::size_t r = 0; r < dart::kTreeRows; ++r) {
      for (std::size_t i = 0; i <= nodes; ++i) {
        CHECK(out[r * (nodes + 1) + i] == (i < places ? row.base[r * places + i] : 0));
      }
    }
  }
  for (const Text& text : {Text{}, Text{5, 5, -1}}) {
    Row row;
    row.text = text;
    row.base = random_base(random, 5, 5);
    const auto out = search(config_of(8, 2), row);
    CHECK(std::count(out.begin(), out.end(), 0) == std::ptrdiff_t(out.size()));
  }
}

// Of equal nodes those of the base come first.
void test_ties() {
  auto config = config_of(4, 1);
  config.trust.fill(0.5f);
  const Row halves{{1, 2, 1, 3, 1}, {}, {}, {}};
  const float half = tree_of(search(config, halves)).scores[0] / 2;
  Row row = halves;
  row.base = {1, 7, 6, 0, 0, 0, 0, 1, 1, 0, bits_of(half), bits_of(half)};
  CHECK((tree_of(search(config, row)).paths == std::vector<Path>{{7}, {6}, {3}, {2}}));
}

// Of more matches than are looked at, the longest and latest are, the text's own first.
void test_long_texts() {
  std::mt19937 random(2);
  Row row;
  row.text = random_text(random, 20000, 3, 0);
  for (int i = 0; i < 30; ++i) row.text[19970 + i] = row.text[5000 + i];
  const Tree tree = tree_of(search(config_of(8, 8), row));
  CHECK(tree.paths.size() == 8);
  CHECK(tree.paths.empty() || tree.paths[0] == Path{row.text[5030]});
  row.text.assign(20000, 4);
  CHECK(tree_of(search(config_of(8, 8), row)).paths.back() == Path(8, 4));
  // Matches of one length, with a follower that is less common lately.
  row.text.clear();
  for (int i = 0; i < 600; ++i) row.text.insert(row.text.end(), {i < 400 ? 3 : 2, 8, 1000 + i});
  row.text.insert(row.text.end(), {5, 8});
  for (int i = 0; i < 600; ++i) row.shared.insert(row.shared.end(), {8, 7});
  const Tree latest = tree_of(search(config_of(40, 1), row));
  CHECK(latest.paths.size() == 32 && latest.paths[0] == Path{1599});
}

// Noise favours each follower about as often as it is likely.
void test_noise() {
  std::mt19937 random(3);
  Row row;
  row.text = random_text(random, 120, 3, 0);
  const auto config = config_of(40, 3);
  Scores all = all_paths(config, row);
  std::map<std::int32_t, int> first;
  for (std::int32_t key = 0; key < 300; ++key) {
    row.draws = {key, 7, 11, bits_of(1.0f)};
    ++first[tree_of(search(config, row)).paths[0][0]];
  }
  double total = 0;
  for (const auto& [token, times] : first) total += std::exp(all.at({token}));
  for (const auto& [token, times] : first) {
    CHECK(std::abs(times / 300.0 - std::exp(all.at({token})) / total) < 0.12);
  }
}

void test_counts() {
  std::mt19937 random(5);
  for (int run = 0; run < 40; ++run) {
    const Text text = random_text(random, run == 0 ? 1500 : random() % 200, 2 + random() % 4, 3);
    const std::size_t first = random() % 20;
    dart::FollowerCounts counts{}, want{};
    counts[2][1] = want[2][1] = 5;  // they are added to
    dart::count_followers(text, first, counts);
    for (std::size_t i = first; i < text.size(); ++i) {
      const Text before(text.begin(), text.begin() + std::ptrdiff_t(i));
      const auto matches = matches_of(before, {});
      if (matches.empty() || text[i] == -1) continue;
      ++want[matches[0].length - 1][0];
      want[matches[0].length - 1][1] += std::any_of(
          matches.begin(), matches.end(), [&](const Match& m) { return *m.follower == text[i]; });
    }
    CHECK(std::memcmp(counts, want, sizeof want) == 0);
  }
}

}  // namespace

int main() {
  test_random_rows();
  test_base_alone();
  test_ties();
  test_long_texts();
  test_noise();
  test_counts();
  return failures == 0 ? 0 : 1;
}
