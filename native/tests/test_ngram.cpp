// Builder, file, lists and model.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <limits>
#include <stdexcept>
#include <string>
#include <vector>

#include "check.h"
#include "dart/ngram_levels.h"
#include "dart/ngram_list.h"
#include "dart/ngram_model.h"
#include "ngram_file.h"

namespace {

using Counts = std::vector<std::int64_t>;
using Levels = std::vector<dart::OwnedLevel>;

const std::vector<Tokens> kSmall{{5, 6, 5, 6, 7}, {5, 7}};

std::vector<dart::NgramLevel> spans_of(const Levels& levels) {
  std::vector<dart::NgramLevel> spans;
  for (const auto& level : levels) spans.push_back({level.token, level.count, level.child_begin});
  return spans;
}

std::vector<float> query(const dart::NgramModel& model, const Tokens& context,
                         const Tokens& candidates) {
  dart::NgramState state;
  for (std::int32_t token : context) state = model.advance(state, token);
  std::vector<float> result(candidates.size(), -1.0f);
  model.probabilities(state, candidates, result.data());
  return result;
}

void test_levels() {
  const Levels levels = OwnedModel(kSmall, 3, 8).model.levels();
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

void test_empty_model() {
  const OwnedModel none({}, 2, 3);
  CHECK(none.model.levels()[0].token.empty());
  CHECK((none.model.levels()[0].child_begin == Counts{0}));
  CHECK((query(none.model, {1}, {2}) == std::vector<float>{0}));
}

void test_query() {
  const OwnedModel owned(kSmall, 3, 8);
  const dart::NgramModel& model = owned.model;
  CHECK(model.order() == 3);
  CHECK(model.header().ngrams[1] == 4);
  CHECK(model.header().tokens == 7);
  // After 5 6, 5 and 7 followed once each; 6 never did, nor after only 6.
  CHECK((query(model, {5, 6}, {5, 6, 7}) == std::vector<float>{0.5f, 0, 0.5f}));
  // Earlier tokens have no effect.
  CHECK((query(model, {7, 7, 5, 6}, {5, 6, 7}) == std::vector<float>{0.5f, 0, 0.5f}));
  // 6 is found as 6 5 6; 7 falls back to 5 7, one of three 5s. 9 was never seen.
  CHECK((query(model, {6, 5}, {6, 7, 9}) == std::vector<float>{1, 1.0f * (1.0f / 3.0f), 0}));
  // An empty or unseen context gives 0.
  CHECK((query(model, {}, {5, 6, 7}) == std::vector<float>{0, 0, 0}));
  CHECK((query(model, {5, 9}, {5, 6, 7}) == std::vector<float>{0, 0, 0}));
  CHECK((query(model, {-1, 6}, {-1, 5}) == std::vector<float>{0, 0.5f}));
  // 7 ends both documents: nothing followed.
  CHECK((query(model, {7}, {5, 6, 7}) == std::vector<float>{0, 0, 0}));
}

// For every list of a model, at every length: find() and for_each() agree on all positions.
void check_lists(const dart::NgramModel& model, const dart::NgramState& state, int n,
                 std::uint64_t universe, std::size_t* longest) {
  const dart::NgramList list = model.list(state, n, universe);
  CHECK(list.size() > 0 || !state.context[n - 1].has_list());
  longest[n - 1] = std::max(longest[n - 1], std::size_t{list.size()});
  std::vector<std::uint64_t> positions;
  const bool whole = list.for_each([&](std::uint64_t position, const auto& entry) {
    CHECK(entry.index == positions.size());
    CHECK(positions.empty() || positions.back() < position);
    positions.push_back(position);
  });
  CHECK(whole && positions.size() == list.size());
  std::size_t next = 0;
  for (std::uint64_t position = 0; position <= universe + 2; ++position) {
    dart::NgramList::Entry entry;
    const bool there = next < positions.size() && positions[next] == position;
    CHECK(list.find(position, &entry) == there);
    if (!there) continue;
    CHECK(entry.index == next++);
    if (n + 1 >= model.order()) continue;
    dart::NgramState longer = state;
    longer.context[n] = list.child(entry);
    // The universe of the child's list is the followers of its tokens without the first. Only that
    // the list can be walked is checked here; test_levels and the Python tests check its content.
    CHECK(longer.context[n].code == entry.code);
  }
  dart::NgramList::Entry entry;
  CHECK(!list.find(std::numeric_limits<std::uint64_t>::max(), &entry));
}

void test_lists() {
  std::size_t longest[dart::kMaxOrder] = {};
  const OwnedModel owned(random_documents(1, 20, 8, 900), 5, 20);
  for (std::int32_t token = 0; token < 20; ++token) {
    const dart::NgramState one = owned.model.advance({}, token);
    check_lists(owned.model, one, 1, 20, longest);
    const std::uint64_t after_one = owned.model.list(one, 1, 20).size();
    for (std::int32_t before = 0; before < 20; ++before) {
      const dart::NgramState two = owned.model.advance(owned.model.advance({}, before), token);
      check_lists(owned.model, two, 2, after_one, longest);
    }
  }
  CHECK(longest[0] > dart::format::kChunk && longest[1] > dart::format::kChunk);
}

void test_round_trip() {
  for (int order = 1; order <= dart::kMaxOrder; ++order) {
    for (std::uint32_t vocab_size : {20u, 700u}) {
      const Windows windows = windows_of(random_documents(7, vocab_size, 6, 500), order);
      dart::NgramBuilder builder(order, vocab_size, "");
      add(&builder, windows, order);
      const auto levels = builder.finish();
      const OwnedModel owned(write_file(levels, options_of(vocab_size)));
      const Levels read = owned.model.levels();
      CHECK(read.size() == levels.size());
      for (std::size_t n = 0; n < levels.size(); ++n) {
        CHECK(std::equal(levels[n].token.begin(), levels[n].token.end(), read[n].token.begin(),
                         read[n].token.end()));
        CHECK(std::equal(levels[n].count.begin(), levels[n].count.end(), read[n].count.begin(),
                         read[n].count.end()));
        CHECK(std::equal(levels[n].child_begin.begin(), levels[n].child_begin.end(),
                         read[n].child_begin.begin(), read[n].child_begin.end()));
      }
      CHECK(write_file(spans_of(read), options_of(vocab_size)) == owned.bytes);
    }
  }
}

void test_scratch_directory() {
  namespace fs = std::filesystem;
  std::string name = (fs::temp_directory_path() / "dart_ngram_XXXXXX").string();
  CHECK(mkdtemp(name.data()) != nullptr);
  const Windows windows = windows_of(random_documents(3, 50, 6, 300), 4);
  {
    dart::NgramBuilder builder(4, 50, name);
    add(&builder, windows, 4);
    const auto levels = builder.finish();
    builder.release();
    CHECK(write_file(levels, options_of(50)) == file_of(windows, 4, options_of(50)));
    CHECK_THROWS(builder.finish(), std::invalid_argument);
    CHECK_THROWS(add(&builder, windows, 4), std::invalid_argument);
  }
  fs::remove_all(name);
  CHECK_THROWS(dart::NgramBuilder(2, 5, name), std::runtime_error);  // no such directory
}

void test_builder_rejects() {
  CHECK_THROWS(dart::NgramBuilder(0, 5, ""), std::invalid_argument);
  CHECK_THROWS(dart::NgramBuilder(6, 5, ""), std::invalid_argument);
  CHECK_THROWS(dart::NgramBuilder(3, 0, ""), std::invalid_argument);
  CHECK_THROWS(dart::NgramBuilder(3, (1 << 24) + 1, ""), std::invalid_argument);

  const auto rejects = [](std::vector<Tokens> windows, std::int64_t count = 1) {
    dart::NgramBuilder builder(3, 6, "");
    std::vector<std::uint64_t> words;
    for (const Tokens& window : windows) words.push_back(pack(window, 3, 6)[0]);
    const std::vector<std::int64_t> counts(words.size(), count);
    CHECK_THROWS(builder.add(words.data(), counts.data(), words.size()), std::invalid_argument);
  };
  rejects({{1, 2, 3}, {1, 2, 3}});  // twice
  rejects({{1, 2, 3}, {1, 2}});     // a prefix comes first
  rejects({{1, 2, 3}, {1, 1, 4}});
  rejects({{2}, {1}});
  rejects({{}});            // empty
  rejects({{-1, 2}});       // no first token
  rejects({{1, -1, 2}});    // a token after the end
  rejects({{6}});           // outside the vocabulary
  rejects({{1}}, -1);
  rejects({{1, 2}, {1, 3}}, std::numeric_limits<std::int64_t>::max());  // the sum overflows
}

void test_writer_rejects() {
  const Windows windows = windows_of(kSmall, 3);
  const auto rejects = [&windows](auto change) {
    dart::NgramFileOptions options = options_of(8);
    change(options);
    CHECK_THROWS(file_of(windows, 3, options), std::invalid_argument);
  };
  rejects([](auto& o) { o.min_count = {2, 1, 1}; });
  rejects([](auto& o) { o.precision = 1; });
  rejects([](auto& o) { o.precision = 17; });
  // 6 7, the suffix of 5 6 7, is missing.
  CHECK_THROWS(file_of({{{5, 6, 7}, 1}, {{6}, 1}, {{7}, 1}}, 3, options_of(8)),
               std::invalid_argument);
}

void test_minimum_counts() {
  dart::NgramFileOptions options = options_of(8);
  options.min_count = {1, 1, 2};
  const OwnedModel owned(file_of(windows_of(kSmall, 3), 3, options));
  CHECK(owned.model.header().ngrams[1] == 4 && owned.model.header().ngrams[2] == 0);
  CHECK(owned.model.header().dropped[1] == 0 && owned.model.header().dropped[2] == 3);
  CHECK(owned.model.header().tokens == 7);
}

void test_files_are_checked() {
  const Bytes good = OwnedModel(kSmall, 3, 8).bytes;
  const auto rejects = [](const Bytes& bytes) {
    CHECK_THROWS(dart::NgramModel(dart::Span<std::uint8_t>(bytes)), std::invalid_argument);
  };
  for (std::size_t size = 0; size < good.size(); ++size) {
    rejects(Bytes(good.begin(), good.begin() + static_cast<std::ptrdiff_t>(size)));
  }
  Bytes longer = good;
  longer.push_back(0);
  rejects(longer);
  for (std::size_t bit = 0; bit < 8 * good.size(); ++bit) {
    Bytes flipped = good;
    flipped[bit / 8] ^= static_cast<std::uint8_t>(1 << bit % 8);
    rejects(flipped);
  }
  // Without section checksums, damage in the sections goes unnoticed; in the header it does not.
  Bytes damaged = good;
  damaged[sizeof(dart::format::Header)] ^= 1;
  const dart::NgramModel unchecked(damaged, false);
  CHECK(unchecked.order() == 3);
  damaged[40] ^= 1;
  CHECK_THROWS(dart::NgramModel(damaged, false), std::invalid_argument);
}

}  // namespace

int main() {
  test_levels();
  test_empty_model();
  test_query();
  test_lists();
  test_round_trip();
  test_scratch_directory();
  test_builder_rejects();
  test_writer_rejects();
  test_minimum_counts();
  test_files_are_checked();
  return failures == 0 ? 0 : 1;
}
