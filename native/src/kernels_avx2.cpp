// Layers with AVX2 and fused multiply-add; see kernels.h.
#include "kernels.h"

#if defined(__AVX2__) && defined(__FMA__)

#include <immintrin.h>

#include "attention_loops.h"
#include "product_tiles.h"
#include "row_loops.h"

namespace dart {
namespace {

struct Avx2 {
  using Vector = __m256;
  static constexpr int kSize = 8;
  static constexpr int kRows = 6;  // x 2 vectors: 12 of 16 registers
  static constexpr int kTilesOfRow = 2;
  static constexpr int kAttentionRows = 4;
  static constexpr int vectors(int rows) { return rows <= 3 ? 4 : 2; }

  static Vector broadcast(float value) { return _mm256_set1_ps(value); }
  static Vector load(const float* from) { return _mm256_loadu_ps(from); }
  static Vector load(const std::uint16_t* from) {
    const __m128i bits = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
  }
  static void prefetch(const void* from) {
    _mm_prefetch(static_cast<const char*>(from), _MM_HINT_T0);
  }
  static void store(float* to, Vector value) { _mm256_storeu_ps(to, value); }
  static Vector multiply_add(Vector a, Vector b, Vector c) { return _mm256_fmadd_ps(a, b, c); }
};

constexpr Kernels kKernels = {multiply_tiles<Avx2>, normalize_rows, gate_rows,
                              rotate_all_heads,   largest_of_rows, attend_rows<Avx2>};
}  // namespace

const Kernels* const kAvx2Kernels = &kKernels;

}  // namespace dart

#else

namespace dart {
const Kernels* const kAvx2Kernels = nullptr;
}

#endif
