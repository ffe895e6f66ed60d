// The products of attention, written once for the forms of keys and values.
//
// A form has the vectors of an instruction set and says how numbers are laid out to be multiplied:
// as elements of 32 bits, of one number or two.
#pragma once

#include <cstddef>
#include <cstdint>

#include "unroll.h"

namespace dart {
namespace {

// Copies Size rows of Size numbers, with these distances between rows, to columns, as all Lanes do.
template <int Size>
void transpose_plainly(const float* from, std::size_t from_stride, float* to,
                       std::size_t to_stride) {
  for (int i = 0; i < Size; ++i) {
    for (int c = 0; c < Size; ++c) to[c * to_stride + i] = from[i * from_stride + c];
  }
}

// Keys, values, queries and weights are float32: an element is a number.
template <class Lanes>
struct Float32 : Lanes {
  using Vector = typename Lanes::Vector;
  using Number = float;  // of keys and values
  static constexpr std::size_t kNumbers = 1;  // of an element
  static constexpr int kFloats = 1;  // of queries and weights for an element

  static void load_element(const float* from, Vector (&factors)[1]) { factors[0] = Lanes::load(from); }
  static Vector add_product(Vector a, Vector b, Vector sum) {
    return Lanes::multiply_add(a, b, sum);
  }
  static void store_numbers(float* row, std::size_t i, Vector numbers) {
    Lanes::store(row + i, numbers);
  }
};

// Keys, values, queries and weights are bfloat16: an element is a pair, the even number in the lower
// half. Products of pairs, which begin at even places of a head or a sequence, are added to float32
// sums as VDPBF16PS of AVX-512 does it: first the odd one, then the even one, as the lanes round them.
// This is for processors without, whose queries and weights are stored as floats.
template <class Lanes>
struct Bfloat16 : Lanes {
  using Vector = typename Lanes::Vector;
  using Number = std::uint16_t;
  static constexpr std::size_t kNumbers = 2;
  static constexpr int kFloats = 2;

  static void load_element(const float* from, Vector (&factors)[2]) {
    std::uint32_t bits[Lanes::kSize], even[Lanes::kSize], odd[Lanes::kSize];
    __builtin_memcpy(bits, from, sizeof bits);
    DART_UNROLL
    for (int i = 0; i < Lanes::kSize; ++i) {
      even[i] = bits[i] << 16;
      odd[i] = bits[i] & 0xffff0000u;
    }
    __builtin_memcpy(&factors[0], even, sizeof even);
    __builtin_memcpy(&factors[1], odd, sizeof odd);
  }
  static Vector add_product(Vector a, Vector b, Vector sum) {
    return Lanes::multiply_add(a, b, sum);
  }
  // Stores numbers that bfloat16 holds as a row's from i on.
  static void store_numbers(float* row, std::size_t i, Vector numbers) {
    Lanes::store(row + i, numbers);
  }
};

// The nearest number with 8 significant bits (T. J. Dekker, "A floating-point technique for extending
// the available precision", 1971), below 2^111.
template <class Lanes>
typename Lanes::Vector rounded(typename Lanes::Vector x) {
  const typename Lanes::Vector more = x * Lanes::broadcast(65537.0f);
  return more - (more - x);
}

// Columns of a product that follow each other.
constexpr std::size_t kColumns = 16;

// Factors of a product x [rows, count] w [count, ..], and the sums y [rows, ..] that it is added to,
// with the distances between their rows. x has `kFloats` numbers for each of `count` elements of w,
// whose columns stand in blocks of 16.
struct Factors {
  const float* x;
  std::size_t x_stride;
  const float* w;
  std::size_t w_stride;
  std::size_t w_block;  // between blocks of columns
  std::size_t count;
  float* y;
  std::size_t y_stride;
  bool begins;  // the sums, which are then 0
  const float* next;  // what is multiplied after w, of its size; null for nothing
};

// Adds products to Rows rows of a few vectors of sums: chains of additions, in order.
template <class Form, int Rows, int Vectors>
void add_products(const Factors& factors, std::size_t column) {
  using Vector = typename Form::Vector;
  constexpr std::size_t kSize = Form::kSize;
  const float* const x = factors.x;
  const std::size_t x_stride = factors.x_stride, w_stride = factors.w_stride;
  const std::size_t w_block = factors.w_block;
  const float* w = factors.w + column / kColumns * w_block + column % kColumns;
  float* const y = factors.y + column;
  Vector sums[Rows][Vectors];
  DART_UNROLL
  for (int r = 0; r < Rows; ++r) {
    DART_UNROLL
    for (int v = 0; v < Vectors; ++v) {
      sums[r][v] = factors.begins ? Form::broadcast(0.0f)
                                  : Form::load(y + r * factors.y_stride + v * kSize);
    }
  }
  const std::size_t count = factors.count;
  const float* next = factors.next == nullptr ? nullptr : factors.next + column * count;
  for (std::size_t i = 0; i < count; ++i, w += w_stride) {
    if (next != nullptr) {
      DART_UNROLL
      for (int c = 0; c < Vectors * static_cast<int>(kSize); c += 64 / sizeof(float)) {
        __builtin_prefetch(next + c, 0, 2);  // a line
      }
      next += Vectors * kSize;
    }
    Vector values[Vectors][Form::kFloats];
    DART_UNROLL
    for (int v = 0; v < Vectors; ++v) {
      const std::size_t c = v * kSize;
      Form::load_element(w + c / kColumns * w_block + c % kColumns, values[v]);
    }
    DART_UNROLL
    for (int f = Form::kFloats - 1; f >= 0; --f) {
      DART_UNROLL
      for (int r = 0; r < Rows; ++r) {
        const Vector value = Form::broadcast(x[r * x_stride + i * Form::kFloats + f]);
        DART_UNROLL
        for (int v = 0; v < Vectors; ++v) {
          sums[r][v] = Form::add_product(value, values[v][f], sums[r][v]);
        }
      }
    }
  }
  DART_UNROLL
  for (int r = 0; r < Rows; ++r) {
    DART_UNROLL
    for (int v = 0; v < Vectors; ++v) {
      Form::store(y + r * factors.y_stride + v * kSize, sums[r][v]);
    }
  }
}

// `add_products` for columns from `column` to `width`, which are whole vectors.
template <class Form, int Rows, int Vectors>
void add_columns(const Factors& factors, std::size_t column, std::size_t width) {
  constexpr std::size_t kPass = Vectors * Form::kSize;
  for (; column + kPass <= width; column += kPass) {
    add_products<Form, Rows, Vectors>(factors, column);
  }
  if constexpr (Vectors > 1) add_columns<Form, Rows, Vectors / 2>(factors, column, width);
}

// `add_columns` for `rows` rows, at most Rows.
template <class Form, int Rows>
void add_rows_of_products(std::size_t rows, const Factors& factors, std::size_t width) {
  if constexpr (Rows > 1) {
    if (rows < Rows) return add_rows_of_products<Form, Rows - 1>(rows, factors, width);
  }
  // Few rows are read in wider parts, as many sums as registers hold.
  constexpr bool kWide = 4 * Rows <= Form::kRows * Form::vectors(Form::kRows);
  constexpr int kVectors = Form::vectors(Rows) < 4 && kWide ? 4 : Form::vectors(Rows);
  add_columns<Form, Rows, kVectors>(factors, 0, width);
}

// Calls `compute` with the first of a group of rows that are computed together, and their number.
template <class Lanes, class Compute>
void for_groups(std::size_t rows, const Compute& compute) {
  constexpr std::size_t kRows = Lanes::kRows;
  const std::size_t groups = (rows + kRows - 1) / kRows;
  for (std::size_t g = 0; g < groups; ++g) {
    const std::size_t begin = rows * g / groups;
    compute(begin, rows * (g + 1) / groups - begin);
  }
}

}  // namespace
}  // namespace dart
