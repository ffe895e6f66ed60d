// Products in 8 bits with AVX2; see int8_tiles.h.
#include "kernels.h"

#if defined(__AVX2__) && defined(__FMA__)

#include <immintrin.h>

#include "int8_tiles.h"

namespace dart {
namespace {

// The instruction multiplies unsigned with signed numbers, and adds pairs in 16 bits: weights lose
// their sign and inputs get it, so that no pair is more than 2 * 127 * 127.
struct Avx2 {
  using Ints = __m256i;
  struct Weights {
    __m256i values, magnitudes;
  };
  using Floats = __m256;
  static constexpr int kSize = 8;
  static constexpr int kVectors = 2;
  static constexpr int kRows = 4;  // x 2 vectors, and 4 of weights: 12 of 16 registers
  static constexpr int kTilesOfRow = 2;

  static Ints begin(std::int32_t) { return _mm256_setzero_si256(); }
  static Weights weights(const std::int8_t* from) {
    const __m256i values = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
    return {values, _mm256_abs_epi8(values)};
  }
  static Ints broadcast(const std::int8_t* quad) {
    int bits;
    __builtin_memcpy(&bits, quad, sizeof bits);
    return _mm256_set1_epi32(bits);
  }
  static Ints add(Ints sum, const Weights& w, Ints x) {
    const __m256i pairs = _mm256_maddubs_epi16(w.magnitudes, _mm256_sign_epi8(x, w.values));
    return _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
  }
  static Floats floats(Ints x) { return _mm256_cvtepi32_ps(x); }
  static Floats broadcast(float x) { return _mm256_set1_ps(x); }
  static Floats load(const float* from) { return _mm256_loadu_ps(from); }
  static void store(float* to, Floats x) { _mm256_storeu_ps(to, x); }
  static Floats multiply(Floats a, Floats b) { return _mm256_mul_ps(a, b); }
  static Floats multiply_add(Floats a, Floats b, Floats c) { return _mm256_fmadd_ps(a, b, c); }
  static void prefetch(const std::int8_t* from) {
    _mm_prefetch(reinterpret_cast<const char*>(from), _MM_HINT_T0);
  }
};

}  // namespace

const MultiplyTiles kMultiplyInt8Avx2 = multiply_int8_tiles<Avx2>;

}  // namespace dart

#else

namespace dart {
const MultiplyTiles kMultiplyInt8Avx2 = nullptr;
}

#endif
