#include "dart/layer.h"

#include "layer_parts.h"

namespace dart {
namespace {

// `next`: the matrix that follows the layer; null for none.
void run(const Layer& layer, const Matrix* next, Resources& resources) {
  Scratch& scratch = resources.scratch;
  const Scratch::Scope scope(scratch);
  Heads heads = layer.heads;
  Attention attention = layer.attention;
  const std::size_t rows = heads.sequences * heads.rows, width = heads.heads * heads.head_size;
  float* const qkv = scratch.take<float>(rows * layer.qkv.out);
  multiply(layer.qkv, Inputs::normed(layer.before_attention, layer.x), rows, nullptr, qkv,
           &layer.after.out, resources);
  heads.x = qkv;
  heads.q = scratch.take<float>(rows * width);
  make_new_rows(heads, layer.new_rows, heads.rows, attention, resources);
  attention.q = heads.q;
  attention.out = scratch.take<float>(rows * width);
  attend(attention, resources.instructions, resources.team);
  run_after_attention(layer.after, attention.out, layer.x, rows, layer.y, next, resources);
}

}  // namespace

void run(Span<Layer> layers, Instructions instructions, std::size_t threads) {
  if (layers.size == 0) return;
  const std::size_t rows = layers[0].heads.sequences * layers[0].heads.rows;
  with_resources(layers[0].after.gate_up, rows, instructions, threads,
                 [&](Resources& resources) {
                   for (std::size_t i = 0; i < layers.size; ++i) {
                     run(layers[i], i + 1 < layers.size ? &layers[i + 1].qkv : nullptr, resources);
                   }
                 });
}

}  // namespace dart
