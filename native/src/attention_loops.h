// The inner loops of attention.h, included by each kernels_<instructions>.cpp.
//
// Keys are taken a block of positions at a time, with a running softmax (Milakov and Gimelshein,
// arXiv 1805.02867), so that a block of keys and values serves many rows from the first caches.
// Blocks begin at fixed positions of a sequence, whatever is cached of it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels.h"
#include "row_loops.h"
#include "unroll.h"

namespace dart {
namespace {

constexpr float kUnseen = -__builtin_huge_valf();

// Copies Size rows of Size numbers, with these distances between rows, to columns, as all Lanes do.
template <int Size>
void transpose_plainly(const float* from, std::size_t from_stride, float* to,
                       std::size_t to_stride) {
  for (int i = 0; i < Size; ++i) {
    for (int c = 0; c < Size; ++c) to[c * to_stride + i] = from[i * from_stride + c];
  }
}

// Factors of a product x [rows, count] w [count, ..], and the sums y [rows, ..] that it is added to,
// with the distances between their rows.
template <class Number>
struct Factors {
  const float* x;
  std::size_t x_stride;
  const Number* w;
  std::size_t w_stride;
  std::size_t count;
  float* y;
  std::size_t y_stride;
  bool begins;  // the sums, which are then 0
};

// Adds products to Rows rows of a few vectors of sums: chains of additions, in order.
template <class Lanes, int Rows, int Vectors, class Number>
void add_products(const Factors<Number>& factors, std::size_t column) {
  using Vector = typename Lanes::Vector;
  const float* const x = factors.x;
  const std::size_t x_stride = factors.x_stride, w_stride = factors.w_stride;
  const Number* w = factors.w + column;
  float* const y = factors.y + column;
  Vector sums[Rows][Vectors];
  DART_UNROLL
  for (int r = 0; r < Rows; ++r) {
    DART_UNROLL
    for (int v = 0; v < Vectors; ++v) {
      sums[r][v] = factors.begins ? Lanes::broadcast(0.0f)
                                  : Lanes::load(y + r * factors.y_stride + v * Lanes::kSize);
    }
  }
  const std::size_t count = factors.count;
  for (std::size_t i = 0; i < count; ++i, w += w_stride) {
    Vector values[Vectors];
    DART_UNROLL
    for (int v = 0; v < Vectors; ++v) values[v] = Lanes::load(w + v * Lanes::kSize);
    DART_UNROLL
    for (int r = 0; r < Rows; ++r) {
      const Vector value = Lanes::broadcast(x[r * x_stride + i]);
      DART_UNROLL
      for (int v = 0; v < Vectors; ++v) {
        sums[r][v] = Lanes::multiply_add(value, values[v], sums[r][v]);
      }
    }
  }
  DART_UNROLL
  for (int r = 0; r < Rows; ++r) {
    DART_UNROLL
    for (int v = 0; v < Vectors; ++v) {
      Lanes::store(y + r * factors.y_stride + v * Lanes::kSize, sums[r][v]);
    }
  }
}

// `add_products` for columns from `column` to `width`, which are whole vectors.
template <class Lanes, int Rows, int Vectors, class Number>
void add_columns(const Factors<Number>& factors, std::size_t column, std::size_t width) {
  constexpr std::size_t kPass = Vectors * Lanes::kSize;
  for (; column + kPass <= width; column += kPass) {
    add_products<Lanes, Rows, Vectors>(factors, column);
  }
  if constexpr (Vectors > 1) add_columns<Lanes, Rows, Vectors / 2>(factors, column, width);
}

// `add_columns` for `rows` rows, at most Rows.
template <class Lanes, int Rows, class Number>
void add_rows_of_products(std::size_t rows, const Factors<Number>& factors, std::size_t width) {
  if constexpr (Rows > 1) {
    if (rows < Rows) return add_rows_of_products<Lanes, Rows - 1>(rows, factors, width);
  }
  // Few rows are read in wider parts, as many sums as registers hold.
  constexpr bool kWide = 4 * Rows <= Lanes::kRows * Lanes::vectors(Lanes::kRows);
  constexpr int kVectors = Lanes::vectors(Rows) < 4 && kWide ? 4 : Lanes::vectors(Rows);
  add_columns<Lanes, Rows, kVectors>(factors, 0, width);
}

// Calls `compute` with the first of a group of rows that are computed together, and their number.
template <class Lanes, class Compute>
void for_groups(std::size_t rows, const Compute& compute) {
  constexpr std::size_t kRows = Lanes::kRows;
  const std::size_t groups = (rows + kRows - 1) / kRows;
  for (std::size_t g = 0; g < groups; ++g) {
    const std::size_t begin = rows * g / groups;
    compute(begin, rows * (g + 1) / groups - begin);
  }
}

// Rows of a sequence that follow each other in memory.
template <class Number>
struct Piece {
  const Number* k;  // null: of a missing page, zeros
  const Number* v;
  std::size_t count;
};

// What one row sees: positions [first, end), of which those from `fresh` on are new rows.
struct Seen {
  std::size_t first;
  std::size_t fresh;
  std::size_t end;
  std::size_t next;  // of the new rows, the one from which on the row's next is looked for
  const bool* mask;  // [N]
  bool contiguous;   // whether new row n, if it is seen, is at position `used + n`
};

// The softmax of a row so far.
struct Softmax {
  float most;           // the largest score
  float parts[kParts];  // sums of exponentials, by position
};

// As `exponential`, of numbers that are not above 0.
template <class Lanes>
typename Lanes::Vector exponential_below_0(typename Lanes::Vector x) {
  using Vector = typename Lanes::Vector;
  constexpr float kShift = 12582912.0f + 127.0f;  // see there
  constexpr float kPowers[] = {1.3981999507e-3f, 8.3334519073e-3f, 4.1665795894e-2f,
                               1.6666665459e-1f, 5.0000001201e-1f};
  const Vector zero = Lanes::broadcast(0.0f), one = Lanes::broadcast(1.0f);
  // At -88 and below, the power of two is 0.
  x = Lanes::maximum(x, Lanes::broadcast(-88.0f));
  const Vector shifted =
      Lanes::multiply_add(x, Lanes::broadcast(1.44269504f), Lanes::broadcast(kShift));
  const Vector n = Lanes::multiply_add(one, shifted, Lanes::broadcast(-kShift));
  Vector r = Lanes::multiply_add(n, Lanes::broadcast(-0.693359375f), x);
  r = Lanes::multiply_add(n, Lanes::broadcast(2.12194440e-4f), r);
  Vector power = Lanes::broadcast(1.9875691500e-4f);
  for (float next : kPowers) power = Lanes::multiply_add(power, r, Lanes::broadcast(next));
  power = Lanes::multiply_add(power, Lanes::multiply_add(r, r, zero), r);
  power = Lanes::multiply_add(one, power, one);
  return Lanes::multiply_add(power, Lanes::two_to(shifted), zero);
}

// Turns the scores of positions [from, end) of a block into weights; others before `end` and in its
// vector become 0. Returns the factor for sums of earlier weights.
template <class Lanes>
float weigh(float* scores, std::size_t from, std::size_t end, float scale, float cap,
            Softmax& softmax) {
  using Vector = typename Lanes::Vector;
  const std::size_t count = in_vectors(end);
  for (std::size_t i = 0; i < from; ++i) scores[i] = kUnseen;
  for (std::size_t i = end; i < count; ++i) scores[i] = kUnseen;
  if (cap != 0) {
    for (std::size_t i = from; i < end; ++i) {
      // tanh(u) = 1 - 2 / (exp(2 u) + 1)
      const float twice = 2.0f * (scores[i] * scale / cap);
      scores[i] = cap * (1.0f - 2.0f / (exponential(twice) + 1.0f));
    }
    scale = 1;
  }
  Vector largest = Lanes::broadcast(kUnseen);
  for (std::size_t i = 0; i < count; i += Lanes::kSize) {
    largest = Lanes::maximum(Lanes::load(scores + i), largest);
  }
  float lanes[Lanes::kSize];
  Lanes::store(lanes, largest);
  float most = lanes[0];
  for (int i = 1; i < Lanes::kSize; ++i) most = most < lanes[i] ? lanes[i] : most;
  most *= scale;
  float factor = 1;
  if (most > softmax.most) {
    factor = exponential(softmax.most - most);
    softmax.most = most;
    for (float& part : softmax.parts) part *= factor;
  }
  most = softmax.most;
  const Vector scales = Lanes::broadcast(scale), least = Lanes::broadcast(-most);
  const Vector one = Lanes::broadcast(1.0f);
  for (std::size_t c = 0; c < kParts; c += Lanes::kSize) {
    Vector sum = Lanes::load(softmax.parts + c);
    for (std::size_t i = c; i < count; i += kParts) {
      const Vector score = Lanes::multiply_add(Lanes::load(scores + i), scales, least);
      const Vector weight = exponential_below_0<Lanes>(score);
      Lanes::store(scores + i, weight);
      sum = Lanes::multiply_add(one, weight, sum);
    }
    Lanes::store(softmax.parts + c, sum);
  }
  return factor;
}

// Some rows of the queries of one key head, as they are computed.
template <class Lanes, class Number>
class RowsAttention {
 public:
  explicit RowsAttention(const AttentionRows& rows)
      : rows_(rows), all_(*rows.attention), h_(all_.head_size) {
    const std::size_t group = all_.heads / all_.kv_heads, b = rows.sequence;
    const std::size_t head = b * all_.kv_heads + rows.kv_head;
    q_ = all_.q + (head * group * all_.rows + rows.row) * h_;
    new_k_ = static_cast<const Number*>(all_.new_k) + head * all_.new_rows * h_;
    new_v_ = static_cast<const Number*>(all_.new_v) + head * all_.new_rows * h_;
    const std::size_t capacity = all_.pages.each * all_.pages.size;
    const std::size_t length = all_.length[b] < 0 ? 0 : static_cast<std::size_t>(all_.length[b]);
    used_ = length < capacity ? length : capacity;
    float* room = rows.room;
    const auto take = [&](std::size_t count) { return room += count, room - count; };
    keys_ = take(kKeyPanel * h_);
    gathered_ = take(kKeyPanel * h_);
    sums_ = take(rows.rows * h_);
    scores_ = take(rows.rows * kKeyBlock);
    fresh_ = room;
    fresh_stride_ = (all_.new_rows + kKeyPanel - 1) / kKeyPanel * kKeyPanel;
  }

  void compute() {
    std::size_t begin = used_ + all_.new_rows, end = 0;
    in_order_ = true;
    for (std::size_t r = 0; r < rows_.rows; ++r) {
      Seen& seen = seen_[r];
      seen = seen_by((rows_.row + r) % all_.rows);
      in_order_ &= seen.contiguous;
      begin = seen.first < begin ? seen.first : begin;
      end = seen.end < end ? end : seen.end;
      softmax_[r] = {kUnseen, {}};
    }
    for (std::size_t i = 0; i < rows_.rows * h_; ++i) sums_[i] = 0;
    if (!in_order_) {
      for (std::size_t n = 0; n < all_.new_rows; n += kKeyPanel) {
        score(used_ + n, used_ + all_.new_rows, fresh_ + n, fresh_stride_);
      }
    }
    for (std::size_t j = begin / kKeyBlock * kKeyBlock; j < end; j += kKeyBlock) add_block(j, end);
    for (std::size_t r = 0; r < rows_.rows; ++r) {
      const std::size_t row = rows_.row + r, group = all_.heads / all_.kv_heads;
      const std::size_t token = rows_.sequence * all_.rows + row % all_.rows;
      float* const out =
          all_.out + (token * all_.heads + rows_.kv_head * group + row / all_.rows) * h_;
      const float factor = 1.0f / sum_of(softmax_[r].parts);
      for (std::size_t i = 0; i < h_; ++i) out[i] = sums_[r * h_ + i] * factor;
    }
  }

 private:
  Seen seen_by(std::size_t token) const {
    const std::size_t row = rows_.sequence * all_.rows + token, all = all_.new_rows;
    const bool* const mask = all_.mask + row * all;
    std::size_t count = 0, next = 0, together = 0;
    for (std::size_t n = 0; n < all; ++n) count += mask[n];
    while (next < all && !mask[next]) ++next;
    const std::size_t last = next + count < all ? next + count : all;
    for (std::size_t n = next; n < last; ++n) together += mask[n];
    // Positions are counted as if all rows were cached: the new rows that a row sees are those at
    // the positions from its first on that are not cached.
    const std::int32_t window = all_.first == nullptr ? 0 : all_.first[row];
    const std::size_t first = window < 0 ? 0 : static_cast<std::size_t>(window);
    const std::size_t hidden = first > used_ ? first - used_ : 0;
    const std::size_t fresh = used_ + (hidden < all - count ? hidden : all - count);
    const bool contiguous = together == count && fresh == used_ + next;
    return {first < fresh ? first : fresh, fresh, fresh + count, next, mask, contiguous};
  }

  // The rows at a position and after it: cached ones, or new ones in their order.
  Piece<Number> piece(std::size_t position) const {
    if (position >= used_) {
      const std::size_t n = position - used_;
      return {new_k_ + n * h_, new_v_ + n * h_, all_.new_rows - n};
    }
    const Pages& pages = all_.pages;
    const std::size_t page = page_of(pages, rows_.sequence, position), at = position % pages.size;
    const std::size_t left = used_ - position, rest = pages.size - at;
    const std::size_t count = rest < left ? rest : left;
    if (page == kNoPage) return {nullptr, nullptr, count};
    const std::size_t offset = ((page * all_.kv_heads + rows_.kv_head) * pages.size + at) * h_;
    return {static_cast<const Number*>(all_.k) + offset, static_cast<const Number*>(all_.v) + offset,
            count};
  }

  // Products of all rows with the keys of a panel, from a position on; from `end` on keys are zeros.
  void score(std::size_t position, std::size_t end, float* scores, std::size_t stride) {
    const std::size_t count = end - position < kKeyPanel ? end - position : kKeyPanel;
    const std::size_t width = in_vectors(count);
    gather(position, count, width);
    for (std::size_t c = 0; c < width; c += Lanes::kSize) {
      for (std::size_t i = 0; i < h_; i += Lanes::kSize) {
        Lanes::transpose(gathered_ + c * h_ + i, h_, keys_ + i * kKeyPanel + c, kKeyPanel);
      }
    }
    for_groups<Lanes>(rows_.rows, [&](std::size_t r, std::size_t some) {
      const Factors<float> factors{q_ + r * h_, h_,     keys_, kKeyPanel, h_, scores + r * stride,
                                   stride,      true};
      add_rows_of_products<Lanes, Lanes::kRows>(some, factors, width);
    });
  }

  // Copies keys [count, h] from where they are, which reads them in their order; then zeros.
  void gather(std::size_t position, std::size_t count, std::size_t width) {
    for (std::size_t i = 0; i < count;) {
      const Piece<Number> next = piece(position + i);
      const std::size_t some = next.count < count - i ? next.count : count - i;
      float* const to = gathered_ + i * h_;
      const std::size_t numbers = some * h_;
      for (std::size_t c = 0; c < numbers; c += Lanes::kSize) {
        Lanes::store(to + c, next.k == nullptr ? Lanes::broadcast(0.0f) : Lanes::load(next.k + c));
      }
      i += some;
    }
    for (std::size_t i = count * h_; i < width * h_; ++i) gathered_[i] = 0;
  }

  // Adds the values of positions [from, to) of a block, which has rows' weights, to their sums.
  void add_values(std::size_t block, std::size_t r, std::size_t rows, std::size_t from,
                  std::size_t to) {
    for (std::size_t j = from; j < to;) {
      const Piece<Number> next = piece(block + j);
      const std::size_t some = next.count < to - j ? next.count : to - j;
      if (next.v != nullptr) {
        const Factors<Number> factors{scores_ + r * kKeyBlock + j, kKeyBlock, next.v, h_, some,
                                      sums_ + r * h_,              h_,        false};
        add_rows_of_products<Lanes, Lanes::kRows>(rows, factors, h_);
      }
      j += some;
    }
  }

  // Adds the positions of a block from j on.
  void add_block(std::size_t j, std::size_t last) {
    const std::size_t known = in_order_ ? last : used_;  // before it, keys are the same for all rows
    const std::size_t to = known < j ? j : known < j + kKeyBlock ? known : j + kKeyBlock;
    for (std::size_t p = j; p < to; p += kKeyPanel) score(p, to, scores_ + (p - j), kKeyBlock);
    std::size_t ends[kAttentionRows];  // of each row in this block, at most `to`
    for (std::size_t r = 0; r < rows_.rows; ++r) {
      Seen& seen = seen_[r];
      float* const scores = scores_ + r * kKeyBlock;
      const std::size_t end = seen.end < j + kKeyBlock ? seen.end : j + kKeyBlock;
      ends[r] = end < j ? 0 : (end < to ? end : to) - j;
      if (seen.first >= end || end <= j) {
        for (std::size_t i = 0; i < ends[r]; ++i) scores[i] = 0;
        continue;
      }
      if (!in_order_) {
        std::size_t n = seen.next;
        for (std::size_t p = seen.fresh < j ? j : seen.fresh; p < end; ++n) {
          if (seen.mask[n]) scores[p++ - j] = fresh_[r * fresh_stride_ + n];
        }
      }
      const float factor = weigh<Lanes>(scores, seen.first < j ? 0 : seen.first - j, end - j,
                                        all_.scale, all_.cap, softmax_[r]);
      if (factor == 1) continue;
      for (std::size_t i = 0; i < h_; ++i) sums_[r * h_ + i] *= factor;
    }
    for_groups<Lanes>(rows_.rows, [&](std::size_t r, std::size_t count) {
      std::size_t common = ends[r];
      for (std::size_t i = 1; i < count; ++i) common = ends[r + i] < common ? ends[r + i] : common;
      add_values(j, r, count, 0, common);
      for (std::size_t i = 0; i < count; ++i) add_values(j, r + i, 1, common, ends[r + i]);
    });
    if (!in_order_) add_fresh(j);
  }

  // Adds the values of the new rows that each row sees in a block.
  void add_fresh(std::size_t j) {
    for (std::size_t r = 0; r < rows_.rows; ++r) {
      Seen& seen = seen_[r];
      const std::size_t end = seen.end < j + kKeyBlock ? seen.end : j + kKeyBlock;
      for (std::size_t p = seen.fresh < j ? j : seen.fresh; p < end; ++seen.next) {
        if (!seen.mask[seen.next]) continue;
        const Factors<Number> factors{
            scores_ + r * kKeyBlock + (p++ - j), 0, new_v_ + seen.next * h_, 0, 1,
            sums_ + r * h_,                      0, false};
        add_rows_of_products<Lanes, 1>(1, factors, h_);
      }
    }
  }

  const AttentionRows& rows_;
  const Attention& all_;
  const std::size_t h_;
  const float* q_;
  const Number* new_k_;
  const Number* new_v_;
  std::size_t used_;   // cached rows
  bool in_order_;      // whether all rows see new rows as if they were cached, up to some row
  float* keys_;        // [h, kKeyPanel]: keys, one a column
  float* gathered_;    // [kKeyPanel, h]: keys
  float* sums_;        // [rows, h]
  float* scores_;      // [rows, kKeyBlock]; then weights
  float* fresh_;       // [rows, fresh_stride]: scores of new keys, seen or not
  std::size_t fresh_stride_;
  Seen seen_[kAttentionRows];
  Softmax softmax_[kAttentionRows];
};

// Computes `rows`; see AttentionRows.
template <class Lanes>
void attend_rows(const AttentionRows& rows) {
  if (rows.attention->bfloat16) {
    RowsAttention<Lanes, std::uint16_t>(rows).compute();
  } else {
    RowsAttention<Lanes, float>(rows).compute();
  }
}

}  // namespace
}  // namespace dart
