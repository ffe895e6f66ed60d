// A read-only n-gram count model, read in place from the bytes of an n-gram file.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "dart/ngram_format.h"
#include "dart/ngram_list.h"
#include "dart/span.h"

namespace dart {

// What the model remembers of a token sequence. A plain value: copy it to follow several
// continuations of one sequence.
struct NgramState {
  std::array<NgramContext, kMaxOrder - 1> context;  // [n - 1]: the last n tokens
};

// The arrays of one NgramLevel, owned.
struct OwnedLevel {
  std::vector<std::int32_t> token;
  std::vector<std::int64_t> count;
  std::vector<std::int64_t> child_begin;
};

// What followed one context.
struct Continuations {
  std::uint64_t count = 0;            // of the context
  std::vector<std::int32_t> token;    // ascending
  std::vector<std::int64_t> counts;   // of the context with the token behind it
};

class NgramModel {
 public:
  // Reads but does not own the file's bytes: they must outlive the model and must not change.
  // Throws std::invalid_argument unless they are a whole file with matching checksums. Checksums of
  // sections, which take time in proportion to the file, are skipped if `checksums` is false. No
  // file content makes a model that reads out of bounds.
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

  // The list of what followed the last n tokens of a state; `universe` is the size of the list one
  // token shorter (the vocabulary's at n = 1).
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

  // Hints that the contexts' lists, or a token's context, will be read soon.
  void prefetch(const NgramState& state) const {
    for (int n = 0; n + 1 < order(); ++n) prefetch(lists_.data, state.context[n].begin);
  }
  void prefetch_unigram(std::int32_t token) const {
    if (static_cast<std::uint64_t>(token) >= header_.vocab_size) return;
    prefetch(unigrams_, static_cast<std::uint64_t>(token) *
                            (std::uint64_t{header_.unigram_count_bits} +
                             header_.unigram_offset_bits));
  }

  // The state after one more token; any token the model does not know, such as -1, is unseen.
  // A default-constructed state is that of an empty sequence.
  NgramState advance(const NgramState& state, std::int32_t token) const;

  // probability[i] = count(context, tokens[i]) / count(context) for the longest context, of at
  // most order() - 1 and at least one token, that tokens[i] was seen after; 0 if there is none.
  // Not a distribution: there is neither discounting nor a unigram fallback (docs/method.md,
  // section 3).
  // probability has room for tokens.size values.
  void probabilities(const NgramState& state, Span<std::int32_t> tokens, float* probability) const;

  // What followed the last 1, 2, .. order() - 1 tokens of a state, as far as they were seen.
  // Throws std::invalid_argument if a list is damaged.
  std::vector<Continuations> continuations(const NgramState& state) const;

  // Reads every list. Throws std::invalid_argument if one is damaged: if it does not fill its place
  // in the file, its entries do not ascend, are not those of a shorter context, or are counted more
  // often than the context; or if the n-grams are not as many as the header says.
  void check() const;

  // All n-grams as sorted arrays. Throws std::invalid_argument if a list is damaged.
  std::vector<OwnedLevel> levels() const;

 private:
  static void prefetch(const std::uint8_t* data, std::uint64_t bit) {
#if defined(__GNUC__)
    __builtin_prefetch(data + (bit >> 3));
#else
    (void)data, (void)bit;
#endif
  }

  std::vector<bool> unigrams_present() const;

  format::Header header_{};
  ListFormat lists_;
  const std::uint8_t* unigrams_ = nullptr;
};

}  // namespace dart
