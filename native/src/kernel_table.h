// The inner loops with one kind of vectors; see kernels.h. Included by the files that are compiled for
// them.
#pragma once

#include "attention_loops.h"
#include "draw_loops.h"
#include "kernels.h"
#include "noise_loops.h"
#include "product_tiles.h"
#include "row_loops.h"

namespace dart {
namespace {

template <class Vectors, class Rounding = Vectors>
constexpr Kernels kernels_with() {
  return {multiply_tiles<Vectors>,
          normalize_rows,
          gate_rows,
          quantize_rows<Rounding>,
          rotate_all_heads,
          largest_of_rows,
          attend_rows<Vectors>,
          attend_pairs<Bfloat16<Vectors>>,
          fold_key,
          gumbel_numbers,
          gumbel_numbers_of,
          draw_row};
}

}  // namespace
}  // namespace dart
