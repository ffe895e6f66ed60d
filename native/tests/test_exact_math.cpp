// The search's elementary functions: their errors, and the same bits on every platform.
#include "dart/exact_math.h"

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#include "check.h"

namespace {

float from_bits(std::uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

std::uint32_t bits_of(float value) {
  std::uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

// The error in units in the last place of the exact result.
double error(float value, double exact) {
  int exponent;
  std::frexp(exact, &exponent);
  return std::abs(value - exact) / std::ldexp(1.0, exponent - 24);
}

void test_errors() {
  constexpr std::uint32_t kStep = 997;
  for (std::uint32_t bits = 0x00800000u; bits < 0x7f800000u; bits += kStep) {
    const float x = from_bits(bits);
    if (x != 1.0f) CHECK(error(dart::logarithm(x), std::log(double(x))) < 1);
  }
  for (std::uint32_t bits = 0x80000000u; bits <= bits_of(-87.3f); bits += kStep) {
    const float x = from_bits(bits);
    CHECK(error(dart::exponential(x), std::exp(double(x))) < 1);
  }
  for (std::uint32_t bits = bits_of(0x1p-100f); bits <= bits_of(0x1p100f); bits += kStep) {
    const float x = from_bits(bits);
    CHECK(error(dart::reciprocal(x), 1 / double(x)) < 1.5);
  }
}

void test_limits() {
  CHECK(dart::logarithm(1.0f) == 0.0f);
  CHECK(dart::exponential(0.0f) == 1.0f);
  CHECK(dart::reciprocal(1.0f) == 1.0f);
  CHECK(dart::exponential(-87.3f) >= std::numeric_limits<float>::min());
  CHECK(dart::exponential(std::nextafter(-87.3f, -88.0f)) == 0.0f);
  CHECK(dart::exponential(1e30f) == dart::exponential(88.0f));
  CHECK(std::isfinite(dart::exponential(88.0f)));
  CHECK(dart::exponential(-std::numeric_limits<float>::infinity()) == 0.0f);
}

// Computed from the formulas with other software.
void test_known_bits() {
  constexpr std::uint32_t kLogarithms[][2] = {
      {0x2edbe6ffu, 0xc1b834f1u}, {0x3a83126fu, 0xc0dd0c55u}, {0x3e99999au, 0xbf9a1bc8u},
      {0x3f3504f3u, 0xbeb17218u}, {0x3f3504f4u, 0xbeb17216u}, {0x3f7ffffeu, 0xb4000001u},
      {0x40400000u, 0x3f8c9f54u}, {0x4640e6b6u, 0x4116bcabu}};
  for (const auto& [x, y] : kLogarithms) CHECK(bits_of(dart::logarithm(from_bits(x))) == y);
  constexpr std::uint32_t kExponentials[][2] = {
      {0xb3d6bf95u, 0x3f7ffffeu}, {0xbe99999au, 0x3f3da643u}, {0xbeb17218u, 0x3f3504f3u},
      {0xbf317218u, 0x3f000000u}, {0xbf800000u, 0x3ebc5ab2u}, {0xc1280000u, 0x37e6fe13u},
      {0xc2480000u, 0x1b692bebu}, {0xc2ae0000u, 0x00b33687u}};
  for (const auto& [x, y] : kExponentials) CHECK(bits_of(dart::exponential(from_bits(x))) == y);
  constexpr std::uint32_t kReciprocals[][2] = {
      {0x3f800000u, 0x3f800000u}, {0x40400000u, 0x3eaaaaabu},
      {0x3dcccccdu, 0x41200000u}, {0x40e80000u, 0x3e0d3dcbu},
      {0x41c7ffffu, 0x3d23d70bu}, {0x0dbebc21u, 0x712bcc76u},
      {0x71034436u, 0x0df9a132u}, {0x3f800001u, 0x3f7ffffeu}};
  for (const auto& [x, y] : kReciprocals) CHECK(bits_of(dart::reciprocal(from_bits(x))) == y);
}

}  // namespace

int main() {
  test_errors();
  test_limits();
  test_known_bits();
  return failures == 0 ? 0 : 1;
}
