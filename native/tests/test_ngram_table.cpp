// Lookups in an n-gram table: what was put in is found, whatever shares a row, in any number of
// threads; and a table of random numbers is not read beyond its ends.
#include "dart/ngram_table.h"

#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "check.h"
#include "dart/perfect_hash.h"

namespace {

constexpr float kUnseen = -23.0f;
constexpr std::int32_t kVocabulary = 40;

using Key = std::pair<std::int32_t, std::int32_t>;

std::int32_t bits_of(float value) {
  std::int32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

// A table of n-grams of 2, 3, .. tokens, and the same in maps: context and token -> place, log_q.
struct Made {
  std::vector<std::int32_t> sections, entries;
  std::vector<std::uint16_t> seeds;
  std::vector<std::uint8_t> prints;
  std::vector<std::map<Key, std::pair<std::int32_t, float>>> found;

  dart::NgramTable table() const {
    return {sections.data(), found.size(),   seeds.data(),   seeds.size(),
            prints.data(),   entries.data(), prints.size()};
  }
};

Made make_table(std::size_t lengths, std::mt19937& random) {
  Made made;
  std::vector<std::int32_t> contexts;
  for (std::int32_t token = 0; token < kVocabulary; ++token) contexts.push_back(token);
  for (std::size_t n = 0; n < lengths; ++n) {
    std::map<Key, float> keys;
    for (std::size_t i = 0; i < 300; ++i) {
      const float log_q = random() % 5 == 0 ? 1.0f : -float(random() % 1000) / 50;
      keys[{contexts[random() % contexts.size()], std::int32_t(random() % kVocabulary)}] = log_q;
    }
    std::vector<std::int32_t> first, second;
    for (const auto& [key, log_q] : keys) {
      first.push_back(key.first);
      second.push_back(key.second);
    }
    const dart::PerfectHash hash = dart::make_perfect_hash(first, second);
    const auto begin = std::int32_t(made.prints.size());
    made.sections.insert(made.sections.end(),
                         {std::int32_t(made.seeds.size()), std::int32_t(hash.seeds.size()), begin,
                          std::int32_t(hash.size)});
    made.seeds.insert(made.seeds.end(), hash.seeds.begin(), hash.seeds.end());
    made.prints.resize(made.prints.size() + hash.size);
    made.entries.resize(3 * made.prints.size(), -1);
    made.found.emplace_back();
    contexts.clear();
    std::size_t i = 0;
    for (const auto& [key, log_q] : keys) {
      const std::int32_t place = begin + hash.place[i];
      made.prints[std::size_t(place)] = hash.print[i++];
      std::int32_t* entry = &made.entries[3 * std::size_t(place)];
      entry[0] = key.first;
      entry[1] = key.second;
      entry[2] = bits_of(log_q);
      made.found.back()[key] = {place, log_q};
      contexts.push_back(place);
    }
  }
  return made;
}

// Arguments and results of random lookups, some of contexts that are not there.
struct Lookups {
  std::size_t rows, contexts, candidates, lengths;
  std::vector<std::int32_t> known, tokens, places;
  std::unique_ptr<bool[]> wanted;
  std::vector<float> log_q;

  Lookups(const Made& made, std::mt19937& random)
      : rows(1 + random() % 9), contexts(1 + random() % 8), candidates(1 + random() % 30),
        lengths(made.found.size()) {
    for (std::size_t i = 0; i < rows * contexts; ++i) {
      known.push_back(std::int32_t(random() % 6) - 1);  // contexts share their last tokens
      for (std::size_t n = 1; n < lengths; ++n) {
        auto at = made.found[n - 1].begin();
        std::advance(at, random() % made.found[n - 1].size());
        known.push_back(random() % 4 == 0 ? -1 : at->second.first);
      }
    }
    for (std::size_t i = 0; i < rows * candidates; ++i) {
      tokens.push_back(std::int32_t(random() % (kVocabulary + 2)) - 1);
    }
    wanted.reset(new bool[all()]);
    for (std::size_t i = 0; i < all(); ++i) wanted[i] = random() % 3 != 0;
    places.assign((lengths - 1) * all(), -7);
    log_q.assign(all(), 7.0f);
  }

  std::size_t all() const { return rows * contexts * candidates; }

  void run(const dart::NgramTable& table, std::size_t threads) {
    dart::look_up(table,
                  {known.data(), tokens.data(), wanted.get(), rows, contexts, candidates, kUnseen,
                   log_q.data(), places.data()},
                  threads);
  }
};

void check(const Made& made, const Lookups& lookups) {
  for (std::size_t i = 0; i < lookups.all(); ++i) {
    if (!lookups.wanted[i]) continue;
    const std::size_t context = i / lookups.candidates;
    const std::size_t row = context / lookups.contexts;
    const std::int32_t token =
        lookups.tokens[row * lookups.candidates + i % lookups.candidates];
    float log_q = kUnseen;
    bool seen = true;  // the shorter n-gram, which must be there
    for (std::size_t n = 0; n < lookups.lengths; ++n) {
      const std::int32_t known = lookups.known[context * lookups.lengths + n];
      const auto found = made.found[n].find({known, token});
      seen = seen && known >= 0 && found != made.found[n].end();
      if (seen && found->second.second != 1.0f) log_q = found->second.second;
      if (n + 1 == lookups.lengths) continue;
      CHECK(lookups.places[n * lookups.all() + i] == (seen ? found->second.first : -1));
    }
    CHECK(lookups.log_q[i] == log_q);
  }
}

void test_lookups() {
  std::mt19937 random(1);
  for (std::size_t lengths = 1; lengths <= 4; ++lengths) {
    const Made made = make_table(lengths, random);
    for (int i = 0; i < 100; ++i) {
      Lookups lookups(made, random);
      lookups.run(made.table(), 1 + random() % 4);
      check(made, lookups);
    }
  }
}

void test_damaged_tables() {
  std::mt19937 random(2);
  for (int i = 0; i < 200; ++i) {
    Made made = make_table(3, random);
    for (std::int32_t& number : made.sections) number = std::int32_t(random());
    for (std::uint16_t& seed : made.seeds) seed = std::uint16_t(random());
    Lookups lookups(made, random);
    for (std::int32_t& number : lookups.known) number = std::int32_t(random());
    lookups.run(made.table(), 2);
  }
}

}  // namespace

int main() {
  test_lookups();
  test_damaged_tables();
  return failures != 0;
}
