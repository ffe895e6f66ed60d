// Products with AVX2 and fused multiply-add; see product_tiles.h.
#include "product_variants.h"

#if defined(__AVX2__) && defined(__FMA__)

#include <immintrin.h>

#include "product_tiles.h"

namespace dart {
namespace {

struct Avx2 {
  using Vector = __m256;
  static constexpr int kSize = 8;
  static constexpr int kRows = 6;  // x 2 vectors: 12 of 16 registers
  static constexpr int kTilesOfRow = 2;
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

}  // namespace

const MultiplyTiles kMultiplyAvx2 = multiply_tiles<Avx2>;

}  // namespace dart

#else

namespace dart {
const MultiplyTiles kMultiplyAvx2 = nullptr;
}

#endif
