// Products with weights in blocks with NEON alone; see blocks_neon.h.
#include "kernels.h"

#if defined(__aarch64__) && defined(__ARM_NEON)

#include "blocks_neon.h"

namespace dart {
const MultiplyTiles kMultiplyBlocksNeon = multiply_tiles_in_blocks<Neon>;
}

#else

namespace dart {
const MultiplyTiles kMultiplyBlocksNeon = nullptr;
}

#endif
