// The elementary functions of the core: their errors and limits.
#include "elementary.h"

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
}

void test_limits() {
  CHECK(dart::logarithm(1.0f) == 0.0f);
  CHECK(dart::exponential(0.0f) == 1.0f);
  CHECK(dart::exponential(-87.3f) >= std::numeric_limits<float>::min());
  CHECK(dart::exponential(std::nextafter(-87.3f, -88.0f)) == 0.0f);
  CHECK(dart::exponential(1e30f) == dart::exponential(88.0f));
  CHECK(std::isfinite(dart::exponential(88.0f)));
  CHECK(dart::exponential(-std::numeric_limits<float>::infinity()) == 0.0f);
}

}  // namespace

int main() {
  test_errors();
  test_limits();
  return failures == 0 ? 0 : 1;
}
