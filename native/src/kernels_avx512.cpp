// Layers with AVX-512; see kernels.h.
#include "kernels.h"

#ifdef __AVX512F__

#include "attention_loops.h"
#include "avx512.h"
#include "draw_loops.h"
#include "noise_loops.h"
#include "product_tiles.h"
#include "row_loops.h"

namespace dart {
namespace {

constexpr Kernels kKernels = {multiply_tiles<Avx512>,
                              normalize_rows,
                              gate_rows,
                              quantize_rows<Avx512>,
                              rotate_all_heads,
                              largest_of_rows,
                              attend_rows<Avx512>,
                              attend_pairs<Bfloat16<Avx512>>,
                              fold_key,
                              gumbel_numbers,
                              gumbel_numbers_of,
                              draw_row};
}  // namespace

const Kernels* const kAvx512Kernels = &kKernels;

}  // namespace dart

#else

namespace dart {
const Kernels* const kAvx512Kernels = nullptr;
}

#endif
