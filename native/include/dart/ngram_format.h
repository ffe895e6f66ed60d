// The n-gram file format (docs/ngram-format.md): definitions shared by its reader and writer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "dart/bits.h"

namespace dart {

constexpr int kMaxOrder = 5;

namespace format {

constexpr char kMagic[8] = {'d', 'a', 'r', 't', 'n', 'g', 'm', '\n'};
constexpr std::uint32_t kVersion = 1;

// Entries per chunk, the unit in which long lists are packed and searched.
constexpr std::uint32_t kChunk = 16;

// Zero bytes after the last bit of a section, so that any field can be read with one 64-bit load.
constexpr std::uint64_t kPadding = 8;

// Largest vocabulary: every token has an entry, seen or not.
constexpr std::uint64_t kMaxVocabulary = std::uint64_t{1} << 24;

// Exact counts.
constexpr std::uint32_t kExact = 0;
constexpr std::uint32_t kMinPrecision = 2;
constexpr std::uint32_t kMaxPrecision = 16;

struct Section {
  std::uint64_t offset;  // bytes from the beginning of the file
  std::uint64_t bytes;   // a multiple of 8, padding included
  std::uint64_t checksum;  // XXH64
};

struct Header {
  char magic[8];
  std::uint32_t version;
  std::uint32_t bytes;  // of this header
  std::uint32_t order;
  std::uint32_t precision;  // significant bits of a count; kExact
  std::uint64_t vocab_size;
  std::uint64_t smallest;              // the smallest count below level 1: 1; 0 if any is 0
  std::uint64_t tokens;                // sum of unigram counts before dropping and rounding
  std::uint64_t ngrams[kMaxOrder];     // n-grams of each length
  std::uint64_t dropped[kMaxOrder];    // n-grams left out for their counts
  std::uint64_t min_count[kMaxOrder];  // the minimum counts requested; 0 for none
  std::uint8_t fingerprint[32];        // of the tokenizer; zeros if unknown
  std::uint32_t unigram_count_bits;
  std::uint32_t unigram_offset_bits;
  std::uint64_t list_bits;  // length of the lists
  Section lists;
  Section unigrams;
  std::uint64_t checksum;  // XXH64 of the bytes before it
};
static_assert(sizeof(Header) == 272, "the header has no padding");

inline std::uint64_t section_bytes(std::uint64_t bits) { return (bits + 63) / 64 * 8 + kPadding; }

// Counts are stored as codes. A code is the count itself or, if it needs more than `precision`
// bits, a floating-point number: the exponent and the leading bits. The highest of these bits is
// always 1 and is added to the exponent. Codes ascend with counts.
inline std::uint64_t encode_count(std::uint64_t count, std::uint32_t precision) {
  const unsigned length = bit_length(count);
  if (precision == kExact || length <= precision) return count;
  const unsigned exponent = length - precision;
  // Round to nearest. A carry into one more bit gives the code of the next power of two.
  const std::uint64_t leading = (count + (std::uint64_t{1} << (exponent - 1))) >> exponent;
  return (std::uint64_t{exponent} << (precision - 1)) + leading;
}

inline std::uint64_t decode_count(std::uint64_t code, std::uint32_t precision) {
  if (precision == kExact || code < (std::uint64_t{1} << precision)) return code;
  const std::uint64_t half = std::uint64_t{1} << (precision - 1);
  const std::uint64_t exponent = (code >> (precision - 1)) - 1;
  if (exponent > 64 - precision) return ~std::uint64_t{0};  // no count has this code
  return ((code & (half - 1)) + half) << exponent;
}

// Bits of a position in a universe of `universe` positions. Never 0, so that a list with entries
// always takes space.
inline unsigned index_bits(std::uint64_t universe) {
  return universe <= 2 ? 1 : bit_length(universe - 1);
}

}  // namespace format
}  // namespace dart
