// Sums and largest values within vectors of AVX2, included by the files that are compiled for it.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace dart {
namespace {

inline std::uint32_t largest_lane(__m256i eight) {
  __m128i four = _mm_max_epu32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256(eight, 1));
  four = _mm_max_epu32(four, _mm_shuffle_epi32(four, 0x4e));
  four = _mm_max_epu32(four, _mm_shuffle_epi32(four, 0xb1));
  return static_cast<std::uint32_t>(_mm_cvtsi128_si32(four));
}

inline std::int32_t sum_of_lanes(__m256i eight) {
  __m128i four = _mm_add_epi32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256(eight, 1));
  four = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0x4e));
  four = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0xb1));
  return _mm_cvtsi128_si32(four);
}

}  // namespace
}  // namespace dart
