// The instruction sets that models are computed with on CPUs; a program chooses the best when it
// runs.
#pragma once

namespace dart {

// All but the portable one fuse each multiplication of a product with its addition, so that they
// agree with each other, but not with the portable one.
enum class Instructions { kPortable, kAvx2, kAvx512, kAvx512Vnni, kAvx512Bf16, kNeon, kNeonDot };

// True if this processor has them, and this library was built for them.
bool supported(Instructions instructions);

// The fastest that is supported.
Instructions best_instructions();

}  // namespace dart
