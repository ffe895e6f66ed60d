// Encodes the lists of an n-gram file (docs/ngram-format.md).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "dart/bits.h"
#include "dart/ngram_file_writer.h"
#include "dart/ngram_format.h"
#include "dart/ngram_levels.h"

namespace dart {

// A range of one level.
struct LevelRange {
  std::int64_t begin;
  std::int64_t end;

  std::uint64_t size() const { return static_cast<std::uint64_t>(end - begin); }
};

// Encodes the lists of one token at a time, depth first.
class ListWriter {
 public:
  // `smallest`: the smallest count below level 1, see format::Header. The levels and options must
  // outlive the writer.
  ListWriter(const std::vector<NgramLevel>& levels, const NgramFileOptions& options,
             std::uint64_t smallest)
      : ends_bigram(options.vocab_size),
        levels_(levels),
        options_(options),
        smallest_(smallest),
        depths_(levels.size()) {}

  std::array<std::uint64_t, kMaxOrder> written{};  // n-grams written, per length
  std::vector<bool> ends_bigram;                   // tokens that a written bigram ends in
  std::size_t gathered = 0;                        // n-grams read

  // Appends the list of an n-gram to `out`, and the lists below it; nothing if nothing followed it.
  // Throws std::invalid_argument if an n-gram lacks the shorter one it ends in.
  //
  // Args:
  //   n: the length of the list's n-grams, 2 .. order.
  //   children: the list's n-grams, in level n.
  //   code: the count code of the n-gram they extend.
  //   suffixes: the children, in level n - 1, of that n-gram without its first token; at n = 2 all
  //     of level 1.
  void write(int n, LevelRange children, std::uint64_t code, LevelRange suffixes, BitWriter* out);

  // True if the n-gram of length n has been counted often enough.
  bool keeps(int n, std::int64_t node) const {
    return static_cast<std::uint64_t>(levels_[n - 1].count[node]) >= options_.min_count[n - 1];
  }

 private:
  // The entries of the list being written at one depth.
  struct Depth {
    std::vector<std::uint64_t> position;  // in the universe
    std::vector<std::uint64_t> code;      // of the count, less the smallest count
    std::vector<std::uint64_t> length;    // bits of the entry's own list
    std::vector<std::int64_t> node;       // in level n
    std::vector<std::int64_t> suffix;     // in level n - 1
    BitWriter children;
    BitWriter chunks;
  };

  std::uint64_t gather(int n, LevelRange children, LevelRange suffixes, Depth* depth);
  LevelRange children_of(int n, std::int64_t node) const;
  std::uint64_t kept(int n, std::int64_t begin, std::int64_t end) const;

  static void write_short(const Depth& depth, std::uint64_t bound, unsigned index_bits, bool inner,
                          BitWriter* out);
  static void write_long(Depth& depth, std::uint64_t bound, std::uint64_t universe, bool inner,
                         BitWriter* out);

  const std::vector<NgramLevel>& levels_;
  const NgramFileOptions& options_;
  const std::uint64_t smallest_;
  std::vector<Depth> depths_;
};

}  // namespace dart
