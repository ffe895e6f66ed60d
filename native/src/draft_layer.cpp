#include <algorithm>

#include "dart/layer.h"
#include "layer_parts.h"

namespace dart {
namespace {

// Operations, as products count them, for a number that is normalised.
constexpr std::size_t kOperations = 16;

struct Sizes {
  explicit Sizes(const DraftLayer& layer)
      : sequences(layer.heads.sequences),
        all(layer.heads.rows),
        real(all - layer.masks),
        drafting(1 + layer.masks),
        width(layer.q.in / 2) {}

  std::size_t sequences, all, real, drafting, width;
};

// Copies `some` rows of each sequence, [B, some, width] at a distance of `stride` between sequences,
// the first one `first(b)`, and after them the mask row as often as there is one: [B, .., width].
template <class First>
void with_masks(const float* rows, const float* mask, std::size_t width, std::size_t some,
                const Sizes& sizes, const First& first, float* to) {
  for (std::size_t b = 0; b < sizes.sequences; ++b) {
    to = std::copy_n(rows + first(b) * width, some * width, to);
    for (std::size_t m = 1; m < sizes.drafting; ++m) to = std::copy_n(mask, width, to);
  }
}

// The layer's inputs in the real rows of all sequences, then in a mask row: [B T + 1, 2 D].
float* make_inputs(const DraftLayer& layer, const Sizes& sizes, Resources& resources) {
  const std::size_t rows = sizes.sequences * sizes.real, d = sizes.width;
  float* const inputs = resources.scratch.take<float>((rows + 1) * 2 * d);
  const Instructions instructions = resources.instructions;
  share_rows(rows, rows * 2 * d * kOperations, resources.team,
             [&](std::size_t begin, std::size_t end) {
               for (std::size_t r = begin; r < end; ++r) {
                 float* const to = inputs + r * 2 * d;
                 normalize(layer.embeds_norm, layer.embeds + r * d, 1, to, instructions);
                 normalize(layer.residual_norm, layer.residual + r * d, 1, to + d, instructions);
               }
             });
  std::copy_n(layer.mask_row, 2 * d, inputs + rows * 2 * d);
  return inputs;
}

// Makes the keys and values of all rows.
void make_keys(const DraftLayer& layer, const Sizes& sizes, const float* inputs,
               Attention& attention, Resources& resources) {
  const std::size_t rows = sizes.sequences * sizes.real, width = layer.kv.out;
  float* const kv = resources.scratch.take<float>((rows + 1) * width);
  multiply(layer.kv, Inputs::rows(inputs), rows + 1, nullptr, kv, &layer.q, resources);
  float* const all = resources.scratch.take<float>(sizes.sequences * sizes.all * width);
  with_masks(kv, kv + rows * width, width, sizes.real, sizes,
             [&](std::size_t b) { return b * sizes.real; }, all);
  Heads heads = layer.heads;
  heads.heads = 0;
  heads.x = all;
  make_new_rows(heads, layer.new_rows, sizes.real, attention, resources);
}

// Makes the queries of the drafting rows, whose first ones are `anchors`.
template <class Anchors>
const float* make_queries(const DraftLayer& layer, const Sizes& sizes, const float* inputs,
                          const Anchors& anchors, Resources& resources) {
  const std::size_t b = sizes.sequences, width = 2 * sizes.width, out = layer.q.out;
  const float* const mask = inputs + b * sizes.real * width;
  float* const chosen = resources.scratch.take<float>((b + 1) * width);
  for (std::size_t i = 0; i < b; ++i) {
    std::copy_n(inputs + anchors(i) * width, width, chosen + i * width);
  }
  std::copy_n(mask, width, chosen + b * width);
  float* const q = resources.scratch.take<float>((b + 1) * out);
  multiply(layer.q, Inputs::rows(chosen), b + 1, nullptr, q, &layer.after.out, resources);
  const std::size_t rows = b * sizes.drafting, pairs = layer.heads.rotated / 2;
  float* const all = resources.scratch.take<float>(rows * out);
  with_masks(q, q + b * out, out, 1, sizes, [](std::size_t i) { return i; }, all);
  float* const cos = resources.scratch.take<float>(2 * rows * pairs);
  float* const sin = cos + rows * pairs;
  for (std::size_t i = 0; i < rows; ++i) {
    const std::size_t sequence = i / sizes.drafting, m = i % sizes.drafting;
    const std::size_t last = static_cast<std::size_t>(layer.last[sequence]);
    const std::size_t at = sequence * sizes.all + (m == 0 ? last : sizes.real + m - 1);
    std::copy_n(layer.heads.cos + at * pairs, pairs, cos + i * pairs);
    std::copy_n(layer.heads.sin + at * pairs, pairs, sin + i * pairs);
  }
  Heads heads = layer.heads;
  heads.x = all;
  heads.cos = cos;
  heads.sin = sin;
  heads.rows = sizes.drafting;
  heads.kv_heads = 0;
  heads.q = resources.scratch.take<float>(rows * out);
  rotate_heads(heads, resources.instructions);
  return heads.q;
}

// How many of the first `positions` positions the last of them does not see.
std::size_t hidden(const DraftLayer& layer, std::size_t positions) {
  return layer.window == 0 || positions <= layer.window ? 0 : positions - layer.window;
}

// The first positions that the drafting rows see, [B, 1 + m]; null without a window.
const std::int32_t* make_first(const DraftLayer& layer, const Sizes& sizes, Scratch& scratch) {
  if (layer.window == 0) return nullptr;
  std::int32_t* const first = scratch.take<std::int32_t>(sizes.sequences * sizes.drafting);
  for (std::size_t i = 0; i < sizes.sequences * sizes.drafting; ++i) {
    const std::size_t b = i / sizes.drafting, m = i % sizes.drafting;
    const auto anchor = static_cast<std::size_t>(layer.attention.length[b] + layer.last[b]);
    first[i] = static_cast<std::int32_t>(hidden(layer, anchor + 1 + m));
  }
  return first;
}

// The mask of the new rows that the drafting rows see, [B, 1 + m, T + m].
const bool* make_mask(const DraftLayer& layer, const Sizes& sizes, Scratch& scratch) {
  bool* const mask = scratch.take<bool>(sizes.sequences * sizes.drafting * sizes.all);
  bool* to = mask;
  for (std::size_t b = 0; b < sizes.sequences; ++b) {
    const std::size_t seen = static_cast<std::size_t>(layer.last[b]) + 1;
    for (std::size_t m = 0; m < sizes.drafting; ++m) {
      // Of the rows at successive positions, the anchor's and the mask rows' after it.
      const std::size_t before = hidden(layer, seen + m);
      const std::size_t real = std::min(before, seen), masks = before - real;
      to = std::fill_n(to, real, false);
      to = std::fill_n(to, seen - real, true);
      to = std::fill_n(to, sizes.real - seen + masks, false);
      to = std::fill_n(to, m - masks, true);
      to = std::fill_n(to, sizes.drafting - 1 - m, false);
    }
  }
  return mask;
}

void run(const DraftLayer& layer, Resources& resources) {
  const Sizes sizes(layer);
  const std::size_t d = sizes.width, rows = sizes.sequences * sizes.drafting;
  const float* const inputs = make_inputs(layer, sizes, resources);
  Attention attention = layer.attention;
  make_keys(layer, sizes, inputs, attention, resources);
  if (layer.last == nullptr) return;
  const auto anchors = [&](std::size_t b) {
    return b * sizes.real + static_cast<std::size_t>(layer.last[b]);
  };
  attention.q = make_queries(layer, sizes, inputs, anchors, resources);
  attention.first = make_first(layer, sizes, resources.scratch);
  attention.mask = make_mask(layer, sizes, resources.scratch);
  attention.rows = sizes.drafting;
  attention.new_rows = sizes.all;
  attention.out = resources.scratch.take<float>(rows * layer.q.out);
  attend(attention, resources.instructions, resources.team);
  float* const stream = resources.scratch.take<float>(rows * d);
  with_masks(layer.residual, layer.mask_row, d, 1, sizes, anchors, stream);
  run_after_attention(layer.after, attention.out, stream, rows, layer.y, nullptr, resources);
}

}  // namespace

void run(const DraftLayer& layer, Instructions instructions, std::size_t threads) {
  const Sizes sizes(layer);
  const std::size_t rows = sizes.sequences * std::max(sizes.real, sizes.drafting);
  with_resources(layer.after.gate_up, rows, instructions, threads,
                 [&](Resources& resources) { run(layer, resources); });
}

}  // namespace dart
