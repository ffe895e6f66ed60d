// The search that compiled programs call: by handle, of a batch that is packed into one array
// (dart_jax/decoding/host_buffer.py).
#pragma once

#include <cstdint>

#include "dart/tree_search.h"

namespace dart {

// The layout of a packed array, int32 [rows, width]. In each row the candidates' tokens begin in
// column `first`, after the context; their logits, the pair scores and the draws follow.
struct PackedLayout {
  std::int64_t rows = 0;
  std::int64_t width = 0;
  std::int64_t context = 0;     // context tokens, which end before column `first`
  std::int64_t first = 0;
  std::int64_t levels = 0;      // d
  std::int64_t candidates = 0;  // k
  std::int64_t pairs = 0;       // pair scores, (d - 1) * k * k or 0
  std::int64_t draws = 0;       // kDraws if the last columns say how the target draws, otherwise 0

  // True if the numbers fit together.
  bool valid() const;

  // Reads an array of this layout, which must be valid, in place.
  DraftBatch batch(const std::int32_t* packed) const;
};

// Writes the trees of a packed batch to `trees`, [rows, 3, nodes + 1]. Throws std::invalid_argument if
// no search has this handle or its trees have another number of nodes; and what the search throws.
void search_packed(std::int32_t handle, const PackedLayout& layout, const std::int32_t* packed,
                   std::int64_t nodes, std::int32_t* trees);

}  // namespace dart
