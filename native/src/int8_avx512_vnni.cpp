// Products in 8 bits with AVX-512's dot products (VNNI); see int8_tiles.h.
#include "kernels.h"

#if defined(__AVX512F__) && defined(__AVX512VNNI__)

#include <immintrin.h>

#include "int8_tiles.h"

namespace dart {
namespace {

// The instruction multiplies unsigned with signed numbers: weights are made unsigned by adding 128,
// and sums begin with what that adds to them.
struct Avx512Vnni {
  using Ints = __m512i;
  using Weights = __m512i;
  using Floats = __m512;
  static constexpr int kSize = 16;
  static constexpr int kVectors = 2;
  static constexpr int kRows = 10;  // x 2 vectors: 20 of 32 registers; compilers spill 24
  static constexpr int kTilesOfRow = 4;

  static Ints begin(std::int32_t x) { return _mm512_set1_epi32(x); }
  static Weights weights(const std::int8_t* from) {
    return _mm512_xor_si512(_mm512_loadu_si512(from),
                            _mm512_set1_epi32(static_cast<int>(0x80808080u)));
  }
  static Ints broadcast(const std::int8_t* quad) {
    int bits;
    __builtin_memcpy(&bits, quad, sizeof bits);
    return _mm512_set1_epi32(bits);
  }
  // As _mm512_dpbusd_epi32, for which GCC 12 copies the sums to and fro.
  static Ints add(Ints sum, Weights w, Ints x) {
    __asm__("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(w), "v"(x));
    return sum;
  }
  static Floats floats(Ints x) { return _mm512_maskz_cvtepi32_ps(0xffff, x); }
  static Floats broadcast(float x) { return _mm512_set1_ps(x); }
  static Floats load(const float* from) { return _mm512_loadu_ps(from); }
  static void store(float* to, Floats x) { _mm512_storeu_ps(to, x); }
  static Floats multiply(Floats a, Floats b) { return _mm512_mul_ps(a, b); }
  static Floats multiply_add(Floats a, Floats b, Floats c) { return _mm512_fmadd_ps(a, b, c); }
  static void prefetch(const std::int8_t* from) {
    _mm_prefetch(reinterpret_cast<const char*>(from), _MM_HINT_T0);
  }
};

}  // namespace

const MultiplyTiles kMultiplyInt8Avx512Vnni = multiply_int8_tiles<Avx512Vnni>;

}  // namespace dart

#else

namespace dart {
const MultiplyTiles kMultiplyInt8Avx512Vnni = nullptr;
}

#endif
