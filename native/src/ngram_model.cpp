#include "dart/ngram_model.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <stdexcept>
#include <string>
#include <utility>

#include "dart/xxh64.h"
#include "require.h"

namespace dart {
namespace {

void check_section(Span<std::uint8_t> file, const format::Section& section, std::uint64_t offset,
                   std::uint64_t bits, bool checksum) {
  require(section.offset == offset && bits / 8 <= file.size &&
              section.bytes == format::section_bytes(bits),
          "a section is not where it belongs");
  require(section.bytes <= file.size && section.offset <= file.size - section.bytes,
          "the file is cut off");
  if (checksum) {
    require(xxh64(file.data + section.offset, section.bytes) == section.checksum,
            "its checksum does not match");
  }
}

}  // namespace

NgramModel::NgramModel(Span<std::uint8_t> file, bool checksums) {
  require(file.size >= sizeof header_.magic &&
              std::memcmp(file.data, format::kMagic, sizeof header_.magic) == 0,
          "it is not an n-gram file");
  require(file.size >= sizeof header_, "the file is cut off");
  std::memcpy(&header_, file.data, sizeof header_);
  if (header_.version != format::kVersion) {
    throw std::invalid_argument("it has format version " + std::to_string(header_.version) +
                                ", this program reads version " +
                                std::to_string(format::kVersion));
  }
  require(header_.bytes == sizeof header_ &&
              xxh64(&header_, offsetof(format::Header, checksum)) == header_.checksum,
          "its header is damaged");
  require(header_.order >= 1 && header_.order <= kMaxOrder, "its order is not 1 to 5");
  require(header_.vocab_size >= 1 && header_.vocab_size <= format::kMaxVocabulary,
          "its vocabulary size is out of range");
  require(header_.precision == format::kExact || (header_.precision >= format::kMinPrecision &&
                                                  header_.precision <= format::kMaxPrecision),
          "its precision is out of range");
  require(header_.smallest <= 1, "its smallest count is out of range");
  require(header_.unigram_count_bits <= kMaxFieldBits &&
              header_.unigram_offset_bits <= kMaxFieldBits,
          "its fields are too wide");
  check_section(file, header_.lists, sizeof header_, header_.list_bits, checksums);
  const std::uint64_t entry =
      std::uint64_t{header_.unigram_count_bits} + header_.unigram_offset_bits;
  check_section(file, header_.unigrams, header_.lists.offset + header_.lists.bytes,
                (header_.vocab_size + 1) * entry, checksums);
  require(file.size == header_.unigrams.offset + header_.unigrams.bytes,
          "bytes follow after its end");
  lists_ = {file.data + header_.lists.offset, header_.list_bits, header_.precision,
            header_.smallest};
  unigrams_ = file.data + header_.unigrams.offset;
}

NgramState NgramModel::advance(const NgramState& state, std::int32_t token) const {
  NgramState next;
  if (order() < 2) return next;
  next.context[0] = unigram(token);
  auto position = static_cast<std::uint64_t>(token);
  std::uint64_t universe = header_.vocab_size;
  for (int n = 1; n + 1 < order(); ++n) {
    const NgramList list = this->list(state, n, universe);
    NgramList::Entry entry;
    if (!list.find(position, &entry)) break;
    next.context[n] = list.child(entry);
    position = entry.index;
    universe = list.size();
  }
  return next;
}

void NgramModel::probabilities(const NgramState& state, Span<std::int32_t> tokens,
                               float* probability) const {
  std::array<NgramList, kMaxOrder - 1> lists;
  std::array<float, kMaxOrder - 1> reciprocal{};
  int used = 0;
  for (std::uint64_t universe = header_.vocab_size; used + 1 < order(); ++used) {
    lists[used] = list(state, used + 1, universe);
    if (lists[used].size() == 0) break;
    reciprocal[used] = this->reciprocal(state.context[used]);
    universe = lists[used].size();
  }
  for (std::size_t i = 0; i < tokens.size; ++i) {
    probability[i] = 0.0f;
    if (tokens[i] < 0) continue;
    auto position = static_cast<std::uint64_t>(tokens[i]);
    NgramList::Entry entry;
    for (int n = 0; n < used && lists[n].find(position, &entry); ++n) {
      if (entry.code > 0) {
        probability[i] = static_cast<float>(count(entry.code)) * reciprocal[n];
      }
      position = entry.index;
    }
  }
}

std::vector<Continuations> NgramModel::continuations(const NgramState& state) const {
  std::vector<Continuations> all;
  std::vector<std::int32_t> shorter;  // tokens of the list after one token of context less
  std::uint64_t universe = header_.vocab_size;
  for (int n = 1; n < order(); ++n) {
    const NgramContext& context = state.context[n - 1];
    if (context.code == 0 && !context.has_list()) break;
    Continuations found;
    found.count = count(context.code);
    std::vector<std::int32_t> tokens;
    const bool whole = list(state, n, universe).for_each([&](std::uint64_t position,
                                                             const NgramList::Entry& entry) {
      require(position < universe, "a list is out of order");
      tokens.push_back(n == 1 ? static_cast<std::int32_t>(position) : shorter[position]);
      if (entry.code == 0) return;  // not an n-gram
      found.token.push_back(tokens.back());
      found.counts.push_back(static_cast<std::int64_t>(count(entry.code)));
    });
    require(whole, "a list is damaged");
    universe = tokens.size();
    shorter.swap(tokens);
    all.push_back(std::move(found));
  }
  return all;
}

// True for each token that is a unigram: counted, followed by something, or the end of a bigram.
std::vector<bool> NgramModel::unigrams_present() const {
  std::vector<bool> present(header_.vocab_size);
  std::uint64_t found = 0;
  std::uint64_t end = 0;  // of the previous token's list
  for (std::uint64_t token = 0; token < header_.vocab_size; ++token) {
    const NgramContext context = unigram(static_cast<std::int32_t>(token));
    require(context.begin == end && context.end >= end, "its lists are not in order");
    end = context.end;
    present[token] = context.code != 0 || (order() > 1 && context.has_list());
    found += present[token];
  }
  require(end == header_.list_bits, "bits follow after its last list");
  if (found == header_.ngrams[0]) return present;
  for (std::uint64_t token = 0; token < header_.vocab_size; ++token) {
    const NgramContext context = unigram(static_cast<std::int32_t>(token));
    const NgramList list(lists_, context, header_.vocab_size, order() > 2);
    list.for_each([&](std::uint64_t position, const NgramList::Entry&) {
      if (position < header_.vocab_size) present[position] = true;
    });
  }
  return present;
}

std::vector<OwnedLevel> NgramModel::levels() const {
  std::vector<OwnedLevel> levels(header_.order);
  // For each n-gram of the last complete level: the context with its list, and its suffix, that is,
  // the index one level up of the n-gram without its first token.
  std::vector<NgramContext> contexts;
  std::vector<std::int64_t> suffixes;
  std::vector<std::int64_t> unigram_of(header_.vocab_size, -1);
  const std::vector<bool> present = unigrams_present();
  for (std::uint64_t token = 0; token < header_.vocab_size; ++token) {
    if (!present[token]) continue;
    const NgramContext context = unigram(static_cast<std::int32_t>(token));
    unigram_of[token] = static_cast<std::int64_t>(levels[0].token.size());
    levels[0].token.push_back(static_cast<std::int32_t>(token));
    levels[0].count.push_back(static_cast<std::int64_t>(count(context.code)));
    contexts.push_back(context);
  }
  for (int n = 2; n <= order(); ++n) {
    OwnedLevel& parents = levels[n - 2];
    OwnedLevel& level = levels[n - 1];
    const bool inner = n < order();
    std::vector<NgramContext> next_contexts;
    std::vector<std::int64_t> next_suffixes;
    for (std::size_t parent = 0; parent < contexts.size(); ++parent) {
      parents.child_begin.push_back(static_cast<std::int64_t>(level.token.size()));
      const NgramContext& context = contexts[parent];
      std::uint64_t first = 0;  // first index of the universe in the parents' level
      std::uint64_t universe = header_.vocab_size;
      if (n > 2) {
        const auto& bound = levels[n - 3].child_begin;
        first = static_cast<std::uint64_t>(bound[suffixes[parent]]);
        universe = static_cast<std::uint64_t>(bound[suffixes[parent] + 1]) - first;
      }
      const NgramList list(lists_, context, universe, inner);
      // Lists do not overlap, so the output is bounded by the file size.
      require(!context.has_list() || (list.size() > 0 && list.fills_region()),
              "a list is damaged");
      require(list.size() <= header_.ngrams[n - 1] - level.token.size(),
              "there are more n-grams than its header says");
      std::uint64_t next = 0;  // the smallest valid next position
      std::uint64_t left = context.code;
      const bool whole = list.for_each([&](std::uint64_t position, const NgramList::Entry& entry) {
        require(position >= next && position < universe, "a list is out of order");
        next = position + 1;
        require(entry.code <= left, "an n-gram is counted more often than the one it extends");
        if (header_.precision == format::kExact) left -= entry.code;
        const std::int64_t suffix =
            n == 2 ? unigram_of[position] : static_cast<std::int64_t>(first + position);
        require(suffix >= 0, "the suffix of an n-gram is missing");
        level.token.push_back(n == 2 ? static_cast<std::int32_t>(position) : parents.token[suffix]);
        level.count.push_back(static_cast<std::int64_t>(count(entry.code)));
        if (inner) {
          next_suffixes.push_back(suffix);
          next_contexts.push_back(list.child(entry));
        }
      });
      require(whole, "a list is damaged");
    }
    parents.child_begin.push_back(static_cast<std::int64_t>(level.token.size()));
    contexts.swap(next_contexts);
    suffixes.swap(next_suffixes);
  }
  for (int n = 1; n <= kMaxOrder; ++n) {
    const std::size_t found = n <= order() ? levels[n - 1].token.size() : 0;
    require(found == header_.ngrams[n - 1], "its number of n-grams differs from its header");
  }
  return levels;
}

}  // namespace dart
