#include "dart/instructions.h"

#include <initializer_list>

#include "kernels.h"

namespace dart {

const Kernels* kernels(Instructions instructions) {
  switch (instructions) {
    case Instructions::kAvx512:
    case Instructions::kAvx512Vnni:
      return kAvx512Kernels;
    case Instructions::kAvx2:
      return kAvx2Kernels;
    case Instructions::kNeon:
      return kNeonKernels;
    case Instructions::kPortable:
      break;
  }
  return kPortableKernels;
}

MultiplyTiles multiply_int8(Instructions instructions) {
  switch (instructions) {
    case Instructions::kAvx512Vnni:
      return kMultiplyInt8Avx512Vnni;
    case Instructions::kAvx512:
    case Instructions::kAvx2:
      return kMultiplyInt8Avx2;
    case Instructions::kNeon:
      return kMultiplyInt8Neon;
    case Instructions::kPortable:
      break;
  }
  return kMultiplyInt8Portable;
}

bool supported(Instructions instructions) {
  if (kernels(instructions) == nullptr || multiply_int8(instructions) == nullptr) return false;
#if defined(__x86_64__) && defined(__GNUC__)
  if (instructions == Instructions::kAvx512Vnni) {
    return __builtin_cpu_supports("avx512vnni") && supported(Instructions::kAvx512);
  }
  if (instructions == Instructions::kAvx512) {
    return __builtin_cpu_supports("avx512f") && supported(Instructions::kAvx2);
  }
  if (instructions == Instructions::kAvx2) {
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  }
#endif
  return true;
}

Instructions best_instructions() {
  static const Instructions best = [] {
    for (Instructions each : {Instructions::kAvx512Vnni, Instructions::kAvx512,
                              Instructions::kAvx2, Instructions::kNeon}) {
      if (supported(each)) return each;
    }
    return Instructions::kPortable;
  }();
  return best;
}

}  // namespace dart
