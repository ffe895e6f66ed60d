#include "dart/layer.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "kernels.h"

namespace dart {
namespace {

// Operations, as products count them, for a number that is normalised or gated, and rounded.
constexpr std::size_t kOperations = 32;

// A prompt takes at least so many times the room of a step, which gives it back.
constexpr std::size_t kMuch = 16;

// Room that is kept from call to call.
template <class T>
T* room(std::vector<T>& memory, std::size_t size) {
  if (memory.size() / kMuch > size) std::vector<T>().swap(memory);
  if (memory.size() < size) memory.resize(size);
  return memory.data();
}

struct Rooms {
  std::vector<float> read, made, heads, kept, attended, added, middle;
  std::vector<std::uint16_t> halves;
  std::vector<Int8Inputs> rounded;
};

// The rooms of this thread's call.
thread_local std::unique_ptr<Rooms> lent;

Rooms& rooms() { return *lent; }

// Lends a thread rooms while it lives. Layers are called one after the other, but by any of several
// threads: if each had its own, there would be as many.
class Loan {
 public:
  Loan() {
    const std::lock_guard<std::mutex> lock(mutex());
    if (idle().empty()) idle().push_back(std::make_unique<Rooms>());
    lent = std::move(idle().back());
    idle().pop_back();
  }
  ~Loan() {
    const std::lock_guard<std::mutex> lock(mutex());
    idle().push_back(std::move(lent));
  }
  Loan(const Loan&) = delete;
  Loan& operator=(const Loan&) = delete;

 private:
  static std::mutex& mutex() {
    static std::mutex mutex;
    return mutex;
  }
  static std::vector<std::unique_ptr<Rooms>>& idle() {
    static std::vector<std::unique_ptr<Rooms>> idle;
    return idle;
  }
};

// Rounds numbers to the nearest bfloat16, to the even one of two.
void round(const float* x, std::size_t count, std::uint16_t* y) {
  for (std::size_t i = 0; i < count; ++i) {
    std::uint32_t bits;
    std::memcpy(&bits, x + i, sizeof bits);
    const bool nan = (bits & 0x7fffffffu) > 0x7f800000u;
    y[i] = static_cast<std::uint16_t>(nan ? bits >> 16 | 0x40u : (bits + 0x7fffu + (bits >> 16 & 1)) >> 16);
  }
}

// Copies `count` arrays of so many bytes to others, at a distance of `each`.
void keep(const void* from, std::size_t count, std::size_t bytes, std::size_t each, void* to) {
  for (std::size_t i = 0; i < count; ++i) {
    std::memcpy(static_cast<char*>(to) + i * each, static_cast<const char*>(from) + i * bytes,
                bytes);
  }
}

// Multiplies rows with a matrix. `prepare(begin, end)` computes some rows [rows, in] of `read` first;
// if there is nothing to compute, it returns.
template <class Prepare>
void times(const Matrix& matrix, const float* read, std::size_t rows, const float* residual,
           float* y, Instructions instructions, Team& team, const Prepare& prepare) {
  const bool blocks = matrix.any_in_blocks();
  const std::size_t groups = groups_of(matrix.in);
  Int8Inputs* const rounded = blocks ? room(rooms().rounded, rows * groups) : nullptr;
  share_rows(rows, rows * matrix.in * kOperations, team, [&](std::size_t begin, std::size_t end) {
    prepare(begin, end);
    if (blocks) {
      quantize(read + begin * matrix.in, end - begin, matrix.in, rounded + begin * groups,
               instructions);
    }
  });
  const auto products = dart::products(matrix, read, rounded, rows, residual, y);
  multiply(products.data(), products.size(), instructions, team);
}

// As above, of a norm of x.
void times_normed(const Matrix& matrix, const Norm& norm, const float* x, std::size_t rows,
                  float* y, Instructions instructions, Team& team) {
  if (norm.scale == nullptr) {
    times(matrix, x, rows, nullptr, y, instructions, team, [](std::size_t, std::size_t) {});
    return;
  }
  float* const normed = room(rooms().read, rows * matrix.in);
  times(matrix, normed, rows, nullptr, y, instructions, team,
        [&](std::size_t begin, std::size_t end) {
          const std::size_t at = begin * matrix.in;
          normalize(norm, x + at, end - begin, normed + at, instructions);
        });
}

// y = x + multiplier * norm(matrix times what `prepare` makes).
template <class Prepare>
void add_times(const Matrix& matrix, const float* read, const Norm& norm, float multiplier,
               const float* x, std::size_t rows, float* y, Instructions instructions, Team& team,
               const Prepare& prepare) {
  if (norm.scale == nullptr && multiplier == 1) {
    times(matrix, read, rows, x, y, instructions, team, prepare);
    return;
  }
  const std::size_t size = rows * matrix.out;
  float* const added = room(rooms().added, size);
  times(matrix, read, rows, nullptr, norm.scale == nullptr ? y : added, instructions, team, prepare);
  if (norm.scale != nullptr) normalize(norm, added, rows, y, instructions);
  for (std::size_t i = 0; i < size; ++i) y[i] = x[i] + y[i] * multiplier;
}

// What follows attention, whose output is [B, T, H h].
void run_after_attention(const Layer& layer, const float* attended, std::size_t rows,
                         Instructions instructions, Team& team) {
  const std::size_t hidden = layer.down.in;
  float* const middle = room(rooms().middle, rows * layer.width);
  add_times(layer.out, attended, layer.after_attention, layer.multiplier, layer.x, rows, middle,
            instructions, team, [](std::size_t, std::size_t) {});
  float* const gate_up = room(rooms().made, rows * 2 * hidden);
  times_normed(layer.gate_up, layer.before_mlp, middle, rows, gate_up, instructions, team);
  float* const gated = room(rooms().read, rows * hidden);
  add_times(layer.down, gated, layer.after_mlp, layer.multiplier, middle, rows, layer.y,
            instructions, team, [&](std::size_t begin, std::size_t end) {
              gate(layer.activation, gate_up + begin * 2 * hidden, end - begin, hidden,
                   gated + begin * hidden, instructions);
            });
}

void run(const Layer& layer, std::size_t rows, Instructions instructions, Team& team) {
  Attention attention = layer.attention;
  Heads heads = layer.heads;
  const std::size_t width = heads.heads * heads.head_size;
  float* const qkv = room(rooms().made, rows * layer.qkv.out);
  times_normed(layer.qkv, layer.before_attention, layer.x, rows, qkv, instructions, team);
  heads.x = qkv;
  heads.q = room(rooms().heads, rows * width);
  // Made where they are kept, if they have that dtype and place; otherwise elsewhere.
  const std::size_t made = rows * heads.kv_heads * heads.head_size;
  const bool whole = layer.room == heads.rows, here = whole && !attention.bfloat16;
  float* const exact = here ? nullptr : room(rooms().kept, 2 * made);
  heads.k = here ? static_cast<float*>(layer.new_k) : exact;
  heads.v = here ? static_cast<float*>(layer.new_v) : exact + made;
  rotate_heads(heads, instructions);
  attention.q = heads.q;
  attention.new_k = heads.k;
  attention.new_v = heads.v;
  if (attention.bfloat16) {
    std::uint16_t* const rounded = room(rooms().halves, 2 * made);
    round(exact, 2 * made, rounded);
    attention.new_k = rounded;
    attention.new_v = rounded + made;
  }
  if (!here) {
    const std::size_t row = heads.head_size * (attention.bfloat16 ? 2 : 4);
    const std::size_t count = heads.sequences * heads.kv_heads;
    keep(attention.new_k, count, heads.rows * row, layer.room * row, layer.new_k);
    keep(attention.new_v, count, heads.rows * row, layer.room * row, layer.new_v);
  }
  attention.out = room(rooms().attended, rows * width);
  attend(attention, instructions, team);
  run_after_attention(layer, attention.out, rows, instructions, team);
}

}  // namespace

void run(const Layer& layer, Instructions instructions, std::size_t threads) {
  const Loan loan;
  const std::size_t rows = layer.heads.sequences * layer.heads.rows;
  const auto products = dart::products(layer.gate_up, nullptr, nullptr, rows, nullptr, nullptr);
  with_team(threads_for(products.data(), products.size(), threads),
            [&](Team& team) { run(layer, rows, instructions, team); });
}

}  // namespace dart
