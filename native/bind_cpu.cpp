// Python bindings of a model's layers on CPUs.
#include <pybind11/stl.h>

#include <map>
#include <string>

#include "bindings.h"
#include "dart/blocks.h"
#include "dart/instructions.h"
#include "numpy_arrays.h"

#ifdef DART_FFI
#include "ffi_handlers.h"
#endif

namespace {

// By dart::Instructions.
constexpr const char* kInstructions[] = {
    "portable", "AVX2", "AVX-512", "AVX-512 VNNI", "AVX-512 VNNI and BF16", "NEON",
    "NEON dot products"};

// By the names of GGUF's types.
const std::map<std::string, dart::WeightType>& types() {
  using dart::WeightType;
  static const std::map<std::string, WeightType> types = {
      {"F32", WeightType::kFloat32}, {"F16", WeightType::kFloat16}, {"BF16", WeightType::kBfloat16},
      {"Q4_0", WeightType::kQ4_0},   {"Q4_1", WeightType::kQ4_1},   {"Q5_0", WeightType::kQ5_0},
      {"Q5_1", WeightType::kQ5_1},   {"Q8_0", WeightType::kQ8_0},   {"Q4_K", WeightType::kQ4_K},
      {"Q5_K", WeightType::kQ5_K},   {"Q6_K", WeightType::kQ6_K},
  };
  return types;
}

dart::WeightType block_type(const std::string& type) {
  const auto found = types().find(type);
  if (found == types().end() || !dart::in_blocks(found->second)) {
    throw py::value_error("no type of blocks: " + type);
  }
  return found->second;
}

// An array [ceil(out / 32), bytes] for tiles of blocks.
void check_tiles(const py::array& tiles, dart::WeightType type, std::size_t inputs,
                 std::size_t out) {
  const std::size_t count = (out + dart::kTileWidth - 1) / dart::kTileWidth;
  const std::size_t bytes = dart::tile_bytes(dart::form_of(type), inputs);
  check_array<std::uint8_t>(
      tiles, "tiles", {static_cast<py::ssize_t>(count), static_cast<py::ssize_t>(bytes)});
}

std::size_t pack_blocks(const std::string& name, const py::array& rows, py::array tiles,
                        std::size_t threads) {
  const dart::WeightType type = block_type(name);
  const dart::BlockForm form = dart::form_of(type);
  check_array<std::uint8_t>(rows, "rows", {kAny, kAny});
  const auto out = static_cast<std::size_t>(rows.shape(0));
  const auto row = static_cast<std::size_t>(rows.shape(1));
  if (row % form.file_bytes != 0) throw py::value_error("rows must have whole blocks");
  const std::size_t blocks = row / form.file_bytes, inputs = blocks * dart::block_inputs(form);
  check_tiles(tiles, type, inputs, out);
  auto* const to = static_cast<std::uint8_t*>(tiles.mutable_data());
  const std::uint8_t* const from = data<std::uint8_t>(rows);
  py::gil_scoped_release release;
  dart::pack_blocks(type, from, inputs, out, to, threads);
  return dart::count_not_finite(type, from, out * blocks);
}

void pack_q8_0(const py::array& weights, py::array tiles, std::size_t threads) {
  check_array<float>(weights, "weights", {kAny, kAny});
  const auto out = static_cast<std::size_t>(weights.shape(0));
  const auto inputs = static_cast<std::size_t>(weights.shape(1));
  check_tiles(tiles, dart::WeightType::kQ8_0, inputs, out);
  auto* const to = static_cast<std::uint8_t*>(tiles.mutable_data());
  const float* const from = data<float>(weights);
  py::gil_scoped_release release;
  dart::pack_q8_0(from, inputs, out, to, threads);
}

std::size_t tile_bytes(const std::string& name, std::size_t inputs) {
  const dart::BlockForm form = dart::form_of(block_type(name));
  if (form.super && inputs % dart::block_inputs(form) != 0) {
    throw py::value_error("no whole blocks of " + name + ": " + std::to_string(inputs));
  }
  return dart::tile_bytes(form, inputs);
}

}  // namespace

#ifdef DART_FFI
std::map<std::string, XLA_FFI_Handler*>& ffi_handlers() {
  static std::map<std::string, XLA_FFI_Handler*> handlers;
  return handlers;
}
#endif

void bind_cpu(pybind11::module_& m) {
  m.attr("instructions") = kInstructions[static_cast<int>(dart::best_instructions())];
  pybind11::dict numbers;
  for (const auto& [type, number] : types()) numbers[type.c_str()] = static_cast<int>(number);
  m.attr("weight_types") = numbers;
  m.def("tile_bytes", &tile_bytes, py::arg("type"), py::arg("inputs"));
  m.def("pack_blocks", &pack_blocks, py::arg("type"), py::arg("rows"), py::arg("tiles"),
        py::arg("threads"));
  m.def("pack_q8_0", &pack_q8_0, py::arg("weights"), py::arg("tiles"), py::arg("threads"));
  pybind11::dict handlers;
#ifdef DART_FFI
  for (const auto& [name, handler] : ffi_handlers()) {
    handlers[name.c_str()] = pybind11::capsule(reinterpret_cast<void*>(handler));
  }
  m.def("call_in_programs", &call_in_programs, py::arg("function"));
#endif
  m.attr("cpu_ffi_handlers") = handlers;
}
