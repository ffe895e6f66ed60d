// Operations of a decode step on single rows: norms, gated activations, heads, largest entries.
//
// A row's result does not depend on other rows, bit for bit.
#pragma once

#include <cstddef>
#include <cstdint>

#include "dart/instructions.h"
#include "dart/pages.h"

namespace dart {

// The root-mean-square norm of rows: x / sqrt(mean(x * x) + eps) * (scale + offset).
struct Norm {
  const float* scale;  // [size]
  std::size_t size;
  float eps;
  float offset;
};

// y [rows, size] = norm(x [rows, size]).
void normalize(const Norm& norm, const float* x, std::size_t rows, float* y,
               Instructions instructions);

// Activations of gated MLPs. kGelu: its approximation by a hyperbolic tangent.
enum class Activation { kSilu, kGelu };

// y [rows, size] = activation(gate) * up, of x [rows, 2 * size]: gate, then up.
void gate(Activation activation, const float* x, std::size_t rows, std::size_t size, float* y,
          Instructions instructions);

// Queries, keys and values of the heads of T rows in each of B sequences, out of the output of one
// product; queries and keys are normalised, if there are scales, and rotated (RoPE): of a head's
// first r elements, each half has one part of every pair.
struct Heads {
  const float* x;        // [B, T, (H + 2 K) h]: queries, keys, values
  const float* cos;      // [B, T, r / 2]
  const float* sin;      // [B, T, r / 2]
  const float* q_scale;  // null for no norms; [h], or [H h] to normalise all heads together
  const float* k_scale;  // [h] or [K h]
  bool together;
  float eps;
  float offset;
  float* q;  // [B, H, T, h]
  float* k;  // [B, K, T, h]
  float* v;  // [B, K, T, h]
  std::size_t sequences;
  std::size_t rows;
  std::size_t heads;
  std::size_t kv_heads;
  std::size_t head_size;
  std::size_t rotated;  // r, even; 0 for no rotation
};

void rotate_heads(const Heads& heads, Instructions instructions);

// The `count` largest entries of each row of x [rows, size], largest first, and where they are; NaN
// precedes all numbers, and of equal entries the first comes first. `count` is at most `size`.
// Computed in this thread and in at most `threads - 1` others, fewer if there is little.
void largest(const float* x, std::size_t rows, std::size_t size, std::size_t count, float* values,
             std::int32_t* indices, Instructions instructions, std::size_t threads = 1);

// Chosen rows of new ones, keys or values, to be kept after those that a cache has.
struct KeptRows {
  const void* rows;            // [B, K, T, h]
  void* cache;                 // [P, K, R, h]; for the order of its numbers see in_groups
  bool keys;
  bool bfloat16;  // otherwise float32
  const std::int32_t* index;   // [B, kept]; clamped to the rows
  const std::int32_t* length;  // [B], rows in the cache
  Pages pages;
  std::size_t sequences;  // B
  std::size_t kv_heads;   // K
  std::size_t new_rows;   // T, at least 1
  std::size_t kept;
  std::size_t head_size;  // h
};

// Writes them in place. Rows of missing pages and beyond the table are dropped; without a table, all
// of a sequence's are written that much earlier that they fit, as XLA does.
void append(const KeptRows& rows);

// Copies a page of a pool [P, bytes] to another one.
void copy_page(char* pool, std::size_t bytes, std::size_t from, std::size_t to);

}  // namespace dart
