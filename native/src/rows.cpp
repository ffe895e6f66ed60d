#include "dart/rows.h"

#include "dart/int8.h"
#include "kernels.h"

namespace dart {

void normalize(const Norm& norm, const float* x, std::size_t rows, float* y,
               Instructions instructions) {
  kernels(instructions)->normalize(norm, x, rows, y);
}

void gate(Activation activation, const float* x, std::size_t rows, std::size_t size, float* y,
          Instructions instructions) {
  kernels(instructions)->gate(activation, x, rows, size, y);
}

void quantize(const float* x, std::size_t rows, std::size_t in, Int8Inputs* y,
              Instructions instructions) {
  kernels(instructions)->quantize(x, rows, in, y);
}

void rotate_heads(const Heads& heads, Instructions instructions) {
  kernels(instructions)->rotate_heads(heads);
}

void largest(const float* x, std::size_t rows, std::size_t size, std::size_t count, float* values,
             std::int32_t* indices, Instructions instructions) {
  kernels(instructions)->largest(x, rows, size, count, values, indices);
}

}  // namespace dart
