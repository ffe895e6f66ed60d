#include "dart/rows.h"

#include <algorithm>
#include <cstring>

#include "dart/shared_work.h"
#include "kernels.h"

namespace dart {
namespace {

constexpr std::size_t kOperations = 32;  // of an entry, to find the largest

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
  const auto signed_of = [](std::size_t count) { return static_cast<std::int64_t>(count); };
  const Pages& pages = rows.pages;
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
        const std::size_t from = (b * rows.kv_heads + head) * rows.new_rows + row;
        const std::size_t to = (page * rows.kv_heads + head) * pages.size + place % pages.size;
        std::memcpy(rows.cache + to * rows.bytes, rows.rows + from * rows.bytes, rows.bytes);
      }
    }
  }
}

}  // namespace dart
