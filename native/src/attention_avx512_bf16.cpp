// Attention with AVX-512's dot products of bfloat16 numbers; see kernels.h.
#include "kernels.h"

#ifdef __AVX512BF16__

#include "attention_loops.h"
#include "avx512.h"

namespace dart {
namespace {

// Elements are pairs, the even number in the lower half.
struct Avx512Bf16 : Avx512 {
  using Number = std::uint16_t;
  static constexpr bool kPairs = true;
  static constexpr bool kAsStored = true;
  static constexpr std::size_t kNumbers = 2;

  static Vector add_product(Vector a, Vector b, Vector sum) {
    return _mm512_dpbf16_ps(sum, (__m512bh)a, (__m512bh)b);
  }
  static void store_numbers(float* row, std::size_t i, Vector numbers) {
    store16(row + i / kNumbers, (__m256i)_mm512_cvtneps_pbh(numbers));
  }
  static void copy(const Number* from, std::size_t count, float* to) {
    for (std::size_t i = 0; i < count; i += 16) store16(to + i / kNumbers, load16(from + i));
  }
  static void join(const Number* even, const Number* odd, std::size_t count, float* to) {
    for (std::size_t i = 0; i < count; i += 16) {
      const __m512i low = _mm512_maskz_cvtepu16_epi32(0xffff, load16(even + i));
      const __m512i high = _mm512_maskz_cvtepu16_epi32(0xffff, load16(odd + i));
      const __m512i pairs = _mm512_or_si512(low, _mm512_maskz_slli_epi32(0xffff, high, 16));
      store(to + i, _mm512_castsi512_ps(pairs));
    }
  }

 private:
  static __m256i load16(const Number* from) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
  }
  static void store16(float* to, __m256i numbers) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), numbers);
  }
};

}  // namespace

const AttendRows kAttendPairsAvx512Bf16 = attend_pairs<Avx512Bf16>;

}  // namespace dart

#else

namespace dart {
const AttendRows kAttendPairsAvx512Bf16 = nullptr;
}

#endif
