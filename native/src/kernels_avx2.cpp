// Layers with AVX2 and fused multiply-add; see kernels.h.
#include "kernels.h"

#if defined(__AVX2__) && defined(__FMA__)

#include <immintrin.h>

#include "half.h"
#include "kernel_table.h"
#include "lanes.h"

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
  static Vector load(const Half* from) {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
  }
  static void store(float* to, Vector value) { _mm256_storeu_ps(to, value); }
  static Vector multiply_add(Vector a, Vector b, Vector c) { return _mm256_fmadd_ps(a, b, c); }
  // 2 to the power n, where a number's last bits are n + 127.
  static Vector two_to(Vector bits) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256(bits), 23));
  }
  // a where it is larger, otherwise b.
  static Vector maximum(Vector a, Vector b) { return _mm256_max_ps(a, b); }

  // See PlainRounding.
  static std::uint32_t largest_bits(const float* x) {
    const __m256i signless = _mm256_set1_epi32(0x7fffffff);
    __m256i largest = _mm256_setzero_si256();
    DART_UNROLL
    for (int i = 0; i < 4; ++i) {
      const __m256i bits = _mm256_and_si256(_mm256_castps_si256(load(x + 8 * i)), signless);
      largest = _mm256_max_epu32(largest, bits);
    }
    return largest_lane(largest);
  }
  static std::int32_t round_half(const float* x, float factor, std::int8_t* y) {
    const __m256i low = _mm256_cvtps_epi32(_mm256_mul_ps(load(x), broadcast(factor)));
    const __m256i high = _mm256_cvtps_epi32(_mm256_mul_ps(load(x + 8), broadcast(factor)));
    // Packed within 128 bits each: the halves of both, then put in order.
    const __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(low, high), 0xd8);
    const __m128i bytes =
        _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(y), bytes);
    return sum_of_lanes(_mm256_add_epi32(low, high));
  }

  // Copies kSize rows of kSize numbers, with these distances between rows, to columns.
  static void transpose(const float* from, std::size_t from_stride, float* to,
                        std::size_t to_stride) {
    __m256 rows[8], pairs[8];
    DART_UNROLL
    for (int i = 0; i < 8; ++i) rows[i] = load(from + i * from_stride);
    DART_UNROLL
    for (int i = 0; i < 8; i += 2) {
      pairs[i] = _mm256_unpacklo_ps(rows[i], rows[i + 1]);
      pairs[i + 1] = _mm256_unpackhi_ps(rows[i], rows[i + 1]);
    }
    // rows[i + c]: in each half, column c of rows i to i + 3.
    DART_UNROLL
    for (int i = 0; i < 8; i += 4) {
      rows[i] = _mm256_shuffle_ps(pairs[i], pairs[i + 2], 0x44);
      rows[i + 1] = _mm256_shuffle_ps(pairs[i], pairs[i + 2], 0xee);
      rows[i + 2] = _mm256_shuffle_ps(pairs[i + 1], pairs[i + 3], 0x44);
      rows[i + 3] = _mm256_shuffle_ps(pairs[i + 1], pairs[i + 3], 0xee);
    }
    DART_UNROLL
    for (int c = 0; c < 4; ++c) {
      store(to + c * to_stride, _mm256_permute2f128_ps(rows[c], rows[4 + c], 0x20));
      store(to + (4 + c) * to_stride, _mm256_permute2f128_ps(rows[c], rows[4 + c], 0x31));
    }
  }
};

constexpr Kernels kKernels = kernels_with<Avx2>();

}  // namespace

const Kernels* const kAvx2Kernels = &kKernels;

}  // namespace dart

#else

namespace dart {
const Kernels* const kAvx2Kernels = nullptr;
}

#endif
