#include "dart/attention.h"

#include <algorithm>
#include <memory>

#include "kernels.h"

namespace dart {
namespace {

// Scores that are held at a time, unless one block of rows has more.
constexpr std::size_t kMostScores = 1 << 18;
constexpr std::size_t kLeastRows = 8;

// Computes rows [begin, end) of the queries of one sequence's key head.
void attend_rows(const Attention& attention, const Kernels& kernels, std::size_t sequence,
                 std::size_t kv_head, std::size_t begin, std::size_t end) {
  const auto length = static_cast<std::size_t>(std::max(attention.length[sequence], 0));
  AttentionRows rows;
  rows.attention = &attention;
  rows.sequence = sequence;
  rows.kv_head = kv_head;
  rows.used = std::min(length, attention.pages.each * attention.pages.size);
  rows.stride = in_vectors(rows.used) + in_vectors(attention.new_rows) + kMostLanes;
  rows.fresh_stride = in_vectors(attention.new_rows);
  const std::size_t most = std::max(kLeastRows, kMostScores / rows.stride);
  const std::size_t count = std::min(most, end - begin);
  const std::size_t scores = count * rows.stride, fresh = count * rows.fresh_stride;
  const std::size_t keys = attention.head_size * kMostLanes;
  const std::unique_ptr<float[]> room(new float[scores + fresh + 2 * keys]);
  rows.scores = room.get();
  rows.fresh = rows.scores + scores;
  rows.keys = rows.fresh + fresh;
  rows.gathered = rows.keys + keys;
  for (rows.row = begin; rows.row < end; rows.row += rows.rows) {
    rows.rows = std::min(count, end - rows.row);
    kernels.attend(rows);
  }
}

// Threads that the work is enough for, of which there are so many.
std::size_t threads_for(const Attention& attention, std::size_t threads) {
  std::size_t keys = 0;
  for (std::size_t b = 0; b < attention.sequences; ++b) {
    keys += static_cast<std::size_t>(std::max(attention.length[b], 0)) + attention.new_rows;
  }
  const std::size_t operations = 2 * attention.heads * attention.rows * keys * attention.head_size;
  const std::size_t bytes = 8 * keys * attention.kv_heads * attention.head_size;
  threads = std::min(threads, std::max(operations / kOperationsPerThread, bytes / kBytesPerThread));
  return std::max<std::size_t>(threads, 1);
}

}  // namespace

void attend(const Attention& attention, Instructions instructions, Team& team) {
  const Kernels& kernels = *dart::kernels(instructions);
  const std::size_t rows = attention.heads / attention.kv_heads * attention.rows;
  const std::size_t threads = threads_for(attention, team.threads());
  // Rows of one key head are divided among threads only if there are not heads enough.
  const std::size_t heads = attention.sequences * attention.kv_heads;
  if (heads == 0) return;
  const std::size_t most = (rows + kLeastRows - 1) / kLeastRows;
  const std::size_t parts = std::min((threads + heads - 1) / heads, most);
  team.share(heads * parts, [&](std::size_t chunk) {
    const std::size_t head = chunk / parts, part = chunk % parts;
    attend_rows(attention, kernels, head / attention.kv_heads, head % attention.kv_heads,
                rows * part / parts, rows * (part + 1) / parts);
  });
}

void attend(const Attention& attention, Instructions instructions, std::size_t threads) {
  with_team(threads_for(attention, threads),
            [&](Team& team) { attend(attention, instructions, team); });
}

}  // namespace dart
