// Products in 8 bits: every supported variant against plain arithmetic, equal bit for bit.
#include "dart/int8.h"

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "check.h"
#include "dart/packed_product.h"
#include "instruction_sets.h"

namespace {

using dart::Instructions;
using dart::Int8Inputs;

constexpr std::size_t kGroup = dart::kInt8Group, kWidth = dart::kTileWidth;
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

std::vector<Int8Inputs> quantized(const std::vector<float>& x, std::size_t rows, std::size_t in,
                                  Instructions instructions) {
  std::vector<Int8Inputs> y(rows * dart::int8_groups(in));
  dart::quantize(x.data(), rows, in, y.data(), instructions);
  return y;
}

// A random problem; a sanitizer sees what is read beyond its arrays.
struct Problem {
  Problem(std::size_t rows, std::size_t in, std::size_t out)
      : rows(rows), in(in), out(out), groups(dart::int8_groups(in)) {
    std::mt19937 random(static_cast<unsigned>(rows + 100 * in + 10000 * out));
    std::normal_distribution<float> normal;
    std::uniform_int_distribution<int> bytes(-127, 127);
    x.resize(rows * in);
    for (float& value : x) value = normal(random) * std::exp(normal(random));
    tiles.resize((out + kWidth - 1) / kWidth * groups * dart::kInt8TileBytes);
    for (std::int8_t& byte : tiles) byte = static_cast<std::int8_t>(bytes(random));
    for (std::size_t o = 0; o < tiles.size() / dart::kInt8TileBytes / (groups ? groups : 1) * kWidth;
         ++o) {
      for (std::size_t g = 0; g < groups; ++g) {
        // What lies beyond the outputs must not matter.
        const float scale = o < out ? normal(random) : kNan;
        std::memcpy(&tiles[at(g, o) + kGroup * kWidth + o % kWidth * sizeof scale], &scale,
                    sizeof scale);
      }
    }
  }

  // The first byte of an output's tile and a group.
  std::size_t at(std::size_t group, std::size_t output) const {
    return (output / kWidth * groups + group) * dart::kInt8TileBytes;
  }
  int weight(std::size_t group, std::size_t input, std::size_t output) const {
    return tiles[at(group, output) + (input / 4 * kWidth + output % kWidth) * 4 + input % 4];
  }
  float scale(std::size_t group, std::size_t output) const {
    float scale;
    std::memcpy(&scale, &tiles[at(group, output) + kGroup * kWidth + output % kWidth * sizeof scale],
                sizeof scale);
    return scale;
  }

  // [rows, out], with the arithmetic of these instructions.
  std::vector<float> expected(Instructions instructions) const {
    const std::vector<Int8Inputs> inputs = quantized(x, rows, in, Instructions::kPortable);
    std::vector<float> y(rows * out);
    for (std::size_t r = 0; r < rows; ++r) {
      for (std::size_t o = 0; o < out; ++o) {
        float sum = 0;
        for (std::size_t g = 0; g < groups; ++g) {
          const Int8Inputs& group = inputs[r * groups + g];
          int dot = 0;
          for (std::size_t i = 0; i < kGroup; ++i) dot += group.values[i] * weight(g, i, o);
          const float factor = group.scale * scale(g, o), exact = static_cast<float>(dot);
          sum = instructions == Instructions::kPortable ? exact * factor + sum
                                                        : std::fma(exact, factor, sum);
        }
        y[r * out + o] = sum;
      }
    }
    return y;
  }

  // The product of the first rows.
  std::vector<float> multiply(std::size_t first_rows, Instructions instructions,
                              std::size_t threads = 1) const {
    const std::vector<Int8Inputs> inputs = quantized(x, first_rows, in, instructions);
    std::vector<float> y(first_rows * out);
    dart::PackedProduct product{};
    product.tiles = tiles.data();
    product.y = y.data();
    product.rows = first_rows;
    product.in = in;
    product.out = out;
    product.weights = dart::WeightType::kInt8;
    product.quantized = inputs.data();
    dart::multiply(product, instructions, threads);
    return y;
  }

  std::size_t rows, in, out, groups;
  std::vector<float> x;
  std::vector<std::int8_t> tiles;
};

// Whether the bits of `some` are those that `all` begins with.
bool begins(const std::vector<float>& all, const std::vector<float>& some) {
  return some.empty() || std::memcmp(all.data(), some.data(), some.size() * sizeof(float)) == 0;
}

void check(const Problem& problem, Instructions instructions, std::size_t step,
           std::size_t threads = 1) {
  const std::vector<float> expected = problem.expected(instructions);
  for (std::size_t rows = 0; rows <= problem.rows; rows += step) {
    CHECK(begins(expected, problem.multiply(rows, instructions, threads)));
  }
}

void test_products() {
  for (Instructions instructions : supported()) {
    for (std::size_t in : {0, 1, 63, 64, 65, 320}) {
      for (std::size_t out : {0, 1, 31, 32, 33, 129, 300}) {
        check(Problem(13, in, out), instructions, 4);
        check(Problem(1, in, out), instructions, 1);
      }
    }
    check(Problem(70, 100, 70), instructions, 1);
    for (std::size_t threads : {2, 3, 17}) check(Problem(9, 512, 4100), instructions, 4, threads);
  }
}

// The largest sums there can be, of either sign.
void test_largest_sums() {
  for (int sign : {-1, 1}) {
    Problem problem(3, 192, 64);
    for (float& value : problem.x) value = 1;
    for (std::size_t i = 0; i < problem.tiles.size(); ++i) {
      if (i % dart::kInt8TileBytes < kGroup * kWidth) {
        problem.tiles[i] = static_cast<std::int8_t>(127 * sign);
      }
    }
    for (Instructions instructions : supported()) check(problem, instructions, 1);
  }
}

void test_rounding() {
  constexpr std::size_t kIn = 130;
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  std::vector<float> x(5 * kIn);
  for (float& value : x) value = 100 * normal(random);
  for (std::size_t i = 0; i < kIn; ++i) x[kIn + i] = 0;            // nothing
  for (std::size_t i = 0; i < kIn; ++i) x[2 * kIn + i] *= 1e-40f;  // next to nothing
  x[3 * kIn + 70] = kNan;
  x[4 * kIn] = -kInfinity;
  const std::vector<Int8Inputs> expected = quantized(x, 5, kIn, Instructions::kPortable);
  for (std::size_t r = 0; r < 5; ++r) {
    for (std::size_t g = 0; g < 3; ++g) {
      const Int8Inputs& group = expected[3 * r + g];
      int sum = 0, most = 0;
      for (std::size_t i = 0; i < kGroup; ++i) {
        const std::size_t input = g * kGroup + i;
        const int value = group.values[i];
        sum += value;
        most = std::max(most, std::abs(value));
        if (input >= kIn) CHECK(value == 0);
        if (input >= kIn || std::isnan(group.scale)) continue;
        CHECK(std::fabs(value * group.scale - x[r * kIn + input]) <= 0.501f * group.scale + 1e-30f);
      }
      CHECK(group.begin == -128 * sum);
      CHECK(std::isnan(group.scale) == ((r == 3 && g == 1) || (r == 4 && g == 0)));
      CHECK(most == (r == 1 || r == 2 || std::isnan(group.scale) ? 0 : 127));
    }
  }
  for (Instructions instructions : supported()) {
    const std::vector<Int8Inputs> found = quantized(x, 5, kIn, instructions);
    CHECK(std::memcmp(found.data(), expected.data(), found.size() * sizeof found[0]) == 0);
    // Alone, the last row is the same.
    const std::vector<Int8Inputs> last =
        quantized({x.begin() + 4 * kIn, x.end()}, 1, kIn, instructions);
    CHECK(std::memcmp(last.data(), &expected[12], 3 * sizeof last[0]) == 0);
  }
}

}  // namespace

int main() {
  test_products();
  test_largest_sums();
  test_rounding();
  return failures == 0 ? 0 : 1;
}
