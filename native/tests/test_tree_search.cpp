#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <stdexcept>
#include <thread>
#include <vector>

#include "check.h"
#include "dart/tree_search.h"
#include "ngram_file.h"

namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();

dart::TreeSearchConfig config(int nodes, int beam = 20, Tokens eos = {}) {
  dart::TreeSearchConfig config;
  config.nodes = nodes;
  config.beam = beam;
  config.eos = eos;
  return config;
}

struct Drafts {
  Tokens context;
  std::size_t levels;
  Tokens tokens;
  std::vector<float> logits;
  std::vector<float> pairs = {};  // none
};

std::int32_t bits_of(float x) {
  std::int32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  return bits;
}

// One row's tree, as written: tokens, then parents, then depths.
Tokens search(const dart::TreeSearch& search, const Drafts& drafts) {
  Tokens packed = drafts.context;
  packed.insert(packed.end(), drafts.tokens.begin(), drafts.tokens.end());
  for (float x : drafts.logits) packed.push_back(bits_of(x));
  for (float x : drafts.pairs) packed.push_back(bits_of(x));
  const dart::DraftBatch batch{packed.data(),
                               1,
                               drafts.context.size(),
                               drafts.levels,
                               drafts.tokens.size() / drafts.levels,
                               !drafts.pairs.empty()};
  const std::size_t places = std::size_t(search.config().nodes) + 1;
  Tokens out(dart::kTreeRows * places, -7);
  search.search(batch, out.data());
  out.resize(3 * places);
  return out;
}

const float kLog9 = std::log(9.0f);  // the logit of 0.9 against a logit 0 of 0.1

void test_two_levels() {
  // log-probabilities: level 0 10: -0.11, 11: -2.30; level 1 weighs 2 ** -0.7 * 0.9 = 0.554, so
  // 20: -0.06, 21: -1.28. Sums: 10 -0.11, 10 20 -0.16, 10 21 -1.38, 11 -2.30, 11 20 -2.36.
  const Drafts drafts{{1, 2}, 2, {10, 11, 20, 21}, {kLog9, 0, kLog9, 0}};
  CHECK((search({nullptr, config(4)}, drafts) ==
         Tokens{2, 10, 20, 21, 11, 0, 0, 1, 1, 0, 0, 1, 2, 2, 1}));
  CHECK((search({nullptr, config(2)}, drafts) == Tokens{2, 10, 20, 0, 0, 1, 0, 1, 2}));
  CHECK((search({nullptr, config(0)}, drafts) == Tokens{2, 0, 0}));
  // A beam of one leaves only the children of 10, and padding; 11, cut from it, stays in the tree.
  CHECK((search({nullptr, config(6, 1)}, drafts) ==
         Tokens{2, 10, 20, 21, 11, 0, 0, 0, 0, 1, 1, 0, 0, 0, 0, 1, 2, 2, 1, 0, 0}));
}

void test_eos_is_extended_last() {
  // 10, the best of its level, is EOS: with a beam of one, 11 is extended instead.
  const Drafts drafts{{2}, 2, {10, 11, 20, 21}, {kLog9, 0, kLog9, 0}};
  CHECK((search({nullptr, config(4, 1, {99, 10})}, drafts) ==
         Tokens{2, 10, 11, 20, 21, 0, 0, 0, 2, 2, 0, 1, 1, 2, 2}));
}

void test_ngram_term() {
  // Equally likely candidates, distinguished by the corpus: 20 follows 10, and 21 follows 11.
  const OwnedModel owned({{2, 10, 20}, {11, 21}}, 3, 30);
  const Drafts drafts{{-1, 2}, 2, {10, 11, 20, 21}, {0, 0, 0, 0}};
  CHECK((search({&owned.model, config(4)}, drafts) ==
         Tokens{2, 10, 11, 20, 21, 0, 0, 0, 1, 2, 0, 1, 1, 2, 2}));
}

void test_pair_scores() {
  // After 10, 21 is likely, and after 11, 20. Sums: 10 -0.11, 10 21 -0.16, 10 20 -1.38, 11 -2.30,
  // 11 20 -2.36.
  Drafts drafts{{2}, 2, {10, 11, 20, 21}, {kLog9, 0, 0, 0}, {0, kLog9, kLog9, 0}};
  CHECK((search({nullptr, config(5)}, drafts) ==
         Tokens{2, 10, 21, 20, 11, 20, 0, 0, 1, 1, 0, 4, 0, 1, 2, 2, 1, 2}));
  // One that is not finite counts as 0: after 10 both are equally likely.
  drafts.pairs = {kNan, kInf, kLog9, 0};
  CHECK((search({nullptr, config(3)}, drafts) == Tokens{2, 10, 20, 21, 0, 0, 1, 1, 0, 1, 2, 2}));
  // No sum overflows, so all paths are scored.
  constexpr float kLargest = std::numeric_limits<float>::max();
  drafts.logits = {kLargest, 0, kLargest, -kLargest};
  drafts.pairs = {kLargest, -kLargest, 0, 0};
  CHECK((search({nullptr, config(2)}, drafts) == Tokens{2, 10, 20, 0, 0, 1, 0, 1, 2}));
}

void test_pair_scores_of_duplicates() {
  // 10 and 20 occur twice: the scores of their higher logits count, here 10's second and 20's first;
  // of 11, whose logits are equal, the first's.
  const Drafts drafts{{2},
                      2,
                      {10, 10, 11, 11, 20, 21, 20, -1},
                      {0, kLog9, -0.0f, 0, 1, 0, 0, 9},
                      {0, 0, 9, 9,       // ignored
                       9, 0, 0, 9,       // after 10: 20
                       0, 9, 9, 9,       // after 11: 21
                       9, 0, 9, 9}};     // ignored
  CHECK((search({nullptr, config(4)}, drafts) ==
         Tokens{2, 10, 20, 11, 21, 0, 0, 1, 0, 3, 0, 1, 2, 1, 2}));
}

void test_ngram_model_only() {
  // After 2: 10 four times of six, 11 twice. After 2 10: 20 three times of four, 21 once.
  const OwnedModel owned(
      {{2, 10, 20}, {2, 10, 20}, {2, 10, 20}, {2, 10, 21, 3, 4}, {2, 11}, {2, 11}}, 3, 30);
  const auto alone = [&](int nodes, std::size_t levels, Tokens context, Tokens eos = {}) {
    return search({&owned.model, config(nodes, 20, eos)}, {context, levels, {}, {}});
  };
  // 10: 4/6, 10 20: 3/6, 11: 2/6, 10 21 and all after it: 1/6.
  CHECK((alone(2, 8, {2}) == Tokens{2, 10, 20, 0, 0, 1, 0, 1, 2}));
  CHECK((alone(3, 8, {1, 2}) == Tokens{2, 10, 20, 11, 0, 0, 1, 0, 0, 1, 2, 1}));
  CHECK((alone(6, 8, {2}) ==
         Tokens{2, 10, 20, 11, 21, 3, 4, 0, 0, 1, 0, 1, 4, 5, 0, 1, 2, 1, 2, 3, 4}));
  // No more than the given levels, nothing after EOS, and nothing after a context never seen.
  CHECK((alone(3, 1, {2}) == Tokens{2, 10, 11, 0, 0, 0, 0, 0, 0, 1, 1, 0}));
  CHECK((alone(3, 8, {2}, {10}) == Tokens{2, 10, 11, 0, 0, 0, 0, 0, 0, 1, 1, 0}));
  CHECK((alone(2, 8, {29}) == Tokens{29, 0, 0, 0, 0, 0, 0, 0, 0}));
  // After a context that was never seen, the shorter one is used.
  CHECK((alone(2, 8, {21, 2}) == Tokens{2, 10, 20, 0, 0, 1, 0, 1, 2}));
}

void test_ties_go_to_parents() {
  // Every candidate is certain, so every node scores 0.
  const Drafts drafts{{2}, 3, {10, 20, 30}, {5, 5, 5}};
  CHECK((search({nullptr, config(2)}, drafts) == Tokens{2, 10, 20, 0, 0, 1, 0, 1, 2}));
}

void test_unusable_candidates() {
  const Drafts drafts{{2}, 1, {10, 11, -1, 12, 13, 13}, {kNan, 0, 3, kInf, 0, -1}};
  CHECK((search({nullptr, config(3)}, drafts) == Tokens{2, 11, 13, 0, 0, 0, 0, 0, 0, 1, 1, 0}));
  const Drafts none{{2}, 2, {-1, 10}, {0, 0}};  // nothing at level 0 to extend
  CHECK((search({nullptr, config(1)}, none) == Tokens{2, 0, 0, 0, 0, 0}));
}

void test_finished_row() {
  const Drafts drafts{{2, -1}, 1, {10}, {0}};
  CHECK((search({nullptr, config(1)}, drafts) == Tokens(6, 0)));
}

void test_threads_change_nothing() {
  constexpr std::size_t kRows = 33, kLevels = 4, kCandidates = 6, kNodes = 12;
  std::mt19937 random(0);
  dart::DraftBatch batch{nullptr, 0, 2, kLevels, kCandidates};
  Tokens packed(kRows * batch.width());
  for (std::size_t i = 0; i < packed.size(); ++i) {
    const bool logit = i % batch.width() >= 2 + kLevels * kCandidates;
    packed[i] = logit ? bits_of(float(random() % 100) / 10) : std::int32_t(random() % 20);
  }
  packed[7 * batch.width() + 1] = -1;  // a finished row
  batch.packed = packed.data();
  for (std::size_t rows : {std::size_t(0), std::size_t(1), std::size_t(5), kRows}) {
    batch.rows = rows;
    Tokens expected(rows * dart::kTreeRows * (kNodes + 1), -7);
    dart::TreeSearch(nullptr, config(kNodes)).search(batch, expected.data());
    dart::TreeSearchConfig many = config(kNodes);
    many.threads = 5;
    const dart::TreeSearch search(nullptr, many);
    std::atomic<int> wrong{0};
    std::vector<std::thread> callers;
    for (int caller = 0; caller < 4; ++caller) {
      callers.emplace_back([&] {
        for (int run = 0; run < 20; ++run) {
          Tokens out(expected.size(), -7);
          search.search(batch, out.data());
          wrong += out != expected;
        }
      });
    }
    for (std::thread& caller : callers) caller.join();
    CHECK(wrong == 0);
  }
}

void test_rejects() {
  CHECK_THROWS(dart::TreeSearch(nullptr, config(-1)), std::invalid_argument);
  CHECK_THROWS(dart::TreeSearch(nullptr, config(1, 0)), std::invalid_argument);
  const auto rejects = [](auto damage) {
    dart::TreeSearchConfig damaged = config(1);
    damage(damaged);
    CHECK_THROWS(dart::TreeSearch(nullptr, damaged), std::invalid_argument);
  };
  rejects([](auto& c) { c.level_decay = -0.1; });
  rejects([](auto& c) { c.logit_decay = 1.1; });
  rejects([](auto& c) { c.ngram_weight = kNan; });
  rejects([](auto& c) { c.eps = 0; });
}

void test_handles() {
  const dart::TreeSearch three(nullptr, config(3));
  int nodes = 0;
  const auto look = [&](const dart::TreeSearch& found) { nodes = found.config().nodes; };
  std::int32_t ended;
  {
    const dart::TreeSearch other(nullptr, config(5));
    dart::TreeSearch::with(other.handle(), look);
    CHECK(nodes == 5);
    dart::TreeSearch::with(three.handle(), look);
    CHECK(nodes == 3);
    ended = other.handle();
  }
  CHECK_THROWS(dart::TreeSearch::with(ended, look), std::invalid_argument);
  CHECK(dart::TreeSearch(nullptr, config(5)).handle() > ended);  // never used again
  CHECK_THROWS(dart::TreeSearch::with(-1, look), std::invalid_argument);
}

// With sanitizers this finds uses of a search after its destruction.
void test_handle_outlasts_its_calls() {
  std::atomic<std::int32_t> handle{-1};
  std::atomic<bool> done{false};
  std::thread user([&] {
    while (!done) {
      try {
        dart::TreeSearch::with(handle, [](const dart::TreeSearch& search) {
          CHECK(search.config().nodes == 7);
        });
      } catch (const std::invalid_argument&) {  // destroyed before
      }
    }
  });
  for (int i = 0; i < 1000; ++i) {
    const dart::TreeSearch search(nullptr, config(7));
    handle = search.handle();
    std::this_thread::yield();
  }
  done = true;
  user.join();
}

}  // namespace

int main() {
  test_two_levels();
  test_eos_is_extended_last();
  test_ngram_term();
  test_pair_scores();
  test_pair_scores_of_duplicates();
  test_ngram_model_only();
  test_ties_go_to_parents();
  test_unusable_candidates();
  test_finished_row();
  test_threads_change_nothing();
  test_rejects();
  test_handles();
  test_handle_outlasts_its_calls();
  return failures == 0 ? 0 : 1;
}
