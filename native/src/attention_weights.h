// Weights of attention: the exponentials of scores, less the largest one so far; included by
// attention_loops.h.
#pragma once

#include <cstddef>
#include <cstdint>

#include "attention_products.h"
#include "elementary.h"
#include "kernels.h"
#include "sum_of_parts.h"

namespace dart {
namespace {

constexpr float kUnseen = -__builtin_huge_valf();

// As `exponential`, of numbers that are not above 0.
template <class Lanes>
typename Lanes::Vector exponential_below_0(typename Lanes::Vector x) {
  using Vector = typename Lanes::Vector;
  constexpr float kShift = 12582912.0f + 127.0f;  // see `exponential`
  constexpr float kPowers[] = {1.3981999507e-3f, 8.3334519073e-3f, 4.1665795894e-2f,
                               1.6666665459e-1f, 5.0000001201e-1f};
  // At -88 and below, the power of two is 0.
  x = Lanes::maximum(x, Lanes::broadcast(-88.0f));
  const Vector shifted =
      Lanes::multiply_add(x, Lanes::broadcast(1.44269504f), Lanes::broadcast(kShift));
  const Vector n = shifted - Lanes::broadcast(kShift);
  Vector r = Lanes::multiply_add(n, Lanes::broadcast(-0.693359375f), x);
  r = Lanes::multiply_add(n, Lanes::broadcast(2.12194440e-4f), r);
  Vector power = Lanes::broadcast(1.9875691500e-4f);
  for (float next : kPowers) power = Lanes::multiply_add(power, r, Lanes::broadcast(next));
  power = Lanes::multiply_add(power, r * r, r);
  return (power + Lanes::broadcast(1.0f)) * Lanes::two_to(shifted);
}

// Two to the power x, not above 0, rounded to 8 significant bits.
template <class Lanes>
typename Lanes::Vector rounded_power_of_two(typename Lanes::Vector x) {
  using Vector = typename Lanes::Vector;
  constexpr float kShift = 12582912.0f + 127.0f;  // see `exponential`
  x = Lanes::maximum(x, Lanes::broadcast(-127.0f));  // there, the power of the integer is 0
  const Vector shifted = x + Lanes::broadcast(kShift);
  const Vector r = x - (shifted - Lanes::broadcast(kShift));
  // The best cubic polynomial from -1/2 to 1/2: within 7.5e-5 of it.
  Vector power = Lanes::broadcast(5.5171661e-2f);
  for (float next : {2.4261117e-1f, 6.9326097e-1f, 9.9992806e-1f}) {
    power = Lanes::multiply_add(power, r, Lanes::broadcast(next));
  }
  return rounded<Lanes>(power * Lanes::two_to(shifted));
}

// The largest of `Count` numbers; `Count` is a power of two.
template <int Count>
float largest_of(const float* x) {
  if constexpr (Count == 1) {
    return *x;
  } else {
    float halves[Count / 2];
    for (int i = 0; i < Count / 2; ++i) {
      const float other = x[Count / 2 + i];
      halves[i] = x[i] < other ? other : x[i];
    }
    return largest_of<Count / 2>(halves);
  }
}

// Turns the scores of positions [from, end) of a block into weights; others before `end` and in its
// vector become 0. `softmax`: the largest score and the sums so far. Returns the factor for sums of earlier weights.
template <class Form>
float weigh(float* scores, std::size_t from, std::size_t end, float scale, float cap,
            float* softmax) {
  using Vector = typename Form::Vector;
  const std::size_t count = in_vectors(end);
  for (std::size_t i = 0; i < from; ++i) scores[i] = kUnseen;
  for (std::size_t i = end; i < count; ++i) scores[i] = kUnseen;
  if (cap != 0) {
    for (std::size_t i = from; i < end; ++i) {
      // tanh(u) = 1 - 2 / (exp(2 u) + 1)
      const float twice = 2.0f * (scores[i] * scale / cap);
      scores[i] = cap * (1.0f - 2.0f / (exponential(twice) + 1.0f));
    }
    scale = 1;
  }
  Vector largest = Form::broadcast(kUnseen);
  for (std::size_t i = 0; i < count; i += Form::kSize) {
    largest = Form::maximum(Form::load(scores + i), largest);
  }
  float lanes[Form::kSize];
  Form::store(lanes, largest);
  float most = largest_of<Form::kSize>(lanes) * scale, factor = 1;
  float* const parts = softmax + 1;
  if (most > *softmax) {
    factor = exponential(*softmax - most);
    *softmax = most;
    for (std::size_t c = 0; c < kParts; ++c) parts[c] *= factor;
  }
  most = *softmax;
  constexpr float kUnit = Form::kNumbers == 2 ? 1.44269504f : 1.0f;  // binary logarithms, for pairs
  const Vector scales = Form::broadcast(scale * kUnit), least = Form::broadcast(-most * kUnit);
  for (std::size_t c = 0; c < kParts; c += Form::kSize) {
    Vector sum = Form::load(parts + c);
    for (std::size_t i = c; i < count; i += kParts) {
      const Vector score = Form::multiply_add(Form::load(scores + i), scales, least);
      Vector weight;
      if constexpr (Form::kNumbers == 2) {
        weight = rounded_power_of_two<Form>(score);
      } else {
        weight = exponential_below_0<Form>(score);
      }
      Form::store_numbers(scores, i, weight);
      sum = sum + weight;
    }
    Form::store(parts + c, sum);
  }
  return factor;
}

}  // namespace
}  // namespace dart
