#include "dart/matrix.h"

#include <algorithm>

namespace dart {
namespace {

// Operations, as products count them, for a number that is normalised or gated, and rounded.
constexpr std::size_t kOperations = 32;

std::vector<PackedProduct> products(const Matrix& matrix, const float* x,
                                    const Int8Inputs* rounded, std::size_t rows,
                                    const float* residual, float* y) {
  std::vector<PackedProduct> products;
  products.reserve(matrix.parts.size());
  std::size_t first = 0;
  for (const Matrix::Part& part : matrix.parts) {
    PackedProduct product{x, part.tiles, y + first, rows, matrix.in, part.out, matrix.out, part.type};
    product.quantized = rounded;
    if (matrix.bias != nullptr) product.bias = matrix.bias + first;
    if (residual != nullptr) product.residual = residual + first;
    products.push_back(product);
    first += part.out;
  }
  return products;
}

// The part of a matrix that is read first.
Memory beginning_of(const Matrix& matrix) {
  if (matrix.parts.empty()) return {};
  const Matrix::Part& part = matrix.parts.front();
  return {static_cast<const char*>(part.tiles), bytes_of(part.type, matrix.in, part.out)};
}

// Computes rows [begin, end) of what is multiplied.
void prepare(const Inputs& inputs, std::size_t in, std::size_t begin, std::size_t end, float* y,
             Instructions instructions) {
  float* const to = y + begin * in;
  if (inputs.form == Inputs::Form::kNorm) {
    normalize(inputs.norm, inputs.x + begin * in, end - begin, to, instructions);
  } else {
    gate(inputs.activation, inputs.x + 2 * begin * in, end - begin, in, to, instructions);
  }
}

}  // namespace

void multiply(const Matrix& matrix, const Inputs& inputs, std::size_t rows, const float* residual,
              float* y, const Matrix* next, Resources& resources) {
  const Scratch::Scope scope(resources.scratch);
  const Instructions instructions = resources.instructions;
  const std::size_t in = matrix.in, groups = groups_of(in);
  const bool prepared = inputs.form != Inputs::Form::kRows;
  const bool in_8_bits = std::any_of(matrix.parts.begin(), matrix.parts.end(),
                                     [](const auto& part) { return in_blocks(part.type); });
  float* const made = prepared ? resources.scratch.take<float>(rows * in) : nullptr;
  const float* const read = prepared ? made : inputs.x;
  Int8Inputs* const rounded =
      in_8_bits ? resources.scratch.take<Int8Inputs>(rows * groups) : nullptr;
  resources.team.read_ahead(beginning_of(matrix));
  if (prepared || in_8_bits) {
    share_rows(rows, rows * in * kOperations, resources.team,
               [&](std::size_t begin, std::size_t end) {
                 if (prepared) prepare(inputs, in, begin, end, made, instructions);
                 if (in_8_bits) {
                   quantize(read + begin * in, end - begin, in, rounded + begin * groups,
                            instructions);
                 }
               });
  }
  const auto parts = products(matrix, read, rounded, rows, residual, y);
  if (next != nullptr) resources.team.read_ahead(beginning_of(*next));
  multiply(parts.data(), parts.size(), instructions, resources.team);
}

void with_resources(const Matrix& matrix, std::size_t rows, Instructions instructions,
                    std::size_t threads, const std::function<void(Resources&)>& work) {
  const auto parts = products(matrix, nullptr, nullptr, rows, nullptr, nullptr);
  Scratch scratch;
  with_team(threads_for(parts.data(), parts.size(), threads), [&](Team& team) {
    Resources resources{instructions, team, scratch};
    work(resources);
  });
}

}  // namespace dart
