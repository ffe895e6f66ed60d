#include "dart/ngram_table.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "dart/perfect_hash.h"
#include "dart/shared_work.h"

namespace dart {
namespace {

constexpr std::size_t kOperations = 32;  // of a lookup, on average
constexpr float kNoCount = 1.0f;          // NO_COUNT of device_table.py

template <class T>
void prefetch(const T* address) {
#if defined(__GNUC__)
  __builtin_prefetch(address);
#else
  (void)address;
#endif
}

std::size_t within(std::uint32_t index, std::size_t size) {
  return std::min(std::size_t(index), size - 1);
}

// The lookups of one row. All reads of a kind are begun before the first is waited for.
class RowLookups {
 public:
  RowLookups(const NgramTable& table, const TableLookups& lookups)
      : table_(table),
        lookups_(lookups),
        k_(lookups.candidates),
        at_(k_),
        asked_(k_),
        likely_(k_),
        print_(k_),
        bigram_known_(lookups.contexts * k_),
        bigrams_(lookups.contexts * k_),
        bigram_log_q_(lookups.contexts * k_) {}

  void run(std::size_t row) {
    tokens_ = lookups_.tokens + row * k_;
    std::fill(bigram_known_.begin(), bigram_known_.end(), char{0});
    std::fill(bigrams_.begin(), bigrams_.end(), -1);
    std::fill(bigram_log_q_.begin(), bigram_log_q_.end(), lookups_.unseen);
    const std::int32_t* known = lookups_.known + row * lookups_.contexts * table_.lengths;
    for (std::size_t w = 0; w < lookups_.contexts; ++w) {
      const std::size_t context = row * lookups_.contexts + w;
      wanted_ = lookups_.wanted + context * k_;
      // Contexts that end in the same token share the lookups of bigrams.
      std::size_t first = 0;
      while (known[first * table_.lengths] != known[w * table_.lengths]) ++first;
      look_up_bigrams(first, known[w * table_.lengths]);
      look_up_longer(context, first, known + w * table_.lengths);
    }
  }

 private:
  // Those that no other context wanted before.
  void look_up_bigrams(std::size_t first, std::int32_t context) {
    char* known = &bigram_known_[first * k_];
    std::size_t count = 0;
    for (std::size_t i = 0; i < k_; ++i) {
      asked_[count] = static_cast<std::uint32_t>(i);
      const bool ask = wanted_[i] && !known[i];
      known[i] |= char(ask);
      count += ask;
    }
    find(0, context, count, &bigram_log_q_[first * k_], &bigrams_[first * k_]);
  }

  // A longer n-gram is only looked for where the shorter one that ends in the same tokens was seen.
  void look_up_longer(std::size_t context, std::size_t first, const std::int32_t* known) {
    const std::size_t all = lookups_.rows * lookups_.contexts * k_;
    float* log_q = lookups_.log_q + context * k_;
    std::copy_n(&bigram_log_q_[first * k_], k_, log_q);
    const std::int32_t* shorter = &bigrams_[first * k_];
    if (table_.lengths > 1) {
      std::copy_n(shorter, k_, lookups_.places + context * k_);
    }
    for (std::size_t n = 1; n < table_.lengths; ++n) {
      std::size_t count = 0;
      for (std::size_t i = 0; i < k_; ++i) {
        asked_[count] = static_cast<std::uint32_t>(i);
        count += wanted_[i] && shorter[i] >= 0;
      }
      std::int32_t* places = nullptr;
      if (n + 1 < table_.lengths) {
        places = lookups_.places + n * all + context * k_;
        std::fill_n(places, k_, -1);
        shorter = places;
      }
      find(n, known[n], count, log_q, places);
    }
  }

  // Looks up the tokens that are asked for, after one context, as n-grams of n + 2 tokens.
  void find(std::size_t n, std::int32_t context, std::size_t count, float* log_q,
            std::int32_t* places) {
    if (context < 0) return;
    const std::int32_t* section = table_.sections + 4 * n;
    const auto first = static_cast<std::uint32_t>(context);
    const auto number = [&](std::size_t i) { return static_cast<std::uint32_t>(section[i]); };
    const auto token = [&](std::size_t i) { return tokens_[asked_[i]]; };
    for (std::size_t i = 0; i < count; ++i) {
      const std::uint32_t hash = pair_hash(first, static_cast<std::uint32_t>(token(i)), 0);
      at_[i] = within(number(0) + scale_hash(hash, number(1)), table_.seed_count);
      prefetch(table_.seeds + at_[i]);
    }
    for (std::size_t i = 0; i < count; ++i) {
      const std::uint32_t seed = table_.seeds[at_[i]] + 1u;
      const std::uint32_t hash = pair_hash(first, static_cast<std::uint32_t>(token(i)), seed);
      at_[i] = within(number(2) + scale_hash(hash, number(3)), table_.entry_count);
      print_[i] = static_cast<std::uint8_t>(hash);
      prefetch(table_.prints + at_[i]);
    }
    // Prints are compared first: most n-grams were never seen, and prints fit into a cache.
    std::size_t likely = 0;
    for (std::size_t i = 0; i < count; ++i) {
      likely_[likely] = static_cast<std::uint32_t>(i);
      if (table_.prints[at_[i]] != print_[i]) continue;
      prefetch(table_.entries + 3 * at_[i]);
      ++likely;
    }
    for (std::size_t j = 0; j < likely; ++j) {
      const std::uint32_t i = likely_[j];
      const std::int32_t* entry = table_.entries + 3 * at_[i];
      if (entry[0] != context || entry[1] != token(i)) continue;
      float found;
      std::memcpy(&found, entry + 2, sizeof found);
      if (found != kNoCount) log_q[asked_[i]] = found;
      if (places != nullptr) places[asked_[i]] = static_cast<std::int32_t>(at_[i]);
    }
  }

  const NgramTable& table_;
  const TableLookups& lookups_;
  const std::size_t k_;
  const std::int32_t* tokens_ = nullptr;
  const bool* wanted_ = nullptr;
  std::vector<std::size_t> at_;
  std::vector<std::uint32_t> asked_;    // places among the row's tokens
  std::vector<std::uint32_t> likely_;   // places in asked_
  std::vector<std::uint8_t> print_;     // by place in asked_
  // [W, k], by the first context with the same last token.
  std::vector<char> bigram_known_;
  std::vector<std::int32_t> bigrams_;
  std::vector<float> bigram_log_q_;
};

}  // namespace

void look_up(const NgramTable& table, const TableLookups& lookups, std::size_t threads) {
  const std::size_t each = lookups.contexts * lookups.candidates * table.lengths * kOperations;
  share_rows(lookups.rows, lookups.rows * each, threads, [&](std::size_t row, std::size_t end) {
    RowLookups search(table, lookups);
    for (; row < end; ++row) search.run(row);
  });
}

}  // namespace dart
