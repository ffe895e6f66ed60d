// Products with weights in blocks with AVX-512's dot products (VNNI); see block_loops.h.
#include "kernels.h"

#if defined(__AVX512F__) && defined(__AVX512VNNI__)

#include <immintrin.h>

#include "block_loops.h"

namespace dart {
namespace {

// The instruction multiplies unsigned with signed numbers: signed weights are made unsigned by
// adding 128.
struct Avx512Vnni {
  using Ints = __m512i;
  using Bytes = __m512i;
  using Signed = __m512i;
  using Floats = __m512;
  static constexpr int kSize = 16;
  static constexpr int kRows = 6;  // with a sum in integers and one in floats: 24 of 32 registers
  static constexpr int kTilesOfRow = 1;
  static constexpr int kSignedZero = 128;
  // An instruction's result is there after four others.
  static constexpr int vectors(int rows) { return rows < 7 ? 2 : 1; }

  static constexpr std::size_t quads_together(int) { return 0; }  // their sums have 32 bits

  static Ints zero() { return _mm512_setzero_si512(); }
  static Ints broadcast(std::int32_t x) { return _mm512_set1_epi32(x); }
  static Bytes load(const std::uint8_t* from) { return _mm512_loadu_si512(from); }
  static Bytes low(Bytes x) { return _mm512_and_si512(x, bytes(0x0f)); }
  static Bytes high(Bytes x) {
    return _mm512_and_si512(_mm512_maskz_srli_epi32(0xffff, x, 4), bytes(0x0f));
  }
  // (x << Left & Mask) | rest
  template <int Left, int Mask>
  static Bytes merge(Bytes x, Bytes rest) {
    if constexpr (Left > 0) x = _mm512_maskz_slli_epi32(0xffff, x, Left);
    if constexpr (Left < 0) x = _mm512_maskz_srli_epi32(0xffff, x, -Left);
    return _mm512_ternarylogic_epi32(x, bytes(Mask), rest, 0xea);
  }
  static Signed signed_weights(Bytes x) { return _mm512_xor_si512(x, bytes(0x80)); }
  // As _mm512_dpbusd_epi32, for which GCC 12 copies the sums to and fro.
  static Ints add(Ints sum, Bytes w, const std::int8_t* quad) {
    __asm__("vpdpbusd %2%{1to16%}, %1, %0"
            : "+v"(sum)
            : "v"(w), "m"(*reinterpret_cast<const Quad*>(quad)));
    return sum;
  }
  static Floats floats(Ints x) { return _mm512_maskz_cvtepi32_ps(0xffff, x); }
  static Floats halves(const std::uint8_t* from) {
    const __m256i x = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
    return _mm512_maskz_cvtph_ps(0xffff, x);
  }
  static Floats unsigned_bytes(const std::uint8_t* from) {
    return floats(_mm512_maskz_cvtepu8_epi32(0xffff, sixteen(from)));
  }
  static Floats signed_bytes(const std::uint8_t* from) {
    return floats(_mm512_maskz_cvtepi8_epi32(0xffff, sixteen(from)));
  }
  static Floats broadcast(float x) { return _mm512_set1_ps(x); }
  static Floats negative(Floats x) {
    return _mm512_castsi512_ps(
        _mm512_xor_si512(_mm512_castps_si512(x), broadcast(std::int32_t{-0x7fffffff - 1})));
  }
  static void store(float* to, Floats x) { _mm512_storeu_ps(to, x); }
  static Floats multiply(Floats a, Floats b) { return _mm512_mul_ps(a, b); }
  static Floats multiply_add(Floats a, Floats b, Floats c) { return _mm512_fmadd_ps(a, b, c); }
  // To the second cache, which can wait for more lines than the first.
  static void prefetch(const void* from) {
    _mm_prefetch(static_cast<const char*>(from), _MM_HINT_T1);
  }

 private:
  struct Quad {
    std::int8_t values[kQuad];
  };
  static Bytes bytes(unsigned x) {
    return _mm512_set1_epi32(static_cast<int>(x * 0x01010101u));
  }
  static __m128i sixteen(const std::uint8_t* from) {
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
  }
};

}  // namespace

const MultiplyTiles kMultiplyBlocksAvx512Vnni = multiply_tiles_in_blocks<Avx512Vnni>;

}  // namespace dart

#else

namespace dart {
const MultiplyTiles kMultiplyBlocksAvx512Vnni = nullptr;
}

#endif
