// Decoder layers of dense models, for CPUs: attention and gated MLP on the residual stream.
//
// One team of threads computes the parts of a layer one after another (rows.h, matrix.h,
// attention.h).
#pragma once

#include <cstddef>
#include <cstdint>

#include "dart/attention.h"
#include "dart/instructions.h"
#include "dart/matrix.h"
#include "dart/rows.h"
#include "dart/span.h"

namespace dart {

// The part after attention: x' = x + multiplier * norm(attended out), and then
// y = x' + multiplier * norm(MLP(norm(x'))). Norms have a null `scale` where there are none.
struct AfterAttention {
  Norm after_attention, before_mlp, after_mlp;
  Matrix out;      // [H h, D]
  Matrix gate_up;  // [D, 2 M]
  Matrix down;     // [M, D]
  Activation activation;
  float multiplier;
};

// New keys and values, to be kept in a cache, of whose dtype they are.
struct NewRows {
  void* k;           // [B, K, room, h]
  void* v;           // likewise
  std::size_t room;  // at least as many as there are; more only if B is 1
};

struct Layer {
  const float* x;  // [B, T, D]: the residual stream
  float* y;        // [B, T, D]; may be x
  Norm before_attention;
  Matrix qkv;  // [D, (H + 2 K) h]
  AfterAttention after;
  NewRows new_rows;
  Heads heads;          // without arrays of rows
  Attention attention;  // without new rows, queries and output
};

// The first layer of a DART drafter (docs/method.md, section 2). It reads what is twice as wide as
// the residual stream: the norm of an embedding, and that of the residual stream. After a sequence's T
// real rows follow m mask rows, the same except for their positions; they see the real rows up to
// the anchor, and each other in their order. The anchor and the mask rows go on.
struct DraftLayer {
  const float* embeds;       // [B, T, D]
  const float* residual;     // [B, T, D]
  const float* mask_row;     // [2 D]: what the layer reads; its residual stream is the first half
  const std::int32_t* last;  // [B]: the anchors; null if only keys and values are made
  float* y;                  // [B, 1 + m, D]
  std::size_t masks;         // m
  std::size_t window;        // positions that a row sees, its own included; 0 for all
  Norm embeds_norm, residual_norm;
  Matrix q;   // [2 D, H h]
  Matrix kv;  // [2 D, 2 K h]
  AfterAttention after;
  NewRows new_rows;  // real ones
  Heads heads;       // of T + m rows; without other arrays of rows than cos and sin
  Attention attention;  // without new rows, queries, mask and output, and their numbers
};

// Computes layers one after another, or one, by a team of at most `threads`, fewer if they are small.
void run(Span<Layer> layers, Instructions instructions, std::size_t threads);
void run(const DraftLayer& layer, Instructions instructions, std::size_t threads);

}  // namespace dart
