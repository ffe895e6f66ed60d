#include "exercise_ngram_file.h"

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <stdexcept>

#include "../tests/ngram_file.h"
#include "dart/ngram_levels.h"
#include "dart/ngram_model.h"
#include "dart/tree_search.h"
#include "dart/xxh64.h"

namespace dart {
namespace {

// Files beyond these limits are skipped, which bounds memory and time per file.
constexpr std::uint64_t kMaxVocabulary = 4096;
constexpr std::uint64_t kMaxNgrams = 1 << 15;
constexpr std::size_t kMaxBytes = 1 << 20;

void expect(bool condition, const char* message) {
  if (condition) return;
  std::fprintf(stderr, "contradiction: %s\n", message);
  std::abort();
}

std::vector<NgramLevel> spans_of(const std::vector<OwnedLevel>& levels) {
  std::vector<NgramLevel> spans;
  for (const OwnedLevel& level : levels) {
    spans.push_back({level.token, level.count, level.child_begin});
  }
  return spans;
}

bool same(const std::vector<OwnedLevel>& a, const std::vector<OwnedLevel>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const auto& x, const auto& y) {
    return x.token == y.token && x.count == y.count && x.child_begin == y.child_begin;
  });
}

// Decodes all n-grams. Checks that decoded levels survive writing and reading.
void read_levels(const NgramModel& model) {
  std::vector<OwnedLevel> levels;
  std::vector<std::uint8_t> rewritten;
  // Unigrams counted 0 times that no longer n-gram contains are not written.
  const auto zeros = [&] {
    const auto& count = levels[0].count;
    return std::find(count.begin(), count.end(), 0) != count.end();
  };
  try {
    levels = model.levels();
    NgramFileOptions options;
    options.vocab_size = model.header().vocab_size;
    options.precision = model.header().precision;
    rewritten = write_file(spans_of(levels), options);
  } catch (const std::invalid_argument&) {
    return;
  }
  if (zeros()) return;
  expect(same(NgramModel(rewritten).levels(), levels), "rewriting changed the n-grams");
}

void walk(const NgramModel& model, Numbers* numbers) {
  const auto vocabulary = static_cast<std::uint32_t>(model.header().vocab_size);
  std::vector<std::int32_t> candidates(64);
  std::vector<float> probability(candidates.size());
  NgramState state;
  for (int step = 0; step < 24; ++step) {
    for (std::int32_t& token : candidates) {
      token = static_cast<std::int32_t>(numbers->below(vocabulary + 3)) - 1;
    }
    model.prefetch(state);
    model.probabilities(state, candidates, probability.data());
    try {
      (void)model.continuations(state);
    } catch (const std::invalid_argument&) {
    }
    // Prefer a token that was seen.
    std::size_t next = 0;
    while (next + 1 < candidates.size() && !(probability[next] > 0.0f)) ++next;
    state = model.advance(state, candidates[next]);
  }
}

void search(const NgramModel& model, Numbers* numbers) {
  constexpr std::size_t kContext = 5, kLevels = 4, kCandidates = 20;
  const auto vocabulary = static_cast<std::uint32_t>(model.header().vocab_size);
  std::vector<std::int32_t> packed(kContext + 2 * kLevels * kCandidates);
  const auto logits = packed.begin() + kContext + kLevels * kCandidates;
  for (auto token = packed.begin(); token != logits; ++token) {
    *token = static_cast<std::int32_t>(numbers->below(vocabulary + 1));
  }
  for (auto logit = logits; logit != packed.end(); ++logit) {
    const float value = 0.25f * static_cast<float>(numbers->below(16));
    std::memcpy(&*logit, &value, sizeof value);
  }

  TreeSearchConfig config;
  config.nodes = 40;
  config.beam = 6;
  config.eos = {1};
  const DraftBatch batch{packed.data(), 1, kContext, kLevels, kCandidates};
  const std::size_t places = static_cast<std::size_t>(config.nodes) + 1;
  std::vector<std::int32_t> tree(kTreeRows * places);
  TreeSearch(&model, config).search(batch, tree.data());

  const std::int32_t* parent = tree.data() + places;
  const std::int32_t* depth = parent + places;
  for (std::size_t i = 1; i < places && depth[i] > 0; ++i) {
    expect(parent[i] >= 0 && static_cast<std::size_t>(parent[i]) < i, "a parent comes later");
    expect(depth[i] == depth[parent[i]] + 1, "a node is not one below its parent");
  }
}

}  // namespace

bool repair(std::vector<std::uint8_t>* file) {
  format::Header header;
  if (file->size() < sizeof header) file->resize(sizeof header);
  std::memcpy(&header, file->data(), sizeof header);
  if (header.vocab_size > kMaxVocabulary || header.list_bits > 8 * kMaxBytes) return false;
  if (*std::max_element(header.ngrams, header.ngrams + kMaxOrder) > kMaxNgrams) return false;
  // Force fields into range, so that most fuzzer inputs get past the header checks.
  header.order = 1 + (header.order - 1) % kMaxOrder;
  header.smallest &= 1;
  header.vocab_size += header.vocab_size == 0;
  header.unigram_count_bits &= 63;
  header.unigram_offset_bits &= 63;

  std::memcpy(header.magic, format::kMagic, sizeof header.magic);
  header.version = format::kVersion;
  header.bytes = sizeof header;
  header.lists.offset = sizeof header;
  header.lists.bytes = format::section_bytes(header.list_bits);
  header.unigrams.offset = header.lists.offset + header.lists.bytes;
  const std::uint64_t entry =
      std::uint64_t{header.unigram_count_bits} + header.unigram_offset_bits;
  header.unigrams.bytes = format::section_bytes((header.vocab_size + 1) * entry);
  file->resize(header.unigrams.offset + header.unigrams.bytes);
  for (format::Section* section : {&header.lists, &header.unigrams}) {
    section->checksum = xxh64(file->data() + section->offset, section->bytes);
  }
  header.checksum = xxh64(&header, offsetof(format::Header, checksum));
  std::memcpy(file->data(), &header, sizeof header);
  return true;
}

void exercise(const std::vector<std::uint8_t>& file) {
  // An exact allocation, so that a sanitizer sees any read beyond the end.
  std::vector<std::uint8_t> exact(file.begin(), file.end());
  exact.shrink_to_fit();
  try {
    const NgramModel model(exact);
    Numbers numbers(file.size());
    read_levels(model);
    walk(model, &numbers);
    search(model, &numbers);
  } catch (const std::invalid_argument&) {
  }
}

}  // namespace dart
