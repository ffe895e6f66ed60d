// The inner loops of attention.h, included by each kernels_<instructions>.cpp.
//
// Keys are taken a block of positions at a time, with a running softmax (Milakov and Gimelshein,
// arXiv 1805.02867), so that a block of keys and values serves many rows from the first caches.
// Blocks begin at fixed positions of a sequence, whatever is cached of it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "attention_products.h"
#include "dart/exact_math.h"
#include "kernels.h"
#include "sum_of_parts.h"

namespace dart {
namespace {

constexpr float kUnseen = -__builtin_huge_valf();

// Rows of a sequence that follow each other in memory.
template <class Number>
struct Piece {
  const Number* k;  // null: of a missing page, zeros
  const Number* v;
  std::size_t count;
};

// The positions that one row sees: [first, end), of which those from `fresh` on are new rows.
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
  // At -88 and below, the power of two is 0.
  x = Lanes::maximum(x, Lanes::broadcast(-88.0f));
  const Vector shifted =
      Lanes::multiply_add(x, Lanes::broadcast(1.44269504f), Lanes::broadcast(kShift));
  const Vector n = shifted - Lanes::broadcast(kShift);
  Vector r = Lanes::multiply_add(n, Lanes::broadcast(-0.693359375f), x);
  r = Lanes::multiply_add(n, Lanes::broadcast(2.12194440e-4f), r);
  Vector power = Lanes::broadcast(1.9875691500e-4f);
  for (float next : kPowers) power = Lanes::multiply_add(power, r, Lanes::broadcast(next));
  power = Lanes::multiply_add(power, r * r, r);
  return (power + Lanes::broadcast(1.0f)) * Lanes::two_to(shifted);
}

// Two to the power x, not above 0, rounded to 8 significant bits.
template <class Lanes>
typename Lanes::Vector rounded_power_of_two(typename Lanes::Vector x) {
  using Vector = typename Lanes::Vector;
  constexpr float kShift = 12582912.0f + 127.0f;  // see `exponential`
  x = Lanes::maximum(x, Lanes::broadcast(-127.0f));  // there, the power of the integer is 0
  const Vector shifted = x + Lanes::broadcast(kShift);
  const Vector r = x - (shifted - Lanes::broadcast(kShift));
  // The best cubic polynomial from -1/2 to 1/2: within 7.5e-5 of it.
  Vector power = Lanes::broadcast(5.5171661e-2f);
  for (float next : {2.4261117e-1f, 6.9326097e-1f, 9.9992806e-1f}) {
    power = Lanes::multiply_add(power, r, Lanes::broadcast(next));
  }
  return rounded<Lanes>(power * Lanes::two_to(shifted));
}

// The largest of so many numbers, a power of two.
template <int Count>
float largest_of(const float* x) {
  if constexpr (Count == 1) {
    return *x;
  } else {
    float halves[Count / 2];
    for (int i = 0; i < Count / 2; ++i) {
      const float other = x[Count / 2 + i];
      halves[i] = x[i] < other ? other : x[i];
    }
    return largest_of<Count / 2>(halves);
  }
}

// Turns the scores of positions [from, end) of a block into weights; others before `end` and in its
// vector become 0. Returns the factor for sums of earlier weights.
template <class Form>
float weigh(float* scores, std::size_t from, std::size_t end, float scale, float cap,
            Softmax& softmax) {
  using Vector = typename Form::Vector;
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
  Vector largest = Form::broadcast(kUnseen);
  for (std::size_t i = 0; i < count; i += Form::kSize) {
    largest = Form::maximum(Form::load(scores + i), largest);
  }
  float lanes[Form::kSize];
  Form::store(lanes, largest);
  float most = largest_of<Form::kSize>(lanes) * scale, factor = 1;
  if (most > softmax.most) {
    factor = exponential(softmax.most - most);
    softmax.most = most;
    for (float& part : softmax.parts) part *= factor;
  }
  most = softmax.most;
  constexpr float kUnit = Form::kPairs ? 1.44269504f : 1.0f;  // binary logarithms, for pairs
  const Vector scales = Form::broadcast(scale * kUnit), least = Form::broadcast(-most * kUnit);
  for (std::size_t c = 0; c < kParts; c += Form::kSize) {
    Vector sum = Form::load(softmax.parts + c);
    for (std::size_t i = c; i < count; i += kParts) {
      const Vector score = Form::multiply_add(Form::load(scores + i), scales, least);
      Vector weight;
      if constexpr (Form::kPairs) {
        weight = rounded_power_of_two<Form>(score);
      } else {
        weight = exponential_below_0<Form>(score);
      }
      Form::store_numbers(scores, i, weight);
      sum = sum + weight;
    }
    Form::store(softmax.parts + c, sum);
  }
  return factor;
}

// Some rows of the queries of one key head, as they are computed.
template <class Form>
class RowsAttention {
  using Number = typename Form::Number;

 public:
  explicit RowsAttention(const AttentionRows& rows)
      : rows_(rows), all_(*rows.attention), h_(all_.head_size), elements_(h_ / Form::kNumbers) {
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
    keys_ = take(kKeyBlock * h_);
    gathered_ = take(kKeyPanel * h_);
    sums_ = take(rows.rows * h_);
    scores_ = take(kRowGroup * kKeyBlock);
    fresh_stride_ = (all_.new_rows + kKeyPanel - 1) / kKeyPanel * kKeyPanel;
    fresh_ = take(rows.rows * fresh_stride_);
    if constexpr (Form::kPairs) {
      values_ = take(kKeyBlock * h_);
      pair_ = take(2 * h_);
      Number* const zeros = reinterpret_cast<Number*>(room);
      for (std::size_t i = 0; i < h_; ++i) zeros[i] = 0;
      zeros_ = zeros;
      room += h_;
      for (std::size_t i = 0; i < rows.rows * h_; i += Form::kSize) {
        Form::store_numbers(room, i, rounded<Form>(Form::load(q_ + i)));
      }
      q_ = room;
    }
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
        const std::size_t width = take_panel(used_ + n, used_ + all_.new_rows, keys_);
        for_groups<Form>(rows_.rows, [&](std::size_t r, std::size_t count) {
          score(r, count, keys_, width, fresh_ + r * fresh_stride_ + n, fresh_stride_);
        });
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

  // Makes columns [elements, kKeyPanel] of the keys from a position on; from `end` on keys are
  // zeros. Returns their number, in vectors.
  std::size_t take_panel(std::size_t position, std::size_t end, float* keys) {
    const std::size_t count = end - position < kKeyPanel ? end - position : kKeyPanel;
    const std::size_t width = in_vectors(count), row = in_vectors(elements_);
    for (std::size_t c = 0; c < width; c += Form::kSize) {
      const float* from = stored_rows(position + c, end);
      std::size_t stride = elements_;
      if (from == nullptr) {
        gather(position + c, end, row);
        from = gathered_;
        stride = row;
      } else {
        // The next keys: columns of rows are not what a processor expects.
        const char* const next = reinterpret_cast<const char*>(from + Form::kSize * elements_);
        for (std::size_t i = 0; i < Form::kSize * elements_ * 4; i += 64) Form::prefetch(next + i);
      }
      for (std::size_t i = 0; i < row; i += Form::kSize) {
        Form::transpose(from + i, stride, keys + i * kKeyPanel + c, kKeyPanel);
      }
    }
    return width;
  }

  // As many keys as a vector has elements, from a position on, if they are stored one after another
  // as they are multiplied; otherwise null.
  const float* stored_rows(std::size_t position, std::size_t end) const {
    if (!Form::kAsStored || elements_ % Form::kSize != 0 || position + Form::kSize > end) {
      return nullptr;
    }
    const Piece<Number> next = piece(position);
    return next.count < Form::kSize ? nullptr : reinterpret_cast<const float*>(next.k);
  }

  // Products of `count` rows, at most Form::kRows, with the keys of a panel.
  void score(std::size_t r, std::size_t count, const float* keys, std::size_t width, float* scores,
             std::size_t stride) {
    const Factors factors{q_ + r * elements_, elements_, keys, kKeyPanel, elements_, scores, stride,
                          true};
    add_rows_of_products<Form, Form::kRows>(count, factors, width);
  }

  // Copies as many keys from where they are, before `end`, to rows of so many elements; then zeros.
  void gather(std::size_t position, std::size_t end, std::size_t row) {
    const std::size_t left = position < end ? end - position : 0;
    const std::size_t count = left < Form::kSize ? left : Form::kSize;
    float* to = gathered_;
    for (std::size_t i = 0; i < count;) {
      const Piece<Number> next = piece(position + i);
      const std::size_t last = next.count < count - i ? i + next.count : count;
      for (const Number* k = next.k; i < last; ++i, to += row) {
        if (k == nullptr) {
          for (std::size_t c = 0; c < row; ++c) to[c] = 0;
        } else {
          Form::copy(k, h_, to);
          k += h_;
        }
      }
    }
    for (float* const all = gathered_ + Form::kSize * row; to < all; ++to) *to = 0;
  }

  // Joins the values of the whole pairs of a block's first positions.
  void join_values(std::size_t block, std::size_t count) {
    const Number* rows[kKeyBlock];
    for (std::size_t i = 0; i < count;) {
      const Piece<Number> next = piece(block + i);
      const std::size_t end = next.count < count - i ? i + next.count : count;
      for (const Number* v = next.v; i < end; ++i) {
        rows[i] = v == nullptr ? zeros_ : v;
        if (v != nullptr) v += h_;
      }
    }
    for (std::size_t i = 0; i + 1 < count; i += 2) {
      Form::join(rows[i], rows[i + 1], h_, values_ + i / Form::kNumbers * h_);
    }
  }

  // Adds the positions of a block from j on.
  void add_block(std::size_t j, std::size_t last) {
    const std::size_t known = in_order_ ? last : used_;  // before it, keys are the same for all rows
    const std::size_t to = known < j ? j : known < j + kKeyBlock ? known : j + kKeyBlock;
    std::size_t widths[kKeyBlock / kKeyPanel];
    for (std::size_t p = j; p < to; p += kKeyPanel) {
      widths[(p - j) / kKeyPanel] = take_panel(p, to, keys_ + (p - j) * elements_);
    }
    if constexpr (Form::kPairs) join_values(j, to - j);
    for_groups<Form>(rows_.rows, [&](std::size_t r, std::size_t count) {
      for (std::size_t p = 0; p < to - j; p += kKeyPanel) {
        score(r, count, keys_ + p * elements_, widths[p / kKeyPanel], scores_ + p, kKeyBlock);
      }
      std::size_t ends[kRowGroup];  // of each row in this block, at most `to`; of whole pairs
      std::size_t common = to - j;
      for (std::size_t i = 0; i < count; ++i) {
        ends[i] = weigh_row(j, to, r + i, scores_ + i * kKeyBlock);
        common = ends[i] < common ? ends[i] : common;
      }
      add_values(j, r, 0, count, 0, common);
      for (std::size_t i = 0; i < count; ++i) {
        add_values(j, r + i, i, 1, common, ends[i]);
        if (Form::kPairs || !in_order_) add_own(j, r + i, scores_ + i * kKeyBlock, ends[i]);
      }
    });
  }

  // Turns a row's scores in a block into weights. Returns the end of its positions before `to`.
  std::size_t weigh_row(std::size_t j, std::size_t to, std::size_t r, float* scores) {
    const Seen& seen = seen_[r];
    const std::size_t end = seen.end < j + kKeyBlock ? seen.end : j + kKeyBlock;
    if (seen.first >= end || end <= j) {
      for (std::size_t i = 0; i < kKeyBlock; ++i) scores[i] = 0;
    } else {
      if (!in_order_) {
        std::size_t n = seen.next;
        for (std::size_t p = seen.fresh < j ? j : seen.fresh; p < end; ++n) {
          if (seen.mask[n]) scores[p++ - j] = fresh_[r * fresh_stride_ + n];
        }
      }
      const float factor = weigh<Form>(scores, seen.first < j ? 0 : seen.first - j, end - j,
                                       all_.scale, all_.cap, softmax_[r]);
      if (factor != 1) {
        for (std::size_t i = 0; i < h_; ++i) sums_[r * h_ + i] *= factor;
      }
    }
    const std::size_t own = end < j ? 0 : (end < to ? end : to) - j;
    return Form::kPairs ? own / 2 * 2 : own;
  }

  // Adds the values of positions [from, to) of a block, which has the weights of rows from r on, the
  // first of which are at `group`, to their sums.
  void add_values(std::size_t block, std::size_t r, std::size_t group, std::size_t rows,
                  std::size_t from, std::size_t to) {
    const auto add = [&](std::size_t at, std::size_t count, const float* values) {
      const Factors factors{scores_ + group * kKeyBlock + at, kKeyBlock, values, h_, count,
                            sums_ + r * h_, h_, false};
      add_rows_of_products<Form, Form::kRows>(rows, factors, h_);
    };
    if constexpr (Form::kPairs) {
      from /= Form::kNumbers;
      to /= Form::kNumbers;
      if (from < to) add(from, to - from, values_ + from * h_);
    } else {
      for (std::size_t j = from; j < to;) {
        const Piece<Number> next = piece(block + j);
        const std::size_t some = next.count < to - j ? next.count : to - j;
        if (next.v != nullptr) add(j, some, next.v);
        j += some;
      }
    }
  }

  // Adds the values of the positions of a block that only one row sees so: its new rows, where rows
  // see others, and, of pairs, those from `from` on, which have such a row or only one.
  void add_own(std::size_t j, std::size_t r, const float* weights, std::size_t from) {
    Seen& seen = seen_[r];
    const std::size_t end = seen.end < j + kKeyBlock ? seen.end : j + kKeyBlock;
    const auto add = [&](std::size_t p, const float* values, std::size_t count) {
      const Factors factors{weights + (p - j) / Form::kNumbers, 0, values, h_, count,
                            sums_ + r * h_, 0, false};
      add_rows_of_products<Form, 1>(1, factors, h_);
    };
    if constexpr (Form::kPairs) {
      for (std::size_t p = j + from; p < end; p += 2) {
        const Number* const even = own_value(seen, p);
        Form::join(even, p + 1 < end ? own_value(seen, p + 1) : zeros_, h_, pair_);
        add(p, pair_, 2 / Form::kNumbers);
      }
    } else {
      for (std::size_t p = seen.fresh < j ? j : seen.fresh; p < end; ++p) {
        add(p, own_value(seen, p), 1);
      }
    }
  }

  // The values that a row sees at a position; at those of new rows that rows do not see alike, each
  // is asked for once, in their order.
  const Number* own_value(Seen& seen, std::size_t position) const {
    if (in_order_ || position < used_) {
      const Number* const v = piece(position).v;
      return v == nullptr ? zeros_ : v;
    }
    if (position < seen.fresh) return zeros_;
    while (!seen.mask[seen.next]) ++seen.next;
    return new_v_ + seen.next++ * h_;
  }

  const AttentionRows& rows_;
  const Attention& all_;
  const std::size_t h_;
  const std::size_t elements_;  // that hold h numbers
  const float* q_;              // [rows, elements]
  const Number* new_k_;
  const Number* new_v_;
  std::size_t used_;   // cached rows
  bool in_order_;      // whether all rows see new rows as if they were cached, up to some row
  float* keys_;        // panels [elements, kKeyPanel]: keys, one a column
  float* gathered_;    // [kSize, elements in vectors]: keys
  float* sums_;        // [rows, h]
  float* scores_;      // [kRowGroup, kKeyBlock]; then weights
  float* fresh_;       // [rows, fresh_stride]: scores of new keys, seen or not
  std::size_t fresh_stride_;
  float* values_ = nullptr;         // [kKeyBlock / kNumbers, h]: of a block's pairs
  float* pair_ = nullptr;           // [2 / kNumbers, h]: of a row's own
  const Number* zeros_ = nullptr;   // [h]
  Seen seen_[kAttentionRows];
  Softmax softmax_[kAttentionRows];
};

// Computes `rows`, with keys and values in float32; see AttentionRows.
template <class Lanes>
void attend_rows(const AttentionRows& rows) {
  RowsAttention<Float32<Lanes>>(rows).compute();
}

// The same with keys and values in bfloat16, by a form for it.
template <class Form>
void attend_pairs(const AttentionRows& rows) {
  RowsAttention<Form>(rows).compute();
}

}  // namespace
}  // namespace dart
