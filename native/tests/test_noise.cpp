// Gumbel noise: known numbers of Threefry, its distribution, and the same bits from every variant.
#include "dart/noise.h"

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
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

void test_noisy_logits(bool greedy) {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  constexpr std::size_t kSize = 37, kVocabulary = 50;
  std::vector<float> x(6 * kSize), noise(2 * 2 * kVocabulary);
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = std::sin(float(i)) * 20;
  for (std::size_t i = 0; i < noise.size(); ++i) noise[i] = std::cos(float(i));
  x[4 * kSize + 36] = kNan;
  const std::vector<std::int32_t> levels = {0, 1, 9, -3, 1, 0};
  std::vector<std::int32_t> ids(kSize);
  for (std::size_t i = 0; i < kSize; ++i) ids[i] = static_cast<std::int32_t>(i * 7 % kVocabulary);
  for (Instructions instructions : supported()) {
    std::vector<float> y(x.size());
    const float temperature[] = {0.5f, greedy ? 0.0f : 4.0f};
    dart::add_noise({x.data(), noise.data(), levels.data(), ids.data(), y.data(), temperature, 2, 3,
                     2, kVocabulary, kSize},
                    instructions);
    for (std::size_t row = 0; row < 6; ++row) {
      float most = x[row * kSize];
      for (std::size_t i = 0; i < kSize; ++i) most = std::fmax(most, x[row * kSize + i]);
      const std::size_t level = levels[row] < 0 ? 0 : levels[row] > 1 ? 1 : std::size_t(levels[row]);
      for (std::size_t i = 0; i < kSize; ++i) {
        const float added = noise[(row / 3 * 2 + level) * kVocabulary + std::size_t(ids[i])];
        const float scaled = x[row * kSize + i] - most;
        const float warm = row < 3 ? scaled * 2.0f + added : scaled * 0.25f + added;
        const float expected = greedy && row >= 3 ? scaled : warm;
        const float found = y[row * kSize + i];
        CHECK(row == 4 ? std::isnan(found) : found == expected);
      }
    }
  }
}

}  // namespace

int main() {
  test_known_numbers();
  test_same_bits();
  test_distribution();
  for (bool greedy : {false, true}) test_noisy_logits(greedy);
  return failures == 0 ? 0 : 1;
}
