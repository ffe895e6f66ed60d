// The largest entries of rows as an XLA foreign function on the CPU.
#include <cstddef>
#include <cstdint>

#include "dart/rows.h"
#include "ffi.h"
#include "xla/ffi/api/ffi.h"

namespace {

namespace ffi = xla::ffi;

// See dart::largest: x [.., size] -> values and indices [.., count].
ffi::Error largest(ffi::Buffer<ffi::F32> x, ffi::Result<ffi::Buffer<ffi::F32>> values,
                   ffi::Result<ffi::Buffer<ffi::S32>> indices) {
  const auto shape = x.dimensions(), found = values->dimensions();
  if (shape.size() == 0 || found.size() != shape.size() || found.back() > shape.back() ||
      values->element_count() != indices->element_count()) {
    return ffi::Error::InvalidArgument("dart_largest: arguments of other shapes");
  }
  const auto size = static_cast<std::size_t>(shape.back());
  const auto count = static_cast<std::size_t>(found.back());
  if (size == 0 || count == 0) return ffi::Error::Success();
  const std::size_t rows = x.element_count() / size;
  if (values->element_count() != rows * count) {
    return ffi::Error::InvalidArgument("dart_largest: arguments of other shapes");
  }
  dart::largest(x.typed_data(), rows, size, count, values->typed_data(), indices->typed_data(),
                dart::best_instructions());
  return ffi::Error::Success();
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(dart_largest, largest,
                              ffi::Ffi::Bind()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Ret<ffi::Buffer<ffi::F32>>()
                                  .Ret<ffi::Buffer<ffi::S32>>());

void* dart_largest_handler() { return reinterpret_cast<void*>(dart_largest); }
