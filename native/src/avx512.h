// Vectors of AVX-512, included by the files that are compiled for it.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "half.h"
#include "lanes.h"
#include "unroll.h"

namespace dart {
namespace {

// Some functions have masks of all lanes: GCC 12 warns about its own header's without.
struct Avx512 {
  using Vector = __m512;
  static constexpr int kSize = 16;
  static constexpr int kRows = 14;  // x 2 vectors: 28 of 32 registers
  static constexpr int kTilesOfRow = 4;
  static constexpr int vectors(int) { return 2; }

  static Vector broadcast(float value) { return _mm512_set1_ps(value); }
  static Vector load(const float* from) { return _mm512_loadu_ps(from); }
  static Vector load(const std::uint16_t* from) {
    const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
    const __m512i wide = _mm512_maskz_cvtepu16_epi32(0xffff, bits);
    return _mm512_castsi512_ps(_mm512_maskz_slli_epi32(0xffff, wide, 16));
  }
  static Vector load(const Half* from) {
    const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
    return _mm512_maskz_cvtph_ps(0xffff, bits);
  }
  static void store(float* to, Vector value) { _mm512_storeu_ps(to, value); }
  static Vector multiply_add(Vector a, Vector b, Vector c) { return _mm512_fmadd_ps(a, b, c); }
  // 2 to the power n, where a number's last bits are n + 127.
  static Vector two_to(Vector bits) {
    return _mm512_castsi512_ps(_mm512_maskz_slli_epi32(0xffff, _mm512_castps_si512(bits), 23));
  }
  // a where it is larger, otherwise b.
  static Vector maximum(Vector a, Vector b) { return _mm512_mask_max_ps(b, 0xffff, a, b); }

  // See PlainRounding.
  static std::uint32_t largest_bits(const float* x) {
    const __m512i signless = _mm512_set1_epi32(0x7fffffff);
    const __m512i low = _mm512_and_epi32(_mm512_castps_si512(load(x)), signless);
    const __m512i high = _mm512_and_epi32(_mm512_castps_si512(load(x + 16)), signless);
    const __m512i both = _mm512_maskz_max_epu32(0xffff, low, high);
    const __m256i first = _mm512_maskz_extracti64x4_epi64(0xff, both, 0);
    return largest_lane(_mm256_max_epu32(first, _mm512_maskz_extracti64x4_epi64(0xff, both, 1)));
  }
  static std::int32_t round_half(const float* x, float factor, std::int8_t* y) {
    const __m512 scaled = _mm512_mul_ps(load(x), broadcast(factor));
    const __m512i values = _mm512_maskz_cvtps_epi32(0xffff, scaled);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(y), _mm512_maskz_cvtepi32_epi8(0xffff, values));
    const __m256i first = _mm512_maskz_extracti64x4_epi64(0xff, values, 0);
    return sum_of_lanes(_mm256_add_epi32(first, _mm512_maskz_extracti64x4_epi64(0xff, values, 1)));
  }

  // Copies kSize rows of kSize numbers, with these distances between rows, to columns.
  static void transpose(const float* from, std::size_t from_stride, float* to,
                        std::size_t to_stride) {
    __m512 rows[16], pairs[16], fours[16];
    DART_UNROLL
    for (int i = 0; i < 16; ++i) rows[i] = load(from + i * from_stride);
    DART_UNROLL
    for (int i = 0; i < 16; i += 2) {
      pairs[i] = _mm512_maskz_unpacklo_ps(0xffff, rows[i], rows[i + 1]);
      pairs[i + 1] = _mm512_maskz_unpackhi_ps(0xffff, rows[i], rows[i + 1]);
    }
    // fours[4 i + c]: in each quarter q, column 4 q + c of rows 4 i to 4 i + 3.
    DART_UNROLL
    for (int i = 0; i < 16; i += 4) {
      const __m512d low = _mm512_castps_pd(pairs[i]), high = _mm512_castps_pd(pairs[i + 1]);
      const __m512d low2 = _mm512_castps_pd(pairs[i + 2]), high2 = _mm512_castps_pd(pairs[i + 3]);
      fours[i] = _mm512_castpd_ps(_mm512_maskz_unpacklo_pd(0xff, low, low2));
      fours[i + 1] = _mm512_castpd_ps(_mm512_maskz_unpackhi_pd(0xff, low, low2));
      fours[i + 2] = _mm512_castpd_ps(_mm512_maskz_unpacklo_pd(0xff, high, high2));
      fours[i + 3] = _mm512_castpd_ps(_mm512_maskz_unpackhi_pd(0xff, high, high2));
    }
    DART_UNROLL
    for (int c = 0; c < 4; ++c) {
      // Quarters 0 and 2, and 1 and 3, of rows 0 to 7 and 8 to 15.
      const __m512 even = _mm512_maskz_shuffle_f32x4(0xffff, fours[c], fours[4 + c], 0x88);
      const __m512 odd = _mm512_maskz_shuffle_f32x4(0xffff, fours[c], fours[4 + c], 0xdd);
      const __m512 even2 = _mm512_maskz_shuffle_f32x4(0xffff, fours[8 + c], fours[12 + c], 0x88);
      const __m512 odd2 = _mm512_maskz_shuffle_f32x4(0xffff, fours[8 + c], fours[12 + c], 0xdd);
      store(to + c * to_stride, _mm512_maskz_shuffle_f32x4(0xffff, even, even2, 0x88));
      store(to + (8 + c) * to_stride, _mm512_maskz_shuffle_f32x4(0xffff, even, even2, 0xdd));
      store(to + (4 + c) * to_stride, _mm512_maskz_shuffle_f32x4(0xffff, odd, odd2, 0x88));
      store(to + (12 + c) * to_stride, _mm512_maskz_shuffle_f32x4(0xffff, odd, odd2, 0xdd));
    }
  }
};

}  // namespace
}  // namespace dart
