// Python bindings of products with packed weights.
#include "bindings.h"
#include "dart/packed_product.h"

#ifdef DART_FFI
#include "ffi.h"
#endif

namespace {

const char* name(dart::Instructions instructions) {
  switch (instructions) {
    case dart::Instructions::kAvx2:
      return "AVX2";
    case dart::Instructions::kAvx512:
      return "AVX-512";
    case dart::Instructions::kNeon:
      return "NEON";
    case dart::Instructions::kPortable:
      break;
  }
  return "portable";
}

}  // namespace

void bind_product(pybind11::module_& m) {
  m.attr("product_instructions") = name(dart::best_instructions());
#ifdef DART_FFI
  m.attr("product_ffi_handler") = pybind11::capsule(dart_product_handler());
#else
  m.attr("product_ffi_handler") = pybind11::none();
#endif
}
