// Decoder layers as XLA foreign functions on the CPU.
#include <cstddef>
#include <cstdint>
#include <exception>
#include <string_view>

#include "dart/layer.h"
#include "ffi.h"
#include "ffi_tiles.h"
#include "ffi_used.h"
#include "xla/ffi/api/ffi.h"

namespace {

namespace ffi = xla::ffi;

using Floats = ffi::Buffer<ffi::F32>;
using Rows = ffi::BufferR3<ffi::F32>;
using Ints = ffi::Buffer<ffi::S32>;

std::size_t size(std::int64_t dimension) { return static_cast<std::size_t>(dimension); }

template <class Shape, class... Sizes>
bool is(const Shape& shape, Sizes... sizes) {
  std::size_t i = 0;
  return shape.size() == sizeof...(sizes) && ((size(shape[i++]) == sizes) && ...);
}

// The arrays of an optional argument: none has no elements.
const float* or_null(const Floats& array) {
  return array.element_count() == 0 ? nullptr : array.typed_data();
}
bool optional(const Floats& array, std::size_t count) {
  return array.element_count() == 0 || array.element_count() == count;
}

// See dart::Layer. Optional arguments have no elements; `pages` is one-dimensional where sequences have
// no pages. The arguments that remain are the tiles of qkv, out, gate_up and down, which have so many
// parts as `counts` says. If `used` has an element, there is one sequence, and only so many of its rows
// are computed and seen: what follows them in the results is not written.
ffi::Error layer(ffi::ThreadPool pool, Rows x, Floats before_attention, Floats after_attention,
                 Floats before_mlp, Floats after_mlp, Floats q_scale, Floats k_scale,
                 Floats qkv_bias, Floats out_bias, Floats gate_up_bias, Floats down_bias, Rows cos,
                 Rows sin, ffi::AnyBuffer cached_k, ffi::AnyBuffer cached_v, Ints length, Ints first,
                 ffi::BufferR3<ffi::PRED> mask, Ints pages, Ints used,
                 ffi::RemainingArgs tiles,
                 ffi::Result<Rows> y, ffi::Result<ffi::AnyBuffer> k, ffi::Result<ffi::AnyBuffer> v,
                 std::string_view activation, float eps, float offset, float multiplier,
                 float scale, float cap, ffi::Span<const std::int32_t> counts,
                 ffi::Span<const std::int32_t> types, ffi::Span<const std::int64_t> outs) try {
  const auto shape = x.dimensions(), keys = k->dimensions(), cache = cached_k.dimensions();
  const std::size_t b = size(shape[0]), t = size(shape[1]), d = size(shape[2]);
  const ffi::DataType dtype = cached_k.element_type();
  if (keys.size() != 4 || (dtype != ffi::F32 && dtype != ffi::BF16) ||
      cached_v.element_type() != dtype || k->element_type() != dtype ||
      v->element_type() != dtype) {
    return ffi::Error::InvalidArgument("dart_layer: keys and values of other dtypes");
  }
  const std::size_t kv_heads = size(keys[1]), h = size(keys[3]);
  if (kv_heads == 0 || h == 0) return ffi::Error::InvalidArgument("dart_layer: no heads");
  const std::size_t pairs = size(cos.dimensions()[2]);
  const bool paged = pages.dimensions().size() == 2;
  dart::Layer layer;
  layer.x = x.typed_data();
  layer.y = y->typed_data();
  layer.width = d;
  const auto norm = [&](const Floats& scale) { return dart::Norm{or_null(scale), d, eps, offset}; };
  layer.before_attention = norm(before_attention);
  layer.after_attention = norm(after_attention);
  layer.before_mlp = norm(before_mlp);
  layer.after_mlp = norm(after_mlp);
  std::size_t begin = 0;
  dart::Matrix* const matrices[] = {&layer.qkv, &layer.out, &layer.gate_up, &layer.down};
  const Floats* const biases[] = {&qkv_bias, &out_bias, &gate_up_bias, &down_bias};
  if (counts.size() != 4) return ffi::Error::InvalidArgument("dart_layer: not four matrices");
  for (std::size_t i = 0; i < 4; ++i) {
    dart::Matrix& matrix = *matrices[i];
    matrix.in = i == 0 || i == 2 ? d : i == 1 ? layer.qkv.out - 2 * kv_heads * h
                                              : layer.gate_up.out / 2;
    if (!read_matrix(tiles, begin, size(counts[i]), types, outs, matrix)) {
      return ffi::Error::InvalidArgument("dart_layer: weights of another shape");
    }
    matrix.bias = or_null(*biases[i]);
    if (!optional(*biases[i], matrix.out)) {
      return ffi::Error::InvalidArgument("dart_layer: biases of another shape");
    }
    begin += size(counts[i]);
  }
  const std::size_t heads = layer.out.in / h, norms = q_scale.element_count();
  const bool together = norms != 0 && norms != h;
  if (begin != tiles.size() || !is(y->dimensions(), b, t, d) || layer.out.out != d ||
      layer.down.out != d || layer.gate_up.out % 2 != 0 || heads * h != layer.out.in ||
      heads % kv_heads != 0 || h % 16 != 0 || !is(keys, b, kv_heads, t, h) ||
      !is(v->dimensions(), b, kv_heads, t, h) || !is(cos.dimensions(), b, t, pairs) ||
      !is(sin.dimensions(), b, t, pairs) || 2 * pairs > h ||
      !is(cache, paged ? size(cache[0]) : b, kv_heads, size(cache[2]), h) ||
      !is(cached_v.dimensions(), size(cache[0]), kv_heads, size(cache[2]), h) ||
      (paged && size(pages.dimensions()[0]) != b) || length.element_count() != b ||
      !is(mask.dimensions(), b, t, t) || !optional(before_attention, d) ||
      !optional(after_attention, d) || !optional(before_mlp, d) || !optional(after_mlp, d) ||
      (together && norms != heads * h) ||
      k_scale.element_count() != (together ? kv_heads * h : norms) ||
      (first.element_count() != 0 && first.element_count() != b * t)) {
    return ffi::Error::InvalidArgument("dart_layer: arguments of other shapes");
  }
  // Of the only sequence, if there are fewer rows than there is room for.
  const std::size_t count = used_rows(used, t);
  if (count == 0) return ffi::Error::Success();
  if (count < t && b != 1) return ffi::Error::InvalidArgument("dart_layer: several sequences");
  std::vector<char> seen;
  if (count < t) seen = first_of_each(mask.typed_data(), count, t, count);
  layer.activation = activation == "gelu" ? dart::Activation::kGelu : dart::Activation::kSilu;
  layer.multiplier = multiplier;
  layer.heads = {nullptr,  cos.typed_data(), sin.typed_data(), or_null(q_scale), or_null(k_scale),
                 together, eps,              offset,           nullptr,          nullptr,
                 nullptr,  b,                count,            heads,            kv_heads,
                 h,        2 * pairs};
  layer.attention = {};
  layer.room = t;
  layer.new_k = k->untyped_data();
  layer.new_v = v->untyped_data();
  layer.attention.k = cached_k.untyped_data();
  layer.attention.v = cached_v.untyped_data();
  layer.attention.bfloat16 = dtype == ffi::BF16;
  layer.attention.length = length.typed_data();
  layer.attention.first = first.element_count() == 0 ? nullptr : first.typed_data();
  layer.attention.mask =
      count < t ? reinterpret_cast<const bool*>(seen.data()) : mask.typed_data();
  layer.attention.sequences = b;
  layer.attention.heads = heads;
  layer.attention.kv_heads = kv_heads;
  layer.attention.rows = layer.attention.new_rows = count;
  layer.attention.pages = {paged ? pages.typed_data() : nullptr, size(cache[0]), size(cache[2]),
                           paged ? size(pages.dimensions()[1]) : 1};
  layer.attention.head_size = h;
  layer.attention.scale = scale;
  layer.attention.cap = cap;
  // As many threads as XLA has, but not XLA's: those sleep between calls.
  dart::run(layer, dart::best_instructions(), size(pool.num_threads()));
  return ffi::Error::Success();
} catch (const std::exception& error) {
  return ffi::Error::Internal(error.what());
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(dart_layer, layer,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<Rows>()
                                  .Arg<Floats>()
                                  .Arg<Floats>()
                                  .Arg<Floats>()
                                  .Arg<Floats>()
                                  .Arg<Floats>()
                                  .Arg<Floats>()
                                  .Arg<Floats>()
                                  .Arg<Floats>()
                                  .Arg<Floats>()
                                  .Arg<Floats>()
                                  .Arg<Rows>()
                                  .Arg<Rows>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<Ints>()
                                  .Arg<Ints>()
                                  .Arg<ffi::BufferR3<ffi::PRED>>()
                                  .Arg<Ints>()
                                  .Arg<Ints>()
                                  .RemainingArgs()
                                  .Ret<Rows>()
                                  .Ret<ffi::AnyBuffer>()
                                  .Ret<ffi::AnyBuffer>()
                                  .Attr<std::string_view>("activation")
                                  .Attr<float>("eps")
                                  .Attr<float>("offset")
                                  .Attr<float>("multiplier")
                                  .Attr<float>("scale")
                                  .Attr<float>("cap")
                                  .Attr<ffi::Span<const std::int32_t>>("counts")
                                  .Attr<ffi::Span<const std::int32_t>>("types")
                                  .Attr<ffi::Span<const std::int64_t>>("outs"));

void* dart_layer_handler() { return reinterpret_cast<void*>(dart_layer); }
