// The variants of packed_product.h's computation, by instruction set.
#pragma once

#include "dart/packed_product.h"

namespace dart {

// Computes the outputs of tiles [first, last).
using MultiplyTiles = void (*)(const PackedProduct& product, std::size_t first, std::size_t last);

// Null if not built for this kind of processor.
extern const MultiplyTiles kMultiplyPortable;
extern const MultiplyTiles kMultiplyAvx2;
extern const MultiplyTiles kMultiplyAvx512;
extern const MultiplyTiles kMultiplyNeon;

}  // namespace dart
