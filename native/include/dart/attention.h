// Grouped-query attention of new rows to cached rows and to each other, for CPUs.
//
// A row's result depends only on its query and on the keys and values that it sees, in their order:
// the cached ones, then the new ones. A token's result is therefore the same, bit for bit, whether
// the tokens before it are all cached or some are its ancestors in a tree.
//
// Arithmetic is float32. With keys and values in bfloat16, queries and weights of the softmax are
// rounded to it, too, and sums are of dot products of pairs; see attention_products.h.
#pragma once

#include <cstddef>
#include <cstdint>

#include "dart/instructions.h"
#include "dart/pages.h"
#include "dart/shared_work.h"

namespace dart {

// Arrays need only their elements' natural alignment and must not overlap.
struct Attention {
  const float* q;     // [B, H, T, h]
  const void* k;      // [P, K, R, h]: cached rows, in pages; rows of missing pages are zeros
  const void* v;      // [P, K, R, h]
  const void* new_k;  // [B, K, N, h]: new rows
  const void* new_v;  // [B, K, N, h]
  bool bfloat16;      // whether keys and values are bfloat16 numbers; otherwise float32
  const std::int32_t* length;  // [B]: cached rows that exist; others may hold anything
  const std::int32_t* first;   // [B, T]: the first cached row that a row sees; null for 0
  const bool* mask;            // [B, T, N]: the new rows that a row sees, at least one
  float* out;                  // [B, T, H * h]
  std::size_t sequences;       // B
  std::size_t heads;           // H, a multiple of K
  std::size_t kv_heads;        // K
  std::size_t rows;            // T
  Pages pages;
  std::size_t new_rows;        // N
  std::size_t head_size;       // h, a multiple of 16
  float scale;                 // factor on the products of queries and keys
  float cap;                   // scores become cap * tanh(score / cap); 0 for none
};

// Computes it by a team, or by one of at most `threads`: fewer if it is small.
void attend(const Attention& attention, Instructions instructions, Team& team);
void attend(const Attention& attention, Instructions instructions, std::size_t threads);

}  // namespace dart
