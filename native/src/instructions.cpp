#include "dart/instructions.h"

#include <initializer_list>

#include "kernels.h"

#if defined(__x86_64__) && defined(__GNUC__)
#include <cpuid.h>
#elif defined(__aarch64__) && defined(__linux__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

namespace dart {
namespace {

#if defined(__x86_64__) && defined(__GNUC__)
// Clang before 16 does not know it by name.
bool has_f16c() {
  unsigned a, b, c, d;
  return __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0;
}
#endif

}  // namespace


const Kernels* kernels(Instructions instructions) {
  switch (instructions) {
    case Instructions::kAvx512:
    case Instructions::kAvx512Vnni:
    case Instructions::kAvx512Bf16:
      return kAvx512Kernels;
    case Instructions::kAvx2:
      return kAvx2Kernels;
    case Instructions::kNeon:
    case Instructions::kNeonDot:
      return kNeonKernels;
    case Instructions::kPortable:
      break;
  }
  return kPortableKernels;
}

AttendRows attend_rows(Instructions instructions, bool bfloat16) {
  if (!bfloat16) return kernels(instructions)->attend;
  if (instructions == Instructions::kAvx512Bf16) return kAttendPairsAvx512Bf16;
  return kernels(instructions)->attend_pairs;
}

MultiplyTiles multiply_blocks(Instructions instructions) {
  switch (instructions) {
    case Instructions::kAvx512Vnni:
    case Instructions::kAvx512Bf16:
      return kMultiplyBlocksAvx512Vnni;
    case Instructions::kAvx512:
    case Instructions::kAvx2:
      return kMultiplyBlocksAvx2;
    case Instructions::kNeonDot:
      return kMultiplyBlocksNeonDot;
    case Instructions::kNeon:
      return kMultiplyBlocksNeon;
    case Instructions::kPortable:
      break;
  }
  return kMultiplyBlocksPortable;
}

bool supported(Instructions instructions) {
  if (kernels(instructions) == nullptr || attend_rows(instructions, true) == nullptr ||
      multiply_blocks(instructions) == nullptr) {
    return false;
  }
#if defined(__x86_64__) && defined(__GNUC__)
  if (instructions == Instructions::kAvx512Bf16) {
    return __builtin_cpu_supports("avx512bf16") && supported(Instructions::kAvx512Vnni);
  }
  if (instructions == Instructions::kAvx512Vnni) {
    return __builtin_cpu_supports("avx512vnni") && supported(Instructions::kAvx512);
  }
  if (instructions == Instructions::kAvx512) {
    return __builtin_cpu_supports("avx512f") && supported(Instructions::kAvx2);
  }
  if (instructions == Instructions::kAvx2) {
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c();
  }
#endif
#if defined(__aarch64__) && defined(__linux__)
  if (instructions == Instructions::kNeonDot) return (getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0;
#endif
  return true;
}

Instructions best_instructions() {
  static const Instructions best = [] {
    for (Instructions each : {Instructions::kAvx512Bf16, Instructions::kAvx512Vnni,
                              Instructions::kAvx512, Instructions::kAvx2, Instructions::kNeonDot,
                              Instructions::kNeon}) {
      if (supported(each)) return each;
    }
    return Instructions::kPortable;
  }();
  return best;
}

}  // namespace dart
