// Rows that are looked up, kept or compared, as XLA foreign functions on the CPU.
//
// XLA divides such small operations among threads, and waits longer for these than they take.
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "dart/rows.h"
#include "ffi.h"
#include "xla/ffi/api/ffi.h"

namespace {

namespace ffi = xla::ffi;

// See dart::largest: x [.., size] -> values and indices [.., count].
ffi::Error largest(ffi::ThreadPool pool, ffi::Buffer<ffi::F32> x,
                   ffi::Result<ffi::Buffer<ffi::F32>> values,
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
                dart::best_instructions(), static_cast<std::size_t>(pool.num_threads()));
  return ffi::Error::Success();
}

// Rows of a table [size, ..]: ids [..] -> [.., ..]. Indices beyond the ends are those of the ends.
ffi::Error take(ffi::AnyBuffer table, ffi::Buffer<ffi::S32> ids, ffi::Result<ffi::AnyBuffer> out) {
  const auto shape = table.dimensions();
  if (shape.size() == 0 || shape[0] < 1) {
    return ffi::Error::InvalidArgument("dart_take: a table without rows");
  }
  const std::size_t bytes = table.size_bytes() / static_cast<std::size_t>(shape[0]);
  if (out->size_bytes() != bytes * ids.element_count()) {
    return ffi::Error::InvalidArgument("dart_take: a result of another shape");
  }
  const char* const from = static_cast<const char*>(table.untyped_data());
  char* const to = static_cast<char*>(out->untyped_data());
  for (std::size_t i = 0; i < ids.element_count(); ++i) {
    const std::int64_t id = ids.typed_data()[i];
    const std::int64_t row = id < 0 ? 0 : id < shape[0] ? id : shape[0] - 1;
    std::memcpy(to + i * bytes, from + static_cast<std::size_t>(row) * bytes, bytes);
  }
  return ffi::Error::Success();
}

// Writes chosen rows after those that caches hold, in place. The arguments that remain are caches
// [B, K, S, h] and then, in the same order, new rows [B, K, T, h]; the results are the caches.
ffi::Error append(ffi::BufferR2<ffi::S32> index, ffi::BufferR1<ffi::S32> length,
                  ffi::RemainingArgs arrays, ffi::RemainingRets caches) {
  const std::int64_t b = index.dimensions()[0], kept = index.dimensions()[1];
  if (arrays.size() != 2 * caches.size() || length.dimensions()[0] != b) {
    return ffi::Error::InvalidArgument("dart_append: caches and rows of different numbers");
  }
  for (std::size_t i = 0; i < caches.size(); ++i) {
    const auto old = arrays.get<ffi::AnyBuffer>(i);
    const auto rows = arrays.get<ffi::AnyBuffer>(caches.size() + i);
    auto cache = caches.get<ffi::AnyBuffer>(i);
    if (!old || !rows || !cache) return ffi::Error::InvalidArgument("dart_append: no array");
    const auto there = (*cache)->dimensions(), here = rows->dimensions();
    if (old->untyped_data() != (*cache)->untyped_data()) {
      return ffi::Error::InvalidArgument("dart_append: a cache that is not written in place");
    }
    if (there.size() != 4 || here.size() != 4 || there[0] != b || here[0] != b ||
        here[1] != there[1] || here[3] != there[3] || kept > there[2] || here[2] < 1) {
      return ffi::Error::InvalidArgument("dart_append: caches and rows of different shapes");
    }
    const auto capacity = static_cast<std::size_t>(there[2]), t = static_cast<std::size_t>(here[2]);
    const auto heads = static_cast<std::size_t>(b * there[1]);
    if (heads == 0) continue;
    const std::size_t bytes = rows->size_bytes() / (heads * t);
    for (std::size_t head = 0; head < heads; ++head) {
      const std::int64_t sequence = static_cast<std::int64_t>(head) / there[1];
      // As XLA does, so that all of them fit.
      const std::int64_t end = length.typed_data()[sequence], most = there[2] - kept;
      const auto begin = static_cast<std::size_t>(end < 0 ? 0 : end < most ? end : most);
      const char* const from = static_cast<const char*>(rows->untyped_data()) + head * t * bytes;
      char* const to =
          static_cast<char*>((*cache)->untyped_data()) + (head * capacity + begin) * bytes;
      for (std::int64_t p = 0; p < kept; ++p) {
        const std::int64_t chosen = index.typed_data()[sequence * kept + p];
        const std::int64_t row = chosen < 0 ? 0 : chosen < here[2] ? chosen : here[2] - 1;
        std::memcpy(to + static_cast<std::size_t>(p) * bytes,
                    from + static_cast<std::size_t>(row) * bytes, bytes);
      }
    }
  }
  return ffi::Error::Success();
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(dart_largest, largest,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Ret<ffi::Buffer<ffi::F32>>()
                                  .Ret<ffi::Buffer<ffi::S32>>());

XLA_FFI_DEFINE_HANDLER_SYMBOL(dart_take, take,
                              ffi::Ffi::Bind()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::Buffer<ffi::S32>>()
                                  .Ret<ffi::AnyBuffer>());

XLA_FFI_DEFINE_HANDLER_SYMBOL(dart_append, append,
                              ffi::Ffi::Bind()
                                  .Arg<ffi::BufferR2<ffi::S32>>()
                                  .Arg<ffi::BufferR1<ffi::S32>>()
                                  .RemainingArgs()
                                  .RemainingRets());

void* dart_take_handler() { return reinterpret_cast<void*>(dart_take); }
void* dart_append_handler() { return reinterpret_cast<void*>(dart_append); }
void* dart_largest_handler() { return reinterpret_cast<void*>(dart_largest); }
