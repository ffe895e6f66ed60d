#include "dart/draws.h"

#include <memory>

#include "dart/shared_work.h"
#include "kernels.h"

namespace dart {
namespace {

constexpr std::size_t kOperations = 64;  // of a logit

}  // namespace

void draw(const Draws& draws, Instructions instructions, std::size_t threads) {
  const Kernels& kernels = *dart::kernels(instructions);
  const std::size_t rows = draws.sequences * draws.rows;
  const auto compute = [&](std::size_t begin, std::size_t end) {
    const bool filters = draws.top_k != nullptr || draws.top_p != nullptr;
    const std::unique_ptr<float[]> most(new float[blocks_of(draws.size)]);
    const std::unique_ptr<float[]> room(filters ? new float[draws.size] : nullptr);
    for (std::size_t r = begin; r < end; ++r) {
      const std::size_t b = r / draws.rows;
      DrawnRow row;
      row.x = draws.x + r * draws.size;
      row.size = draws.size;
      row.temperature = draws.temperature[b];
      row.top_k = draws.top_k == nullptr ? 0 : draws.top_k[b];
      row.top_p = draws.top_p == nullptr ? 1.0f : draws.top_p[b];
      row.min_p = draws.min_p == nullptr ? 0.0f : draws.min_p[b];
      row.key = draws.keys[b];
      row.position = static_cast<std::uint32_t>(draws.first[b]) +
                     static_cast<std::uint32_t>(draws.levels[r]);
      row.ids = draws.ids;
      row.count = draws.count;
      row.blocks = most.get();
      row.room = room.get();
      row.values = draws.values + r * draws.count;
      row.indices = draws.indices + r * draws.count;
      kernels.draw(row);
    }
  };
  share_rows(rows, rows * draws.size * kOperations, threads, compute);
}

}  // namespace dart
