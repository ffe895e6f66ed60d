#include "dart/rows.h"

#include "dart/int8.h"
#include "dart/shared_work.h"
#include "kernels.h"

namespace dart {
namespace {

constexpr std::size_t kOperations = 32;  // of an entry, to find the largest

}  // namespace

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
             std::int32_t* indices, Instructions instructions, std::size_t threads) {
  const Kernels& kernels = *dart::kernels(instructions);
  share_rows(rows, rows * size * kOperations, threads, [&](std::size_t begin, std::size_t end) {
    kernels.largest(x + begin * size, end - begin, size, count, values + begin * count,
                    indices + begin * count);
  });
}

}  // namespace dart
