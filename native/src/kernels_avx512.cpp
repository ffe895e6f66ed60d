// Layers with AVX-512; see kernels.h.
#include "kernels.h"

#ifdef __AVX512F__

#include "avx512.h"
#include "kernel_table.h"

namespace dart {
namespace {

constexpr Kernels kKernels = kernels_with<Avx512>();

}  // namespace

const Kernels* const kAvx512Kernels = &kKernels;

}  // namespace dart

#else

namespace dart {
const Kernels* const kAvx512Kernels = nullptr;
}

#endif
