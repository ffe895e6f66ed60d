#include "dart/perfect_hash.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <stdexcept>
#include <utility>

namespace dart {
namespace {

constexpr std::size_t kKeysPerBucket = 4;
constexpr std::uint32_t kSeeds = std::numeric_limits<std::uint16_t>::max() + 1u;

// Gives every bucket a seed, or returns false if one would need a seed that is too large.
class Placement {
 public:
  Placement(Span<std::int32_t> first, Span<std::int32_t> second, std::uint32_t size)
      : first_(first), second_(second), taken_(size) {
    hash_.size = size;
    hash_.seeds.assign(first.size / kKeysPerBucket + 1, 0);
    hash_.place.assign(first.size, 0);
  }

  bool run() {
    fill_buckets();
    std::vector<std::uint32_t> order(hash_.seeds.size());
    std::iota(order.begin(), order.end(), 0u);
    std::stable_sort(order.begin(), order.end(), [&](std::uint32_t a, std::uint32_t b) {
      return begin_[a + 1] - begin_[a] > begin_[b + 1] - begin_[b];
    });
    return std::all_of(order.begin(), order.end(), [&](std::uint32_t b) { return place(b); });
  }

  PerfectHash& hash() { return hash_; }

 private:
  // Sorts the keys by bucket: begin_[b] to begin_[b + 1] of keys_ are in bucket b.
  void fill_buckets() {
    const auto buckets = static_cast<std::uint32_t>(hash_.seeds.size());
    begin_.assign(buckets + 1, 0);
    std::vector<std::uint32_t> bucket(first_.size);
    for (std::size_t i = 0; i < first_.size; ++i) {
      bucket[i] = scale_hash(hash_of(i, 0), buckets);
      ++begin_[bucket[i] + 1];
    }
    std::partial_sum(begin_.begin(), begin_.end(), begin_.begin());
    keys_.resize(first_.size);
    std::vector<std::uint32_t> next(begin_.begin(), begin_.end() - 1);
    for (std::size_t i = 0; i < first_.size; ++i) {
      keys_[next[bucket[i]]++] = static_cast<std::uint32_t>(i);
    }
  }

  bool place(std::uint32_t bucket) {
    for (std::uint32_t seed = 0; seed < kSeeds; ++seed) {
      std::uint32_t at = begin_[bucket];
      for (; at < begin_[bucket + 1]; ++at) {
        const std::uint32_t place = scale_hash(hash_of(keys_[at], seed + 1), hash_.size);
        if (taken_[place]) break;
        taken_[place] = true;
        hash_.place[keys_[at]] = static_cast<std::int32_t>(place);
      }
      if (at == begin_[bucket + 1]) {
        hash_.seeds[bucket] = static_cast<std::uint16_t>(seed);
        return true;
      }
      while (at-- > begin_[bucket]) taken_[std::size_t(hash_.place[keys_[at]])] = false;
    }
    return false;
  }

  std::uint32_t hash_of(std::size_t key, std::uint32_t seed) const {
    return pair_hash(static_cast<std::uint32_t>(first_[key]),
                     static_cast<std::uint32_t>(second_[key]), seed);
  }

  Span<std::int32_t> first_, second_;
  PerfectHash hash_;
  std::vector<std::uint32_t> begin_, keys_;
  std::vector<bool> taken_;
};

}  // namespace

PerfectHash make_perfect_hash(Span<std::int32_t> first, Span<std::int32_t> second) {
  if (first.size != second.size || first.size >= 1u << 30) {
    throw std::invalid_argument("a perfect hash needs fewer than 2^30 keys");
  }
  // More room makes success likelier; the first attempt is almost certain to succeed.
  auto size = static_cast<std::uint32_t>(first.size + first.size / 9 + 1);
  for (int attempt = 0; attempt < 4; ++attempt, size += size / 8 + 1) {
    Placement placement(first, second, size);
    if (placement.run()) return std::move(placement.hash());
  }
  throw std::invalid_argument("a perfect hash needs keys that differ");
}

}  // namespace dart
