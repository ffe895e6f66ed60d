// Products with weights in blocks in plain C++, for any processor; see block_loops.h.
#include "block_loops.h"
#include "half.h"

namespace dart {
namespace {

struct Portable {
  static constexpr int kSize = 4;
  static constexpr int kRows = 2;  // more take a minute to compile
  static constexpr int kTilesOfRow = 1;
  static constexpr int kSignedZero = 0;
  static constexpr int vectors(int) { return 1; }

  struct Ints {
    std::int32_t values[kSize];
  };
  struct Floats {
    float values[kSize];
  };
  struct Bytes {
    std::uint8_t values[kSize][kQuad];
  };
  struct Signed {
    std::int8_t values[kSize][kQuad];
  };

  static constexpr std::size_t quads_together(int) { return 0; }  // their sums have 32 bits

  static Ints zero() { return {}; }
  static Ints broadcast(std::int32_t x) { return {{x, x, x, x}}; }
  static Bytes load(const std::uint8_t* from) {
    Bytes x;
    __builtin_memcpy(x.values, from, sizeof x.values);
    return x;
  }
  static Bytes low(const Bytes& x) {
    return of(x, [](int byte) { return byte & 0x0f; });
  }
  static Bytes high(const Bytes& x) {
    return of(x, [](int byte) { return byte >> 4; });
  }
  // (x << Left & Mask) | rest
  template <int Left, int Mask>
  static Bytes merge(const Bytes& x, Bytes rest) {
    for (int i = 0; i < kSize; ++i) {
      for (std::size_t k = 0; k < kQuad; ++k) {
        const int byte = Left < 0 ? x.values[i][k] >> -Left * (Left < 0)
                                  : x.values[i][k] << Left * (Left > 0);
        rest.values[i][k] = static_cast<std::uint8_t>((byte & Mask) | rest.values[i][k]);
      }
    }
    return rest;
  }
  static Signed signed_weights(const Bytes& x) {
    Signed w;
    __builtin_memcpy(w.values, x.values, sizeof w.values);
    return w;
  }
  template <class Weights>
  static Ints add(Ints sum, const Weights& w, const std::int8_t* quad) {
    for (int i = 0; i < kSize; ++i) {
      for (std::size_t k = 0; k < kQuad; ++k) sum.values[i] += w.values[i][k] * quad[k];
    }
    return sum;
  }
  static Floats floats(const Ints& x) {
    return each([&](int i) { return static_cast<float>(x.values[i]); });
  }
  static Floats halves(const std::uint8_t* from) {
    std::uint16_t x[kSize];
    __builtin_memcpy(x, from, sizeof x);
    return each([&](int i) { return of_half(x[i]); });
  }
  static Floats unsigned_bytes(const std::uint8_t* from) {
    return each([&](int i) { return static_cast<float>(from[i]); });
  }
  static Floats signed_bytes(const std::uint8_t* from) {
    return each([&](int i) { return static_cast<float>(static_cast<std::int8_t>(from[i])); });
  }
  static Floats broadcast(float x) { return {{x, x, x, x}}; }
  static Floats negative(const Floats& x) {
    return each([&](int i) { return -x.values[i]; });
  }
  static void store(float* to, const Floats& x) { __builtin_memcpy(to, x.values, sizeof x.values); }
  static Floats multiply(const Floats& a, const Floats& b) {
    return each([&](int i) { return a.values[i] * b.values[i]; });
  }
  static Floats multiply_add(const Floats& a, const Floats& b, const Floats& c) {
    return each([&](int i) { return a.values[i] * b.values[i] + c.values[i]; });
  }
  static void prefetch(const void*) {}

 private:
  template <class Function>
  static Floats each(const Function& function) {
    Floats y;
    for (int i = 0; i < kSize; ++i) y.values[i] = function(i);
    return y;
  }
  template <class Function>
  static Bytes of(Bytes x, const Function& function) {
    for (auto& four : x.values) {
      for (std::uint8_t& byte : four) byte = static_cast<std::uint8_t>(function(byte));
    }
    return x;
  }
};

}  // namespace

const MultiplyTiles kMultiplyBlocksPortable = multiply_tiles_in_blocks<Portable>;

}  // namespace dart
