// Every supported variant against the same chain of additions, written plainly: equal bit for bit.
#include "dart/packed_product.h"

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <limits>
#include <random>
#include <thread>
#include <vector>

#ifdef __SSE2__
#include <xmmintrin.h>
#endif

#include "check.h"
#include "half.h"
#include "instruction_sets.h"

namespace {

using dart::Instructions;
using dart::WeightType;

constexpr std::size_t kWidth = dart::kTileWidth;
constexpr WeightType kTypes[] = {WeightType::kFloat32, WeightType::kFloat16,
                                 WeightType::kBfloat16};

// A random problem. Its weights are bfloat16 numbers, so that float32 holds the same; those in float16
// are others. All arrays begin one element after an allocation's begin, and end with it: they are
// aligned as little as possible, and a sanitizer sees what is read beyond.
struct Problem {
  Problem(std::size_t rows, std::size_t in, std::size_t out, float scale = 1)
      : rows(rows), in(in), out(out), tiles((out + kWidth - 1) / kWidth) {
    std::mt19937 random(static_cast<unsigned>(rows + 100 * in + 10000 * out));
    std::normal_distribution<float> normal(0, scale);
    x.assign(rows * in + 1, 0);
    for (float& value : x) value = normal(random);
    weights.assign(tiles * in * kWidth + 1, 0);
    halves.assign(weights.size(), 0);
    float16.assign(weights.size(), 0);
    for (std::size_t i = 1; i < weights.size(); ++i) {
      // What lies beyond the outputs must not matter.
      const std::size_t column = (i - 1) / (in * kWidth) * kWidth + (i - 1) % kWidth;
      float value = normal(random);
      if (column >= out) value = std::numeric_limits<float>::quiet_NaN();
      std::uint32_t bits;
      std::memcpy(&bits, &value, sizeof bits);
      halves[i] = static_cast<std::uint16_t>(bits >> 16);
      bits &= 0xffff0000u;
      std::memcpy(&weights[i], &bits, sizeof bits);
      // A seventh of them is so small that float16 holds fewer digits.
      const float small = i % 7 == 0 ? value * 1e-5f : value;
      float16[i] = dart::nearest_half(std::fabs(small)) | (std::signbit(small) ? 0x8000 : 0);
    }
  }

  float weight(std::size_t input, std::size_t output, WeightType type) const {
    const std::size_t i = 1 + (output / kWidth * in + input) * kWidth + output % kWidth;
    return type == WeightType::kFloat16 ? dart::of_half(float16[i]) : weights[i];
  }

  // [rows, out], with the arithmetic of these instructions.
  std::vector<float> expected(Instructions instructions,
                              WeightType type = WeightType::kFloat32) const {
    std::vector<float> y(rows * out);
    for (std::size_t r = 0; r < rows; ++r) {
      for (std::size_t o = 0; o < out; ++o) {
        float sum = 0;
        for (std::size_t i = 0; i < in; ++i) {
          const float value = x[1 + r * in + i];
          if (instructions == Instructions::kPortable) {
            sum = value * weight(i, o, type) + sum;
          } else {
            sum = std::fma(value, weight(i, o, type), sum);
          }
        }
        y[r * out + o] = sum;
      }
    }
    return y;
  }

  // The product of the first rows.
  std::vector<float> multiply(std::size_t first_rows, Instructions instructions, WeightType type,
                              std::size_t threads = 1, const float* bias = nullptr,
                              const float* residual = nullptr) const {
    std::vector<float> y(first_rows * out + 1, -1);
    dart::PackedProduct product;
    product.bias = bias;
    product.residual = residual;
    product.x = x.data() + 1;
    product.tiles = type == WeightType::kFloat32   ? static_cast<const void*>(weights.data() + 1)
                    : type == WeightType::kFloat16 ? static_cast<const void*>(float16.data() + 1)
                                                   : static_cast<const void*>(halves.data() + 1);
    product.y = y.data() + 1;
    product.rows = first_rows;
    product.in = in;
    product.out = product.stride = out;
    product.weights = type;
    dart::multiply(&product, 1, instructions, threads);
    CHECK(y[0] == -1);
    return {y.begin() + 1, y.end()};
  }

  std::size_t rows, in, out, tiles;
  std::vector<float> x, weights;
  std::vector<std::uint16_t> halves, float16;
};

// Whether the bits of `some` are those that `all` begins with.
bool begins(const std::vector<float>& all, const std::vector<float>& some) {
  return some.empty() || std::memcmp(all.data(), some.data(), some.size() * sizeof(float)) == 0;
}

void check(const Problem& problem, Instructions instructions, std::size_t step = 1) {
  for (WeightType type : kTypes) {
    const std::vector<float> expected = problem.expected(instructions, type);
    for (std::size_t rows = 0; rows <= problem.rows; rows += step) {
      CHECK(begins(expected, problem.multiply(rows, instructions, type)));
    }
  }
}

void test_sizes() {
  for (Instructions instructions : supported()) {
    for (std::size_t in : {0, 1, 2, 33, 130}) {
      for (std::size_t out : {0, 1, 31, 32, 33, 129, 300}) {
        check(Problem(13, in, out), instructions, 4);
      }
    }
    // Rows that are copied, and inputs in several parts.
    check(Problem(29, 512, 40), instructions, 7);
    check(Problem(29, 1030, 40), instructions, 7);
    check(Problem(9, 1536, 70), instructions, 4);
  }
}

void test_numbers_of_rows() {
  const Problem problem(70, 37, 70);
  for (Instructions instructions : supported()) check(problem, instructions);
}

// A product that is large enough for several threads.
void test_threads() {
  const Problem problem(9, 300, 2200);
  for (Instructions instructions : supported()) {
    for (WeightType type : kTypes) {
      const std::vector<float> expected = problem.expected(instructions, type);
      for (std::size_t threads : {2, 3, 17, 100}) {
        for (std::size_t rows : {1, 9}) {
          CHECK(begins(expected, problem.multiply(rows, instructions, type, threads)));
        }
      }
    }
  }
}

void test_calls_at_the_same_time() {
  const Problem problem(3, 200, 1000);
  const Instructions instructions = dart::best_instructions();
  const std::vector<float> expected = problem.expected(instructions);
  std::vector<std::thread> callers;
  std::vector<int> wrong(4, 0);
  for (int& count : wrong) {
    callers.emplace_back([&] {
      for (int run = 0; run < 20; ++run) {
        count += !begins(expected, problem.multiply(3, instructions, WeightType::kFloat32, 3));
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  CHECK(wrong == std::vector<int>(4, 0));
}

void test_bias_and_residual() {
  const Problem problem(9, 300, 1001), more(9, 1, 1001);
  const std::vector<float>& residual = more.multiply(9, Instructions::kPortable, kTypes[0]);
  const float* const bias = residual.data() + 17;
  for (Instructions instructions : supported()) {
    for (std::size_t threads : {1, 4}) {
      std::vector<float> expected = problem.expected(instructions);
      for (std::size_t i = 0; i < expected.size(); ++i) expected[i] += bias[i % 1001];
      CHECK(begins(expected, problem.multiply(9, instructions, kTypes[0], threads, bias)));
      for (std::size_t i = 0; i < expected.size(); ++i) expected[i] += residual[i];
      CHECK(begins(expected, problem.multiply(9, instructions, kTypes[0], threads, bias,
                                              residual.data())));
    }
  }
}

// XLA rounds tiny numbers to 0 in its threads; other threads must do what the caller does.
void test_tiny_numbers() {
#ifdef __SSE2__
  const Problem problem(2, 300, 1000, 1e-20f);
  const unsigned before = _mm_getcsr();
  for (Instructions instructions : supported()) {
    std::vector<std::vector<float>> results;
    for (unsigned mode : {0x0000u, 0x8040u}) {  // gradual, or flushed to zero
      _mm_setcsr((before & ~0x8040u) | mode);
      results.push_back(problem.multiply(2, instructions, WeightType::kFloat32));
      for (int run = 0; run < 5; ++run) {
        CHECK(begins(results.back(), problem.multiply(2, instructions, WeightType::kFloat32, 4)));
      }
    }
    _mm_setcsr(before);
    CHECK(!begins(results[0], results[1]));
  }
#endif
}

void test_what_is_supported() {
  CHECK(dart::supported(Instructions::kPortable));
  CHECK(dart::supported(dart::best_instructions()));
  CHECK(!(dart::supported(Instructions::kAvx2) && dart::supported(Instructions::kNeon)));
  std::printf("%zu variants are supported\n", supported().size());
}

}  // namespace

int main() {
  test_what_is_supported();
  test_sizes();
  test_numbers_of_rows();
  test_threads();
  test_calls_at_the_same_time();
  test_bias_and_residual();
  test_tiny_numbers();
  return failures == 0 ? 0 : 1;
}
