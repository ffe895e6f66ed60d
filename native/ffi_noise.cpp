// The noise of draws as XLA foreign functions on the CPU.
#include <cstddef>
#include <cstdint>
#include <exception>

#include "dart/noise.h"
#include "ffi.h"
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
  try {
    dart::make_noise(noise, dart::best_instructions(),
                     static_cast<std::size_t>(pool.num_threads()));
  } catch (const std::exception& error) {
    return ffi::Error::Internal(error.what());
  }
  return ffi::Error::Success();
}

// See dart::NoisyLogits: logits [B, T, size], temperature [B], noise [B, P, V], levels [B, T] and ids,
// without elements if they are all in order -> [B, T, size].
ffi::Error noisy(ffi::BufferR3<ffi::F32> x, ffi::BufferR1<ffi::F32> temperature,
                 ffi::BufferR3<ffi::F32> noise, ffi::BufferR2<ffi::S32> levels,
                 ffi::BufferR1<ffi::S32> ids, ffi::Result<ffi::BufferR3<ffi::F32>> y) {
  const auto shape = x.dimensions(), of_noise = noise.dimensions(), at = levels.dimensions();
  const bool ordered = ids.element_count() == 0;
  if (temperature.dimensions()[0] != shape[0] || of_noise[0] != shape[0] || of_noise[1] < 1 || at[0] != shape[0] || at[1] != shape[1] ||
      (ordered ? of_noise[2] : ids.dimensions()[0]) != shape[2] || of_noise[2] < 1 ||
      y->element_count() != x.element_count()) {
    return ffi::Error::InvalidArgument("dart_noisy: arguments of other shapes");
  }
  dart::NoisyLogits logits;
  logits.x = x.typed_data();
  logits.noise = noise.typed_data();
  logits.levels = levels.typed_data();
  logits.ids = ordered ? nullptr : ids.typed_data();
  logits.y = y->typed_data();
  logits.temperature = temperature.typed_data();
  logits.sequences = static_cast<std::size_t>(shape[0]);
  logits.rows = static_cast<std::size_t>(shape[1]);
  logits.columns = static_cast<std::size_t>(of_noise[1]);
  logits.vocabulary = static_cast<std::size_t>(of_noise[2]);
  logits.size = static_cast<std::size_t>(shape[2]);
  dart::add_noise(logits, dart::best_instructions());
  return ffi::Error::Success();
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(dart_noise, noise,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::BufferR2<ffi::U32>>()
                                  .Arg<ffi::BufferR2<ffi::S32>>()
                                  .Ret<ffi::BufferR3<ffi::F32>>());

XLA_FFI_DEFINE_HANDLER_SYMBOL(dart_noisy, noisy,
                              ffi::Ffi::Bind()
                                  .Arg<ffi::BufferR3<ffi::F32>>()
                                  .Arg<ffi::BufferR1<ffi::F32>>()
                                  .Arg<ffi::BufferR3<ffi::F32>>()
                                  .Arg<ffi::BufferR2<ffi::S32>>()
                                  .Arg<ffi::BufferR1<ffi::S32>>()
                                  .Ret<ffi::BufferR3<ffi::F32>>());

void* dart_noisy_handler() { return reinterpret_cast<void*>(dart_noisy); }
void* dart_noise_handler() { return reinterpret_cast<void*>(dart_noise); }
