// Products with weights in blocks with ARM's NEON; see block_loops.h. Included by files that are
// compiled with dot products and without.
#pragma once

#include <arm_neon.h>

#include "block_loops.h"

namespace dart {
namespace {

struct Neon {
  using Ints = int32x4_t;
  using Bytes = uint8x16_t;
  using Signed = uint8x16_t;
  using Floats = float32x4_t;
  static constexpr int kSize = 4;
  static constexpr int kRows = 8;  // with a sum in integers and one in floats: 16 of 32 registers
  static constexpr int kTilesOfRow = 1;
  static constexpr int kSignedZero = 0;
  static constexpr int vectors(int rows) { return rows == 1 ? 8 : rows == 2 ? 4 : rows < 5 ? 2 : 1; }

  static constexpr std::size_t quads_together(int) { return 0; }  // their sums have 32 bits

  static Ints zero() { return vdupq_n_s32(0); }
  static Ints broadcast(std::int32_t x) { return vdupq_n_s32(x); }
  static Bytes load(const std::uint8_t* from) { return vld1q_u8(from); }
  static Bytes low(Bytes x) { return vandq_u8(x, vdupq_n_u8(0x0f)); }
  static Bytes high(Bytes x) { return vshrq_n_u8(x, 4); }
  // (x << Left & Mask) | rest
  template <int Left, int Mask>
  static Bytes merge(Bytes x, Bytes rest) {
    if constexpr (Left > 0) x = vshlq_n_u8(x, Left);
    if constexpr (Left < 0) x = vshrq_n_u8(x, -Left);
    return vorrq_u8(vandq_u8(x, vdupq_n_u8(Mask)), rest);
  }
  static Signed signed_weights(Bytes x) { return x; }
  static Ints add(Ints sum, Bytes weights, const std::int8_t* quad) {
    std::int32_t bits;
    __builtin_memcpy(&bits, quad, sizeof bits);
    const int8x16_t w = vreinterpretq_s8_u8(weights);  // weights of less than 8 bits are positive
    const int8x16_t x = vreinterpretq_s8_s32(vdupq_n_s32(bits));
#ifdef __ARM_FEATURE_DOTPROD
    return vdotq_s32(sum, w, x);
#else
    // Sums of two products each, of which an output has two.
    const int32x4_t low = vpaddlq_s16(vmull_s8(vget_low_s8(w), vget_low_s8(x)));
    const int32x4_t high = vpaddlq_s16(vmull_s8(vget_high_s8(w), vget_high_s8(x)));
    return vaddq_s32(sum, vpaddq_s32(low, high));
#endif
  }
  static Floats floats(Ints x) { return vcvtq_f32_s32(x); }
  static Floats halves(const std::uint8_t* from) {
    return vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(from)));
  }
  static Floats unsigned_bytes(const std::uint8_t* from) {
    return vcvtq_f32_u32(vmovl_u16(vget_low_u16(vmovl_u8(four(from)))));
  }
  static Floats signed_bytes(const std::uint8_t* from) {
    return vcvtq_f32_s32(vmovl_s16(vget_low_s16(vmovl_s8(vreinterpret_s8_u8(four(from))))));
  }
  static Floats broadcast(float x) { return vdupq_n_f32(x); }
  static Floats negative(Floats x) { return vnegq_f32(x); }
  static void store(float* to, Floats x) { vst1q_f32(to, x); }
  static Floats multiply(Floats a, Floats b) { return vmulq_f32(a, b); }
  static Floats multiply_add(Floats a, Floats b, Floats c) { return vfmaq_f32(c, a, b); }
  static void prefetch(const void* from) { __builtin_prefetch(from); }

 private:
  static uint8x8_t four(const std::uint8_t* from) {
    std::uint32_t bits;
    __builtin_memcpy(&bits, from, sizeof bits);
    return vreinterpret_u8_u32(vdup_n_u32(bits));
  }
};

}  // namespace
}  // namespace dart
