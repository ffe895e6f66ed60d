// Products with weights in tiles as XLA foreign functions on the CPU.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "dart/blocks.h"
#include "dart/matrix.h"
#include "ffi_handlers.h"
#include "ffi_shapes.h"
#include "ffi_tiles.h"
#include "ffi_used.h"
#include "xla/ffi/api/ffi.h"

namespace {

namespace ffi = xla::ffi;

using Floats = ffi::Buffer<ffi::F32>;
using Rows = ffi::BufferR2<ffi::F32>;

// y [rows, out] = f(x) W + bias + residual, where W is in tiles: see read_matrices.
//
// `input` says what f is: `rows` for x [rows, in] itself; `norm` for its norm, with `scale`, `eps`
// and `offset`; `silu` and `gelu` for the gated activation of x [rows, 2 in]. Arrays that are not
// needed have no elements. `used` says how many rows are computed, if it has an element: what follows
// them in y is not written.
ffi::Error product(ffi::ThreadPool pool, Rows x, Floats scale, Floats bias, Floats residual,
                   ffi::Buffer<ffi::S32> used, ffi::RemainingArgs tiles, ffi::Result<Rows> y,
                   std::string_view input, float eps, float offset,
                   ffi::Span<const std::int32_t> counts, ffi::Span<const std::int64_t> ins,
                   ffi::Span<const std::int32_t> types, ffi::Span<const std::int64_t> outs) {
  const auto shape = x.dimensions();
  const bool norm = input == "norm", gated = input == "silu" || input == "gelu";
  const std::size_t rows = size(shape[0]), width = size(shape[1]);
  dart::Matrix matrix;
  if (!read_matrices(tiles, counts, ins, types, outs, {&matrix})) {
    return ffi::Error::InvalidArgument("dart_product: weights of another shape");
  }
  if (!is(y->dimensions(), rows, matrix.out) || (!norm && !gated && input != "rows") ||
      width != (gated ? 2 : 1) * matrix.in || scale.element_count() != (norm ? matrix.in : 0) ||
      !none_or(bias, matrix.out) || !none_or(residual, rows * matrix.out)) {
    return ffi::Error::InvalidArgument("dart_product: arguments of other shapes");
  }
  matrix.bias = or_null(bias);
  const auto inputs = gated ? dart::Inputs::gated(activation_of(input), x.typed_data())
                            : dart::Inputs::normed({or_null(scale), matrix.in, eps, offset},
                                                   x.typed_data());
  const std::size_t count = used_rows(used, rows);
  // As many threads as XLA has, but not XLA's: those sleep between calls.
  dart::with_resources(matrix, count, dart::best_instructions(), size(pool.num_threads()),
                       [&](dart::Resources& resources) {
                         dart::multiply(matrix, inputs, count, or_null(residual), y->typed_data(),
                                        nullptr, resources);
                       });
  return ffi::Error::Success();
}

// Outputs' weights, as rows: ids [..] -> [.., in]. Ids beyond the ends are clamped.
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

DART_FFI_HANDLER(dart_product, product, "input", "eps", "offset", "counts", "ins", "types",
                 "outs");
DART_FFI_HANDLER(dart_take_tiles, take, "type", "out");
