#include <cstdint>
#include <limits>
#include <stdexcept>
#include <vector>

#include "check.h"
#include "dart/ngram_count.h"
#include "dart/ngram_model.h"

namespace {

using Tokens = std::vector<std::int32_t>;
using Counts = std::vector<std::int64_t>;
using Levels = std::vector<dart::CountedLevel>;

dart::NgramModel model_of(const Levels& levels) {
  std::vector<dart::NgramLevel> spans;
  for (const dart::CountedLevel& level : levels) {
    spans.push_back({level.token, level.count, level.child_begin});
  }
  return dart::NgramModel(spans);
}

// Two documents, 5 6 5 6 7 and 5 7, up to trigrams.
Levels small_corpus() {
  const Tokens tokens{5, 6, 5, 6, 7, 5, 7};
  const Counts offsets{0, 5, 7};
  return dart::count_ngrams(tokens, offsets, 3);
}

std::vector<float> query(const dart::NgramModel& model, const Tokens& context,
                         const Tokens& candidates) {
  dart::NgramState state;
  for (std::int32_t token : context) state = model.advance(state, token);
  std::vector<float> result(candidates.size(), -1.0f);
  model.probabilities(state, candidates, result.data());
  return result;
}

void test_count() {
  const Levels levels = small_corpus();
  CHECK(levels.size() == 3);
  CHECK((levels[0].token == Tokens{5, 6, 7}));
  CHECK((levels[0].count == Counts{3, 2, 2}));
  // 5 6, 5 7, 6 5, 6 7; no 7 5, which would span the documents
  CHECK((levels[0].child_begin == Counts{0, 2, 4, 4}));
  CHECK((levels[1].token == Tokens{6, 7, 5, 7}));
  CHECK((levels[1].count == Counts{2, 1, 1, 1}));
  // 5 6 5, 5 6 7, 6 5 6
  CHECK((levels[1].child_begin == Counts{0, 2, 2, 3, 3}));
  CHECK((levels[2].token == Tokens{5, 7, 6}));
  CHECK((levels[2].count == Counts{1, 1, 1}));
  CHECK(levels[2].child_begin.empty());
}

void test_count_nothing() {
  const Levels levels = dart::count_ngrams(Tokens{}, Counts{0, 0}, 2);
  CHECK(levels[0].token.empty());
  CHECK((levels[0].child_begin == Counts{0}));
  CHECK((query(model_of(levels), {1}, {2}) == std::vector<float>{0}));
}

void test_count_rejects() {
  const Tokens tokens{1, 2, 3};
  CHECK_THROWS(dart::count_ngrams(Tokens{1, -1, 3}, Counts{0, 3}, 3), std::invalid_argument);
  CHECK_THROWS(dart::count_ngrams(tokens, Counts{}, 3), std::invalid_argument);
  CHECK_THROWS(dart::count_ngrams(tokens, Counts{0, 4}, 3), std::invalid_argument);
  CHECK_THROWS(dart::count_ngrams(tokens, Counts{1, 3}, 3), std::invalid_argument);
  CHECK_THROWS(dart::count_ngrams(tokens, Counts{0, 3, 2, 3}, 3), std::invalid_argument);
  CHECK_THROWS(dart::count_ngrams(tokens, Counts{0, 3}, 0), std::invalid_argument);
  CHECK_THROWS(dart::count_ngrams(tokens, Counts{0, 3}, 6), std::invalid_argument);
}

void test_query() {
  const Levels levels = small_corpus();
  const dart::NgramModel model = model_of(levels);
  CHECK(model.order() == 3);
  CHECK(model.size(2) == 4);
  // After 5 6, 5 and 7 followed once each; 6 never did, nor after 6 alone.
  CHECK((query(model, {5, 6}, {5, 6, 7}) == std::vector<float>{0.5f, 0, 0.5f}));
  // Earlier tokens are forgotten.
  CHECK((query(model, {7, 7, 5, 6}, {5, 6, 7}) == std::vector<float>{0.5f, 0, 0.5f}));
  // 6 5 6 decides for 6; 7 falls back to 5 7, of three 5s. 9 is unknown.
  CHECK((query(model, {6, 5}, {6, 7, 9}) == std::vector<float>{1, 1.0f * (1.0f / 3.0f), 0}));
  // No context at all, nor an unknown one, falls back to unigrams.
  CHECK((query(model, {}, {5, 6, 7}) == std::vector<float>{0, 0, 0}));
  CHECK((query(model, {5, 9}, {5, 6, 7}) == std::vector<float>{0, 0, 0}));
  CHECK((query(model, {-1, 6}, {-1, 5}) == std::vector<float>{0, 0.5f}));
  // 7 ends both documents: it has no children.
  CHECK((query(model, {7}, {5, 6, 7}) == std::vector<float>{0, 0, 0}));
}

void test_hostile_arrays() {
  const Levels good = small_corpus();
  const auto damaged = [&good](auto damage) {
    Levels levels = good;
    damage(levels);
    return levels;
  };
  const std::int64_t huge = std::numeric_limits<std::int64_t>::max();
  const std::vector<Levels> cases{
      {},
      Levels(6),
      damaged([](Levels& l) { l[0].token[0] = -5; }),
      damaged([](Levels& l) { l[1].token[0] = -1; }),
      damaged([](Levels& l) { l[0].token[1] = 5; }),
      damaged([](Levels& l) { l[1].token[1] = 6; }),
      damaged([](Levels& l) { l[0].count.pop_back(); }),
      damaged([](Levels& l) { l[2].count[0] = 0; }),
      damaged([](Levels& l) { l[2].count[0] = 2; }),
      damaged([huge](Levels& l) { l[1].count[0] = l[1].count[1] = huge; }),
      damaged([](Levels& l) { l[0].child_begin.pop_back(); }),
      damaged([](Levels& l) { l[0].child_begin.clear(); }),
      damaged([](Levels& l) { l[0].child_begin[0] = -1; }),
      damaged([huge](Levels& l) { l[0].child_begin[1] = huge; }),
      damaged([](Levels& l) { l[0].child_begin[1] = -3; }),
      damaged([](Levels& l) { l[0].child_begin[3] = 3; }),
      damaged([](Levels& l) { l[2].child_begin = {0, 0, 0, 0}; }),
      damaged([](Levels& l) { l.pop_back(); }),
  };
  CHECK(model_of(good).order() == 3);
  for (const Levels& levels : cases) CHECK_THROWS(model_of(levels), std::invalid_argument);
}

}  // namespace

int main() {
  test_count();
  test_count_nothing();
  test_count_rejects();
  test_query();
  test_hostile_arrays();
  return failures == 0 ? 0 : 1;
}
