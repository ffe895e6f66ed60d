// Norms, gates and heads against float64; and the same bits with all instructions.
#include "dart/rows.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "check.h"
#include "instruction_sets.h"

namespace {

using dart::Instructions;

std::vector<float> random(std::size_t count, float scale, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, scale);
  std::vector<float> values(count);
  for (float& value : values) value = normal(random);
  return values;
}

bool close(double one, double other) {
  return std::abs(one - other) <= 3e-6 * std::abs(other) + 1e-12;
}

double norm_factor(const float* x, std::size_t size, double eps) {
  double squares = 0;
  for (std::size_t i = 0; i < size; ++i) squares += double(x[i]) * x[i];
  return 1 / std::sqrt(squares / size + eps);
}

void test_norms() {
  for (std::size_t size : {1, 15, 16, 33, 320}) {
    const auto x = random(3 * size, 2, 1), scale = random(size, 1, 2);
    const dart::Norm norm{scale.data(), size, 1e-6f, 1};
    std::vector<float> first;
    for (Instructions instructions : supported()) {
      std::vector<float> y(3 * size), alone(size);
      dart::normalize(norm, x.data(), 3, y.data(), instructions);
      for (std::size_t r = 0; r < 3; ++r) {
        const double factor = norm_factor(x.data() + r * size, size, 1e-6);
        for (std::size_t i = 0; i < size; ++i) {
          CHECK(close(y[r * size + i], x[r * size + i] * factor * (double(scale[i]) + 1)));
        }
        dart::normalize(norm, x.data() + r * size, 1, alone.data(), instructions);
        CHECK(std::equal(alone.begin(), alone.end(), y.begin() + r * size));
      }
      if (first.empty()) first = y;
      CHECK(first == y);
    }
  }
}

void test_gates() {
  for (std::size_t size : {1, 17, 200}) {
    auto x = random(2 * size, 20, 3);
    x[0] = -1000;
    for (auto activation : {dart::Activation::kSilu, dart::Activation::kGelu}) {
      std::vector<float> first;
      for (Instructions instructions : supported()) {
        std::vector<float> y(size);
        dart::gate(activation, x.data(), 1, size, y.data(), instructions);
        for (std::size_t i = 0; i < size; ++i) {
          const double gate = x[i];
          const double inner = activation == dart::Activation::kSilu
                                   ? gate
                                   : 2 * std::sqrt(2 / M_PI) * (gate + 0.044715 * gate * gate * gate);
          const double expected = gate / (1 + std::exp(-inner)) * x[size + i];
          // Rounding the exponent's argument matters where that is large.
          const double tolerance = 1e-6 * (1 + std::abs(inner)) * std::abs(expected) + 1e-30;
          CHECK(std::abs(y[i] - expected) <= tolerance);
        }
        if (first.empty()) first = y;
        CHECK(first == y);
      }
    }
  }
}

// Heads of h elements, the first r rotated; norms for each head, for all together, or none.
void test_heads(std::size_t h, std::size_t r, int norms) {
  constexpr std::size_t kSequences = 2, kRows = 3, kHeads = 4, kKvHeads = 2;
  const std::size_t width = (kHeads + 2 * kKvHeads) * h, all = kSequences * kRows, half = r / 2;
  const bool together = norms == 2;
  const auto x = random(all * width, 2, 4), angles = random(all * half, 3, 7);
  const auto q_scale = random(kHeads * h, 1, 5), k_scale = random(kHeads * h, 1, 6);
  std::vector<float> cos, sin, first;
  for (float angle : angles) {
    cos.push_back(std::cos(angle));
    sin.push_back(std::sin(angle));
  }
  for (Instructions instructions : supported()) {
    std::vector<float> q(all * kHeads * h), k(all * kKvHeads * h), v(k.size());
    dart::Heads heads;
    heads.x = x.data();
    heads.cos = cos.data();
    heads.sin = sin.data();
    heads.q_scale = norms == 0 ? nullptr : q_scale.data();
    heads.k_scale = norms == 0 ? nullptr : k_scale.data();
    heads.together = together;
    heads.eps = 1e-6f;
    heads.offset = 1;
    heads.q = q.data();
    heads.k = k.data();
    heads.v = v.data();
    heads.sequences = kSequences;
    heads.rows = kRows;
    heads.heads = kHeads;
    heads.kv_heads = kKvHeads;
    heads.head_size = h;
    heads.rotated = r;
    dart::rotate_heads(heads, instructions);
    for (std::size_t row = 0; row < all; ++row) {
      const std::size_t b = row / kRows, t = row % kRows;
      for (std::size_t head = 0; head < kHeads + 2 * kKvHeads; ++head) {
        const float* const in = x.data() + row * width + head * h;
        const bool query = head < kHeads, key = !query && head < kHeads + kKvHeads;
        const std::size_t count = query ? kHeads : kKvHeads;
        const std::size_t at = query ? head : (head - kHeads) % kKvHeads;
        const float* const out =
            (query ? q : key ? k : v).data() + ((b * count + at) * kRows + t) * h;
        std::vector<double> expected(in, in + h);
        if (query || key) {
          if (norms != 0) {
            const double factor = together ? norm_factor(in - at * h, count * h, 1e-6)
                                           : norm_factor(in, h, 1e-6);
            const float* const scale =
                (query ? q_scale : k_scale).data() + (together ? at * h : 0);
            for (std::size_t i = 0; i < h; ++i) expected[i] *= factor * (double(scale[i]) + 1);
          }
          for (std::size_t i = 0; i < half; ++i) {
            const double one = expected[i], two = expected[half + i];
            const double c = cos[row * half + i], s = sin[row * half + i];
            expected[i] = one * c - two * s;
            expected[half + i] = two * c + one * s;
          }
        }
        for (std::size_t i = 0; i < h; ++i) CHECK(std::abs(out[i] - expected[i]) < 1e-5);
      }
    }
    q.insert(q.end(), k.begin(), k.end());
    if (first.empty()) first = q;
    CHECK(first == q);
  }
}

void test_largest() {
  const float nan = std::nanf(""), infinity = INFINITY;
  const auto before = [](float one, float other) {
    return one > other || (std::isnan(one) && !std::isnan(other));
  };
  for (std::size_t size : {1, 2, 63, 64, 65, 1000}) {
    std::vector<float> x = random(4 * size, 1, 9);
    for (std::size_t i = 0; i < size; ++i) {
      x[size + i] = std::round(x[size + i]);  // many are equal
      x[2 * size + i] = -infinity;
      if (i % 7 == 3) x[3 * size + i] = nan;
    }
    for (std::size_t count : {std::size_t{0}, std::size_t{1}, std::size_t{25}, size}) {
      if (count > size) continue;
      for (Instructions instructions : supported()) {
        std::vector<float> values(4 * count);
        std::vector<std::int32_t> indices(4 * count), expected(size);
        dart::largest(x.data(), 4, size, count, values.data(), indices.data(), instructions);
        for (std::size_t r = 0; r < 4; ++r) {
          const float* const row = x.data() + r * size;
          for (std::size_t i = 0; i < size; ++i) expected[i] = static_cast<std::int32_t>(i);
          std::stable_sort(expected.begin(), expected.end(),
                           [&](auto i, auto j) { return before(row[i], row[j]); });
          for (std::size_t i = 0; i < count; ++i) {
            CHECK(indices[r * count + i] == expected[i]);
            CHECK(std::memcmp(&values[r * count + i], row + expected[i], sizeof(float)) == 0);
          }
        }
      }
    }
  }
}

// Where number i of row `at` is in a page of one head, whose order is that of in_groups.
template <class Number>
std::size_t place_in_groups(bool keys, std::size_t at, std::size_t i, std::size_t h) {
  const bool pairs = sizeof(Number) == 2;
  if (!keys) return pairs ? at / 2 * 2 * h + i * 2 + at % 2 : at * h + i;
  const std::size_t group = at / 16 * 16 * h, column = at % 16;
  return group + (pairs ? i / 2 * 32 + column * 2 + i % 2 : i * 16 + column);
}

// Kept rows, in one piece and in pages, against what they should be number by number.
template <class Number>
void test_append(std::size_t size, std::size_t kept, std::size_t h, bool keys) {
  constexpr std::size_t kSequences = 3, kHeads = 2, kRows = 5, kEach = 4;
  const std::size_t capacity = kEach * size, count = kSequences * kEach + 1;
  const std::vector<std::int32_t> length = {0, static_cast<std::int32_t>(capacity) - 2, 3};
  std::vector<std::int32_t> index, table;
  for (std::size_t i = 0; i < kSequences * kept; ++i) {
    index.push_back(static_cast<std::int32_t>(i * 7 % (kRows + 2)) - 1);  // some beyond the ends
  }
  for (std::size_t i = 0; i < kSequences * kEach; ++i) {
    table.push_back(static_cast<std::int32_t>(count - 1 - i));
  }
  table[2 * kEach] = -1;
  table[kEach - 1] = static_cast<std::int32_t>(count);  // no page, either
  std::vector<Number> rows(kSequences * kHeads * kRows * h);
  for (std::size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<Number>(i % 1000 + 1);
  for (bool paged : {false, true}) {
    const std::size_t pages = paged ? count : kSequences, each = paged ? size : capacity;
    std::vector<Number> cache(pages * kHeads * each * h, 0), expected = cache;
    for (std::size_t b = 0; b < kSequences; ++b) {
      std::int64_t begin = length[b];
      const auto most = static_cast<std::int64_t>(capacity) - static_cast<std::int64_t>(kept);
      if (!paged) begin = std::max<std::int64_t>(0, std::min(begin, most));
      for (std::size_t p = 0; p < kept; ++p) {
        const std::size_t at = static_cast<std::size_t>(begin) + p;
        if (at >= capacity) continue;
        const std::int32_t page =
            paged ? table[b * kEach + at / size] : static_cast<std::int32_t>(b);
        if (page < 0 || static_cast<std::size_t>(page) >= pages) continue;
        const int row = std::min(std::max(index[b * kept + p], 0), static_cast<int>(kRows) - 1);
        for (std::size_t head = 0; head < kHeads; ++head) {
          const bool grouped = paged && size % 16 == 0 && h % 16 == 0;
          for (std::size_t i = 0; i < h; ++i) {
            const std::size_t to =
                grouped ? place_in_groups<Number>(keys, at % each, i, h) : at % each * h + i;
            expected[(page * kHeads + head) * each * h + to] =
                rows[((b * kHeads + head) * kRows + row) * h + i];
          }
        }
      }
    }
    dart::KeptRows written;
    written.rows = rows.data();
    written.cache = cache.data();
    written.index = index.data();
    written.length = length.data();
    written.pages = {paged ? table.data() : nullptr, pages, each, paged ? kEach : 1};
    written.sequences = kSequences;
    written.kv_heads = kHeads;
    written.new_rows = kRows;
    written.kept = kept;
    written.head_size = h;
    written.keys = keys;
    written.bfloat16 = sizeof(Number) == 2;
    dart::append(written);
    CHECK(cache == expected);
  }
}

}  // namespace

int main() {
  test_norms();
  test_gates();
  test_largest();
  for (std::size_t size : {1, 16, 64}) {
    for (std::size_t kept : {1, 3, 4}) {
      for (std::size_t h : {3, 16, 48}) {
        for (bool keys : {false, true}) {
          test_append<float>(size, kept, h, keys);
          test_append<std::uint16_t>(size, kept, h, keys);
        }
      }
    }
  }
  for (int norms : {0, 1, 2}) {
    test_heads(2, 2, norms);
    test_heads(16, 0, norms);
    test_heads(40, 40, norms);
    test_heads(64, 32, norms);
  }
  return failures == 0 ? 0 : 1;
}
