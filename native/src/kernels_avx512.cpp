// Layers with AVX-512; see kernels.h.
#include "kernels.h"

#ifdef __AVX512F__

#include <immintrin.h>

#include "attention_loops.h"
#include "product_tiles.h"
#include "row_loops.h"

namespace dart {
namespace {

struct Avx512 {
  using Vector = __m512;
  static constexpr int kSize = 16;
  static constexpr int kRows = 14;  // x 2 vectors: 28 of 32 registers
  static constexpr int kTilesOfRow = 4;
  static constexpr int kAttentionRows = 8;
  static constexpr int vectors(int) { return 2; }

  static Vector broadcast(float value) { return _mm512_set1_ps(value); }
  static Vector load(const float* from) { return _mm512_loadu_ps(from); }
  static Vector load(const std::uint16_t* from) {
    const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
    // With masks of all lanes: GCC 12 warns about its own header's functions without.
    const __m512i wide = _mm512_maskz_cvtepu16_epi32(0xffff, bits);
    return _mm512_castsi512_ps(_mm512_maskz_slli_epi32(0xffff, wide, 16));
  }
  static void prefetch(const void* from) {
    _mm_prefetch(static_cast<const char*>(from), _MM_HINT_T0);
  }
  static void store(float* to, Vector value) { _mm512_storeu_ps(to, value); }
  static Vector multiply_add(Vector a, Vector b, Vector c) { return _mm512_fmadd_ps(a, b, c); }
};

constexpr Kernels kKernels = {multiply_tiles<Avx512>, normalize_rows, gate_rows,
                              rotate_all_heads,   largest_of_rows, attend_rows<Avx512>};
}  // namespace

const Kernels* const kAvx512Kernels = &kKernels;

}  // namespace dart

#else

namespace dart {
const Kernels* const kAvx512Kernels = nullptr;
}

#endif
