// Heads and their attention as XLA foreign functions on the CPU.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <exception>

#include "dart/attention.h"
#include "dart/rows.h"
#include "ffi.h"
#include "ffi_used.h"
#include "xla/ffi/api/ffi.h"

namespace {

namespace ffi = xla::ffi;

using Floats = ffi::Buffer<ffi::F32>;
using Array = ffi::BufferR4<ffi::F32>;

std::size_t size(std::int64_t dimension) { return static_cast<std::size_t>(dimension); }

// Whether a shape begins with these sizes.
template <class Shape, class... Sizes>
bool is(const Shape& shape, Sizes... sizes) {
  std::int64_t i = 0;
  return ((shape[i++] == sizes) && ...);
}

// See dart::Heads. `q_scale` and `k_scale` have no elements where there are no norms.
//
// `cos` and `sin` have the number of rotated pairs.
ffi::Error heads(ffi::BufferR3<ffi::F32> x, ffi::BufferR3<ffi::F32> cos,
                 ffi::BufferR3<ffi::F32> sin, Floats q_scale, Floats k_scale, ffi::Result<Array> q,
                 ffi::Result<Array> k, ffi::Result<Array> v, float eps, float offset) {
  const auto in = x.dimensions(), queries = q->dimensions(), keys = k->dimensions();
  const std::int64_t b = in[0], t = in[1], h = queries[3], pairs = cos.dimensions()[2];
  const std::size_t norms = q_scale.element_count();
  const bool together = norms != 0 && norms != size(h);
  if (h < 1 || in[2] % h != 0 || !is(queries, b, in[2] / h - 2 * keys[1], t, h) ||
      !is(keys, b, keys[1], t, h) || !is(v->dimensions(), b, keys[1], t, h) || 2 * pairs > h ||
      !is(cos.dimensions(), b, t, pairs) || !is(sin.dimensions(), b, t, pairs) ||
      (together && norms != size(queries[1] * h)) ||
      k_scale.element_count() != (together ? size(keys[1] * h) : norms)) {
    return ffi::Error::InvalidArgument("dart_heads: arguments of other shapes");
  }
  dart::Heads heads;
  heads.x = x.typed_data();
  heads.cos = cos.typed_data();
  heads.sin = sin.typed_data();
  heads.q_scale = norms == 0 ? nullptr : q_scale.typed_data();
  heads.k_scale = norms == 0 ? nullptr : k_scale.typed_data();
  heads.together = together;
  heads.eps = eps;
  heads.offset = offset;
  heads.q = q->typed_data();
  heads.k = k->typed_data();
  heads.v = v->typed_data();
  heads.sequences = size(b);
  heads.rows = size(t);
  heads.heads = size(queries[1]);
  heads.kv_heads = size(keys[1]);
  heads.head_size = size(h);
  heads.rotated = size(2 * pairs);
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
// and only so many of its rows are computed and seen: what follows them in `out` is not written.
ffi::Error attention(ffi::ThreadPool pool, Array q, ffi::AnyBuffer k, ffi::AnyBuffer v,
                     ffi::AnyBuffer new_k, ffi::AnyBuffer new_v,
                     ffi::BufferR1<ffi::S32> length, ffi::Buffer<ffi::S32> first,
                     ffi::BufferR3<ffi::PRED> mask, ffi::Buffer<ffi::S32> pages,
                     ffi::Buffer<ffi::S32> used, ffi::Result<ffi::BufferR3<ffi::F32>> out,
                     float scale, float cap) {
  const auto queries = q.dimensions(), keys = k.dimensions(), rows = new_k.dimensions();
  const ffi::DataType type = k.element_type();
  if (keys.size() != 4 || v.dimensions().size() != 4 || rows.size() != 4 ||
      new_v.dimensions().size() != 4) {
    return ffi::Error::InvalidArgument("dart_attention: arguments of other numbers of axes");
  }
  if ((type != ffi::F32 && type != ffi::BF16) || v.element_type() != type ||
      new_k.element_type() != type || new_v.element_type() != type) {
    return ffi::Error::InvalidArgument("dart_attention: keys and values of other types");
  }
  const std::int64_t b = queries[0], heads = queries[1], t = queries[2], h = queries[3];
  const std::int64_t kv_heads = keys[1], n = rows[2];
  const bool paged = pages.dimensions().size() == 2;
  if (!is(keys, paged ? keys[0] : b, kv_heads, keys[2], h) ||
      !is(v.dimensions(), keys[0], kv_heads, keys[2], h) ||
      (paged && !is(pages.dimensions(), b)) ||
      !is(rows, b, kv_heads, n, h) || !is(new_v.dimensions(), b, kv_heads, n, h) ||
      !is(length.dimensions(), b) || !is(mask.dimensions(), b, t, n) ||
      !is(out->dimensions(), b, t, heads * h) || kv_heads < 1 || heads % kv_heads != 0 ||
      h % 16 != 0 || (first.element_count() != 0 && first.element_count() != size(b * t)) ||
      (used.element_count() != 0 && b != 1)) {
    return ffi::Error::InvalidArgument("dart_attention: arguments of other shapes");
  }
  dart::Attention attention;
  attention.q = q.typed_data();
  attention.k = k.untyped_data();
  attention.v = v.untyped_data();
  attention.new_k = new_k.untyped_data();
  attention.new_v = new_v.untyped_data();
  attention.bfloat16 = type == ffi::BF16;
  attention.length = length.typed_data();
  attention.first = first.element_count() == 0 ? nullptr : first.typed_data();
  attention.mask = mask.typed_data();
  attention.out = out->typed_data();
  attention.sequences = size(b);
  attention.heads = size(heads);
  attention.kv_heads = size(kv_heads);
  attention.rows = size(t);
  attention.pages = {paged ? pages.typed_data() : nullptr, size(keys[0]), size(keys[2]),
                     paged ? size(pages.dimensions()[1]) : 1};
  attention.new_rows = size(n);
  attention.head_size = size(h);
  attention.scale = scale;
  attention.cap = cap;
  const std::size_t count = used_rows(used, std::min(attention.rows, attention.new_rows));
  const std::size_t threads = size(pool.num_threads());
  try {
    if (used.element_count() == 0) {
      dart::attend(attention, dart::best_instructions(), threads);
    } else if (count > 0) {
      attend_used(attention, count, threads);
    }
  } catch (const std::exception& error) {
    return ffi::Error::Internal(error.what());
  }
  return ffi::Error::Success();
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(dart_heads, heads,
                              ffi::Ffi::Bind()
                                  .Arg<ffi::BufferR3<ffi::F32>>()
                                  .Arg<ffi::BufferR3<ffi::F32>>()
                                  .Arg<ffi::BufferR3<ffi::F32>>()
                                  .Arg<Floats>()
                                  .Arg<Floats>()
                                  .Ret<Array>()
                                  .Ret<Array>()
                                  .Ret<Array>()
                                  .Attr<float>("eps")
                                  .Attr<float>("offset"));

XLA_FFI_DEFINE_HANDLER_SYMBOL(dart_attention, attention,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<Array>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::BufferR1<ffi::S32>>()
                                  .Arg<ffi::Buffer<ffi::S32>>()
                                  .Arg<ffi::BufferR3<ffi::PRED>>()
                                  .Arg<ffi::Buffer<ffi::S32>>()
                                  .Arg<ffi::Buffer<ffi::S32>>()
                                  .Ret<ffi::BufferR3<ffi::F32>>()
                                  .Attr<float>("scale")
                                  .Attr<float>("cap"));

void* dart_heads_handler() { return reinterpret_cast<void*>(dart_heads); }
void* dart_attention_handler() { return reinterpret_cast<void*>(dart_attention); }
