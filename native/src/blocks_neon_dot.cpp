// Products with weights in blocks with NEON's dot products; see blocks_neon.h.
#include "kernels.h"

#if defined(__aarch64__) && defined(__ARM_FEATURE_DOTPROD)

#include "blocks_neon.h"

namespace dart {
const MultiplyTiles kMultiplyBlocksNeonDot = multiply_tiles_in_blocks<Neon>;
}

#else

namespace dart {
const MultiplyTiles kMultiplyBlocksNeonDot = nullptr;
}

#endif
