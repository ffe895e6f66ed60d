// Products with weights in tiles as XLA foreign functions on the CPU.
#include <cstddef>
#include <cstdint>
#include <exception>
#include <string_view>

#include "dart/blocks.h"
#include "dart/packed_product.h"
#include "dart/rows.h"
#include "ffi.h"
#include "ffi_tiles.h"
#include "ffi_used.h"
#include "xla/ffi/api/ffi.h"

namespace {

namespace ffi = xla::ffi;

using Floats = ffi::Buffer<ffi::F32>;
using Bytes = ffi::Buffer<ffi::U8>;
using Matrix = ffi::BufferR2<ffi::F32>;

std::size_t size(std::int64_t dimension) { return static_cast<std::size_t>(dimension); }

// y [rows, out] = f(x) W + bias + residual. W is in parts, which follow each other along its outputs:
// of the types `types`, with `outs` outputs, in tiles.
//
// `input` says what f is: `rows` for x [rows, in] itself; `norm` for its norm, with `scale`, `eps`
// and `offset`; `silu` and `gelu` for the gated activation of x [rows, 2 in]. `inputs` is room for
// f(x), and `quantized` for f(x) in 8 bits. Arrays that are not needed have no elements. `used` says
// how many rows are computed, if it has an element: what follows them in y is not written.
ffi::Error product(ffi::ThreadPool pool, Matrix x, Floats scale, Floats bias, Floats residual,
                   ffi::Buffer<ffi::S32> used, ffi::RemainingArgs tiles, ffi::Result<Matrix> y,
                   ffi::Result<Floats> inputs, ffi::Result<Bytes> quantized, std::string_view input,
                   float eps, float offset, ffi::Span<const std::int32_t> types,
                   ffi::Span<const std::int64_t> outs) try {
  const auto shape = x.dimensions(), result = y->dimensions();
  const bool norm = input == "norm", gated = input == "silu" || input == "gelu";
  const std::size_t rows = size(shape[0]), out = size(result[1]);
  const std::size_t in = size(gated ? shape[1] / 2 : shape[1]);
  const bool prepared = norm || gated;
  const float* const read = prepared ? inputs->typed_data() : x.typed_data();
  auto* const rounded = reinterpret_cast<dart::Int8Inputs*>(quantized->untyped_data());
  dart::Matrix matrix;
  matrix.in = in;
  if (!read_matrix(tiles, 0, tiles.size(), types, outs, matrix)) {
    return ffi::Error::InvalidArgument("dart_product: weights of another shape");
  }
  const bool blocks = matrix.any_in_blocks();
  const auto has = [](const auto& array, std::size_t count) {
    return array.element_count() == count;
  };
  const std::size_t bytes = rows * dart::groups_of(in) * sizeof(dart::Int8Inputs);
  if (matrix.out != out || size(result[0]) != rows || (!prepared && input != "rows") ||
      (gated && size(shape[1]) != 2 * in) || !has(*inputs, prepared ? rows * in : 0) ||
      !has(*quantized, blocks ? bytes : 0) || !has(scale, norm ? in : 0) ||
      !(has(bias, 0) || has(bias, out)) || !(has(residual, 0) || has(residual, rows * out))) {
    return ffi::Error::InvalidArgument("dart_product: arguments of other shapes");
  }
  const dart::Instructions instructions = dart::best_instructions();
  const std::size_t count = used_rows(used, rows);
  if (norm) {
    const dart::Norm rms{scale.typed_data(), in, eps, offset};
    dart::normalize(rms, x.typed_data(), count, inputs->typed_data(), instructions);
  } else if (gated) {
    const auto activation = input == "silu" ? dart::Activation::kSilu : dart::Activation::kGelu;
    dart::gate(activation, x.typed_data(), count, in, inputs->typed_data(), instructions);
  }
  if (blocks) dart::quantize(read, count, in, rounded, instructions);
  if (bias.element_count() > 0) matrix.bias = bias.typed_data();
  const float* const added = residual.element_count() > 0 ? residual.typed_data() : nullptr;
  const auto products = dart::products(matrix, read, rounded, count, added, y->typed_data());
  // As many threads as XLA has, but not XLA's: those sleep between calls.
  dart::multiply(products.data(), products.size(), instructions, size(pool.num_threads()));
  return ffi::Error::Success();
} catch (const std::exception& error) {
  return ffi::Error::Internal(error.what());
}

// Outputs' weights, as rows: ids [..] -> [.., in]. Ids beyond the ends are those of the ends.
ffi::Error take(ffi::AnyBuffer tiles, ffi::Buffer<ffi::S32> ids, ffi::Result<Floats> rows,
                std::int32_t type, std::int64_t out) {
  const std::size_t count = ids.element_count();
  if (count == 0) return ffi::Error::Success();
  const std::size_t in = rows->element_count() / count;
  if (out < 1 || rows->element_count() != count * in ||
      !has_tiles(tiles, static_cast<dart::WeightType>(type), in, size(out))) {
    return ffi::Error::InvalidArgument("dart_take_tiles: weights of another shape");
  }
  for (std::size_t i = 0; i < count; ++i) {
    const std::int64_t id = ids.typed_data()[i];
    const std::int64_t row = id < 0 ? 0 : id < out ? id : out - 1;
    dart::unpack_row(static_cast<dart::WeightType>(type), tiles.untyped_data(), in, size(row),
                     rows->typed_data() + i * in);
  }
  return ffi::Error::Success();
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(dart_product, product,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<Matrix>()
                                  .Arg<Floats>()
                                  .Arg<Floats>()
                                  .Arg<Floats>()
                                  .Arg<ffi::Buffer<ffi::S32>>()
                                  .RemainingArgs()
                                  .Ret<Matrix>()
                                  .Ret<Floats>()
                                  .Ret<Bytes>()
                                  .Attr<std::string_view>("input")
                                  .Attr<float>("eps")
                                  .Attr<float>("offset")
                                  .Attr<ffi::Span<const std::int32_t>>("types")
                                  .Attr<ffi::Span<const std::int64_t>>("outs"));

XLA_FFI_DEFINE_HANDLER_SYMBOL(dart_take_tiles, take,
                              ffi::Ffi::Bind()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::Buffer<ffi::S32>>()
                                  .Ret<Floats>()
                                  .Attr<std::int32_t>("type")
                                  .Attr<std::int64_t>("out"));

void* dart_product_handler() { return reinterpret_cast<void*>(dart_product); }
void* dart_take_tiles_handler() { return reinterpret_cast<void*>(dart_take_tiles); }
