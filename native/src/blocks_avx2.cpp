// Products with weights in blocks with AVX2; see block_loops.h.
#include "kernels.h"

#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)

#include <immintrin.h>

#include "block_loops.h"

namespace dart {
namespace {

// The instruction multiplies unsigned with signed numbers, and adds pairs in 16 bits, which hold
// twice 128 * 127: signed weights lose their sign and inputs get it.
struct Avx2 {
  using Ints = __m256i;
  using Bytes = __m256i;
  struct Signed {
    __m256i values, magnitudes;
  };
  struct Pairs {
    __m256i values;  // sums of pairs in 16 bits
  };
  using Floats = __m256;
  static constexpr int kSize = 8;
  static constexpr int kRows = 4;  // x 2 vectors of sums in integers: 8 of 16 registers
  static constexpr int kTilesOfRow = 1;
  static constexpr int kSignedZero = 0;
  static constexpr int vectors(int rows) { return rows <= 2 ? 4 : 2; }

  // Quads of weights of `bits` bits whose sums are in range; 0 for weights with a sign.
  static constexpr std::size_t quads_together(int bits) {
    return 32767 / (2 * 127 * ((1 << bits) - 1));
  }

  static Ints zero() { return _mm256_setzero_si256(); }
  static Ints broadcast(std::int32_t x) { return _mm256_set1_epi32(x); }
  static Bytes load(const std::uint8_t* from) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
  }
  static Bytes low(Bytes x) { return _mm256_and_si256(x, _mm256_set1_epi8(0x0f)); }
  static Bytes high(Bytes x) { return low(_mm256_srli_epi32(x, 4)); }
  // (x << Left & Mask) | rest
  template <int Left, int Mask>
  static Bytes merge(Bytes x, Bytes rest) {
    if constexpr (Left > 0) x = _mm256_slli_epi32(x, Left);
    if constexpr (Left < 0) x = _mm256_srli_epi32(x, -Left);
    return _mm256_or_si256(_mm256_and_si256(x, _mm256_set1_epi8(Mask)), rest);
  }
  static Signed signed_weights(Bytes x) { return {x, _mm256_abs_epi8(x)}; }
  static Ints add(Ints sum, const Signed& w, const std::int8_t* quad) {
    const __m256i x = _mm256_sign_epi8(inputs(quad), w.values);
    return add(sum, Pairs{_mm256_maddubs_epi16(w.magnitudes, x)});
  }
  static Pairs add(Pairs sum, Bytes w, const std::int8_t* quad) {
    return {in_order(_mm256_add_epi16(sum.values, _mm256_maddubs_epi16(w, inputs(quad))))};
  }
  static Ints add(Ints sum, Pairs pairs) {
    return in_order(
        _mm256_add_epi32(sum, _mm256_madd_epi16(pairs.values, _mm256_set1_epi16(1))));
  }
  static Floats floats(Ints x) { return _mm256_cvtepi32_ps(x); }
  static Floats halves(const std::uint8_t* from) {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
  }
  static Floats unsigned_bytes(const std::uint8_t* from) {
    return floats(_mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from))));
  }
  static Floats signed_bytes(const std::uint8_t* from) {
    return floats(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from))));
  }
  static Floats broadcast(float x) { return _mm256_set1_ps(x); }
  static Floats negative(Floats x) { return _mm256_xor_ps(x, _mm256_set1_ps(-0.0f)); }
  static void store(float* to, Floats x) { _mm256_storeu_ps(to, x); }
  static Floats multiply(Floats a, Floats b) { return _mm256_mul_ps(a, b); }
  static Floats multiply_add(Floats a, Floats b, Floats c) { return _mm256_fmadd_ps(a, b, c); }
  // To the second cache, which can wait for more lines than the first.
  static void prefetch(const void* from) {
    _mm_prefetch(static_cast<const char*>(from), _MM_HINT_T1);
  }

 private:
  // Otherwise GCC makes all products before it adds them, and has not the registers for it.
  static __m256i in_order(__m256i sum) {
    __asm__("" : "+x"(sum));
    return sum;
  }
  static Bytes inputs(const std::int8_t* quad) {
    int bits;
    __builtin_memcpy(&bits, quad, sizeof bits);
    return _mm256_set1_epi32(bits);
  }
};

}  // namespace

const MultiplyTiles kMultiplyBlocksAvx2 = multiply_tiles_in_blocks<Avx2>;

}  // namespace dart

#else

namespace dart {
const MultiplyTiles kMultiplyBlocksAvx2 = nullptr;
}

#endif
