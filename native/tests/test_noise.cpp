// Gumbel noise: known numbers of Threefry, its distribution, and the same bits from every variant.
#include "dart/noise.h"

#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "check.h"
#include "instruction_sets.h"
#include "kernels.h"

namespace {

using dart::Instructions;

// Rows of a batch with this seed.
std::vector<float> noise_of(std::uint32_t seed, const std::vector<std::int32_t>& positions,
                            std::size_t sequences, std::size_t vocabulary,
                            Instructions instructions, std::size_t threads) {
  std::vector<float> out(positions.size() * vocabulary);
  std::vector<dart::ThreefryKey> keys;
  for (std::size_t row = 0; row < sequences; ++row) {
    keys.push_back(dart::kernels(instructions)->fold({0, seed}, std::uint32_t(row)));
  }
  const dart::Noise noise{keys.data(), positions.data(), sequences, positions.size() / sequences,
                          vocabulary, out.data()};
  dart::make_noise(noise, instructions, threads);
  return out;
}

// From the Random123 library's known answers, for 20 rounds.
void test_known_numbers() {
  for (Instructions instructions : supported()) {
    const dart::Kernels& kernels = *dart::kernels(instructions);
    const dart::ThreefryKey key = kernels.fold({0, 0}, 0);
    CHECK(key.first == 0x6b200159u);
    CHECK(key.second == 0x99ba4efeu);
  }
}

void test_same_bits() {
  const std::vector<std::int32_t> positions = {0, 1, 70000, 5, 6, 2147483647};
  for (std::size_t vocabulary : {0, 1, 15, 16, 17, 4095, 4097, 9001}) {
    const auto expected = noise_of(9, positions, 2, vocabulary, Instructions::kPortable, 1);
    for (Instructions instructions : supported()) {
      for (std::size_t threads : {1, 3}) {
        const auto found = noise_of(9, positions, 2, vocabulary, instructions, threads);
        CHECK(found.empty() ||
              std::memcmp(found.data(), expected.data(), found.size() * sizeof(float)) == 0);
      }
    }
  }
}

void test_distribution() {
  const auto noise = noise_of(3, {17}, 1, 200000, dart::best_instructions(), 1);
  double sum = 0, squares = 0;
  for (float each : noise) {
    CHECK(std::isfinite(each));
    sum += each;
    squares += double(each) * each;
  }
  const double mean = sum / 200000, deviation = std::sqrt(squares / 200000 - mean * mean);
  CHECK(std::fabs(mean - 0.57722) < 0.02);       // Euler's constant
  CHECK(std::fabs(deviation - 1.28255) < 0.02);  // pi / sqrt(6)
}

}  // namespace

int main() {
  test_known_numbers();
  test_same_bits();
  test_distribution();
  return failures == 0 ? 0 : 1;
}
