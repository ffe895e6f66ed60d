#include "dart/instructions.h"

#include <initializer_list>

#include "kernels.h"

namespace dart {

const Kernels* kernels(Instructions instructions) {
  switch (instructions) {
    case Instructions::kAvx512:
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

bool supported(Instructions instructions) {
  if (kernels(instructions) == nullptr) return false;
#if defined(__x86_64__) && defined(__GNUC__)
  if (instructions == Instructions::kAvx512) {
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("fma");
  }
  if (instructions == Instructions::kAvx2) {
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  }
#endif
  return true;
}

Instructions best_instructions() {
  static const Instructions best = [] {
    for (Instructions each : {Instructions::kAvx512, Instructions::kAvx2, Instructions::kNeon}) {
      if (supported(each)) return each;
    }
    return Instructions::kPortable;
  }();
  return best;
}

}  // namespace dart
