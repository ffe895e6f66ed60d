// The inner loops of attention.h, included by each kernels_<instructions>.cpp.
//
// Keys are taken a block of positions at a time, with a running softmax (Milakov and Gimelshein,
// arXiv 1805.02867), so that a block of keys and values serves many rows from the first caches.
// Blocks begin at fixed positions of a sequence, not depending on what is cached of it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "attention_products.h"
#include "attention_weights.h"
#include "kernels.h"
#include "sum_of_parts.h"

namespace dart {
namespace {

// Elements of a block's values that follow each other in memory.
struct Run {
  const float* values;  // [count, h] elements; null: of a missing page, zeros
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

static_assert(kSplit % kKeyBlock == 0);

// Some rows of the queries of one key head, as they are computed.
template <class Form>
class RowsAttention {
  using Number = typename Form::Number;
  static constexpr bool kPairs = Form::kNumbers == 2;
  static constexpr std::size_t kGroups = kKeyBlock / kKeyGroup;  // of keys, in a block
  static constexpr std::size_t kElements = kKeyBlock / Form::kNumbers;  // of values, in a block

 public:
  explicit RowsAttention(const AttentionRows& rows)
      : rows_(rows),
        all_(*rows.attention),
        h_(all_.head_size),
        elements_(h_ / Form::kNumbers),
        words_(in_vectors(elements_)),
        query_(elements_ * Form::kFloats),
        in_groups_(in_groups(all_.pages, h_)) {
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
    keys_ = take(kKeyBlock * words_);
    gathered_ = take(kKeyGroup * words_);
    stride_ = split_numbers(h_);
    splits_ = take(rows.rows * stride_);
    joined_ = take(rows.rows * stride_);
    scores_ = take(kRowGroup * kKeyBlock);
    fresh_stride_ = (all_.new_rows + kKeyGroup - 1) / kKeyGroup * kKeyGroup;
    fresh_ = take(rows.rows * fresh_stride_);
    if constexpr (kPairs) {
      values_ = take(kElements * h_);
      pair_ = take(h_);
      Number* numbers = reinterpret_cast<Number*>(take(2 * h_));
      for (std::size_t i = 0; i < h_; ++i) numbers[i] = 0;
      zeros_ = numbers;
      even_ = numbers + h_;
      odd_ = even_ + h_;
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
    }
    if (rows_.partial != nullptr) {
      const std::size_t first = rows_.split * kSplit, after = first + kSplit;
      begin = begin < first ? first : begin;
      end = after < end ? after : end;
      skip_to(first);
    }
    clear(splits_);
    if (!in_order_ && end > used_) {
      for (std::size_t n = 0; n < all_.new_rows; n += kKeyGroup) {
        gather_rows(used_ + n, used_ + all_.new_rows, keys_);
        for_groups<Form>(rows_.rows, [&](std::size_t r, std::size_t count) {
          score(r, count, keys_, 0, 1, fresh_ + r * fresh_stride_ + n, fresh_stride_, nullptr);
        });
      }
    }
    float* all = splits_;  // what was computed, joined with what was before it
    for (std::size_t j = begin / kKeyBlock * kKeyBlock; j < end; j += kKeyBlock) {
      if (j % kSplit == 0 && j > begin) {
        if (all == splits_) clear(joined_);
        join();
        clear(splits_);
        all = joined_;
      }
      add_block(j, end);
    }
    if (all == joined_) join();
    if (rows_.partial != nullptr) {
      for (std::size_t i = 0; i < rows_.rows * stride_; ++i) rows_.partial[i] = splits_[i];
      return;
    }
    for (std::size_t r = 0; r < rows_.rows; ++r) {
      const std::size_t row = rows_.row + r, group = all_.heads / all_.kv_heads;
      const std::size_t token = rows_.sequence * all_.rows + row % all_.rows;
      const std::size_t head = rows_.kv_head * group + row / all_.rows;
      write_attended(all + r * stride_, h_, all_.out + (token * all_.heads + head) * h_);
    }
  }

 private:
  void clear(float* splits) {
    for (std::size_t r = 0; r < rows_.rows; ++r) {
      for (std::size_t i = 0; i < stride_; ++i) splits[r * stride_ + i] = 0;
      splits[r * stride_] = kUnseen;
    }
  }

  void join() {
    for (std::size_t r = 0; r < rows_.rows; ++r) {
      join_split(splits_ + r * stride_, h_, joined_ + r * stride_);
    }
  }

  // The sums of a row's values, [h].
  float* sums(std::size_t r) { return splits_ + r * stride_ + kAtSums; }

  // Lets each row's next new row be the one at a position, or after it.
  void skip_to(std::size_t position) {
    for (std::size_t r = 0; r < rows_.rows; ++r) {
      Seen& seen = seen_[r];
      for (std::size_t p = seen.fresh; p < position && p < seen.end; ++p) {
        while (!seen.mask[seen.next]) ++seen.next;
        ++seen.next;
      }
    }
  }

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

  // Where the rows of the page of a cached position begin, in an array of keys or values; null if the
  // page is missing.
  const Number* page(const void* array, std::size_t position) const {
    const std::size_t page = page_of(all_.pages, rows_.sequence, position);
    if (page == kNoPage) return nullptr;
    const std::size_t rows = (page * all_.kv_heads + rows_.kv_head) * all_.pages.size;
    return static_cast<const Number*>(array) + rows * h_;
  }

  // The key or value at a position before `used_` that is stored as a row, or at that of a new row.
  const Number* row(const void* array, const Number* fresh, std::size_t position) const {
    if (position >= used_) return fresh + (position - used_) * h_;
    const Number* const first = page(array, position);
    return first == nullptr ? nullptr : first + position % all_.pages.size * h_;
  }

  // The keys of a group that begins at a position, [elements, 16], up to `end`, where they are stored so;
  // null otherwise.
  const float* stored_keys(std::size_t position, std::size_t end) const {
    const std::size_t last = end < position + kKeyGroup ? end : position + kKeyGroup;
    if (!in_groups_ || last > used_) return nullptr;
    return reinterpret_cast<const float*>(row(all_.k, new_k_, position));
  }

  // Makes a group of keys from a position on; from `end` on keys are zeros.
  void gather(std::size_t position, std::size_t end, float* keys) {
    const bool cached = in_groups_ && position < used_;
    gather_rows(position, end, keys);
    if (!cached) return;
    const std::size_t last = end < used_ ? end : used_;
    const std::size_t count = last - position < kKeyGroup ? last - position : kKeyGroup;
    const float* const stored = stored_keys(position, position + count);
    if (stored == nullptr) return;
    for (std::size_t i = 0; i < elements_; ++i) {
      __builtin_memcpy(keys + i * kKeyGroup, stored + i * kKeyGroup, count * sizeof(float));
    }
  }

  // The same of keys that are stored as rows; others are zeros.
  void gather_rows(std::size_t position, std::size_t end, float* keys) {
    const std::size_t first = in_groups_ && position < used_ ? used_ - position : 0;
    for (std::size_t c = 0; c < kKeyGroup; ++c) {
      float* const to = gathered_ + c * words_;
      const bool there = c >= first && position + c < end;
      const Number* const k = there ? row(all_.k, new_k_, position + c) : nullptr;
      if (k != nullptr) {
        __builtin_memcpy(to, k, h_ * sizeof(Number));
      } else {
        for (std::size_t i = 0; i < elements_; ++i) to[i] = 0;
      }
      for (std::size_t i = elements_; i < words_; ++i) to[i] = 0;
    }
    for (std::size_t c = 0; c < kKeyGroup; c += Form::kSize) {
      for (std::size_t i = 0; i < words_; i += Form::kSize) {
        Form::transpose(gathered_ + c * words_ + i, words_, keys + i * kKeyGroup + c, kKeyGroup);
      }
    }
  }

  // Products of `count` rows, at most Form::kRows, with `groups` groups of keys, `distance` apart.
  void score(std::size_t r, std::size_t count, const float* keys, std::size_t distance,
             std::size_t groups, float* scores, std::size_t stride, const float* next) {
    const Factors factors{q_ + r * query_, query_, keys,   kKeyGroup, distance,
                          elements_,       scores, stride, true,      next};
    add_rows_of_products<Form, Form::kRows>(count, factors, groups * kKeyGroup);
  }

  // Finds the keys of a block's positions before `to`, and makes those that are not stored so.
  void take_keys(std::size_t j, std::size_t to) {
    for (std::size_t p = j; p < to; p += kKeyGroup) {
      const std::size_t g = (p - j) / kKeyGroup;
      groups_[g] = stored_keys(p, to);
      if (groups_[g] == nullptr) {
        float* const made = keys_ + g * kKeyGroup * words_;
        gather(p, to, made);
        groups_[g] = made;
      }
    }
  }

  // Scores of `count` rows with a block's positions before `to`: of neighbouring groups at the same
  // distance together.
  void score_block(std::size_t r, std::size_t count, std::size_t j, std::size_t to) {
    const std::size_t all = (to - j + kKeyGroup - 1) / kKeyGroup;
    const auto distance_after = [&](std::size_t g) {
      return reinterpret_cast<std::uintptr_t>(groups_[g + 1]) -
             reinterpret_cast<std::uintptr_t>(groups_[g]);
    };
    for (std::size_t g = 0; g < all;) {
      const std::size_t distance = g + 1 < all ? distance_after(g) : 0;
      std::size_t end = g + 1;
      while (end < all && distance_after(end - 1) == distance && distance % sizeof(float) == 0) ++end;
      const std::size_t first = j + g * kKeyGroup, last = j + end * kKeyGroup;
      score(r, count, groups_[g], distance / sizeof(float), end - g, scores_ + g * kKeyGroup,
            kKeyBlock, r == 0 && last <= used_ ? stored_values(first) : nullptr);
      g = end;
    }
  }

  // Finds the values of whole elements of a block's first positions, and makes those that are not
  // stored so.
  void take_values(std::size_t j, std::size_t count) {
    run_count_ = 0;
    const std::size_t cached = j < used_ ? used_ - j : 0;
    for (std::size_t p = 0, elements; p + Form::kNumbers <= count; p += elements * Form::kNumbers) {
      const float* values = stored_values(j + p);
      const bool all = p + kKeyGroup <= count && p + kKeyGroup <= cached;  // of a group
      elements = in_groups_ && all && values != nullptr ? kKeyGroup / Form::kNumbers : 1;
      if (kPairs && values == nullptr) {
        float* const made = values_ + p / Form::kNumbers * h_;
        join(value(j + p, even_), value(j + p + 1, odd_), made);
        values = made;
      }
      Run* const last = run_count_ == 0 ? nullptr : runs_ + run_count_ - 1;
      const bool follows = last != nullptr && (last->values == nullptr) == (values == nullptr) &&
                           (values == nullptr || values == last->values + last->count * h_);
      if (follows) {
        last->count += elements;
      } else {
        runs_[run_count_++] = {values, elements};
      }
    }
  }

  // The element of values at a position, [h], where it is stored so; otherwise null, as for a missing
  // page.
  const float* stored_values(std::size_t position) const {
    if (kPairs && (!in_groups_ || position + 1 >= used_)) return nullptr;
    return reinterpret_cast<const float*>(row(all_.v, new_v_, position));
  }

  // The value at a position, as a row; `room` is for one that is not stored so.
  const Number* value(std::size_t position, Number* room) const {
    if (!in_groups_ || position >= used_ || !kPairs) {
      const Number* const found = row(all_.v, new_v_, position);
      return found == nullptr ? zeros_ : found;
    }
    const Number* const first = page(all_.v, position);
    if (first == nullptr) return zeros_;
    const std::size_t at = position % all_.pages.size;
    for (std::size_t i = 0; i < h_; ++i) room[i] = first[(at / 2 * h_ + i) * 2 + at % 2];
    return room;
  }

  // Makes elements of two rows, whose numbers at the same place are a pair.
  void join(const Number* even, const Number* odd, float* to) const {
    Number* const numbers = reinterpret_cast<Number*>(to);
    for (std::size_t i = 0; i < h_; ++i) {
      numbers[2 * i] = even[i];
      numbers[2 * i + 1] = odd[i];
    }
  }

  // Adds the positions of a block from j on.
  void add_block(std::size_t j, std::size_t last) {
    const std::size_t known = in_order_ ? last : used_;  // before it, keys are the same for all rows
    const std::size_t to = known < j ? j : known < j + kKeyBlock ? known : j + kKeyBlock;
    take_keys(j, to);
    take_values(j, to - j);
    next_ = to;
    for_groups<Form>(rows_.rows, [&](std::size_t r, std::size_t count) {
      score_block(r, count, j, to);
      std::size_t ends[kRowGroup];  // of each row in this block, at most `to`; of whole elements
      std::size_t common = to - j;
      for (std::size_t i = 0; i < count; ++i) {
        ends[i] = weigh_row(j, to, r + i, scores_ + i * kKeyBlock);
        common = ends[i] < common ? ends[i] : common;
      }
      add_values(r, 0, count, 0, common);
      for (std::size_t i = 0; i < count; ++i) {
        add_values(r + i, i, 1, common, ends[i]);
        if (kPairs || !in_order_) add_own(j, r + i, scores_ + i * kKeyBlock, ends[i]);
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
                                       all_.scale, all_.cap, splits_ + r * stride_);
      if (factor != 1) {
        float* const sums = this->sums(r);
        for (std::size_t i = 0; i < h_; ++i) sums[i] *= factor;
      }
    }
    const std::size_t own = end < j ? 0 : (end < to ? end : to) - j;
    return own / Form::kNumbers * Form::kNumbers;
  }

  // Adds the values of positions [from, to) of a block, which has the weights of rows from r on, the
  // first of which are at `group`, to their sums.
  void add_values(std::size_t r, std::size_t group, std::size_t rows, std::size_t from,
                  std::size_t to) {
    from /= Form::kNumbers;
    to /= Form::kNumbers;
    std::size_t begin = 0;
    for (std::size_t i = 0; i < run_count_ && begin < to; begin += runs_[i++].count) {
      const std::size_t end = begin + runs_[i].count < to ? begin + runs_[i].count : to;
      const std::size_t first = begin < from ? from : begin;
      if (first >= end || runs_[i].values == nullptr) continue;
      const std::size_t later = next_ + begin * Form::kNumbers;  // where the next block's keys are
      const bool ahead = r == 0 && later % kKeyGroup == 0 && later < used_;
      const Factors factors{scores_ + group * kKeyBlock + first * Form::kFloats,
                            kKeyBlock,
                            runs_[i].values + (first - begin) * h_,
                            h_,
                            kColumns,
                            end - first,
                            sums(r),
                            stride_,
                            false,
                            ahead ? stored_keys(later, later + 1) : nullptr};
      add_rows_of_products<Form, Form::kRows>(rows, factors, h_);
    }
  }

  // Adds the values of the positions of a block that only one row sees so: its new rows, where rows
  // see others, and, of pairs, those from `from` on, which have such a row or only one.
  void add_own(std::size_t j, std::size_t r, const float* weights, std::size_t from) {
    Seen& seen = seen_[r];
    const std::size_t end = seen.end < j + kKeyBlock ? seen.end : j + kKeyBlock;
    const auto add = [&](std::size_t p, const float* values) {
      const Factors factors{weights + (p - j) / Form::kNumbers * Form::kFloats,
                            0,
                            values,
                            h_,
                            kColumns,
                            1,
                            sums(r),
                            0,
                            false,
                            nullptr};
      add_rows_of_products<Form, 1>(1, factors, h_);
    };
    if constexpr (kPairs) {
      for (std::size_t p = j + from; p < end; p += 2) {
        const Number* const even = own_value(seen, p, even_);
        join(even, p + 1 < end ? own_value(seen, p + 1, odd_) : zeros_, pair_);
        add(p, pair_);
      }
    } else {
      for (std::size_t p = seen.fresh < j ? j : seen.fresh; p < end; ++p) {
        const Number* const v = own_value(seen, p, nullptr);
        if (v != nullptr) add(p, v);
      }
    }
  }

  // The values that a row sees at a position; at positions of new rows that rows do not see alike,
  // each is asked for once, in their order. `room`: see `value`.
  const Number* own_value(Seen& seen, std::size_t position, Number* room) const {
    if (in_order_ || position < used_) return value(position, room);
    if (position < seen.fresh) return zeros_;
    while (!seen.mask[seen.next]) ++seen.next;
    return new_v_ + seen.next++ * h_;
  }

  const AttentionRows& rows_;
  const Attention& all_;
  const std::size_t h_;
  const std::size_t elements_;  // of a key
  const std::size_t words_;     // the same in whole vectors
  const std::size_t query_;     // numbers of a query, for all elements
  const bool in_groups_;
  const float* q_;  // [rows, query_]
  const Number* new_k_;
  const Number* new_v_;
  std::size_t used_;   // cached rows
  bool in_order_;      // whether all rows see new rows as if they were cached, up to some row
  float* keys_;        // [kGroups, words_, 16]: keys that are not stored so
  float* gathered_;    // [16, words_]: keys
  std::size_t stride_;  // split_numbers(h)
  float* splits_;      // [rows, stride]: of the positions since the last one that kSplit divides
  float* joined_;      // [rows, stride]: of those before them
  float* scores_;      // [kRowGroup, kKeyBlock]; then weights
  float* fresh_;       // [rows, fresh_stride]: scores of new keys, seen or not
  std::size_t fresh_stride_;
  float* values_ = nullptr;         // [kElements, h]: pairs that are not stored so
  float* pair_ = nullptr;           // [h]: a row's own
  Number* even_ = nullptr;          // [h]: of values that are not stored as rows
  Number* odd_ = nullptr;           // [h]: likewise
  const Number* zeros_ = nullptr;   // [h]; null in float32
  const float* groups_[kGroups];    // keys of a block, [elements, 16]
  std::size_t next_ = 0;            // the position after a block
  Run runs_[kElements];             // values of a block
  std::size_t run_count_ = 0;
  Seen seen_[kAttentionRows];
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
