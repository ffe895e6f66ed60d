// Products in 8 bits with ARM's NEON; see int8_tiles.h.
#include "kernels.h"

#if defined(__aarch64__) && defined(__ARM_NEON)

#include <arm_neon.h>

#include "int8_tiles.h"

namespace dart {
namespace {

struct Neon {
  using Ints = int32x4_t;
  using Weights = int8x16_t;
  using Floats = float32x4_t;
  static constexpr int kSize = 4;
  static constexpr int kVectors = 4;
  static constexpr int kRows = 5;  // x 4 vectors: 20 of 32 registers
  static constexpr int kTilesOfRow = 1;

  static Ints begin(std::int32_t) { return vdupq_n_s32(0); }
  static Weights weights(const std::int8_t* from) { return vld1q_s8(from); }
  static Ints broadcast(const std::int8_t* quad) {
    std::int32_t bits;
    __builtin_memcpy(&bits, quad, sizeof bits);
    return vdupq_n_s32(bits);
  }
  static Ints add(Ints sum, Weights w, Ints x) {
    const int8x16_t values = vreinterpretq_s8_s32(x);
#ifdef __ARM_FEATURE_DOTPROD
    return vdotq_s32(sum, w, values);
#else
    // Sums of two products each, of which an output has two.
    const int32x4_t low = vpaddlq_s16(vmull_s8(vget_low_s8(w), vget_low_s8(values)));
    const int32x4_t high = vpaddlq_s16(vmull_s8(vget_high_s8(w), vget_high_s8(values)));
    return vaddq_s32(sum, vpaddq_s32(low, high));
#endif
  }
  static Floats floats(Ints x) { return vcvtq_f32_s32(x); }
  static Floats broadcast(float x) { return vdupq_n_f32(x); }
  static Floats load(const float* from) { return vld1q_f32(from); }
  static void store(float* to, Floats x) { vst1q_f32(to, x); }
  static Floats multiply(Floats a, Floats b) { return vmulq_f32(a, b); }
  static Floats multiply_add(Floats a, Floats b, Floats c) { return vfmaq_f32(c, a, b); }
  static void prefetch(const std::int8_t* from) { __builtin_prefetch(from); }
};

}  // namespace

const MultiplyTiles kMultiplyInt8Neon = multiply_int8_tiles<Neon>;

}  // namespace dart

#else

namespace dart {
const MultiplyTiles kMultiplyInt8Neon = nullptr;
}

#endif
