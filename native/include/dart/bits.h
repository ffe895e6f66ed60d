// Bit strings: consecutive fields of 0 to 57 bits, lowest bit first.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "files are little endian and read in place: big-endian machines are not supported"
#endif

namespace dart {

// The widest field that one 64-bit load can fetch from any bit position.
constexpr unsigned kMaxFieldBits = 57;

// The number of bits needed for values up to this one; 0 for 0.
inline unsigned bit_length(std::uint64_t value) {
  return value == 0 ? 0 : 64u - static_cast<unsigned>(__builtin_clzll(value));
}

// Loads a value from `data`, aligned or not.
template <class T>
T load(const std::uint8_t* data) {
  T value;
  std::memcpy(&value, data, sizeof value);
  return value;
}

// Reads the field of `width` bits at bit `position`. Precondition: width <= kMaxFieldBits, and 8
// bytes are readable from the byte where the field begins.
inline std::uint64_t read_bits(const std::uint8_t* data, std::uint64_t position, unsigned width) {
  const auto word = load<std::uint64_t>(data + (position >> 3));
  return (word >> (position & 7)) & ((std::uint64_t{1} << width) - 1);
}

// A growing bit string.
class BitWriter {
 public:
  std::uint64_t size() const { return 64 * words_.size() + used_; }

  void clear() {
    words_.clear();
    current_ = 0;
    used_ = 0;
  }

  // Precondition: value < 2^width, width <= 64.
  void append(std::uint64_t value, unsigned width) {
    if (width == 0) return;
    current_ |= value << used_;
    if (used_ + width < 64) {
      used_ += width;
      return;
    }
    words_.push_back(current_);
    const unsigned written = 64 - used_;
    current_ = written < 64 ? value >> written : 0;
    used_ = width - written;
  }

  void append(const BitWriter& other) {
    for (std::uint64_t word : other.words_) append(word, 64);
    append(other.current_, other.used_);
  }

  // Moves the complete words so far into `words`; later bits continue after them.
  void take_words(std::vector<std::uint64_t>* words) {
    words->clear();
    words->swap(words_);
  }

  // Pads the last word with zeros.
  void align() {
    if (used_ != 0) append(0, 64 - used_);
  }

 private:
  std::vector<std::uint64_t> words_;
  std::uint64_t current_ = 0;
  unsigned used_ = 0;  // bits of current_, below 64
};

}  // namespace dart
