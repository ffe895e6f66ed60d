// The n-gram file, as docs/ngram-format.md describes it: what its reader and its writer share.
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

// Entries of a chunk, the unit in which long lists are packed and found.
constexpr std::uint32_t kChunk = 16;

// Zero bytes behind the last bit of a section, so that any field can be read with one 64-bit load.
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
  std::uint64_t tokens;                // all unigrams' counts before any was dropped or rounded
  std::uint64_t ngrams[kMaxOrder];     // n-grams of each length
  std::uint64_t dropped[kMaxOrder];    // n-grams left out for their counts
  std::uint64_t min_count[kMaxOrder];  // the counts asked for; 0 where none was
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

// Counts are kept as codes. A code is the count itself, or where `precision` bits are not enough for
// it, a floating-point number: the exponent and the leading bits, the highest of which, always 1, is
// added to the exponent. Codes ascend with counts.
inline std::uint64_t encode_count(std::uint64_t count, std::uint32_t precision) {
  const unsigned length = bit_length(count);
  if (precision == kExact || length <= precision) return count;
  const unsigned exponent = length - precision;
  // Rounded to nearest. A carry into one more bit gives the code of the next power of two.
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

// Bits of a position in a list's universe of `size` positions. Never 0, so that no list with
// entries is empty.
inline unsigned index_bits(std::uint64_t universe) {
  return universe <= 2 ? 1 : bit_length(universe - 1);
}

}  // namespace format
}  // namespace dart
