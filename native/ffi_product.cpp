// Products with packed weights as an XLA foreign function on the CPU.
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <utility>

#include "ffi.h"
#include "dart/packed_product.h"
#include "xla/ffi/api/ffi.h"

namespace {

namespace ffi = xla::ffi;

// y [rows, out] = x [rows, in] W, with W packed as dart_jax/models/cpu/products.py does.
ffi::Error product(ffi::ThreadPool pool, ffi::BufferR2<ffi::F32> x, ffi::AnyBuffer tiles,
                   ffi::Result<ffi::BufferR2<ffi::F32>> y) {
  const auto rows = x.dimensions(), packed = tiles.dimensions(), out = y->dimensions();
  const std::int64_t width = dart::kTileWidth;
  if (packed.size() != 3 || packed[1] != rows[1] || packed[2] != width || out[0] != rows[0] ||
      packed[0] != (out[1] + width - 1) / width) {
    return ffi::Error::InvalidArgument("dart_product: weights of another shape");
  }
  dart::PackedProduct product;
  switch (tiles.element_type()) {
    case ffi::F32:
      product.weights = dart::WeightType::kFloat32;
      break;
    case ffi::BF16:
      product.weights = dart::WeightType::kBfloat16;
      break;
    default:
      return ffi::Error::InvalidArgument("dart_product: weights must be float32 or bfloat16");
  }
  product.x = x.typed_data();
  product.tiles = tiles.untyped_data();
  product.y = y->typed_data();
  product.rows = static_cast<std::size_t>(rows[0]);
  product.in = static_cast<std::size_t>(rows[1]);
  product.out = static_cast<std::size_t>(out[1]);
  // XLA's threads, not those of thread_pool.h: its other operations keep them awake, and so there
  // are no more threads than cores. Nine rows times 1024 x 1024 weights in float32, on two busy
  // cores of an EPYC: the fastest tenth of 300 calls took up to 148 us with these, 166 us with
  // those, and 177 us on one thread.
  const std::int64_t threads = pool.num_threads();
  try {
    dart::multiply(product, dart::best_instructions(), static_cast<std::size_t>(threads),
                   [&pool](std::function<void()> task) { pool.Schedule(std::move(task)); });
  } catch (const std::exception& error) {
    return ffi::Error::Internal(error.what());
  }
  return ffi::Error::Success();
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(dart_product, product,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::BufferR2<ffi::F32>>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Ret<ffi::BufferR2<ffi::F32>>());

void* dart_product_handler() { return reinterpret_cast<void*>(dart_product); }
