// One list of an n-gram file: everything seen after one context (docs/ngram-format.md).
//
// Reading is safe for arbitrary bits: a list that claims more than its region holds is empty, and
// an entry whose own list would lie outside the region has no list.
#pragma once

#include <cstdint>

#include "dart/bits.h"
#include "dart/ngram_format.h"

namespace dart {

// A context and the bit range of the list of its followers.
struct NgramContext {
  std::uint64_t begin = 0;  // in bits; begin == end: nothing followed
  std::uint64_t end = 0;
  std::uint64_t code = 0;  // count code; 0 if it was not seen

  bool has_list() const { return begin < end; }
};

// Properties that all lists of a file share.
struct ListFormat {
  const std::uint8_t* data = nullptr;
  std::uint64_t bits = 0;
  std::uint32_t precision = format::kExact;
  std::uint64_t smallest = 1;
};

class NgramList {
 public:
  struct Entry {
    std::uint64_t code;     // of the count
    std::uint32_t index;    // rank in this list: the position in the universe of the next list
    std::uint32_t in_chunk;  // rank in its chunk
    std::uint32_t chunk;
  };

  NgramList() = default;

  // The list of a context. Its entries are positions in a universe of `universe` positions.
  // `inner`: whether entries have their own lists.
  NgramList(const ListFormat& file, const NgramContext& context, std::uint64_t universe,
            bool inner)
      : file_(&file), begin_(context.begin), end_(context.end), inner_(inner) {
    if (!context.has_list() || context.end > file.bits || context.code < file.smallest) return;
    bound_ = context.code - file.smallest;
    index_bits_ = format::index_bits(universe);
    if (bound_ == 0 && file.smallest == 1) {
      open_only_child();
    } else if (field(begin_, 1) == 0) {
      open_short();
    } else {
      open_long(universe);
    }
  }

  std::uint32_t size() const { return size_; }

  // Finds the entry at a position. Returns false if there is none.
  bool find(std::uint64_t position, Entry* entry) const {
    return size_ > 0 && find_in(locate(position), position, entry);
  }

  // find() in two steps, so that the chunk can be prefetched in between: locate() returns the chunk
  // that must hold a position, find_in() searches it. Precondition: size() > 0.
  std::uint32_t locate(std::uint64_t position) const {
    // The last chunk that begins at or before the position; the first if none does.
    std::uint32_t low = 0;
    for (std::uint32_t count = chunks_; count > 1;) {
      const std::uint32_t half = count / 2;
      low = first_of(low + half) <= position ? low + half : low;
      count -= half;
    }
    return low;
  }
  void prefetch(std::uint32_t chunk) const {
    if (chunks_ == 0) return;
    const std::uint64_t at = chunk_begin(chunk);
    if (at < end_) __builtin_prefetch(file_->data + (at >> 3));
  }
  bool find_in(std::uint32_t number, std::uint64_t position, Entry* entry) const {
    Chunk chunk;
    if (!open_chunk(number, &chunk) || position < chunk.first) return false;
    const std::uint64_t target = position - chunk.first;
    // Entries ascend: the last of those that do not exceed the position, the implied entry
    // included, is the only one that may equal it.
    std::uint32_t rank = chunk.implied;
    for (std::uint32_t i = chunk.implied; i < chunk.size; ++i) {
      rank += index_in(chunk, i) <= target;
    }
    if (rank == 0 || index_in(chunk, --rank) != target) return false;
    entry->chunk = number;
    entry->in_chunk = rank;
    entry->index = number * format::kChunk + rank;
    entry->code = code_in(chunk, rank);
    return true;
  }

  // The context that consists of this list's context and a found entry. Inner lists only.
  NgramContext child(const Entry& entry) const {
    NgramContext context;
    context.code = entry.code;
    Chunk chunk;
    if (!inner_ || !open_chunk(entry.chunk, &chunk)) return context;
    if (chunk.length_bits == kRest) {
      context.begin = chunk.length_at;
      context.end = end_;
      return context;
    }
    std::uint64_t begin = chunk.length_at + std::uint64_t{chunk.size} * chunk.length_bits;
    if (chunks_ > 0) {
      const std::uint64_t base_at = record_at(entry.chunk) + index_bits_ + offset_bits_;
      begin = begin_ + field(base_at, base_bits_);
    }
    for (std::uint32_t i = 0; i < entry.in_chunk; ++i) {
      begin += field(chunk.length_at + std::uint64_t{i} * chunk.length_bits, chunk.length_bits);
    }
    const std::uint64_t length = field(
        chunk.length_at + std::uint64_t{entry.in_chunk} * chunk.length_bits, chunk.length_bits);
    if (begin > end_ || length > end_ - begin) return context;
    context.begin = begin;
    context.end = begin + length;
    return context;
  }

  // Reads the entry of a rank below size(), and its position. Returns false if the list is damaged.
  bool at(std::uint32_t rank, std::uint64_t* position, Entry* entry) const {
    const std::uint32_t number = rank / format::kChunk;
    Chunk chunk;
    if (!open_chunk(number, &chunk)) return false;
    const std::uint32_t i = rank % format::kChunk;
    *position = chunk.first + index_in(chunk, i);
    *entry = {code_in(chunk, i), rank, i, number};
    return true;
  }

  // True if the list, followed by the lists of its entries, fills the region without a gap.
  bool fills_region() const {
    std::uint64_t end = begin_;
    if (chunks_ > 0) end = record_at(chunks_);
    for (std::uint32_t number = 0; number == 0 || number < chunks_; ++number) {
      Chunk chunk;
      if (!open_chunk(number, &chunk)) return false;
      if (chunks_ > 0 && chunk_begin(number) != end) return false;
      const bool rest = chunk.length_bits == kRest;
      end = chunk.length_at + (rest ? 0 : std::uint64_t{chunk.size} * chunk.length_bits);
    }
    if (!inner_) return end == end_;
    const bool whole = for_each([&](std::uint64_t, const Entry& entry) {
      const NgramContext context = child(entry);
      end = context.begin == end ? context.end : end_ + 1;
    });
    return whole && end == end_;
  }

  // Calls f(position, entry) for all entries in ascending order. Returns false if the list is
  // damaged.
  template <class F>
  bool for_each(F f) const {
    std::uint32_t rank = 0;
    for (std::uint32_t number = 0; rank < size_; ++number) {
      Chunk chunk;
      if (!open_chunk(number, &chunk)) return false;
      for (std::uint32_t i = 0; i < chunk.size; ++i, ++rank) {
        f(chunk.first + index_in(chunk, i), Entry{code_in(chunk, i), rank, i, number});
      }
    }
    return true;
  }

 private:
  // Used in place of a width: the list of the only entry is the rest of the region.
  static constexpr unsigned kRest = 64;

  // Up to 16 entries. Positions are relative to `first`. In a chunk of a long list, the first
  // position, 0, is implied rather than stored.
  struct Chunk {
    std::uint64_t first;
    std::uint64_t index_at;
    std::uint64_t code_at;
    std::uint64_t length_at;
    std::uint32_t size;
    std::uint32_t implied;
    unsigned index_bits;
    unsigned code_bits;
    unsigned length_bits;
  };

  std::uint64_t field(std::uint64_t at, unsigned width) const {
    return read_bits(file_->data, at, width);
  }

  // The directory record of a chunk: first position, then offset, then base.
  std::uint64_t record_at(std::uint32_t chunk) const {
    return directory_at_ + std::uint64_t{chunk} * record_bits_;
  }
  std::uint64_t first_of(std::uint32_t chunk) const { return field(record_at(chunk), index_bits_); }

  std::uint64_t chunk_begin(std::uint32_t chunk) const {
    return begin_ + field(record_at(chunk) + index_bits_, offset_bits_);
  }

  std::uint64_t index_in(const Chunk& chunk, std::uint32_t i) const {
    if (i < chunk.implied) return 0;
    return field(chunk.index_at + std::uint64_t{i - chunk.implied} * chunk.index_bits,
                 chunk.index_bits);
  }

  std::uint64_t code_in(const Chunk& chunk, std::uint32_t i) const {
    return field(chunk.code_at + std::uint64_t{i} * chunk.code_bits, chunk.code_bits) +
           file_->smallest;
  }

  // The width of the field that holds the width of this list's codes.
  unsigned width_bits() const { return bit_length(bit_length(bound_)); }

  void open_only_child() {
    const std::uint64_t length = end_ - begin_;
    if (length < index_bits_ || (!inner_ && length != index_bits_)) return;
    size_ = 1;
    only_ = {0, begin_, begin_, begin_ + index_bits_, 1, 0, index_bits_, 0, kRest};
  }

  void open_short() {
    std::uint64_t at = begin_ + 1;
    const std::uint64_t header = 1 + width_bits() + (inner_ ? 4 + 6 : 0);
    if (end_ - begin_ < header) return;
    const auto code_bits = static_cast<unsigned>(field(at, width_bits()));
    at += width_bits();
    unsigned length_bits = 0;
    std::uint64_t size;
    if (inner_) {
      size = field(at, 4) + 1;
      length_bits = static_cast<unsigned>(field(at + 4, 6));
      at += 10;
      if (size * (index_bits_ + code_bits + length_bits) > end_ - at) return;
    } else {
      size = (end_ - at) / (index_bits_ + code_bits);
      if (size > format::kChunk || size * (index_bits_ + code_bits) != end_ - at) return;
    }
    if (code_bits > kMaxFieldBits || length_bits > kMaxFieldBits) return;
    size_ = static_cast<std::uint32_t>(size);
    const std::uint64_t codes = at + size * index_bits_;
    const std::uint64_t lengths = codes + size * code_bits;
    only_ = {0, at, codes, lengths, size_, 0, index_bits_, code_bits, length_bits};
  }

  void open_long(std::uint64_t universe) {
    std::uint64_t at = begin_ + 1;
    const unsigned size_bits = bit_length(universe);
    if (end_ - begin_ < 1u + size_bits + 12) return;
    const std::uint64_t size = field(at, size_bits);
    at += size_bits;
    offset_bits_ = static_cast<unsigned>(field(at, 6));
    at += 6;
    if (inner_) {
      base_bits_ = static_cast<unsigned>(field(at, 6));
      at += 6;
    }
    if (offset_bits_ > kMaxFieldBits || base_bits_ > kMaxFieldBits || size == 0) return;
    const std::uint64_t chunks = (size + format::kChunk - 1) / format::kChunk;
    if (chunks * (index_bits_ + offset_bits_ + base_bits_) > end_ - at) return;
    size_ = static_cast<std::uint32_t>(size);
    chunks_ = static_cast<std::uint32_t>(chunks);
    directory_at_ = at;
    record_bits_ = index_bits_ + offset_bits_ + base_bits_;
  }

  bool open_chunk(std::uint32_t number, Chunk* chunk) const {
    if (chunks_ == 0) {
      *chunk = only_;
      return true;
    }
    if (number >= chunks_) return false;
    std::uint64_t at = chunk_begin(number);
    const unsigned code_field = width_bits();
    const unsigned header_bits = 5 + code_field + (inner_ ? 6 : 0);
    if (at + header_bits > end_) return false;
    const std::uint64_t header = field(at, header_bits);
    at += header_bits;
    chunk->first = first_of(number);
    chunk->implied = 1;
    chunk->size = number + 1 < chunks_ ? format::kChunk : size_ - number * format::kChunk;
    chunk->index_bits = static_cast<unsigned>(header & 31);
    chunk->code_bits = static_cast<unsigned>(header >> 5 & ((1u << code_field) - 1));
    chunk->length_bits = static_cast<unsigned>(header >> (5 + code_field));
    if (chunk->code_bits > kMaxFieldBits || chunk->length_bits > kMaxFieldBits) return false;
    chunk->index_at = at;
    chunk->code_at = at + std::uint64_t{chunk->size - 1} * chunk->index_bits;
    chunk->length_at = chunk->code_at + std::uint64_t{chunk->size} * chunk->code_bits;
    return chunk->length_at + std::uint64_t{chunk->size} * chunk->length_bits <= end_;
  }

  const ListFormat* file_ = nullptr;
  std::uint64_t begin_ = 0;
  std::uint64_t end_ = 0;
  std::uint64_t bound_ = 0;  // no code stored here exceeds it
  std::uint32_t size_ = 0;
  std::uint32_t chunks_ = 0;  // 0: a short list, which is `only_`
  unsigned index_bits_ = 0;
  unsigned offset_bits_ = 0;
  unsigned base_bits_ = 0;
  unsigned record_bits_ = 0;
  bool inner_ = false;
  std::uint64_t directory_at_ = 0;
  Chunk only_{};
};

}  // namespace dart
