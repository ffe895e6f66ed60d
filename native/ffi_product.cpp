// Products with packed weights as an XLA foreign function on the CPU.
#include <cstddef>
#include <cstdint>
#include <exception>
#include <optional>
#include <string_view>

#include "dart/int8.h"
#include "dart/packed_product.h"
#include "dart/rows.h"
#include "ffi.h"
#include "ffi_used.h"
#include "xla/ffi/api/ffi.h"

namespace {

namespace ffi = xla::ffi;

using Floats = ffi::Buffer<ffi::F32>;
using Bytes = ffi::Buffer<ffi::S8>;
using Matrix = ffi::BufferR2<ffi::F32>;

std::optional<dart::WeightType> weight_type(ffi::DataType type) {
  if (type == ffi::F32) return dart::WeightType::kFloat32;
  if (type == ffi::BF16) return dart::WeightType::kBfloat16;
  if (type == ffi::S8) return dart::WeightType::kInt8;
  return std::nullopt;
}

// y [rows, out] = f(x) W + bias + residual, with W packed as dart_jax/models/cpu.py does.
//
// `input` says what f is: `rows` for x [rows, in] itself; `norm` for its norm, with `scale`, `eps`
// and `offset`; `silu` and `gelu` for the gated activation of x [rows, 2 in]. `inputs` is room for
// f(x), and `quantized` for f(x) in 8 bits. Arrays that are not needed have no elements. `used` says
// how many rows are computed, if it has an element: what follows them in y is not written.
ffi::Error product(ffi::ThreadPool pool, Matrix x, ffi::AnyBuffer tiles, Floats scale, Floats bias,
                   Floats residual, ffi::Buffer<ffi::S32> used, ffi::Result<Matrix> y,
                   ffi::Result<Floats> inputs, ffi::Result<Bytes> quantized,
                   std::string_view input, float eps, float offset) {
  const auto shape = x.dimensions(), packed = tiles.dimensions(), out = y->dimensions();
  const bool norm = input == "norm", gated = input == "silu" || input == "gelu";
  const std::int64_t width = dart::kTileWidth, rows = shape[0];
  const std::int64_t in = gated ? shape[1] / 2 : shape[1];
  const auto type = weight_type(tiles.element_type());
  if (!type) {
    return ffi::Error::InvalidArgument("dart_product: weights must be float32, bfloat16 or int8");
  }
  const bool int8 = *type == dart::WeightType::kInt8;
  const auto groups = static_cast<std::int64_t>(dart::int8_groups(static_cast<std::size_t>(in)));
  if (packed.size() != 3 || out[0] != rows || packed[0] != (out[1] + width - 1) / width ||
      packed[1] != (int8 ? groups : in) ||
      packed[2] != (int8 ? static_cast<std::int64_t>(dart::kInt8TileBytes) : width)) {
    return ffi::Error::InvalidArgument("dart_product: weights of another shape");
  }
  const auto has = [](const auto& array, std::int64_t count) {
    return static_cast<std::int64_t>(array.element_count()) == count;
  };
  const bool prepared = norm || gated;
  if ((!prepared && input != "rows") || (gated && shape[1] != 2 * in) ||
      !has(*inputs, prepared ? rows * in : 0) ||
      !has(*quantized, int8 ? rows * groups * std::int64_t{sizeof(dart::Int8Inputs)} : 0) ||
      !has(scale, norm ? in : 0) ||
      !(has(bias, 0) || has(bias, out[1])) || !(has(residual, 0) || has(residual, rows * out[1]))) {
    return ffi::Error::InvalidArgument("dart_product: arguments of other shapes");
  }
  const dart::Instructions instructions = dart::best_instructions();
  dart::PackedProduct product;
  product.x = prepared ? inputs->typed_data() : x.typed_data();
  product.tiles = tiles.untyped_data();
  product.y = y->typed_data();
  product.rows = used_rows(used, static_cast<std::size_t>(rows));
  product.in = static_cast<std::size_t>(in);
  product.out = static_cast<std::size_t>(out[1]);
  product.weights = *type;
  if (bias.element_count() > 0) product.bias = bias.typed_data();
  if (residual.element_count() > 0) product.residual = residual.typed_data();
  if (norm) {
    const dart::Norm rms{scale.typed_data(), product.in, eps, offset};
    dart::normalize(rms, x.typed_data(), product.rows, inputs->typed_data(), instructions);
  } else if (gated) {
    const auto activation = input == "silu" ? dart::Activation::kSilu : dart::Activation::kGelu;
    dart::gate(activation, x.typed_data(), product.rows, product.in, inputs->typed_data(),
               instructions);
  }
  if (int8) {
    auto* const rounded = reinterpret_cast<dart::Int8Inputs*>(quantized->typed_data());
    dart::quantize(product.x, product.rows, product.in, rounded, instructions);
    product.quantized = rounded;
  }
  // As many threads as XLA has, but not XLA's: those sleep between calls.
  try {
    dart::multiply(product, instructions, static_cast<std::size_t>(pool.num_threads()));
  } catch (const std::exception& error) {
    return ffi::Error::Internal(error.what());
  }
  return ffi::Error::Success();
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(dart_product, product,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<Matrix>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<Floats>()
                                  .Arg<Floats>()
                                  .Arg<Floats>()
                                  .Arg<ffi::Buffer<ffi::S32>>()
                                  .Ret<Matrix>()
                                  .Ret<Floats>()
                                  .Ret<Bytes>()
                                  .Attr<std::string_view>("input")
                                  .Attr<float>("eps")
                                  .Attr<float>("offset"));

void* dart_product_handler() { return reinterpret_cast<void*>(dart_product); }
