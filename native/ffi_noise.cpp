// Draws and their noise as XLA foreign functions on the CPU.
#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "dart/draws.h"
#include "dart/noise.h"
#include "ffi_handlers.h"
#include "ffi_shapes.h"
#include "ffi_used.h"
#include "xla/ffi/api/ffi.h"

namespace {

namespace ffi = xla::ffi;

// See dart::Noise: keys [B, 2], positions [B, P] -> [B, P, V].
ffi::Error noise(ffi::ThreadPool pool, ffi::BufferR2<ffi::U32> keys,
                 ffi::BufferR2<ffi::S32> positions, ffi::Result<ffi::BufferR3<ffi::F32>> out) {
  const auto at = positions.dimensions(), made = out->dimensions(), of_keys = keys.dimensions();
  if (made[0] != at[0] || made[1] != at[1] || of_keys[0] != at[0] || of_keys[1] != 2) {
    return ffi::Error::InvalidArgument("dart_noise: arguments of other shapes");
  }
  dart::Noise noise;
  noise.keys = reinterpret_cast<const dart::ThreefryKey*>(keys.typed_data());
  noise.positions = positions.typed_data();
  noise.sequences = static_cast<std::size_t>(at[0]);
  noise.columns = static_cast<std::size_t>(at[1]);
  noise.vocabulary = static_cast<std::size_t>(made[2]);
  noise.out = out->typed_data();
  dart::make_noise(noise, dart::best_instructions(),
                   static_cast<std::size_t>(pool.num_threads()));
  return ffi::Error::Success();
}

// See dart::Draws: logits [B, T, size], temperature [B], keys [B, 2], first [B], levels [B, T], ids
// [size], and filters [B]; ids and filters have no elements where there are none -> values and
// indices [B, T, count]. If `used` has an element, only that many rows of one sequence are drawn
// from, and the others become 0.
ffi::Error draw(ffi::ThreadPool pool, ffi::BufferR3<ffi::F32> x, ffi::BufferR1<ffi::F32> temperature,
                ffi::BufferR2<ffi::U32> keys, ffi::BufferR1<ffi::S32> first,
                ffi::BufferR2<ffi::S32> levels, ffi::BufferR1<ffi::S32> ids,
                ffi::BufferR1<ffi::S32> top_k, ffi::BufferR1<ffi::F32> top_p,
                ffi::BufferR1<ffi::F32> min_p, ffi::Buffer<ffi::S32> used, ffi::Result<ffi::BufferR3<ffi::F32>> values,
                ffi::Result<ffi::BufferR3<ffi::S32>> indices) {
  const auto shape = x.dimensions(), found = values->dimensions(), of_keys = keys.dimensions();
  const auto b = static_cast<std::size_t>(shape[0]), t = static_cast<std::size_t>(shape[1]);
  const auto size = static_cast<std::size_t>(shape[2]), count = static_cast<std::size_t>(found[2]);
  if (size < 1 || count > size || found[0] != shape[0] || found[1] != shape[1] ||
      indices->element_count() != b * t * count || temperature.element_count() != b ||
      of_keys[0] != shape[0] || of_keys[1] != 2 || first.element_count() != b ||
      levels.element_count() != b * t || !none_or(ids, size) || !none_or(top_k, b) ||
      !none_or(top_p, b) || !none_or(min_p, b)) {
    return ffi::Error::InvalidArgument("dart_draw: arguments of other shapes");
  }
  dart::Draws draws;
  draws.x = x.typed_data();
  draws.temperature = temperature.typed_data();
  draws.top_k = or_null(top_k);
  draws.top_p = or_null(top_p);
  draws.min_p = or_null(min_p);
  draws.keys = reinterpret_cast<const dart::ThreefryKey*>(keys.typed_data());
  draws.first = first.typed_data();
  draws.levels = levels.typed_data();
  draws.ids = or_null(ids);
  draws.sequences = b;
  draws.size = size;
  draws.count = count;
  draws.values = values->typed_data();
  draws.indices = indices->typed_data();
  draws.rows = used_rows(used, t);
  if (draws.rows < t) {
    if (b != 1) return ffi::Error::InvalidArgument("dart_draw: several sequences");
    std::fill(draws.values + draws.rows * count, draws.values + t * count, 0.0f);
    std::fill(draws.indices + draws.rows * count, draws.indices + t * count, 0);
  }
  dart::draw(draws, dart::best_instructions(), static_cast<std::size_t>(pool.num_threads()));
  return ffi::Error::Success();
}

}  // namespace

DART_FFI_HANDLER(dart_noise, noise);
DART_FFI_HANDLER(dart_draw, draw);
