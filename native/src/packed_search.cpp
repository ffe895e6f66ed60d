#include "dart/packed_search.h"

#include <cstddef>
#include <stdexcept>

#include "dart/search_handle.h"

namespace dart {

bool PackedLayout::valid() const {
  return rows >= 0 && levels >= 0 && candidates >= 0 && context >= 1 && first >= context &&
         (pairs == 0 || pairs == (levels - 1) * candidates * candidates) &&
         (draws == 0 || draws == kDraws) && width == first + 2 * levels * candidates + pairs + draws;
}

DraftBatch PackedLayout::batch(const std::int32_t* packed) const {
  const std::int64_t size = levels * candidates;
  const std::int32_t* row = packed + first;
  DraftBatch batch;
  batch.rows = static_cast<std::size_t>(rows);
  batch.context = static_cast<std::size_t>(context);
  batch.levels = static_cast<std::size_t>(levels);
  batch.candidates = static_cast<std::size_t>(candidates);
  batch.context_tokens = row - context;
  batch.tokens = row;
  batch.logits = reinterpret_cast<const float*>(row + size);
  if (pairs != 0) batch.pairs = reinterpret_cast<const float*>(row + 2 * size);
  if (draws != 0) batch.draws = row + 2 * size + pairs;
  batch.context_stride = batch.tokens_stride = batch.logits_stride = batch.pairs_stride =
      batch.draws_stride = static_cast<std::size_t>(width);
  return batch;
}

void search_packed(std::int32_t handle, const PackedLayout& layout, const std::int32_t* packed,
                   std::int64_t nodes, std::int32_t* trees) {
  const bool found = with_search(handle, [&](const TreeSearch& search) {
    if (search.config().nodes != nodes) {
      throw std::invalid_argument("dart_search: trees of another size");
    }
    search.search(layout.batch(packed), trees);
  });
  if (!found) throw std::invalid_argument("dart_search: the search no longer exists");
}

}  // namespace dart
