#include <algorithm>
#include <array>
#include <vector>

#include "dart/ngram_model.h"
#include "require.h"

namespace dart {
namespace {

// The lists of a context's suffixes: [k - 1] is the list of its last k tokens.
using Suffixes = std::array<NgramList, kMaxOrder>;

class Checker {
 public:
  explicit Checker(const NgramModel& model)
      : model_(model), present_(model.header().vocab_size) {}

  void run() {
    const format::Header& header = model_.header();
    std::uint64_t end = 0;
    for (std::uint64_t token = 0; token < header.vocab_size; ++token) {
      const NgramContext context = model_.unigram(static_cast<std::int32_t>(token));
      require(context.begin == end && context.end >= end, "its lists are not in order");
      end = context.end;
      if (context.code != 0 || context.has_list()) present_[token] = true;
      if (model_.order() > 1) check_list(1, context, header.vocab_size, {});
    }
    found_[0] = static_cast<std::uint64_t>(std::count(present_.begin(), present_.end(), true));
    require(end == header.list_bits, "bits follow after its last list");
    for (int n = 0; n < kMaxOrder; ++n) {
      require(found_[n] == header.ngrams[n], "its number of n-grams differs from its header");
    }
  }

 private:
  // Checks the list of a context of n tokens, and those below it.
  void check_list(int n, const NgramContext& context, std::uint64_t universe,
                  const Suffixes& suffixes) {
    const bool inner = n + 1 < model_.order();
    const NgramList list(model_.lists(), context, universe, inner);
    if (!context.has_list()) return;
    require(list.size() > 0 && list.fills_region(), "a list is damaged");
    const bool exact = model_.header().precision == format::kExact;
    std::uint64_t next = 0;  // the smallest valid next position
    std::uint64_t left = context.code;
    const bool whole = list.for_each([&](std::uint64_t position, const NgramList::Entry& entry) {
      require(position >= next && position < universe, "a list is out of order");
      next = position + 1;
      require(entry.code <= left, "an n-gram is counted more often than the one it extends");
      if (exact) left -= entry.code;
      require(++found_[n] <= model_.header().ngrams[n],
              "there are more n-grams than its header says");
      if (n == 1) present_[position] = true;  // possibly with a count of 0
      if (inner) check_child(n, list.child(entry), position, suffixes);
    });
    require(whole, "a list is damaged");
  }

  // Checks the list of a context of n + 1 tokens, an entry at `position` in a list after n tokens.
  void check_child(int n, const NgramContext& child, std::uint64_t position,
                   const Suffixes& suffixes) {
    if (!child.has_list()) return;
    // A position in the list of the last k tokens is a rank in the list of the last k - 1.
    std::array<NgramContext, kMaxOrder> contexts;
    for (int k = n - 1; k >= 1; --k) {
      NgramList::Entry entry;
      require(position < suffixes[k - 1].size() &&
                  suffixes[k - 1].at(static_cast<std::uint32_t>(position), &position, &entry),
              "the suffix of an n-gram is missing");
      contexts[k] = suffixes[k - 1].child(entry);
    }
    contexts[0] = model_.unigram(static_cast<std::int32_t>(position));
    Suffixes below;
    std::uint64_t universe = model_.header().vocab_size;
    for (int k = 1; k <= n; ++k) {
      below[k - 1] = NgramList(model_.lists(), contexts[k - 1], universe, k + 1 < model_.order());
      universe = below[k - 1].size();
    }
    check_list(n + 1, child, universe, below);
  }

  const NgramModel& model_;
  std::array<std::uint64_t, kMaxOrder> found_{};
  std::vector<bool> present_;  // tokens that are unigrams
};

}  // namespace

void NgramModel::check() const { Checker(*this).run(); }

}  // namespace dart
