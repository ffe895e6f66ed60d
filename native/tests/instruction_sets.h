// The instruction sets to test on this processor.
#pragma once

#include <initializer_list>
#include <vector>

#include "dart/instructions.h"

inline std::vector<dart::Instructions> supported() {
  using dart::Instructions;
  std::vector<Instructions> found;
  for (Instructions each : {Instructions::kPortable, Instructions::kAvx2, Instructions::kAvx512,
                            Instructions::kAvx512Vnni, Instructions::kAvx512Bf16,
                            Instructions::kNeon, Instructions::kNeonDot}) {
    if (dart::supported(each)) found.push_back(each);
  }
  return found;
}
