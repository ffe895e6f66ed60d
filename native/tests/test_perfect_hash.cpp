// Every key of a perfect hash has a place of its own, found by the formula in its header.
#include "dart/perfect_hash.h"

#include <cstdint>
#include <random>
#include <set>
#include <stdexcept>
#include <vector>

#include "check.h"

namespace {

using Keys = std::vector<std::int32_t>;

void check_keys(const Keys& first, const Keys& second) {
  const dart::PerfectHash hash = dart::make_perfect_hash(first, second);
  CHECK(hash.place.size() == first.size());
  // A few keys may fit no seed, and get a larger table.
  CHECK(hash.size <= first.size() + first.size() / 9 + 1 || first.size() < 100);
  std::vector<bool> taken(hash.size);
  for (std::size_t i = 0; i < first.size(); ++i) {
    const auto a = static_cast<std::uint32_t>(first[i]), b = static_cast<std::uint32_t>(second[i]);
    const std::uint32_t bucket =
        dart::scale_hash(dart::pair_hash(a, b, 0), std::uint32_t(hash.seeds.size()));
    const std::uint32_t place =
        dart::scale_hash(dart::pair_hash(a, b, hash.seeds[bucket] + 1u), hash.size);
    CHECK(place == std::uint32_t(hash.place[i]));
    CHECK(!taken[place]);
    taken[place] = true;
  }
}

void test_random_keys() {
  std::mt19937 random(1);
  for (const std::size_t count : {0, 1, 2, 3, 10, 1000, 200000}) {
    std::set<std::pair<std::int32_t, std::int32_t>> keys;
    while (keys.size() < count) {
      keys.emplace(std::int32_t(random() % 5000), std::int32_t(random() % 150000));
    }
    Keys first, second;
    for (const auto& [a, b] : keys) first.push_back(a), second.push_back(b);
    check_keys(first, second);
  }
}

// Keys that differ in one part only.
void test_regular_keys() {
  Keys zeros(50000), numbers(50000);
  for (std::size_t i = 0; i < numbers.size(); ++i) numbers[i] = std::int32_t(i);
  check_keys(zeros, numbers);
  check_keys(numbers, zeros);
  check_keys(numbers, numbers);
}

void test_equal_keys_are_refused() {
  CHECK_THROWS(dart::make_perfect_hash(Keys{1, 2, 1}, Keys{5, 5, 5}), std::invalid_argument);
}

}  // namespace

int main() {
  test_random_keys();
  test_regular_keys();
  test_equal_keys_are_refused();
  return failures != 0;
}
