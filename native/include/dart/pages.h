// The cached rows of sequences: in pages of a pool, which a table names for each sequence.
//
// As in row_loops.h, nothing of the C++ library is called.
#pragma once

#include <cstddef>
#include <cstdint>

namespace dart {

// Row s of sequence b is row s % size of page table[b, s / size]. Without a table each sequence has
// one page, and they are in order.
struct Pages {
  const std::int32_t* table;  // [B, each]; other numbers than 0 to count - 1: no page. Null for none
  std::size_t count;          // P
  std::size_t size;           // R, rows of a page
  std::size_t each;           // n, pages of a sequence, at most; 1 without a table
};

// Positions whose keys are multiplied together.
constexpr std::size_t kKeyGroup = 16;

// True if keys and values of heads of this size are stored as they are multiplied: keys in groups
// of 16 rows, [h, 16] numbers or, of bfloat16 numbers, [h / 2, 16, 2]; values in bfloat16 in pairs
// of rows, [h, 2]. Otherwise each row is [h].
inline bool in_groups(const Pages& pages, std::size_t head_size) {
  return pages.table != nullptr && pages.size % kKeyGroup == 0 && head_size % 16 == 0;
}

namespace {

constexpr std::size_t kNoPage = static_cast<std::size_t>(-1);

// The page of a row of a sequence.
inline std::size_t page_of(const Pages& pages, std::size_t sequence, std::size_t row) {
  const std::size_t at = row / pages.size;
  if (at >= pages.each) return kNoPage;
  if (pages.table == nullptr) return sequence;
  const std::int32_t page = pages.table[sequence * pages.each + at];
  return page < 0 || static_cast<std::size_t>(page) >= pages.count ? kNoPage
                                                                   : static_cast<std::size_t>(page);
}

}  // namespace
}  // namespace dart
