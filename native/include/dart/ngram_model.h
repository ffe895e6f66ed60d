// A read-only n-gram count model that reads the bytes of an n-gram file in place.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "dart/ngram_format.h"
#include "dart/ngram_list.h"
#include "dart/span.h"

namespace dart {

// The model's state after a token sequence. A plain value: copy it to follow several continuations
// of one sequence.
struct NgramState {
  std::array<NgramContext, kMaxOrder - 1> context;  // [n - 1]: the last n tokens
};

// The arrays of one NgramLevel, owned.
struct OwnedLevel {
  std::vector<std::int32_t> token;
  std::vector<std::int64_t> count;
  std::vector<std::int64_t> child_begin;
};

// The tokens that followed one context, and their counts.
struct Continuations {
  std::uint64_t count = 0;            // of the context
  std::vector<std::int32_t> token;    // ascending
  std::vector<std::int64_t> counts;   // of the context extended by each token
};

class NgramModel {
 public:
  // Does not own the file's bytes: they must outlive the model and must not change.
  // Throws std::invalid_argument unless they are a whole file with matching checksums. Section
  // checksums, which take time in proportion to the file size, are skipped if `checksums` is false.
  // The model never reads out of bounds, even in a damaged file.
  explicit NgramModel(Span<std::uint8_t> file, bool checksums = true);

  const format::Header& header() const { return header_; }
  int order() const { return static_cast<int>(header_.order); }
  const ListFormat& lists() const { return lists_; }

  // The context of one token.
  NgramContext unigram(std::int32_t token) const {
    if (token < 0 || static_cast<std::uint64_t>(token) >= header_.vocab_size) return {};
    const unsigned code_bits = header_.unigram_count_bits;
    const std::uint64_t entry = code_bits + std::uint64_t{header_.unigram_offset_bits};
    const std::uint64_t at = static_cast<std::uint64_t>(token) * entry;
    NgramContext context;
    context.code = read_bits(unigrams_, at, code_bits);
    context.begin = read_bits(unigrams_, at + code_bits, header_.unigram_offset_bits);
    context.end = read_bits(unigrams_, at + entry + code_bits, header_.unigram_offset_bits);
    return context;
  }

  // The list of followers of a state's last n tokens; `universe` is the size of the list after the
  // last n - 1 tokens (at n = 1, of the vocabulary).
  NgramList list(const NgramState& state, int n, std::uint64_t universe) const {
    return {lists_, state.context[n - 1], universe, n + 1 < order()};
  }

  std::uint64_t count(std::uint64_t code) const {
    return format::decode_count(code, header_.precision);
  }

  // 1 / count of a context; 0 if it was not seen.
  float reciprocal(const NgramContext& context) const {
    const std::uint64_t seen = count(context.code);
    return seen == 0 ? 0.0f : 1.0f / static_cast<float>(seen);
  }

  // Prefetches the lists of the contexts, or the context of a token.
  void prefetch(const NgramState& state) const {
    for (int n = 0; n + 1 < order(); ++n) prefetch(lists_.data, state.context[n].begin);
  }
  void prefetch_unigram(std::int32_t token) const {
    if (static_cast<std::uint64_t>(token) >= header_.vocab_size) return;
    prefetch(unigrams_, static_cast<std::uint64_t>(token) *
                            (std::uint64_t{header_.unigram_count_bits} +
                             header_.unigram_offset_bits));
  }

  // The state after one more token; a token outside the vocabulary, such as -1, counts as unseen.
  // A default-constructed state is the state of an empty sequence.
  NgramState advance(const NgramState& state, std::int32_t token) const;

  // probability[i] = count(context, tokens[i]) / count(context) for the longest context, of at
  // most order() - 1 and at least one token, that tokens[i] was seen after; 0 if there is none.
  // Not a distribution: there is neither discounting nor a unigram fallback (docs/method.md,
  // section 3).
  // probability has room for tokens.size values.
  void probabilities(const NgramState& state, Span<std::int32_t> tokens, float* probability) const;

  // The followers of the last 1, 2, .. order() - 1 tokens of a state, up to the longest that was
  // seen.
  // Throws std::invalid_argument if a list is damaged.
  std::vector<Continuations> continuations(const NgramState& state) const;

  // All n-grams as sorted arrays. Throws std::invalid_argument if a list is damaged, that is, if it
  // does not fill its region, or its entries do not ascend, do not follow the shorter contexts too,
  // or are counted more often than the context; or if the number of n-grams differs from the header.
  std::vector<OwnedLevel> levels() const;

 private:
  static void prefetch(const std::uint8_t* data, std::uint64_t bit) {
    __builtin_prefetch(data + (bit >> 3));
  }

  std::vector<bool> unigrams_present() const;

  format::Header header_{};
  ListFormat lists_;
  const std::uint8_t* unigrams_ = nullptr;
};

}  // namespace dart
