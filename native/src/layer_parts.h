// The parts that all layers have; see dart/layer.h.
#pragma once

#include <cstddef>

#include "dart/layer.h"

namespace dart {

// Makes the keys and values of new rows, rounds them to the dtype of the cache, hands them to
// `attention`, and copies the first `kept` of each head to `to`. Of `heads` there may be queries, too.
void make_new_rows(Heads heads, const NewRows& to, std::size_t kept, Attention& attention,
                   Resources& resources);

// Computes what follows attention: `attended` [rows, H h] and the residual stream x [rows, D] become
// y [rows, D]. `next`: the matrix that is multiplied after that; null for none.
void run_after_attention(const AfterAttention& after, const float* attended, const float* x,
                         std::size_t rows, float* y, const Matrix* next, Resources& resources);

}  // namespace dart
