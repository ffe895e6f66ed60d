// The best N of the nodes that a search scores, kept in a heap of integer keys.
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

// The best N keys offered so far.
class BestKeys {
 public:
  explicit BestKeys(std::size_t size) : size_(size) { heap_.reserve(size); }

  void clear() {
    heap_.clear();
    limit_ = size_ == 0 ? 0 : kWorst;
  }

  // A key is among the best N only if it does not exceed this limit, which never rises.
  Key limit() const { return limit_; }

  // Precondition: key <= limit().
  void offer(Key key) {
    if (heap_.size() < size_) {
      heap_.push_back(key);
      if (heap_.size() == size_) {
        std::make_heap(heap_.begin(), heap_.end());
        limit_ = heap_.front();
      }
      return;
    }
    // Replace the worst key and sift the new one down.
    std::size_t hole = 0;
    for (std::size_t child; (child = 2 * hole + 1) < size_; hole = child) {
      if (child + 1 < size_ && heap_[child + 1] > heap_[child]) ++child;
      if (heap_[child] <= key) break;
      heap_[hole] = heap_[child];
    }
    heap_[hole] = key;
    limit_ = heap_.front();
  }

 private:
  std::size_t size_;
  Key limit_ = kWorst;
  std::vector<Key> heap_;
};

}  // namespace dart
