// The best N of the nodes that a search scores, as integer keys.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

namespace dart {

// Orders nodes from best to worst as integers: first the negated score, which is never below 0 and
// so sorts like its bits, then the order of creation. No two nodes tie.
using Key = std::uint64_t;
constexpr Key kWorst = std::numeric_limits<Key>::max();

// The negated score, as an integer of the same order.
inline std::uint32_t cost(float score) {
  std::uint32_t bits;
  std::memcpy(&bits, &score, sizeof bits);
  return bits & 0x7fffffffu;
}

inline Key make_key(float score, std::uint32_t creation) {
  return Key{cost(score)} << 32 | creation;
}

// The best N keys offered so far, in a heap.
class BestKeys {
 public:
  explicit BestKeys(std::size_t size) : size_(size) { keys_.reserve(size); }

  void clear() {
    keys_.clear();
    limit_ = size_ == 0 ? 0 : kWorst;
  }

  // A key is among the best N only if it does not exceed this limit, which never rises.
  Key limit() const { return limit_; }

  // Precondition: key <= limit().
  void offer(Key key) {
    if (keys_.size() < size_) {
      keys_.push_back(key);
    } else {
      std::pop_heap(keys_.begin(), keys_.end());
      keys_.back() = key;
    }
    std::push_heap(keys_.begin(), keys_.end());
    if (keys_.size() == size_) limit_ = keys_.front();
  }

 private:
  std::size_t size_;
  Key limit_ = kWorst;
  std::vector<Key> keys_;
};

}  // namespace dart
