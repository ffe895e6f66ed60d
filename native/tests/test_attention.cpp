// Attention against sums in float64; and the same bits however a row comes to see its keys,
// wherever they are, and with any instructions.
#include "dart/attention.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <utility>
#include <vector>

#include "check.h"
#include "instruction_sets.h"

namespace {

using dart::Instructions;

// Sequences of tokens, of which `cached` are in the cache and the others are new rows. The arrays
// are as little aligned as they may be, and what is not filled is NaN.
struct Problem {
  std::size_t sequences = 1, heads = 2, kv_heads = 1, size = 16, tokens = 12;
  float scale = 0.3f, cap = 0;
  std::vector<float> q, k, v;  // [B, heads, tokens, h]
  bool bfloat16 = false;       // whether keys and values are stored in it
  float size_of_keys = 1.5f, size_of_values = 1.5f;

  void fill(unsigned seed) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal(0, 1);
    const auto draw = [&](std::vector<float>& array, std::size_t count, float factor) {
      array.resize(sequences * count * tokens * size);
      for (float& value : array) {
        value = factor * normal(random);
        if (bfloat16 && &array != &q) value = nearest_half(value);
      }
    };
    draw(q, heads, 1.5f);
    draw(k, kv_heads, size_of_keys);
    draw(v, kv_heads, size_of_values);
  }

  // The nearest number that bfloat16 holds.
  static float nearest_half(float value) {
    std::uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    bits = (bits + 0x7fffu + (bits >> 16 & 1)) & 0xffff0000u;
    std::memcpy(&value, &bits, sizeof value);
    return value;
  }

  // The upper halves: bfloat16 numbers, if they hold the values.
  static std::vector<std::uint16_t> rounded(const std::vector<float>& values) {
    std::vector<std::uint16_t> out;
    for (const float& value : values) {
      std::uint32_t bits;
      std::memcpy(&bits, &value, sizeof bits);
      out.push_back(static_cast<std::uint16_t>(bits >> 16));
    }
    return out;
  }

  float at(const std::vector<float>& array, std::size_t count, std::size_t b, std::size_t head,
           std::size_t token, std::size_t i) const {
    return array[((b * count + head) * tokens + token) * size + i];
  }

  // What token t sees: tokens first to t, without those that `hidden` says.
  static bool sees(std::size_t t, std::size_t j, std::size_t window) {
    return j <= t && j + window > t;
  }

  // What token t of each sequence takes, [B, heads * h].
  std::vector<double> expected(std::size_t t, std::size_t window) const {
    std::vector<double> out(sequences * heads * size);
    for (std::size_t place = 0; place < sequences * heads; ++place) {
      const std::size_t b = place / heads, head = place % heads, kv = head * kv_heads / heads;
      std::vector<double> scores;
      double most = -1e300, total = 0;
      for (std::size_t j = 0; j <= t; ++j) {
        double score = 0;
        for (std::size_t i = 0; i < size; ++i) {
          const float query = at(q, heads, b, head, t, i);
          score += double(bfloat16 ? nearest_half(query) : query) * at(k, kv_heads, b, kv, j, i);
        }
        score *= scale;
        if (cap != 0) score = cap * std::tanh(score / cap);
        scores.push_back(score);
        if (sees(t, j, window)) most = std::max(most, score);
      }
      for (std::size_t j = 0; j <= t; ++j) {
        if (!sees(t, j, window)) continue;
        const double weight = std::exp(scores[j] - most);
        total += weight;
        for (std::size_t i = 0; i < size; ++i) {
          out[place * size + i] += weight * at(v, kv_heads, b, kv, j, i);
        }
      }
      for (std::size_t i = 0; i < size; ++i) out[place * size + i] /= total;
    }
    return out;
  }

  // Gives all sequences the keys and values of the first, and none to tokens [begin, end).
  void share_and_clear(std::size_t begin, std::size_t end) {
    for (std::vector<float>* array : {&k, &v}) {
      const std::size_t all = kv_heads * tokens * size;
      for (std::size_t head = 0; head < kv_heads; ++head) {
        const auto first = array->begin() + head * tokens * size;
        std::fill(first + begin * size, first + end * size, 0.0f);
      }
      for (std::size_t b = 1; b < sequences; ++b) {
        std::copy(array->begin(), array->begin() + all, array->begin() + b * all);
      }
    }
  }

  // Cached tokens in pages.
  struct Pool {
    std::vector<std::int32_t> table;
    std::vector<float> keys, values;
  };

  // Where number i of a row's key and value is in a page of one head; see in_groups in dart/pages.h.
  std::pair<std::size_t, std::size_t> places(std::size_t rows, std::size_t row,
                                             std::size_t i) const {
    const std::size_t plain = row * size + i;
    if (rows % 16 != 0) return {plain, plain};
    const std::size_t group = row / 16 * 16 * size, column = row % 16;
    if (!bfloat16) return {group + i * 16 + column, plain};
    return {group + i / 2 * 32 + column * 2 + i % 2, row / 2 * 2 * size + i * 2 + row % 2};
  }

  // Tokens 0 to `count` in pages of `rows` rows, in another order; what nobody fills is NaN. A page
  // has a place only if some key in it is not 0; two of each sequence are beyond the last token.
  Pool pool(std::size_t count, std::size_t rows, bool shared) const {
    const std::size_t each = (count + rows - 1) / rows + 2, pages = sequences * each + 1;
    const float nan = std::numeric_limits<float>::quiet_NaN();
    Pool out;
    out.table.assign(sequences * each, -1);
    for (auto* array : {&out.keys, &out.values}) {
      array->assign(1 + pages * kv_heads * rows * size, nan);
    }
    for (std::size_t b = 0; b < sequences; ++b) {
      for (std::size_t page = 0; page < each; ++page) {
        const std::size_t end = std::min(count, (page + 1) * rows);
        bool any = false;
        for (std::size_t t = page * rows; t < end; ++t) any |= at(k, kv_heads, b, 0, t, 0) != 0;
        if (!any) continue;
        const std::size_t place = pages - 1 - (shared ? page : b * each + page);
        out.table[b * each + page] = static_cast<std::int32_t>(place);
        for (std::size_t head = 0; head < kv_heads; ++head) {
          for (std::size_t t = page * rows; t < end; ++t) {
            for (std::size_t i = 0; i < size; ++i) {
              const std::size_t base = 1 + (place * kv_heads + head) * rows * size;
              const auto [key, value] = places(rows, t % rows, i);
              out.keys[base + key] = at(k, kv_heads, b, head, t, i);
              out.values[base + value] = at(v, kv_heads, b, head, t, i);
            }
          }
        }
      }
    }
    return out;
  }

  // The results [B, rows, heads * h] of new rows `begin` to `begin + rows`, with the rows before
  // them cached, in a cache of some capacity. Strangers stand among the new rows, whom nobody sees.
  // If there are pages, the cache is in them.
  std::vector<float> attend(std::size_t begin, std::size_t rows, std::size_t capacity,
                            std::size_t window, std::size_t strangers, Instructions instructions,
                            std::size_t threads, std::size_t page = 0, bool shared = false) const {
    const float nan = std::numeric_limits<float>::quiet_NaN();
    const std::size_t step = strangers + 1, all = rows * step;
    const auto place = [&](const std::vector<float>& array, std::size_t count, std::size_t from,
                           std::size_t tokens_there, std::size_t places, std::size_t distance,
                           float filler) {
      std::vector<float> out(1 + sequences * count * places * size, filler);
      for (std::size_t b = 0; b < sequences; ++b) {
        for (std::size_t head = 0; head < count; ++head) {
          for (std::size_t t = 0; t < tokens_there; ++t) {
            for (std::size_t i = 0; i < size; ++i) {
              out[1 + ((b * count + head) * places + t * distance) * size + i] =
                  at(array, count, b, head, from + t, i);
            }
          }
        }
      }
      return out;
    };
    const auto queries = place(q, heads, begin, rows, rows, 1, 0);
    const auto keys = place(k, kv_heads, 0, begin, capacity, 1, nan);
    const auto values = place(v, kv_heads, 0, begin, capacity, 1, nan);
    const auto new_keys = place(k, kv_heads, begin, rows, all, step, 7);
    const auto new_values = place(v, kv_heads, begin, rows, all, step, 7);
    const std::vector<std::int32_t> length(sequences, static_cast<std::int32_t>(begin));
    std::vector<std::int32_t> first;
    std::vector<char> mask(sequences * rows * all, 0);
    for (std::size_t b = 0; b < sequences; ++b) {
      for (std::size_t t = 0; t < rows; ++t) {
        const std::size_t token = begin + t;
        first.push_back(static_cast<std::int32_t>(token + 1 > window ? token + 1 - window : 0));
        for (std::size_t j = 0; j <= t; ++j) {
          mask[(b * rows + t) * all + j * step] = sees(token, begin + j, window);
        }
      }
    }
    std::vector<float> out(1 + sequences * rows * heads * size, -1);
    Pool pages;
    if (page != 0) pages = pool(begin, page, shared);
    const auto& cached_keys = page == 0 ? keys : pages.keys;
    const auto& cached_values = page == 0 ? values : pages.values;
    dart::Attention attention;
    attention.q = queries.data() + 1;
    std::vector<std::uint16_t> halves[4];
    const auto numbers = [&](const std::vector<float>& array, int i) -> const void* {
      if (!bfloat16) return array.data() + 1;
      halves[i] = rounded(array);
      return halves[i].data() + 1;
    };
    attention.bfloat16 = bfloat16;
    attention.k = numbers(cached_keys, 0);
    attention.v = numbers(cached_values, 1);
    attention.new_k = numbers(new_keys, 2);
    attention.new_v = numbers(new_values, 3);
    attention.length = length.data();
    attention.first = window > tokens ? nullptr : first.data();
    attention.mask = reinterpret_cast<const bool*>(mask.data());
    attention.out = out.data() + 1;
    attention.sequences = sequences;
    attention.heads = heads;
    attention.kv_heads = kv_heads;
    attention.rows = rows;
    attention.pages = {nullptr, sequences, capacity, 1};
    if (page != 0) {
      const std::size_t count = (pages.keys.size() - 1) / (kv_heads * page * size);
      attention.pages = {pages.table.data(), count, page, pages.table.size() / sequences};
    }
    attention.new_rows = all;
    attention.head_size = size;
    attention.scale = scale;
    attention.cap = cap;
    dart::attend(attention, instructions, threads);
    CHECK(out[0] == -1);
    return {out.begin() + 1, out.end()};
  }
};

void check(const Problem& problem, std::size_t window) {
  const std::size_t width = problem.heads * problem.size, last = problem.tokens;
  std::vector<std::vector<double>> expected;
  for (std::size_t t = 0; t < last; ++t) expected.push_back(problem.expected(t, window));
  for (Instructions instructions : supported()) {
    // All of them cached but itself: plain decoding.
    std::vector<std::vector<float>> alone;
    for (std::size_t t = 0; t < last; ++t) {
      alone.push_back(problem.attend(t, 1, t + 1, window, 0, instructions, 1));
      for (std::size_t i = 0; i < problem.sequences * width; ++i) {
        // Weights in bfloat16 are off by one part in 500, and keys and values are below 8.
        CHECK(std::abs(alone[t][i] - expected[t][i]) < (problem.bfloat16 ? 2e-2 : 2e-5));
      }
    }
    for (std::size_t rows : {std::size_t{2}, std::size_t{5}, last}) {
      if (rows > last) continue;
      const std::size_t begin = last - rows;
      for (std::size_t strangers : {0, 2}) {
        const std::size_t threads = strangers == 0 ? 3 : 1;
        const std::vector<float> tree =
            problem.attend(begin, rows, begin + 5, window, strangers, instructions, threads);
        for (std::size_t page : {1, 16, 24, 64}) {
          if (begin == 0 && page > 1) break;  // nothing is cached
          CHECK(tree == problem.attend(begin, rows, begin + 5, window, strangers, instructions,
                                       4 - threads, page));
        }
        for (std::size_t b = 0; b < problem.sequences; ++b) {
          for (std::size_t t = 0; t < rows; ++t) {
            CHECK(std::equal(tree.begin() + (b * rows + t) * width,
                             tree.begin() + (b * rows + t + 1) * width,
                             alone[begin + t].begin() + b * width));
          }
        }
      }
    }
  }
}

// Pages that sequences share, and missing pages, whose rows are zeros.
void check_shared(Problem problem, std::size_t window) {
  const std::size_t last = problem.tokens, rows = 5, begin = last - rows;
  problem.share_and_clear(begin / 4, begin / 2);
  for (Instructions instructions : supported()) {
    const auto expected = problem.attend(begin, rows, begin, window, 0, instructions, 1);
    for (float value : expected) CHECK(std::isfinite(value));
    for (std::size_t page : {1, 4, 16, 64}) {
      CHECK(expected == problem.attend(begin, rows, begin, window, 0, instructions, 1, page, true));
    }
  }
}

// All instructions but the portable ones agree: also where numbers are so small that they are 0, or
// large.
void check_instructions(Problem problem, std::size_t window, unsigned seed) {
  const std::size_t last = problem.tokens, rows = 5, begin = last - rows;
  for (float keys : {1.5f, 1e-38f, 1e4f}) {
    for (float values : {1.5f, 1e-38f, 1e36f}) {
      problem.size_of_keys = keys;
      problem.size_of_values = values;
      problem.fill(seed);
      std::vector<std::vector<float>> found;
      for (Instructions instructions : supported()) {
        if (instructions == Instructions::kPortable) continue;
        found.push_back(problem.attend(begin, rows, last, window, 2, instructions, 1));
        const std::size_t bytes = found[0].size() * sizeof(float);
        CHECK(std::memcmp(found.back().data(), found[0].data(), bytes) == 0);
      }
    }
  }
}

}  // namespace

int main() {
  unsigned seed = 0;
  constexpr std::size_t kShapes[][5] = {
      {1, 2, 1, 16, 12}, {2, 6, 2, 48, 37}, {1, 5, 1, 64, 70}, {3, 2, 2, 80, 21},
      {1, 3, 1, 16, 290}};  // several blocks of keys
  for (const auto& [sequences, heads, kv_heads, size, tokens] : kShapes) {
    for (std::size_t window : {1000, 150, 20, 1}) {
      for (float cap : {0.0f, 3.0f}) {
        if (tokens > 200 && (window < 100 || cap == 0)) continue;  // they take long
        for (bool bfloat16 : {false, true}) {
          Problem problem;
          problem.sequences = sequences;
          problem.heads = heads;
          problem.kv_heads = kv_heads;
          problem.size = size;
          problem.tokens = tokens;
          problem.cap = cap;
          problem.bfloat16 = bfloat16;
          problem.fill(++seed);
          check(problem, window);
          check_shared(problem, window);
          check_instructions(problem, window, seed);
        }
      }
    }
  }
  Problem large;  // enough work for several threads
  large.heads = 8;
  large.kv_heads = 2;
  large.size = 64;
  large.tokens = 1100;
  for (bool bfloat16 : {false, true}) {
    large.bfloat16 = bfloat16;
    large.fill(++seed);
    for (Instructions instructions : supported()) {
      for (std::size_t rows : {1, 20}) {
        for (std::size_t begin : {280, 1020, 1080}) {  // 1024 is a multiple of kSplit
          for (std::size_t strangers : {0, 2}) {
            const auto one = large.attend(begin, rows, 1100, 1000, strangers, instructions, 1);
            for (std::size_t page : {0, 24, 64}) {
              CHECK(one == large.attend(begin, rows, 1100, 1000, strangers, instructions, 4, page));
            }
          }
        }
      }
    }
  }
  return failures == 0 ? 0 : 1;
}
