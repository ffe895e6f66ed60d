// Heads and their attention as XLA foreign functions on the CPU.
#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "dart/attention.h"
#include "dart/rows.h"
#include "ffi_handlers.h"
#include "ffi_cache.h"
#include "ffi_shapes.h"
#include "ffi_used.h"
#include "xla/ffi/api/ffi.h"

namespace {

namespace ffi = xla::ffi;

using Floats = ffi::Buffer<ffi::F32>;
using Array = ffi::BufferR4<ffi::F32>;

// See dart::Heads. `q_scale` and `k_scale` have no elements where there are no norms.
//
// `cos` and `sin` have the number of rotated pairs.
ffi::Error heads(ffi::BufferR3<ffi::F32> x, ffi::BufferR3<ffi::F32> cos,
                 ffi::BufferR3<ffi::F32> sin, Floats q_scale, Floats k_scale, ffi::Result<Array> q,
                 ffi::Result<Array> k, ffi::Result<Array> v, float eps, float offset) {
  const auto in = x.dimensions(), queries = q->dimensions(), keys = k->dimensions();
  const std::size_t b = size(in[0]), t = size(in[1]), h = size(queries[3]), kv = size(keys[1]);
  const std::size_t count = size(queries[1]), pairs = size(cos.dimensions()[2]);
  const std::size_t norms = q_scale.element_count();
  const bool together = norms != 0 && norms != h;
  if (h < 1 || size(in[2]) != (count + 2 * kv) * h || !is(queries, b, count, t, h) ||
      !is(keys, b, kv, t, h) || !is(v->dimensions(), b, kv, t, h) || 2 * pairs > h ||
      !is(cos.dimensions(), b, t, pairs) || !is(sin.dimensions(), b, t, pairs) ||
      (together && norms != count * h) ||
      k_scale.element_count() != (together ? kv * h : norms)) {
    return ffi::Error::InvalidArgument("dart_heads: arguments of other shapes");
  }
  dart::Heads heads;
  heads.x = x.typed_data();
  heads.cos = cos.typed_data();
  heads.sin = sin.typed_data();
  heads.q_scale = or_null(q_scale);
  heads.k_scale = or_null(k_scale);
  heads.together = together;
  heads.eps = eps;
  heads.offset = offset;
  heads.q = q->typed_data();
  heads.k = k->typed_data();
  heads.v = v->typed_data();
  heads.sequences = b;
  heads.rows = t;
  heads.heads = count;
  heads.kv_heads = kv;
  heads.head_size = h;
  heads.rotated = 2 * pairs;
  dart::rotate_heads(heads, dart::best_instructions());
  return ffi::Error::Success();
}

// Computes the attention of one sequence's first `used` rows to cached rows and to each other.
void attend_used(dart::Attention attention, std::size_t used, std::size_t threads) {
  const std::size_t rows = attention.rows, all = attention.new_rows, h = attention.head_size;
  const std::size_t row = h * (attention.bfloat16 ? 2 : 4);
  const auto q = first_of_each(attention.q, attention.heads, rows * h * 4, used * h * 4);
  const auto k = first_of_each(attention.new_k, attention.kv_heads, all * row, used * row);
  const auto v = first_of_each(attention.new_v, attention.kv_heads, all * row, used * row);
  const auto mask = first_of_each(attention.mask, used, all, used);
  attention.q = reinterpret_cast<const float*>(q.data());
  attention.new_k = k.data();
  attention.new_v = v.data();
  attention.mask = reinterpret_cast<const bool*>(mask.data());
  attention.rows = attention.new_rows = used;
  dart::attend(attention, dart::best_instructions(), threads);
}

// See dart::Attention. `first` has no elements where every row sees all cached rows, and `pages` is
// one-dimensional where sequences have no pages. If `used` has an element, there is one sequence,
// and only that many of its rows are computed and seen: what follows them in `out` is not written.
ffi::Error attention(ffi::ThreadPool pool, Array q, ffi::AnyBuffer k, ffi::AnyBuffer v,
                     ffi::AnyBuffer new_k, ffi::AnyBuffer new_v,
                     ffi::Buffer<ffi::S32> length, ffi::Buffer<ffi::S32> first,
                     ffi::BufferR3<ffi::PRED> mask, ffi::Buffer<ffi::S32> pages,
                     ffi::Buffer<ffi::S32> used, ffi::Result<ffi::BufferR3<ffi::F32>> out,
                     float scale, float cap) {
  const auto queries = q.dimensions();
  const std::size_t b = size(queries[0]), heads = size(queries[1]), t = size(queries[2]);
  const std::size_t h = size(queries[3]);
  if (!has_rows(k) || !has_rows(new_k) || new_k.element_type() != k.element_type() ||
      new_v.element_type() != k.element_type()) {
    return ffi::Error::InvalidArgument("dart_attention: keys and values of other types");
  }
  const std::size_t kv_heads = size(k.dimensions()[1]), n = size(new_k.dimensions()[2]);
  dart::Attention attention{};
  attention.sequences = b;
  attention.heads = heads;
  attention.kv_heads = kv_heads;
  attention.head_size = h;
  if (!read_cache(k, v, length, pages, attention) || !is(new_k.dimensions(), b, kv_heads, n, h) ||
      !is(new_v.dimensions(), b, kv_heads, n, h) || !is(mask.dimensions(), b, t, n) ||
      !is(out->dimensions(), b, t, heads * h) || kv_heads < 1 || heads % kv_heads != 0 ||
      h % 16 != 0 || !none_or(first, b * t) || (used.element_count() != 0 && b != 1)) {
    return ffi::Error::InvalidArgument("dart_attention: arguments of other shapes");
  }
  attention.q = q.typed_data();
  attention.new_k = new_k.untyped_data();
  attention.new_v = new_v.untyped_data();
  attention.first = or_null(first);
  attention.mask = mask.typed_data();
  attention.out = out->typed_data();
  attention.rows = t;
  attention.new_rows = n;
  attention.scale = scale;
  attention.cap = cap;
  const std::size_t count = used_rows(used, std::min(attention.rows, attention.new_rows));
  const std::size_t threads = size(pool.num_threads());
  if (used.element_count() == 0) {
    dart::attend(attention, dart::best_instructions(), threads);
  } else if (count > 0) {
    attend_used(attention, count, threads);
  }
  return ffi::Error::Success();
}

}  // namespace

DART_FFI_HANDLER(dart_heads, heads, "eps", "offset");
DART_FFI_HANDLER(dart_attention, attention, "scale", "cap");
