// Layers in plain C++, for any processor; see kernels.h.
#include <cstring>

#include "half.h"
#include "kernel_table.h"

namespace dart {
namespace {

struct Portable {
  static constexpr int kSize = 4;
  static constexpr int kRows = 4;
  static constexpr int kTilesOfRow = 1;
  static constexpr int vectors(int) { return 2; }

  struct Vector {
    float values[kSize];

    template <class Operation>
    static Vector of(const Vector& a, const Vector& b, const Operation& operation) {
      Vector made;
      for (int i = 0; i < kSize; ++i) made.values[i] = operation(a.values[i], b.values[i]);
      return made;
    }
    friend Vector operator+(const Vector& a, const Vector& b) {
      return of(a, b, [](float x, float y) { return x + y; });
    }
    friend Vector operator-(const Vector& a, const Vector& b) {
      return of(a, b, [](float x, float y) { return x - y; });
    }
    friend Vector operator*(const Vector& a, const Vector& b) {
      return of(a, b, [](float x, float y) { return x * y; });
    }
  };

  static Vector broadcast(float value) { return {{value, value, value, value}}; }
  static Vector load(const float* from) {
    Vector vector;
    std::memcpy(vector.values, from, sizeof vector.values);
    return vector;
  }
  static Vector load(const std::uint16_t* from) {
    std::uint32_t bits[kSize];
    for (int i = 0; i < kSize; ++i) bits[i] = static_cast<std::uint32_t>(from[i]) << 16;
    Vector vector;
    std::memcpy(vector.values, bits, sizeof bits);
    return vector;
  }
  static Vector load(const Half* from) {
    Vector vector;
    for (int i = 0; i < kSize; ++i) vector.values[i] = of_half(static_cast<std::uint16_t>(from[i]));
    return vector;
  }
  static void store(float* to, const Vector& value) {
    std::memcpy(to, value.values, sizeof value.values);
  }
  static Vector multiply_add(const Vector& a, const Vector& b, const Vector& c) { return a * b + c; }
  // 2 to the power n, where a number's last bits are n + 127.
  static Vector two_to(const Vector& bits) {
    std::uint32_t numbers[kSize];
    std::memcpy(numbers, bits.values, sizeof numbers);
    for (std::uint32_t& number : numbers) number <<= 23;
    Vector power;
    std::memcpy(power.values, numbers, sizeof numbers);
    return power;
  }
  // a where it is larger, otherwise b.
  static Vector maximum(const Vector& a, const Vector& b) {
    return Vector::of(a, b, [](float x, float y) { return x > y ? x : y; });
  }
  static void transpose(const float* from, std::size_t from_stride, float* to,
                        std::size_t to_stride) {
    transpose_plainly<kSize>(from, from_stride, to, to_stride);
  }
};

constexpr Kernels kKernels = kernels_with<Portable, PlainRounding>();

}  // namespace

const Kernels* const kPortableKernels = &kKernels;

}  // namespace dart
