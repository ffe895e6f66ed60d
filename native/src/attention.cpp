#include "dart/attention.h"

#include <algorithm>
#include <memory>
#include <new>
#include <vector>

#include "kernels.h"

namespace dart {
namespace {

constexpr std::size_t kLeastRows = 8;   // of a part, unless there are fewer
constexpr std::size_t kAlignment = 64;  // of the room, in bytes: vectors are in one line of the cache

struct Free {
  void operator()(float* room) const { ::operator delete(room, std::align_val_t{kAlignment}); }
};

// Room that a thread keeps from call to call.
float* room(std::size_t numbers) {
  static thread_local std::unique_ptr<float, Free> memory;
  static thread_local std::size_t size = 0;
  if (size < numbers) {
    void* const larger = ::operator new(numbers * sizeof(float), std::align_val_t{kAlignment});
    memory.reset(static_cast<float*>(larger));
    size = numbers;
  }
  return memory.get();
}

// The mode in which a thread takes tiny numbers for 0, where it can be chosen.
#if defined(__x86_64__) && defined(__GNUC__)
using Control = unsigned;
constexpr Control kTinyAreZero = 0x8040;  // read or made
Control control() { return __builtin_ia32_stmxcsr(); }
void set_control(Control control) { __builtin_ia32_ldmxcsr(control); }
#elif defined(__aarch64__) && defined(__GNUC__)
using Control = std::uint64_t;
constexpr Control kTinyAreZero = 1u << 24;
Control control() {
  Control control;
  asm volatile("mrs %0, fpcr" : "=r"(control));
  return control;
}
void set_control(Control control) { asm volatile("msr fpcr, %0" : : "r"(control)); }
#else
using Control = unsigned;
constexpr Control kTinyAreZero = 0;
Control control() { return 0; }
void set_control(Control) {}
#endif

// Computes some rows, in this thread's room.
void attend_rows(AttentionRows rows, AttendRows attend) {
  rows.room = room(room_of(*rows.attention, rows.rows));
  const Control before = control();
  // As dot products of bfloat16 numbers always do it.
  if (rows.attention->bfloat16) set_control(before | kTinyAreZero);
  attend(rows);
  set_control(before);
}

// The most positions that a sequence has.
std::size_t positions(const Attention& attention) {
  std::int32_t most = 0;
  for (std::size_t b = 0; b < attention.sequences; ++b) most = std::max(most, attention.length[b]);
  return static_cast<std::size_t>(most) + attention.new_rows;
}

// Divides the positions of all heads, each of `rows` rows, among threads: a page is read with all
// of its heads, as memory likes it.
void attend_splits(const Attention& attention, std::size_t rows, std::size_t splits,
                   AttendRows attend, Team& team) {
  const std::size_t h = attention.head_size, stride = split_numbers(h);
  const std::size_t kv_heads = attention.kv_heads, heads = attention.sequences * kv_heads;
  static thread_local std::vector<float> kept;
  kept.resize(std::max(kept.size(), heads * splits * rows * stride));
  float* const partial = kept.data();  // [B, splits, K, rows, stride]
  team.share(heads * splits, [&](std::size_t chunk) {
    const std::size_t sequence = chunk / (splits * kv_heads);
    attend_rows({&attention, sequence, chunk % kv_heads, 0, rows, nullptr,
                 chunk / kv_heads % splits, partial + chunk * rows * stride},
                attend);
  });
  const std::size_t group = attention.heads / kv_heads;
  share_rows(heads * rows, heads * splits * rows * stride, team,
             [&](std::size_t begin, std::size_t end) {
               for (std::size_t i = begin; i < end; ++i) {
                 const std::size_t head = i / rows % kv_heads, b = i / rows / kv_heads, r = i % rows;
                 const auto part = [&](std::size_t split) {
                   const std::size_t chunk = (b * splits + split) * kv_heads + head;
                   return partial + (chunk * rows + r) * stride;
                 };
                 for (std::size_t s = 1; s < splits; ++s) join_split(part(s), h, part(0));
                 const std::size_t token = b * attention.rows + r % attention.rows;
                 const std::size_t to = token * attention.heads + head * group + r / attention.rows;
                 write_attended(part(0), h, attention.out + to * h);
               }
             });
}

// Threads that the work is enough for, at most `threads`.
std::size_t threads_for(const Attention& attention, std::size_t threads) {
  std::size_t keys = 0;
  for (std::size_t b = 0; b < attention.sequences; ++b) {
    keys += static_cast<std::size_t>(std::max(attention.length[b], 0)) + attention.new_rows;
  }
  const std::size_t operations = 2 * attention.heads * attention.rows * keys * attention.head_size;
  const std::size_t numbers = 2 * keys * attention.kv_heads * attention.head_size;
  const std::size_t bytes = numbers * (attention.bfloat16 ? 2 : 4);
  threads = std::min(threads, std::max(operations / kOperationsPerThread, bytes / kBytesPerThread));
  return std::max<std::size_t>(threads, 1);
}

}  // namespace

void attend(const Attention& attention, Instructions instructions, Team& team) {
  const AttendRows attend = attend_rows(instructions, attention.bfloat16);
  const std::size_t rows = attention.heads / attention.kv_heads * attention.rows;
  const std::size_t threads = team.threads();
  const std::size_t heads = attention.sequences * attention.kv_heads;
  if (heads == 0 || rows == 0) return;
  const std::size_t splits = (positions(attention) + kSplit - 1) / kSplit;
  if (threads > 1 && splits > 1 && heads < 4 * threads && rows <= kAttentionRows) {
    return attend_splits(attention, rows, splits, attend, team);
  }
  // Rows of one key head are divided among threads if there are not heads enough for all to end at
  // about the same time.
  const std::size_t most = (rows + kLeastRows - 1) / kLeastRows;
  const std::size_t wanted = heads % threads == 0 ? 1 : (2 * threads + heads - 1) / heads;
  const std::size_t least = (rows + kAttentionRows - 1) / kAttentionRows;
  const std::size_t parts = std::max(std::min(wanted, most), least);
  team.share(heads * parts, [&](std::size_t chunk) {
    const std::size_t head = chunk / parts, begin = rows * (chunk % parts) / parts;
    const std::size_t end = rows * (chunk % parts + 1) / parts;
    attend_rows({&attention, head / attention.kv_heads, head % attention.kv_heads, begin,
                 end - begin, nullptr, 0, nullptr},
                attend);
  });
}

void attend(const Attention& attention, Instructions instructions, std::size_t threads) {
  with_team(threads_for(attention, threads),
            [&](Team& team) { attend(attention, instructions, team); });
}

}  // namespace dart
