#include "dart/rows.h"

#include <algorithm>
#include <cstring>

#include "dart/shared_work.h"
#include "kernels.h"

namespace dart {
namespace {

constexpr std::size_t kOperations = 32;  // of an entry, to find the largest

// Writes row `at` of a page [R, h] of one head, in the order of in_groups.
template <class Number>
void write_in_groups(const Number* row, bool keys, std::size_t at, std::size_t h, Number* page) {
  constexpr std::size_t kPair = sizeof(Number) == 2 ? 2 : 1;
  const std::size_t together = keys ? kKeyGroup : kPair;  // rows
  const std::size_t numbers = keys ? kPair : 1;           // of each, one after another
  Number* to = page + at / together * together * h + at % together * numbers;
  for (std::size_t i = 0; i < h; i += numbers, to += together * numbers) {
    std::memcpy(to, row + i, numbers * sizeof(Number));
  }
}

template <class Number>
void append_numbers(const KeptRows& rows) {
  const auto signed_of = [](std::size_t count) { return static_cast<std::int64_t>(count); };
  const Pages& pages = rows.pages;
  const std::size_t h = rows.head_size;
  const bool grouped = in_groups(pages, h);
  const std::int64_t capacity = signed_of(pages.each * pages.size);
  for (std::size_t b = 0; b < rows.sequences; ++b) {
    std::int64_t begin = rows.length[b];
    if (pages.table == nullptr) {
      begin = std::max<std::int64_t>(std::min(begin, capacity - signed_of(rows.kept)), 0);
    }
    for (std::size_t p = 0; p < rows.kept; ++p) {
      const std::int64_t at = begin + signed_of(p);
      if (at < 0 || at >= capacity) continue;
      const std::size_t place = static_cast<std::size_t>(at), page = page_of(pages, b, place);
      if (page == kNoPage) continue;
      const std::int64_t chosen = rows.index[b * rows.kept + p], last = signed_of(rows.new_rows) - 1;
      const auto row = static_cast<std::size_t>(std::clamp<std::int64_t>(chosen, 0, last));
      for (std::size_t head = 0; head < rows.kv_heads; ++head) {
        const Number* const from = static_cast<const Number*>(rows.rows) +
                                   ((b * rows.kv_heads + head) * rows.new_rows + row) * h;
        Number* const to = static_cast<Number*>(rows.cache) +
                           (page * rows.kv_heads + head) * pages.size * h;
        if (grouped) {
          write_in_groups(from, rows.keys, place % pages.size, h, to);
        } else {
          std::memcpy(to + place % pages.size * h, from, h * sizeof(Number));
        }
      }
    }
  }
}

}  // namespace

void normalize(const Norm& norm, const float* x, std::size_t rows, float* y,
               Instructions instructions) {
  kernels(instructions)->normalize(norm, x, rows, y);
}

void gate(Activation activation, const float* x, std::size_t rows, std::size_t size, float* y,
          Instructions instructions) {
  kernels(instructions)->gate(activation, x, rows, size, y);
}

void rotate_heads(const Heads& heads, Instructions instructions) {
  kernels(instructions)->rotate_heads(heads);
}

void largest(const float* x, std::size_t rows, std::size_t size, std::size_t count, float* values,
             std::int32_t* indices, Instructions instructions, std::size_t threads) {
  const Kernels& kernels = *dart::kernels(instructions);
  share_rows(rows, rows * size * kOperations, threads, [&](std::size_t begin, std::size_t end) {
    kernels.largest(x + begin * size, end - begin, size, count, values + begin * count,
                    indices + begin * count);
  });
}

void append(const KeptRows& rows) {
  if (rows.bfloat16) {
    append_numbers<std::uint16_t>(rows);
  } else {
    append_numbers<float>(rows);
  }
}

void copy_page(char* pool, std::size_t bytes, std::size_t from, std::size_t to) {
  if (from != to) std::memcpy(pool + to * bytes, pool + from * bytes, bytes);
}

}  // namespace dart
