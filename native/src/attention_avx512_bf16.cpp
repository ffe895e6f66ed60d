// Attention with AVX-512's dot products of bfloat16 numbers; see kernels.h.
#include "kernels.h"

#ifdef __AVX512BF16__

#include "attention_loops.h"
#include "avx512.h"

namespace dart {
namespace {

// As Bfloat16 with these instructions, but queries and weights are stored in pairs, too.
struct Avx512Bf16 : Avx512 {
  using Number = std::uint16_t;
  static constexpr std::size_t kNumbers = 2;
  static constexpr int kFloats = 1;

  static void load_element(const float* from, Vector (&factors)[1]) { factors[0] = load(from); }
  static Vector add_product(Vector a, Vector b, Vector sum) {
    return _mm512_dpbf16_ps(sum, (__m512bh)a, (__m512bh)b);
  }
  static void store_numbers(float* row, std::size_t i, Vector numbers) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(row + i / kNumbers),
                        (__m256i)_mm512_cvtneps_pbh(numbers));
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
