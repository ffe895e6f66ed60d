// Draws: as from whole rows that are filtered and sorted, and the same bits from every variant.
#include "dart/draws.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include "check.h"
#include "instruction_sets.h"
#include "kernels.h"

namespace {

using dart::Instructions;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// B x T rows of logits, and how each sequence is drawn from.
struct Case {
  std::size_t sequences, rows, size, count;
  std::vector<float> x, temperature, top_p, min_p;
  std::vector<std::int32_t> top_k, first, levels, ids;
  std::vector<dart::ThreefryKey> keys;
};

Case random_case(std::mt19937& random, std::size_t size, std::size_t count) {
  Case made;
  made.sequences = 2, made.rows = 5, made.size = size, made.count = count;
  std::normal_distribution<float> normal(0, 4);
  for (std::size_t i = 0; i < 10 * size; ++i) {
    const float x = normal(random);
    // Of rows 2, 3 and 4 many are equal, all are equal, and most but the first are left out.
    const std::size_t row = i / size % 5;
    const bool out = row == 4 && x < 4 && i % size != 0;
    made.x.push_back(row == 2 ? std::round(x) : row == 3 ? 1.0f : out ? -kInfinity : x);
  }
  const std::int32_t k[] = {0, 1, 3, 40, 200};
  const float p[] = {kInfinity, 0.2f, 0.7f, 0.95f}, m[] = {0.0f, 0.01f, 0.3f, 1.0f};
  const float t[] = {0.0f, 0.3f, 1.0f, 7.0f};
  for (std::uint32_t b = 0; b < 2; ++b) {
    made.temperature.push_back(t[random() % 4]);
    made.top_k.push_back(k[random() % 5]);
    made.top_p.push_back(p[random() % 4]);
    made.min_p.push_back(m[random() % 4]);
    made.first.push_back(std::int32_t(random() % 1000));
    made.keys.push_back({std::uint32_t(random()), std::uint32_t(random())});
  }
  for (std::size_t i = 0; i < 10; ++i) made.levels.push_back(std::int32_t(random() % 4));
  if (random() % 2) {
    made.ids.resize(size);
    std::iota(made.ids.begin(), made.ids.end(), 7);
    std::shuffle(made.ids.begin(), made.ids.end(), random);
  }
  return made;
}

struct Drawn {
  std::vector<float> values;
  std::vector<std::int32_t> indices;
};

Drawn draw(const Case& each, Instructions instructions, std::size_t threads) {
  Drawn drawn;
  drawn.values.resize(each.sequences * each.rows * each.count);
  drawn.indices.resize(drawn.values.size());
  dart::draw({each.x.data(), each.temperature.data(), each.top_k.data(), each.top_p.data(),
              each.min_p.data(), each.keys.data(), each.first.data(), each.levels.data(),
              each.ids.empty() ? nullptr : each.ids.data(), each.sequences, each.rows, each.size,
              each.count, drawn.values.data(), drawn.indices.data()},
             instructions, threads);
  return drawn;
}

// A row's noisy logits, -infinity for what the filters leave out.
std::vector<float> noisy(const Case& each, std::size_t row) {
  const std::size_t b = row / each.rows, n = each.size;
  const float* const x = each.x.data() + row * n;
  const float most = *std::max_element(x, x + n), temperature = each.temperature[b];
  std::vector<float> y(n), noise(n);
  for (std::size_t i = 0; i < n; ++i) {
    y[i] = (x[i] - most) * (temperature == 0 ? 1.0f : 1.0f / temperature);
  }
  std::vector<float> kept = y, sorted = y;
  std::sort(sorted.begin(), sorted.end(), std::greater<float>());
  const std::size_t k = std::size_t(each.top_k[b]);
  float least = k > 0 && k < n ? sorted[k - 1] : -kInfinity;
  double total = 0, mass = 0;
  for (float value : sorted) total += value >= least ? std::exp(double(value)) : 0;
  for (float value : sorted) {
    mass += std::exp(double(value));
    if (mass < double(each.top_p[b]) * total) continue;
    least = std::max(least, value);
    break;
  }
  std::vector<std::int32_t> tokens = each.ids;
  if (tokens.empty()) {
    tokens.resize(n);
    std::iota(tokens.begin(), tokens.end(), 0);
  }
  dart::noise_of_tokens(each.keys[b], each.first[b] + each.levels[row], tokens.data(), n,
                        noise.data(), Instructions::kPortable);
  for (std::size_t i = 0; i < n; ++i) {
    const bool out = y[i] < least || std::exp(double(y[i])) < double(each.min_p[b]);
    y[i] = out ? -kInfinity : temperature == 0 ? y[i] : y[i] + noise[i];
  }
  return y;
}

void test_draws() {
  std::mt19937 random(5);
  for (std::size_t size : {1, 2, 63, 64, 65, 300, 4099}) {
    for (int repeat = 0; repeat < 20; ++repeat) {
      const std::size_t count = std::min<std::size_t>(size, repeat % 2 ? 1 : 25);
      const Case each = random_case(random, size, count);
      const Drawn drawn = draw(each, Instructions::kPortable, 1);
      for (Instructions instructions : supported()) {
        for (std::size_t threads : {1, 3}) {
          const Drawn other = draw(each, instructions, threads);
          CHECK(std::memcmp(other.values.data(), drawn.values.data(), 4 * other.values.size()) == 0);
          CHECK(other.indices == drawn.indices);
        }
      }
      for (std::size_t row = 0; row < 10; ++row) {
        const std::vector<float> y = noisy(each, row);
        std::vector<std::int32_t> order(size);
        std::iota(order.begin(), order.end(), 0);
        std::stable_sort(order.begin(), order.end(), [&](std::int32_t a, std::int32_t b) {
          return y[std::size_t(a)] > y[std::size_t(b)];
        });
        for (std::size_t i = 0; i < count; ++i) {
          CHECK(drawn.indices[row * count + i] == order[i]);
          CHECK(drawn.values[row * count + i] == y[std::size_t(order[i])]);
        }
      }
    }
  }
}

void test_no_numbers() {
  std::mt19937 random(1);
  Case each = random_case(random, 100, 3);
  const Drawn before = draw(each, dart::best_instructions(), 1);
  each.x[70] = kNan;
  each.x[1 * 100 + 99] = -kNan;
  each.x[2 * 100 + 3] = kInfinity;
  for (std::size_t i = 0; i < 100; ++i) each.x[3 * 100 + i] = -kInfinity;
  const Drawn drawn = draw(each, dart::best_instructions(), 1);
  for (std::size_t i = 0; i < drawn.values.size(); ++i) {
    if (i < 4 * 3) {
      CHECK(std::isnan(drawn.values[i]));
      CHECK(drawn.indices[i] == std::int32_t(i % 3));
    } else {
      CHECK(drawn.values[i] == before.values[i]);  // regardless of other rows
      CHECK(drawn.indices[i] == before.indices[i]);
    }
  }
}

// What draw_loops.h takes for granted: the largest noise, of the uniform number next to 1, is below
// 16.
void test_noise_is_bounded() {
  float most = -kInfinity;
  std::vector<std::int32_t> tokens(1 << 22);
  std::iota(tokens.begin(), tokens.end(), 0);
  std::vector<float> noise(tokens.size());
  for (std::int32_t position : {0, 1, 2, 3, 4, 5, 6, 7}) {
    dart::noise_of_tokens({3, 4}, position, tokens.data(), tokens.size(), noise.data(),
                          dart::best_instructions());
    most = std::max(most, *std::max_element(noise.begin(), noise.end()));
  }
  CHECK(most > 15);
  CHECK(most < 16);
}

}  // namespace

int main() {
  test_draws();
  test_no_numbers();
  test_noise_is_bounded();
  return failures == 0 ? 0 : 1;
}
