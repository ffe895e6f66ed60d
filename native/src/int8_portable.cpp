// Products in 8 bits in plain C++, for any processor; see int8_tiles.h.
#include "int8_tiles.h"

namespace dart {
namespace {

struct Portable {
  static constexpr int kSize = 4;
  static constexpr int kVectors = 2;
  static constexpr int kRows = 4;
  static constexpr int kTilesOfRow = 1;

  struct Ints {
    std::int32_t values[kSize];
  };
  struct Floats {
    float values[kSize];
  };
  struct Weights {
    std::int8_t values[kSize][kQuad];
  };

  static Ints begin(std::int32_t) { return {}; }
  static Weights weights(const std::int8_t* from) {
    Weights weights;
    __builtin_memcpy(weights.values, from, sizeof weights.values);
    return weights;
  }
  static const std::int8_t* broadcast(const std::int8_t* quad) { return quad; }
  static Ints add(Ints sum, const Weights& w, const std::int8_t* x) {
    for (int i = 0; i < kSize; ++i) {
      for (std::size_t k = 0; k < kQuad; ++k) sum.values[i] += w.values[i][k] * x[k];
    }
    return sum;
  }
  static Floats floats(const Ints& x) {
    Floats y;
    for (int i = 0; i < kSize; ++i) y.values[i] = static_cast<float>(x.values[i]);
    return y;
  }
  static Floats broadcast(float x) { return {{x, x, x, x}}; }
  static Floats load(const float* from) {
    Floats x;
    __builtin_memcpy(x.values, from, sizeof x.values);
    return x;
  }
  static void store(float* to, const Floats& x) { __builtin_memcpy(to, x.values, sizeof x.values); }
  static Floats multiply(const Floats& a, const Floats& b) {
    Floats y;
    for (int i = 0; i < kSize; ++i) y.values[i] = a.values[i] * b.values[i];
    return y;
  }
  static Floats multiply_add(const Floats& a, const Floats& b, const Floats& c) {
    Floats y;
    for (int i = 0; i < kSize; ++i) y.values[i] = a.values[i] * b.values[i] + c.values[i];
    return y;
  }
  static void prefetch(const std::int8_t*) {}
};

}  // namespace

const MultiplyTiles kMultiplyInt8Portable = multiply_int8_tiles<Portable>;

}  // namespace dart
