// Decoder layers as XLA foreign functions on the CPU.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string_view>
#include <vector>

#include "dart/layer.h"
#include "ffi_handlers.h"
#include "ffi_cache.h"
#include "ffi_shapes.h"
#include "ffi_tiles.h"
#include "ffi_used.h"
#include "xla/ffi/api/ffi.h"

namespace {

namespace ffi = xla::ffi;

using Floats = ffi::Buffer<ffi::F32>;
using Rows = ffi::BufferR3<ffi::F32>;
using Ints = ffi::Buffer<ffi::S32>;
using Numbers = ffi::Span<const std::int32_t>;
using Sizes = ffi::Span<const std::int64_t>;

// Sets the sizes of heads of T rows per sequence, after the shape of new keys [B, K, .., h], and
// what attention shares with them. Returns false if there are none.
bool set_heads(const ffi::AnyBuffer& keys, std::size_t queries, std::size_t rows, const Rows& cos,
               const Rows& sin, dart::Heads& heads, dart::Attention& attention) {
  if (!has_rows(keys)) return false;
  const auto shape = keys.dimensions();
  const std::size_t b = size(shape[0]), kv_heads = size(shape[1]), h = size(shape[3]);
  const std::size_t pairs = size(cos.dimensions()[2]);
  if (kv_heads == 0 || h == 0 || h % 16 != 0 || queries % (kv_heads * h) != 0 || 2 * pairs > h ||
      !is(cos.dimensions(), b, rows, pairs) || !is(sin.dimensions(), b, rows, pairs)) {
    return false;
  }
  heads = {};
  heads.cos = cos.typed_data();
  heads.sin = sin.typed_data();
  heads.sequences = attention.sequences = b;
  heads.rows = rows;
  heads.heads = attention.heads = queries / h;
  heads.kv_heads = attention.kv_heads = kv_heads;
  heads.head_size = attention.head_size = h;
  heads.rotated = 2 * pairs;
  return true;
}

// True if matrices fit a residual stream of this width.
bool fits(const dart::AfterAttention& after, std::size_t width) {
  return after.out.out == width && after.gate_up.in == width && after.down.out == width &&
         after.gate_up.out == 2 * after.down.in;
}

// The arguments of a layer before its tiles.
struct LayerArguments {
  Rows cos, sin;
  Ints first;
  ffi::BufferR3<ffi::PRED> mask;
  Floats before_attention, after_attention, before_mlp, after_mlp;
  Floats q_scale, k_scale;
  Floats qkv_bias, out_bias, gate_up_bias, down_bias;
  ffi::AnyBuffer k, v;  // cached ones
};

// Reads an argument and counts it.
template <class Array>
Array take(const ffi::RemainingArgs& arguments, std::size_t& at) {
  const auto argument = arguments.get<Array>(at++);
  if (!argument) throw std::invalid_argument("dart_layers: an argument is missing, or another");
  return *argument;
}

LayerArguments take_layer(const ffi::RemainingArgs& all, std::size_t& at) {
  using Mask = ffi::BufferR3<ffi::PRED>;
  using Any = ffi::AnyBuffer;
  // In the order of the braces.
  return {take<Rows>(all, at),   take<Rows>(all, at),   take<Ints>(all, at),
          take<Mask>(all, at),   take<Floats>(all, at), take<Floats>(all, at),
          take<Floats>(all, at), take<Floats>(all, at), take<Floats>(all, at),
          take<Floats>(all, at), take<Floats>(all, at), take<Floats>(all, at),
          take<Floats>(all, at), take<Floats>(all, at), take<Any>(all, at),
          take<Any>(all, at)};
}

// See dart::Layer. The arguments that remain are, for each layer, LayerArguments, of which optional
// ones have no elements, and the tiles of qkv, out, gate_up and down: see MatrixReader. The results
// that remain are the new keys and values of each. `pages` is one-dimensional where sequences have
// no pages. If `used` has an element, there is one sequence, and only that many of its rows are
// computed and seen: what follows them in the results is not written.
ffi::Error layers(ffi::ThreadPool pool, Rows x, Ints length, Ints pages, Ints used,
                  ffi::RemainingArgs arguments, ffi::Result<Rows> y, ffi::RemainingRets made,
                  std::string_view activation, float eps, float offset, float multiplier,
                  float scale, float cap, Numbers counts, Sizes ins, Numbers types,
                  Sizes outs) {
  const auto shape = x.dimensions();
  const std::size_t b = size(shape[0]), t = size(shape[1]), d = size(shape[2]);
  const std::size_t count = used_rows(used, t);
  if (count < t && b != 1) return ffi::Error::InvalidArgument("dart_layers: several sequences");
  const auto norm = [&](const Floats& by) { return dart::Norm{or_null(by), d, eps, offset}; };
  std::vector<dart::Layer> layers(made.size() / 2);
  std::vector<std::vector<char>> masks;  // of fewer rows than there is room for
  const bool* whole = nullptr;           // what the last of these was made of
  MatrixReader matrices(arguments, counts, ins, types, outs);
  std::size_t at = 0;
  for (std::size_t i = 0; i < layers.size(); ++i) {
    dart::Layer& layer = layers[i];
    dart::AfterAttention& after = layer.after;
    const LayerArguments from = take_layer(arguments, at);
    auto k = made.get<ffi::AnyBuffer>(2 * i), v = made.get<ffi::AnyBuffer>(2 * i + 1);
    if (!k || !v || !matrices.read({&layer.qkv, &after.out, &after.gate_up, &after.down}, at)) {
      return ffi::Error::InvalidArgument("dart_layers: weights of another shape");
    }
    const std::size_t width = after.out.in, norms = from.q_scale.element_count();
    if (!set_heads(**k, width, t, from.cos, from.sin, layer.heads, layer.attention) ||
        !read_cache(from.k, from.v, length, pages, layer.attention)) {
      return ffi::Error::InvalidArgument("dart_layers: heads or a cache of other shapes or dtypes");
    }
    const std::size_t kv_heads = layer.heads.kv_heads, h = layer.heads.head_size;
    const bool together = norms != 0 && norms != h;
    if ((*k)->element_type() != from.k.element_type() ||
        (*v)->element_type() != (*k)->element_type() || !is((*k)->dimensions(), b, kv_heads, t, h) ||
        !is((*v)->dimensions(), b, kv_heads, t, h) || !is(y->dimensions(), b, t, d) ||
        !is(from.mask.dimensions(), b, t, t) || layer.qkv.in != d ||
        layer.qkv.out != width + 2 * kv_heads * h || !fits(after, d) ||
        !none_or(from.qkv_bias, layer.qkv.out) || !none_or(from.out_bias, d) ||
        !none_or(from.gate_up_bias, after.gate_up.out) || !none_or(from.down_bias, d) ||
        !none_or(from.before_attention, d) || !none_or(from.after_attention, d) ||
        !none_or(from.before_mlp, d) || !none_or(from.after_mlp, d) ||
        (together && norms != width) ||
        from.k_scale.element_count() != (together ? kv_heads * h : norms) ||
        !none_or(from.first, b * t)) {
      return ffi::Error::InvalidArgument("dart_layers: arguments of other shapes");
    }
    layer.x = i == 0 ? x.typed_data() : y->typed_data();
    layer.y = y->typed_data();
    layer.before_attention = norm(from.before_attention);
    after.after_attention = norm(from.after_attention);
    after.before_mlp = norm(from.before_mlp);
    after.after_mlp = norm(from.after_mlp);
    layer.qkv.bias = or_null(from.qkv_bias);
    after.out.bias = or_null(from.out_bias);
    after.gate_up.bias = or_null(from.gate_up_bias);
    after.down.bias = or_null(from.down_bias);
    after.activation = activation_of(activation);
    after.multiplier = multiplier;
    layer.new_rows = {(*k)->untyped_data(), (*v)->untyped_data(), t};
    layer.heads.q_scale = or_null(from.q_scale);
    layer.heads.k_scale = or_null(from.k_scale);
    layer.heads.together = together;
    layer.heads.eps = eps;
    layer.heads.offset = offset;
    layer.heads.rows = count;
    dart::Attention& attention = layer.attention;
    attention.first = or_null(from.first);
    attention.mask = from.mask.typed_data();
    if (count < t) {
      // Layers with the same window have the same mask.
      if (attention.mask != whole) masks.push_back(first_of_each(attention.mask, count, t, count));
      whole = attention.mask;
      attention.mask = reinterpret_cast<const bool*>(masks.back().data());
    }
    attention.rows = attention.new_rows = count;
    attention.scale = scale;
    attention.cap = cap;
  }
  if (at != arguments.size()) return ffi::Error::InvalidArgument("dart_layers: more arguments");
  // As many threads as XLA has, but not XLA's: those sleep between calls.
  if (count > 0) dart::run(layers, dart::best_instructions(), size(pool.num_threads()));
  return ffi::Error::Success();
}

// See dart::DraftLayer and `layers`. The arguments that remain are the tiles of q, kv, out, gate_up and
// down. If `used` has an element, there is one sequence with only that many real rows: keys and
// values are made, and y is not written.
ffi::Error draft_layer(ffi::ThreadPool pool, Rows embeds, Rows residual, Floats mask_row,
                       Floats embeds_norm, Floats residual_norm, Floats before_mlp, Rows cos,
                       Rows sin, Ints last, ffi::AnyBuffer cached_k, ffi::AnyBuffer cached_v,
                       Ints length, Ints pages, Ints used, ffi::RemainingArgs tiles,
                       ffi::Result<Rows> y, ffi::Result<ffi::AnyBuffer> k,
                       ffi::Result<ffi::AnyBuffer> v, float eps, float scale,
                       std::int32_t window, Numbers counts, Sizes ins, Numbers types,
                       Sizes outs) {
  const auto shape = embeds.dimensions();
  const std::size_t b = size(shape[0]), t = size(shape[1]), d = size(shape[2]);
  dart::DraftLayer layer{};
  dart::AfterAttention& after = layer.after;
  if (!read_matrices(tiles, counts, ins, types, outs,
                     {&layer.q, &layer.kv, &after.out, &after.gate_up, &after.down})) {
    return ffi::Error::InvalidArgument("dart_draft_layer: weights of another shape");
  }
  const std::size_t all = size(cos.dimensions()[1]), width = after.out.in;
  if (!set_heads(*k, width, all, cos, sin, layer.heads, layer.attention) ||
      !read_cache(cached_k, cached_v, length, pages, layer.attention)) {
    return ffi::Error::InvalidArgument("dart_draft_layer: heads or a cache of another shape");
  }
  const std::size_t kv_heads = layer.heads.kv_heads, h = layer.heads.head_size;
  if (t == 0 || all < t || k->element_type() != cached_k.element_type() ||
      v->element_type() != k->element_type() || !is(k->dimensions(), b, kv_heads, t, h) ||
      !is(v->dimensions(), b, kv_heads, t, h) || !is(y->dimensions(), b, 1 + all - t, d) ||
      !is(residual.dimensions(), b, t, d) || !is(mask_row.dimensions(), 2 * d) ||
      !is(embeds_norm.dimensions(), d) || !is(residual_norm.dimensions(), d) ||
      !is(before_mlp.dimensions(), d) || !is(last.dimensions(), b) || layer.q.in != 2 * d ||
      layer.q.out != width || layer.kv.in != 2 * d || layer.kv.out != 2 * kv_heads * h ||
      !fits(after, d)) {
    return ffi::Error::InvalidArgument("dart_draft_layer: arguments of other shapes");
  }
  const std::size_t count = used_rows(used, t);
  if (count == 0) return ffi::Error::Success();
  if (used.element_count() != 0 && b != 1) {
    return ffi::Error::InvalidArgument("dart_draft_layer: several sequences");
  }
  std::vector<std::int32_t> anchors(last.typed_data(), last.typed_data() + b);
  for (std::int32_t& at : anchors) at = std::clamp<std::int32_t>(at, 0, static_cast<int>(t) - 1);
  const auto norm = [&](const Floats& by) { return dart::Norm{or_null(by), d, eps, 0}; };
  layer.embeds = embeds.typed_data();
  layer.residual = residual.typed_data();
  layer.mask_row = mask_row.typed_data();
  layer.y = y->typed_data();
  layer.embeds_norm = norm(embeds_norm);
  layer.residual_norm = norm(residual_norm);
  after.before_mlp = norm(before_mlp);
  after.activation = dart::Activation::kSilu;
  after.multiplier = 1;
  layer.new_rows = {k->untyped_data(), v->untyped_data(), t};
  layer.attention.scale = scale;
  layer.window = static_cast<std::size_t>(std::max(window, 0));
  if (used.element_count() == 0) {
    layer.last = anchors.data();
    layer.masks = all - t;
  } else {
    layer.heads.rows = count;
  }
  dart::run(layer, dart::best_instructions(), size(pool.num_threads()));
  return ffi::Error::Success();
}

}  // namespace

DART_FFI_HANDLER(dart_layers, layers, "activation", "eps", "offset", "multiplier", "scale", "cap",
                 "counts", "ins", "types", "outs");
DART_FFI_HANDLER(dart_draft_layer, draft_layer, "eps", "scale", "window", "counts", "ins", "types",
                 "outs");
