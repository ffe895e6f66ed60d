// The time at which a program has computed something, as an XLA foreign function on the CPU.
#include <chrono>
#include <cstdint>

#include "ffi_handlers.h"
#include "xla/ffi/api/ffi.h"

namespace {

namespace ffi = xla::ffi;

// Reads the clock when its first argument is there: microseconds, modulo 2 ** 32.
ffi::Error read_clock(ffi::AnyBuffer, ffi::Result<ffi::BufferR0<ffi::U32>> microseconds) {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  const auto count = std::chrono::duration_cast<std::chrono::microseconds>(now).count();
  *microseconds->typed_data() = static_cast<std::uint32_t>(count);
  return ffi::Error::Success();
}

}  // namespace

DART_FFI_HANDLER(dart_clock, read_clock);
