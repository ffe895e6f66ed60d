// Trees drafted by texts themselves, as an XLA foreign function on the CPU.
#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "dart/text_search.h"
#include "dart/tree_search.h"
#include "ffi_handlers.h"
#include "ffi_shapes.h"

namespace {

namespace ffi = xla::ffi;

// Texts int32 [B, S], how many tokens of each are its own, the first ones, [B], and how many shared
// ones of other texts, the last ones, [B]; how the target draws [B, 4] or nothing, trust float32
// [16], and the bases int32 [B, 4, M] or nothing -> trees int32 [B, 4, N + 1]. See
// dart::search_text.
ffi::Error text_trees(ffi::BufferR2<ffi::S32> texts, ffi::BufferR1<ffi::S32> lengths,
                      ffi::BufferR1<ffi::S32> shared, ffi::AnyBuffer draws,
                      ffi::BufferR1<ffi::F32> trust, ffi::AnyBuffer bases,
                      ffi::Result<ffi::BufferR3<ffi::S32>> trees, std::int64_t depth) {
  const std::size_t rows = size(texts.dimensions()[0]), capacity = size(texts.dimensions()[1]);
  const std::size_t places = size(trees->dimensions()[2]);
  const bool based = bases.element_count() > 0;
  const std::size_t base_places = bases.dimensions().size() == 3 ? size(bases.dimensions()[2]) : 0;
  if (!is(lengths.dimensions(), rows) || !is(shared.dimensions(), rows) ||
      !none_or(draws, rows * dart::kDraws) ||
      !is(trust.dimensions(), std::size_t{dart::kLongestMatch}) ||
      (based && !is(bases.dimensions(), rows, dart::kTreeRows, base_places)) || places == 0 ||
      !is(trees->dimensions(), rows, dart::kTreeRows, places)) {
    return ffi::Error::InvalidArgument("dart_text_trees: arguments of other shapes");
  }
  dart::TextSearchConfig config;
  config.nodes = static_cast<int>(places - 1);
  config.depth = static_cast<int>(depth);
  std::copy_n(trust.typed_data(), config.trust.size(), config.trust.begin());
  // The i-th row of an optional argument.
  const auto row_of = [](const ffi::AnyBuffer& array, std::size_t width, std::size_t i) {
    return array.element_count() == 0 ? nullptr : array.typed_data<std::int32_t>() + i * width;
  };
  for (std::size_t i = 0; i < rows; ++i) {
    const std::int32_t* const text = texts.typed_data() + i * capacity;
    const auto at_most = [](std::int32_t count, std::size_t most) {
      return std::min(static_cast<std::size_t>(std::max(count, 0)), most);
    };
    const std::size_t own = at_most(lengths.typed_data()[i], capacity);
    const std::size_t others = at_most(shared.typed_data()[i], capacity - own);
    dart::search_text(config,
                      {{text, own},
                       {text + capacity - others, others},
                       row_of(bases, dart::kTreeRows * base_places, i),
                       base_places,
                       row_of(draws, dart::kDraws, i)},
                      trees->typed_data() + i * dart::kTreeRows * places);
  }
  return ffi::Error::Success();
}

}  // namespace

DART_FFI_HANDLER(dart_text_trees, text_trees, "depth");
