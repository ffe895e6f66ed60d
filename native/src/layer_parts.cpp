#include "layer_parts.h"

#include <cstring>

namespace dart {
namespace {

// Rounds numbers to the nearest bfloat16, to the even one of two.
void round(const float* x, std::size_t count, std::uint16_t* y) {
  for (std::size_t i = 0; i < count; ++i) {
    std::uint32_t bits;
    std::memcpy(&bits, x + i, sizeof bits);
    const bool nan = (bits & 0x7fffffffu) > 0x7f800000u;
    const std::uint32_t up = bits + 0x7fffu + (bits >> 16 & 1);
    y[i] = static_cast<std::uint16_t>(nan ? bits >> 16 | 0x40u : up >> 16);
  }
}

// y = x + multiplier * norm(inputs * matrix).
void add_product(const Matrix& matrix, const Inputs& inputs, const Norm& norm, float multiplier,
                 const float* x, std::size_t rows, float* y, const Matrix* next,
                 Resources& resources) {
  if (norm.scale == nullptr && multiplier == 1) {
    multiply(matrix, inputs, rows, x, y, next, resources);
    return;
  }
  const Scratch::Scope scope(resources.scratch);
  const std::size_t size = rows * matrix.out;
  float* const product = norm.scale == nullptr ? y : resources.scratch.take<float>(size);
  multiply(matrix, inputs, rows, nullptr, product, next, resources);
  if (norm.scale != nullptr) normalize(norm, product, rows, y, resources.instructions);
  for (std::size_t i = 0; i < size; ++i) y[i] = x[i] + y[i] * multiplier;
}

}  // namespace

void make_new_rows(Heads heads, const NewRows& to, std::size_t kept, Attention& attention,
                   Resources& resources) {
  const std::size_t h = heads.head_size, count = heads.sequences * heads.kv_heads;
  const std::size_t numbers = count * heads.rows * h;
  heads.k = resources.scratch.take<float>(2 * numbers);
  heads.v = heads.k + numbers;
  rotate_heads(heads, resources.instructions);
  attention.new_k = heads.k;
  attention.new_v = heads.v;
  if (attention.bfloat16) {
    std::uint16_t* const rounded = resources.scratch.take<std::uint16_t>(2 * numbers);
    round(heads.k, 2 * numbers, rounded);
    attention.new_k = rounded;
    attention.new_v = rounded + numbers;
  }
  const std::size_t row = h * (attention.bfloat16 ? 2 : 4);
  const auto keep = [&](const void* from, void* into) {
    for (std::size_t i = 0; i < count; ++i) {
      std::memcpy(static_cast<char*>(into) + i * to.room * row,
                  static_cast<const char*>(from) + i * heads.rows * row, kept * row);
    }
  };
  keep(attention.new_k, to.k);
  keep(attention.new_v, to.v);
}

void run_after_attention(const AfterAttention& after, const float* attended, const float* x,
                         std::size_t rows, float* y, const Matrix* next, Resources& resources) {
  const Scratch::Scope scope(resources.scratch);
  float* const middle = resources.scratch.take<float>(rows * after.out.out);
  add_product(after.out, Inputs::rows(attended), after.after_attention, after.multiplier, x, rows,
              middle, &after.gate_up, resources);
  float* const gate_up = resources.scratch.take<float>(rows * after.gate_up.out);
  multiply(after.gate_up, Inputs::normed(after.before_mlp, middle), rows, nullptr, gate_up,
           &after.down, resources);
  add_product(after.down, Inputs::gated(after.activation, gate_up), after.after_mlp,
              after.multiplier, middle, rows, y, next, resources);
}

}  // namespace dart
