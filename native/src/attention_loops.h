// The inner loops of attention.h, included by each kernels_<instructions>.cpp.
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

// Copies keys [count, h], at most kMostLanes, to columns of [h, kMostLanes]; others become 0.
template <class Lanes>
void transpose(const float* keys, std::size_t count, std::size_t size, float* columns) {
  if (count == kMostLanes) {
    for (std::size_t c = 0; c < kMostLanes; c += Lanes::kSize) {
      for (std::size_t i = 0; i < size; i += Lanes::kSize) {
        Lanes::transpose(keys + c * size + i, size, columns + i * kMostLanes + c, kMostLanes);
      }
    }
    return;
  }
  for (std::size_t i = 0; i < size; ++i) {
    for (std::size_t c = 0; c < kMostLanes; ++c) {
      columns[i * kMostLanes + c] = c < count ? keys[c * size + i] : 0.0f;
    }
  }
}

// Products of Rows queries with the keys of kMostLanes columns: chains of additions over h.
template <class Lanes, int Rows>
void score_block(const float* q, std::size_t size, const float* columns, float* scores,
                 std::size_t stride) {
  using Vector = typename Lanes::Vector;
  constexpr int kVectors = kMostLanes / Lanes::kSize;
  constexpr int kPass = kVectors < 2 ? kVectors : 2;
  for (int pass = 0; pass < kVectors; pass += kPass) {
    Vector sums[Rows][kPass];
    DART_UNROLL
    for (int r = 0; r < Rows; ++r) {
      DART_UNROLL
      for (int v = 0; v < kPass; ++v) sums[r][v] = Lanes::broadcast(0.0f);
    }
    for (std::size_t i = 0; i < size; ++i) {
      Vector keys[kPass];
      DART_UNROLL
      for (int v = 0; v < kPass; ++v) {
        keys[v] = Lanes::load(columns + i * kMostLanes + (pass + v) * Lanes::kSize);
      }
      DART_UNROLL
      for (int r = 0; r < Rows; ++r) {
        const Vector value = Lanes::broadcast(q[r * size + i]);
        DART_UNROLL
        for (int v = 0; v < kPass; ++v) {
          sums[r][v] = Lanes::multiply_add(value, keys[v], sums[r][v]);
        }
      }
    }
    DART_UNROLL
    for (int r = 0; r < Rows; ++r) {
      DART_UNROLL
      for (int v = 0; v < kPass; ++v) {
        Lanes::store(scores + r * stride + (pass + v) * Lanes::kSize, sums[r][v]);
      }
    }
  }
}

// Continues the sums in `out` [Rows, .. size] with weights [Rows, count] x values [count, size].
template <class Lanes, int Rows, int Vectors>
void add_values(const float* weights, std::size_t stride, std::size_t count, const float* values,
                std::size_t size, float* const* out) {
  using Vector = typename Lanes::Vector;
  Vector sums[Rows][Vectors];
  DART_UNROLL
  for (int r = 0; r < Rows; ++r) {
    DART_UNROLL
    for (int v = 0; v < Vectors; ++v) sums[r][v] = Lanes::load(out[r] + v * Lanes::kSize);
  }
  for (std::size_t j = 0; j < count; ++j) {
    Vector value[Vectors];
    DART_UNROLL
    for (int v = 0; v < Vectors; ++v) value[v] = Lanes::load(values + j * size + v * Lanes::kSize);
    DART_UNROLL
    for (int r = 0; r < Rows; ++r) {
      const Vector weight = Lanes::broadcast(weights[r * stride + j]);
      DART_UNROLL
      for (int v = 0; v < Vectors; ++v) {
        sums[r][v] = Lanes::multiply_add(weight, value[v], sums[r][v]);
      }
    }
  }
  DART_UNROLL
  for (int r = 0; r < Rows; ++r) {
    DART_UNROLL
    for (int v = 0; v < Vectors; ++v) Lanes::store(out[r] + v * Lanes::kSize, sums[r][v]);
  }
}

// `add_values` over all of h.
template <class Lanes, int Rows>
void add_all_values(const float* weights, std::size_t stride, std::size_t count,
                    const float* values, std::size_t size, float* const* out) {
  constexpr int kVectors = Lanes::kSize == 16 ? 2 : kMostLanes / Lanes::kSize;
  constexpr std::size_t kPass = kVectors * Lanes::kSize;
  float* to[Rows];
  for (std::size_t c = 0; c < size;) {
    for (int r = 0; r < Rows; ++r) to[r] = out[r] + c;
    if (c + kPass <= size) {
      add_values<Lanes, Rows, kVectors>(weights, stride, count, values + c, size, to);
      c += kPass;
    } else {
      add_values<Lanes, Rows, 1>(weights, stride, count, values + c, size, to);
      c += Lanes::kSize;
    }
  }
}

template <class Lanes, int Rows>
void score_rows(std::size_t rows, const float* q, std::size_t size, const float* columns,
                float* scores, std::size_t stride) {
  if constexpr (Rows > 0) {
    if (rows < Rows) return score_rows<Lanes, Rows - 1>(rows, q, size, columns, scores, stride);
    for (; rows >= Rows; rows -= Rows, q += Rows * size, scores += Rows * stride) {
      score_block<Lanes, Rows>(q, size, columns, scores, stride);
    }
    score_rows<Lanes, Rows - 1>(rows, q, size, columns, scores, stride);
  }
}

template <class Lanes, int Rows>
void add_value_rows(std::size_t rows, const float* weights, std::size_t stride, std::size_t count,
                    const float* values, std::size_t size, float* const* out) {
  if constexpr (Rows > 0) {
    if (rows == Rows) {
      add_all_values<Lanes, Rows>(weights, stride, count, values, size, out);
    } else {
      add_value_rows<Lanes, Rows - 1>(rows, weights, stride, count, values, size, out);
    }
  }
}

// Scales and caps scores, and turns them into weights that are not yet divided by their sum, which
// is returned. Scores outside [first, end), in whole vectors, become 0.
inline float softmax(float* scores, std::size_t first, std::size_t end, float scale, float cap) {
  const std::size_t from = first / kParts * kParts, to = in_vectors(end);
  for (std::size_t i = 0; i < first; ++i) scores[i] = kUnseen;
  for (std::size_t i = end; i < to; ++i) scores[i] = kUnseen;
  float most[kParts];
  for (std::size_t c = 0; c < kParts; ++c) most[c] = kUnseen;
  if (cap != 0) {
    for (std::size_t i = first; i < end; ++i) {
      // tanh(u) = 1 - 2 / (exp(2 u) + 1)
      const float twice = 2.0f * (scores[i] * scale / cap);
      scores[i] = cap * (1.0f - 2.0f / (exponential(twice) + 1.0f));
    }
    scale = 1;
  }
  for (std::size_t i = from; i < to; i += kParts) {
    for (std::size_t c = 0; c < kParts; ++c) {
      const float score = scores[i + c] * scale;
      scores[i + c] = score;
      most[c] = most[c] < score ? score : most[c];
    }
  }
  float largest = most[0];
  for (std::size_t c = 1; c < kParts; ++c) largest = largest < most[c] ? most[c] : largest;
  float parts[kParts] = {};
  for (std::size_t i = from; i < to; i += kParts) {
    for (std::size_t c = 0; c < kParts; ++c) {
      const float weight = exponential(scores[i + c] - largest);
      scores[i + c] = weight;
      parts[c] += weight;
    }
  }
  for (std::size_t i = 0; i < from; ++i) scores[i] = 0;
  return sum_of(parts);
}

// Cached rows of a sequence that follow each other in a page, up to its end.
struct CachedRows {
  const float* k;  // null: of a missing page
  const float* v;
  std::size_t count;
};

inline CachedRows cached_rows(const AttentionRows& rows, std::size_t row) {
  const Attention& all = *rows.attention;
  const std::size_t page = page_of(all.pages, rows.sequence, row), at = row % all.pages.size;
  const std::size_t count = all.pages.size - at;
  if (page == kNoPage) return {nullptr, nullptr, count};
  const std::size_t offset =
      ((page * all.kv_heads + rows.kv_head) * all.pages.size + at) * all.head_size;
  return {all.k + offset, all.v + offset, count};
}

// The keys [count, h] of cached rows from `row` on, at most kMostLanes: where they are, or gathered
// from several pages.
inline const float* cached_keys(const AttentionRows& rows, std::size_t row, std::size_t count) {
  const std::size_t h = rows.attention->head_size;
  CachedRows next = cached_rows(rows, row);
  if (next.k != nullptr && next.count >= count) return next.k;
  for (std::size_t i = 0; i < count;) {
    const std::size_t end = i + next.count < count ? i + next.count : count;
    const std::size_t numbers = (end - i) * h;
    float* const to = rows.gathered + i * h;
    for (std::size_t c = 0; c < numbers; ++c) to[c] = next.k == nullptr ? 0.0f : next.k[c];
    i = end;
    if (i < count) next = cached_rows(rows, row + i);
  }
  return rows.gathered;
}

// Computes `rows`; see AttentionRows.
template <class Lanes>
void attend_rows(const AttentionRows& rows) {
  constexpr int kRows = Lanes::kAttentionRows;
  const Attention& all = *rows.attention;
  const std::size_t h = all.head_size, group = all.heads / all.kv_heads, t = all.rows;
  const std::size_t b = rows.sequence, head = b * all.kv_heads + rows.kv_head;
  const std::size_t used = rows.used;
  const float* const q = all.q + (head * group * t + rows.row) * h;
  const float* const new_k = all.new_k + head * all.new_rows * h;
  const float* const new_v = all.new_v + head * all.new_rows * h;

  // The first position that each row sees, and of all rows, in whole vectors, the first cached one.
  const auto first_of = [&](std::size_t r) -> std::size_t {
    const std::int32_t first = all.first == nullptr ? 0 : all.first[b * t + (rows.row + r) % t];
    return first < 0 ? 0 : static_cast<std::size_t>(first);
  };
  std::size_t begin = used;
  for (std::size_t r = 0; r < rows.rows; ++r) begin = first_of(r) < begin ? first_of(r) : begin;
  begin = begin / kMostLanes * kMostLanes;

  for (std::size_t j = begin; j < used; j += kMostLanes) {
    const std::size_t count = used - j < kMostLanes ? used - j : kMostLanes;
    transpose<Lanes>(cached_keys(rows, j, count), count, h, rows.keys);
    score_rows<Lanes, kRows>(rows.rows, q, h, rows.keys, rows.scores + j - begin, rows.stride);
  }
  for (std::size_t j = 0; j < all.new_rows; j += kMostLanes) {
    const std::size_t left = all.new_rows - j;
    transpose<Lanes>(new_k + j * h, left < kMostLanes ? left : kMostLanes, h, rows.keys);
    score_rows<Lanes, kRows>(rows.rows, q, h, rows.keys, rows.fresh + j, rows.fresh_stride);
  }

  for (std::size_t r0 = 0; r0 < rows.rows; r0 += kRows) {
    const std::size_t count = rows.rows - r0 < kRows ? rows.rows - r0 : kRows;
    float* out[kRows];
    float sums[kRows];
    std::size_t starts[kRows];  // of new rows' scores
    for (std::size_t r = 0; r < count; ++r) {
      const std::size_t row = rows.row + r0 + r, at = row % t;
      out[r] = all.out + ((b * t + at) * all.heads + rows.kv_head * group + row / t) * h;
      float* const scores = rows.scores + (r0 + r) * rows.stride;
      const float* const fresh = rows.fresh + (r0 + r) * rows.fresh_stride;
      const bool* const seen = all.mask + (b * t + at) * all.new_rows;
      std::size_t count_seen = 0;
      for (std::size_t n = 0; n < all.new_rows; ++n) count_seen += seen[n];
      // Scores are stored by position, as if all rows were cached: the new rows that a row sees are
      // those at the positions from its first on that are not cached.
      const std::size_t first = first_of(r0 + r), hidden = first > used ? first - used : 0;
      const std::size_t most = all.new_rows - count_seen;
      starts[r] = used + (hidden < most ? hidden : most) - begin;
      std::size_t end = starts[r];
      for (std::size_t n = 0; n < all.new_rows; ++n) {
        if (seen[n]) scores[end++] = fresh[n];
      }
      const std::size_t from = first - begin;
      sums[r] = softmax(scores, from < starts[r] ? from : starts[r], end, all.scale, all.cap);
      for (std::size_t i = 0; i < h; ++i) out[r][i] = 0;
    }
    const float* const weights = rows.scores + r0 * rows.stride;
    for (std::size_t j = begin; j < used;) {
      const CachedRows next = cached_rows(rows, j);
      const std::size_t some = next.count < used - j ? next.count : used - j;
      if (next.v != nullptr) {
        const float* const weight = weights + (j - begin);
        add_value_rows<Lanes, kRows>(count, weight, rows.stride, some, next.v, h, out);
      }
      j += some;
    }
    for (std::size_t r = 0; r < count; ++r) {
      const bool* const seen = all.mask + (b * t + (rows.row + r0 + r) % t) * all.new_rows;
      const float* weight = weights + r * rows.stride + starts[r];
      for (std::size_t n = 0; n < all.new_rows; ++n) {
        if (seen[n]) add_all_values<Lanes, 1>(weight++, 0, 1, new_v + n * h, h, out + r);
      }
      const float factor = 1.0f / sums[r];
      for (std::size_t i = 0; i < h; ++i) out[r][i] *= factor;
    }
  }
}

}  // namespace
}  // namespace dart
