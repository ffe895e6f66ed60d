// Layers with the vector instructions of 64-bit ARM; see kernels.h.
#include "kernels.h"

#if defined(__aarch64__) && defined(__ARM_NEON)

#include <arm_neon.h>

#include "half.h"
#include "kernel_table.h"

namespace dart {
namespace {

struct Neon {
  using Vector = float32x4_t;
  static constexpr int kSize = 4;
  static constexpr int kRows = 6;  // x 4 vectors: 24 of 32 registers
  static constexpr int kTilesOfRow = 2;
  static constexpr int vectors(int rows) { return rows <= 2 ? 8 : 4; }

  static Vector broadcast(float value) { return vdupq_n_f32(value); }
  static Vector load(const float* from) { return vld1q_f32(from); }
  static Vector load(const std::uint16_t* from) {
    return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(from), 16));
  }
  static Vector load(const Half* from) {
    const auto* const bits = reinterpret_cast<const std::uint16_t*>(from);
    return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(bits)));
  }
  static void store(float* to, Vector value) { vst1q_f32(to, value); }
  static Vector multiply_add(Vector a, Vector b, Vector c) { return vfmaq_f32(c, a, b); }
  // 2 to the power n, where a number's last bits are n + 127.
  static Vector two_to(Vector bits) {
    return vreinterpretq_f32_u32(vshlq_n_u32(vreinterpretq_u32_f32(bits), 23));
  }
  // a where it is larger, otherwise b.
  static Vector maximum(Vector a, Vector b) { return vbslq_f32(vcgtq_f32(a, b), a, b); }

  static void transpose(const float* from, std::size_t from_stride, float* to,
                        std::size_t to_stride) {
    transpose_plainly<kSize>(from, from_stride, to, to_stride);
  }
};

constexpr Kernels kKernels = kernels_with<Neon, PlainRounding>();

}  // namespace

const Kernels* const kNeonKernels = &kKernels;

}  // namespace dart

#else

namespace dart {

const Kernels* const kNeonKernels = nullptr;

}  // namespace dart

#endif
