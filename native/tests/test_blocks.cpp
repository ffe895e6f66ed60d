// Weights in blocks: what tiles hold, and every supported variant of their products against plain
// arithmetic, equal bit for bit. (That GGUF's own reader finds the same weights, tests in Python
// check.)
#include "dart/blocks.h"

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "check.h"
#include "dart/packed_product.h"
#include "half.h"
#include "instruction_sets.h"

namespace {

using dart::BlockForm;
using dart::Instructions;
using dart::Int8Inputs;
using dart::kGroup;
using dart::WeightType;

constexpr std::size_t kWidth = dart::kTileWidth;
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr WeightType kTypes[] = {
    WeightType::kQ4_0, WeightType::kQ4_1, WeightType::kQ5_0, WeightType::kQ5_1,
    WeightType::kQ8_0, WeightType::kQ4_K, WeightType::kQ5_K, WeightType::kQ6_K,
};

std::vector<Int8Inputs> quantized(const std::vector<float>& x, std::size_t rows, std::size_t in,
                                  Instructions instructions) {
  std::vector<Int8Inputs> y(rows * dart::groups_of(in));
  dart::quantize(x.data(), rows, in, y.data(), instructions);
  return y;
}

// A random problem; a sanitizer sees what is read beyond its arrays.
struct Problem {
  Problem(WeightType type, std::size_t rows, std::size_t in, std::size_t out)
      : type(type), form(dart::form_of(type)), rows(rows), in(in), out(out) {
    std::mt19937 random(static_cast<unsigned>(rows + 100 * in + 10000 * out));
    std::normal_distribution<float> normal;
    std::uniform_int_distribution<int> bytes(0, 255);
    x.resize(rows * in);
    for (float& value : x) value = normal(random) * std::exp(normal(random));
    blocks.resize(out * (in / dart::block_inputs(form)) * form.file_bytes);
    for (std::uint8_t& byte : blocks) byte = static_cast<std::uint8_t>(bytes(random));
    // Every number in float16: at the end of a block, or at its begin.
    for (std::size_t b = 0; b < blocks.size(); b += form.file_bytes) {
      const std::size_t count = form.minimum ? 2 : 1;
      for (std::size_t i = 0; i < count; ++i) {
        const std::uint16_t half = dart::nearest_half(0.01f + std::fabs(normal(random)));
        std::memcpy(&blocks[b + (form.bits == 6 ? 208 : 2 * i)], &half, sizeof half);
      }
    }
    pack();
  }

  void pack() {
    tiles.assign((out + kWidth - 1) / kWidth * dart::tile_bytes(form, in), 255);
    dart::pack_blocks(type, blocks.data(), in, out, tiles.data());
  }

  // [rows, out], with the arithmetic of these instructions: groups are the parts of a weight's sum
  // that have a scale, of 16 or 32 inputs.
  std::vector<float> expected(Instructions instructions) const {
    const auto add = [&](float a, float b, float c) {
      return instructions == Instructions::kPortable ? a * b + c : std::fma(a, b, c);
    };
    const std::size_t groups = dart::groups_of(in), part = kGroup / form.scales;
    const std::vector<Int8Inputs> inputs = quantized(x, rows, in, Instructions::kPortable);
    std::vector<float> y(rows * out);
    for (std::size_t o = 0; o < out; ++o) {
      std::vector<Numbers> numbers;
      for (std::size_t i = 0; i < in; i += part) numbers.push_back(numbers_of(o, i));
      for (std::size_t r = 0; r < rows; ++r) {
        float sum = 0;
        for (std::size_t p = 0; p < numbers.size(); ++p) {
          const Int8Inputs& group = inputs[r * groups + p * part / kGroup];
          int dot = 0;
          for (std::size_t i = 0; i < part; ++i) {
            dot += group.values[p * part % kGroup + i] * numbers[p].q[i];
          }
          sum = add(static_cast<float>(dot), numbers[p].scale * group.scale, sum);
          if (form.minimum) sum = add(numbers[p].minimum, group.sum, sum);
        }
        y[r * out + o] = sum;
      }
    }
    return y;
  }

  // The integers less their zero, scale and minimum of a part that begins with an input.
  struct Numbers {
    int q[kGroup];
    float scale, minimum;
  };
  Numbers numbers_of(std::size_t output, std::size_t input) const {
    const std::size_t each = dart::block_inputs(form);
    const std::uint8_t* const block =
        &blocks[(output * (in / each) + input / each) * form.file_bytes];
    const auto half = [&](std::size_t at) {
      return dart::of_half(static_cast<std::uint16_t>(block[at] | block[at + 1] << 8));
    };
    Numbers numbers{};
    const std::size_t part = kGroup / form.scales, inside = input % each;
    if (!form.super) {
      numbers.scale = half(0);
      if (form.minimum) numbers.minimum = half(2);
    } else if (form.bits == 6) {
      numbers.scale = half(208) * static_cast<std::int8_t>(block[192 + inside / 16]);
    } else {
      const std::size_t g = inside / kGroup;
      const std::uint8_t* const six = block + 4;
      const int scale = g < 4 ? six[g] & 63 : (six[g + 4] & 15) | six[g - 4] >> 6 << 4;
      const int minimum = g < 4 ? six[g + 4] & 63 : six[g + 4] >> 4 | six[g] >> 6 << 4;
      numbers.scale = half(0) * static_cast<float>(scale);
      numbers.minimum = -half(2) * static_cast<float>(minimum);
    }
    for (std::size_t k = 0; k < part; ++k) {
      numbers.q[k] = integer(block, inside + k) - form.zero;
    }
    return numbers;
  }
  // A block's i-th integer.
  int integer(const std::uint8_t* block, std::size_t i) const {
    if (form.bits == 8) return static_cast<std::int8_t>(block[2 + i]);
    if (form.bits == 6) {
      const std::size_t half = i / 128, quarter = i % 128 / 32, l = i % 32;
      const int low = block[64 * half + quarter % 2 * 32 + l] >> (quarter / 2 * 4) & 15;
      return low | (block[128 + 32 * half + l] >> 2 * quarter & 3) << 4;
    }
    if (form.super) {
      const std::size_t upper = 16, lower = form.bits == 5 ? 48 : 16;
      const int low = block[lower + i / 64 * 32 + i % 32] >> (i / 32 % 2 * 4) & 15;
      return form.bits == 5 ? low | (block[upper + i % 32] >> i / 32 & 1) << 4 : low;
    }
    const std::size_t upper = form.minimum ? 4 : 2, lower = upper + (form.bits == 5 ? 4 : 0);
    const int low = block[lower + i % 16] >> (i / 16 * 4) & 15;
    return form.bits == 5 ? low | (block[upper + i / 8] >> i % 8 & 1) << 4 : low;
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
    product.out = product.stride = out;
    product.weights = type;
    product.quantized = inputs.data();
    dart::multiply(&product, 1, instructions, threads);
    return y;
  }

  WeightType type;
  BlockForm form;
  std::size_t rows, in, out;
  std::vector<float> x;
  std::vector<std::uint8_t> blocks, tiles;
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
  for (WeightType type : kTypes) {
    const std::size_t block = dart::block_inputs(dart::form_of(type));
    for (Instructions instructions : supported()) {
      for (std::size_t in : {std::size_t{0}, block, 3 * block}) {
        for (std::size_t out : {0, 1, 31, 32, 33, 129}) {
          check(Problem(type, 13, in, out), instructions, 4);
          check(Problem(type, 1, in, out), instructions, 1);
        }
      }
      check(Problem(type, 70, block, 40), instructions, 1);
      for (std::size_t threads : {2, 3, 17}) {
        check(Problem(type, 9, 512, 1100), instructions, 4, threads);
      }
    }
  }
}

// Several products of the same rows, as one.
void test_joint() {
  const Problem one(WeightType::kQ4_K, 7, 256, 96), other(WeightType::kQ6_K, 7, 256, 41);
  const std::vector<Int8Inputs> inputs = quantized(one.x, 7, 256, Instructions::kPortable);
  for (Instructions instructions : supported()) {
    for (std::size_t threads : {1, 3}) {
      constexpr std::size_t kOut = 96 + 41;
      std::vector<float> y(7 * kOut);
      dart::PackedProduct products[2] = {};
      for (int i = 0; i < 2; ++i) {
        const Problem& problem = i == 0 ? one : other;
        products[i].tiles = problem.tiles.data();
        products[i].y = y.data() + 96 * i;
        products[i].rows = 7;
        products[i].in = 256;
        products[i].out = problem.out;
        products[i].stride = kOut;
        products[i].weights = problem.type;
        products[i].quantized = inputs.data();
      }
      dart::multiply(products, 2, instructions, threads);
      Problem same = other;
      same.x = one.x;
      const std::vector<float> first = one.multiply(7, instructions);
      const std::vector<float> second = same.multiply(7, instructions);
      for (std::size_t r = 0; r < 7; ++r) {
        CHECK(std::memcmp(&y[r * kOut], &first[r * 96], 96 * sizeof(float)) == 0);
        CHECK(std::memcmp(&y[r * kOut + 96], &second[r * 41], 41 * sizeof(float)) == 0);
      }
    }
  }
}

// The largest sums there can be, of either sign.
void test_largest_sums() {
  for (WeightType type : kTypes) {
    const std::size_t block = dart::block_inputs(dart::form_of(type));
    for (int byte : {0x00, 0x7f, 0x80, 0xff}) {
      for (float sign : {-1.0f, 1.0f}) {
        Problem problem(type, 3, block, 64);
        for (float& value : problem.x) value = sign;
        const std::vector<std::uint8_t> before = problem.blocks;
        const std::size_t numbers = problem.form.super ? 16 : problem.form.minimum ? 4 : 2;
        const std::size_t begin = problem.form.bits == 6 ? 0 : numbers;
        const std::size_t end = problem.form.bits == 6 ? 192 : problem.form.file_bytes;
        for (std::size_t i = 0; i < problem.blocks.size(); ++i) {
          const std::size_t at = i % problem.form.file_bytes;
          if (at >= begin && at < end) problem.blocks[i] = static_cast<std::uint8_t>(byte);
        }
        problem.pack();
        for (Instructions instructions : supported()) check(problem, instructions, 1);
      }
    }
  }
}

// A row out of tiles is that of the blocks.
void test_unpacking() {
  for (WeightType type : kTypes) {
    const std::size_t in = 2 * dart::block_inputs(dart::form_of(type));
    const Problem problem(type, 1, in, 70);
    const std::size_t part = kGroup / problem.form.scales;
    for (std::size_t o = 0; o < 70; ++o) {
      std::vector<float> row(in);
      dart::unpack_row(type, problem.tiles.data(), in, o, row.data());
      for (std::size_t i = 0; i < in; ++i) {
        const Problem::Numbers numbers = problem.numbers_of(o, i / part * part);
        CHECK(row[i] == numbers.scale * static_cast<float>(numbers.q[i % part]) + numbers.minimum);
      }
    }
  }
}

// Weights that are rounded: none is farther away than half a step.
void test_rounding_of_weights() {
  std::mt19937 random(5);
  std::normal_distribution<float> normal;
  for (std::size_t in : {1, 32, 75}) {
    constexpr std::size_t kOut = 35;
    std::vector<float> weights(kOut * in);
    for (float& weight : weights) weight = normal(random) * std::exp(4 * normal(random));
    for (std::size_t i = 0; i < in; ++i) weights[i] = 0;
    const BlockForm form = dart::form_of(WeightType::kQ8_0);
    std::vector<std::uint8_t> tiles(2 * dart::tile_bytes(form, in));
    dart::pack_q8_0(weights.data(), in, kOut, tiles.data());
    for (std::size_t o = 0; o < kOut; ++o) {
      std::vector<float> row(in);
      dart::unpack_row(WeightType::kQ8_0, tiles.data(), in, o, row.data());
      for (std::size_t i = 0; i < in; ++i) {
        float largest = 0;
        for (std::size_t k = i / kGroup * kGroup; k < in && k < (i / kGroup + 1) * kGroup; ++k) {
          largest = std::max(largest, std::fabs(weights[o * in + k]));
        }
        CHECK(std::fabs(row[i] - weights[o * in + i]) <= 0.57f * largest / 127 + 4e-6f);
      }
    }
  }
}

void test_halves() {
  for (std::uint32_t half = 0; half < 0x7c01; ++half) {
    const float x = dart::of_half(static_cast<std::uint16_t>(half));
    CHECK(dart::nearest_half(x) == half);
    CHECK(dart::of_half(static_cast<std::uint16_t>(half | 0x8000)) == -x);
    if (half < 0x7bff) {
      const float next = dart::of_half(static_cast<std::uint16_t>(half + 1));
      CHECK(x < next);
      // Halfway to the next one, the even one is the nearest.
      CHECK(dart::nearest_half(x / 2 + next / 2) == half + half % 2);
    }
  }
  CHECK(dart::of_half(0x3c00) == 1 && dart::of_half(1) == 0x1p-24f);
  CHECK(std::isnan(dart::of_half(0x7e00)) && std::isnan(dart::of_half(dart::nearest_half(kNan))));
  CHECK(dart::nearest_half(65519) == 0x7bff && dart::nearest_half(65520) == 0x7c00);
}

void test_rounding() {
  constexpr std::size_t kIn = 66;
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  std::vector<float> x(5 * kIn);
  for (float& value : x) value = 100 * normal(random);
  for (std::size_t i = 0; i < kIn; ++i) x[kIn + i] = 0;            // nothing
  for (std::size_t i = 0; i < kIn; ++i) x[2 * kIn + i] *= 1e-40f;  // next to nothing
  x[3 * kIn + 40] = kNan;
  x[4 * kIn] = -kInfinity;
  const std::vector<Int8Inputs> expected = quantized(x, 5, kIn, Instructions::kPortable);
  for (std::size_t r = 0; r < 5; ++r) {
    for (std::size_t g = 0; g < 3; ++g) {
      const Int8Inputs& group = expected[3 * r + g];
      int sums[2] = {}, most = 0;
      for (std::size_t i = 0; i < kGroup; ++i) {
        const std::size_t input = g * kGroup + i;
        const int value = group.values[i];
        sums[i / 16] += value;
        most = std::max(most, std::abs(value));
        if (input >= kIn) CHECK(value == 0);
        if (input >= kIn || std::isnan(group.scale)) continue;
        CHECK(std::fabs(value * group.scale - x[r * kIn + input]) <= 0.501f * group.scale + 1e-30f);
      }
      CHECK(group.halves[0] == sums[0] && group.halves[1] == sums[1]);
      const bool bad = (r == 3 && g == 1) || (r == 4 && g == 0);
      CHECK(std::isnan(group.scale) == bad && std::isnan(group.sum) == bad);
      if (!bad) CHECK(group.sum == group.scale * static_cast<float>(sums[0] + sums[1]));
      CHECK(most == (r == 1 || r == 2 || bad ? 0 : 127));
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
  test_joint();
  test_largest_sums();
  test_unpacking();
  test_rounding_of_weights();
  test_halves();
  test_rounding();
  return failures == 0 ? 0 : 1;
}
