// Lookups in an n-gram table as an XLA foreign function on the CPU.
#include <cstddef>
#include <cstdint>
#include <exception>

#include "dart/ngram_table.h"
#include "ffi.h"
#include "xla/ffi/api/ffi.h"

namespace {

namespace ffi = xla::ffi;

// See dart::look_up: sections, seeds, prints, entries, known [B, W, lengths], tokens [B, k],
// wanted [B, W, k] -> log_q [B, W, k], places [lengths - 1, B, W, k].
ffi::Error look_up(ffi::ThreadPool pool, ffi::BufferR2<ffi::S32> sections,
                   ffi::BufferR1<ffi::U16> seeds, ffi::BufferR1<ffi::U8> prints,
                   ffi::BufferR2<ffi::S32> entries, ffi::BufferR3<ffi::S32> known,
                   ffi::BufferR2<ffi::S32> tokens, ffi::BufferR3<ffi::PRED> wanted, float unseen,
                   ffi::Result<ffi::BufferR3<ffi::F32>> log_q,
                   ffi::Result<ffi::BufferR4<ffi::S32>> places) {
  const auto contexts = known.dimensions(), candidates = tokens.dimensions();
  const auto out = log_q->dimensions();
  const std::size_t all = log_q->element_count();
  const std::int64_t lengths = sections.dimensions()[0];
  if (sections.dimensions()[1] != 4 || lengths < 1 || contexts[2] != lengths ||
      candidates[0] != contexts[0] || out[0] != contexts[0] || out[1] != contexts[1] ||
      out[2] != candidates[1] || entries.dimensions()[1] != 3 || entries.dimensions()[0] < 1 ||
      prints.dimensions()[0] != entries.dimensions()[0] || seeds.dimensions()[0] < 1 ||
      places->element_count() != std::size_t(lengths - 1) * all) {
    return ffi::Error::InvalidArgument("dart_look_up: arguments of other shapes");
  }
  dart::NgramTable table;
  table.sections = sections.typed_data();
  table.lengths = static_cast<std::size_t>(lengths);
  table.seeds = seeds.typed_data();
  table.seed_count = seeds.element_count();
  table.prints = prints.typed_data();
  table.entries = entries.typed_data();
  table.entry_count = static_cast<std::size_t>(entries.dimensions()[0]);
  dart::TableLookups lookups;
  lookups.known = known.typed_data();
  lookups.tokens = tokens.typed_data();
  lookups.wanted = wanted.typed_data();
  lookups.rows = static_cast<std::size_t>(contexts[0]);
  lookups.contexts = static_cast<std::size_t>(contexts[1]);
  lookups.candidates = static_cast<std::size_t>(candidates[1]);
  lookups.unseen = unseen;
  lookups.log_q = log_q->typed_data();
  lookups.places = places->typed_data();
  try {
    dart::look_up(table, lookups, static_cast<std::size_t>(pool.num_threads()));
  } catch (const std::exception& error) {
    return ffi::Error::Internal(error.what());
  }
  return ffi::Error::Success();
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(dart_look_up, look_up,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::BufferR2<ffi::S32>>()
                                  .Arg<ffi::BufferR1<ffi::U16>>()
                                  .Arg<ffi::BufferR1<ffi::U8>>()
                                  .Arg<ffi::BufferR2<ffi::S32>>()
                                  .Arg<ffi::BufferR3<ffi::S32>>()
                                  .Arg<ffi::BufferR2<ffi::S32>>()
                                  .Arg<ffi::BufferR3<ffi::PRED>>()
                                  .Attr<float>("unseen")
                                  .Ret<ffi::BufferR3<ffi::F32>>()
                                  .Ret<ffi::BufferR4<ffi::S32>>());

void* dart_look_up_handler() { return reinterpret_cast<void*>(dart_look_up); }
