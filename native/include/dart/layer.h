// A decoder layer of a dense model, for CPUs: attention and gated MLP on the residual stream, with
// norms before them, after them, or both.
//
// It is what its parts compute one after another (rows.h, packed_product.h, attention.h), with one
// team of threads.
#pragma once

#include <cstddef>

#include "dart/attention.h"
#include "dart/instructions.h"
#include "dart/packed_product.h"
#include "dart/rows.h"
#include "dart/shared_work.h"

namespace dart {

// Norms have a null `scale` where there are none.
struct Layer {
  const float* x;  // [B, T, D]: the residual stream
  float* y;        // [B, T, D]
  std::size_t width;  // D

  Norm before_attention, after_attention, before_mlp, after_mlp;
  Matrix qkv;      // [D, (H + 2 K) h]
  Matrix out;      // [H h, D]
  Matrix gate_up;  // [D, 2 M]
  Matrix down;     // [M, D]
  Activation activation;
  float multiplier;  // of what attention and MLP add to the residual stream

  std::size_t room;     // at least T; more only if B is 1
  void* new_k;          // [B, K, room, h]: the new rows, for the cache, of its dtype
  void* new_v;          // likewise
  Heads heads;          // without arrays of rows
  Attention attention;  // without new rows, queries and output
};

// Computes it by a team of at most `threads`, fewer if it is small.
void run(const Layer& layer, Instructions instructions, std::size_t threads);

}  // namespace dart
