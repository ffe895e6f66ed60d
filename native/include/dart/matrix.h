// Products of rows with a matrix in parts, on CPUs; the rows may first be normalised or gated.
#pragma once

#include <cstddef>
#include <functional>
#include <vector>

#include "dart/blocks.h"
#include "dart/instructions.h"
#include "dart/packed_product.h"
#include "dart/rows.h"
#include "dart/scratch.h"
#include "dart/shared_work.h"

namespace dart {

// A matrix [in, out], whose parts follow each other along its outputs.
struct Matrix {
  struct Part {
    const void* tiles;  // see PackedProduct
    WeightType type;
    std::size_t out;
  };

  std::vector<Part> parts;
  const float* bias = nullptr;  // [out], or null for none
  std::size_t in = 0;
  std::size_t out = 0;  // of all parts
};

// The rows that a matrix is multiplied with: rows as they are, their norm, or a gated activation.
struct Inputs {
  enum class Form { kRows, kNorm, kGated };

  // Rows x [rows, in].
  static Inputs rows(const float* x) { return {Form::kRows, x, {}, {}}; }
  // The norm of x [rows, in], if there is one.
  static Inputs normed(const Norm& norm, const float* x) {
    return {norm.scale == nullptr ? Form::kRows : Form::kNorm, x, norm, {}};
  }
  // Of x [rows, 2 in].
  static Inputs gated(Activation activation, const float* x) {
    return {Form::kGated, x, {}, activation};
  }

  Form form;
  const float* x;
  Norm norm;
  Activation activation;
};

// The resources of a computation.
struct Resources {
  Instructions instructions;
  Team& team;
  Scratch& scratch;
};

// y [rows, out] = inputs * matrix + bias + residual [rows, out], unless that is null. Threads that wait
// read ahead in `next`, the matrix that is multiplied after this one; null for none.
void multiply(const Matrix& matrix, const Inputs& inputs, std::size_t rows, const float* residual,
              float* y, const Matrix* next, Resources& resources);

// Calls `work` with the resources that it may use: a team of at most `threads` for the product of
// `rows` rows.
void with_resources(const Matrix& matrix, std::size_t rows, Instructions instructions,
                    std::size_t threads, const std::function<void(Resources&)>& work);

}  // namespace dart
