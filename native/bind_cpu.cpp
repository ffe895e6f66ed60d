// Python bindings of a model's layers on CPUs.
#include "bindings.h"
#include "dart/instructions.h"

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
    case dart::Instructions::kAvx512Vnni:
      return "AVX-512 VNNI";
    case dart::Instructions::kNeon:
      return "NEON";
    case dart::Instructions::kPortable:
      break;
  }
  return "portable";
}

}  // namespace

void bind_cpu(pybind11::module_& m) {
  m.attr("instructions") = name(dart::best_instructions());
  pybind11::dict handlers;
#ifdef DART_FFI
  handlers["dart_product"] = pybind11::capsule(dart_product_handler());
  handlers["dart_noise"] = pybind11::capsule(dart_noise_handler());
  handlers["dart_draw"] = pybind11::capsule(dart_draw_handler());
  handlers["dart_heads"] = pybind11::capsule(dart_heads_handler());
  handlers["dart_largest"] = pybind11::capsule(dart_largest_handler());
  handlers["dart_take"] = pybind11::capsule(dart_take_handler());
  handlers["dart_append"] = pybind11::capsule(dart_append_handler());
  handlers["dart_look_up"] = pybind11::capsule(dart_look_up_handler());
  handlers["dart_attention"] = pybind11::capsule(dart_attention_handler());
#endif
  m.attr("cpu_ffi_handlers") = handlers;
}
