#include "dart/layer.h"

#include "layer_parts.h"

namespace dart {
namespace {

void run(const Layer& layer, std::size_t rows, Resources& resources) {
  Scratch& scratch = resources.scratch;
  Heads heads = layer.heads;
  Attention attention = layer.attention;
  const std::size_t width = heads.heads * heads.head_size;
  float* const qkv = scratch.take<float>(rows * layer.qkv.out);
  multiply(layer.qkv, Inputs::normed(layer.before_attention, layer.x), rows, nullptr, qkv,
           resources);
  heads.x = qkv;
  heads.q = scratch.take<float>(rows * width);
  make_new_rows(heads, layer.new_rows, heads.rows, attention, resources);
  attention.q = heads.q;
  attention.out = scratch.take<float>(rows * width);
  attend(attention, resources.instructions, resources.team);
  run_after_attention(layer.after, attention.out, layer.x, rows, layer.y, resources);
}

}  // namespace

void run(const Layer& layer, Instructions instructions, std::size_t threads) {
  const std::size_t rows = layer.heads.sequences * layer.heads.rows;
  with_resources(layer.after.gate_up, rows, instructions, threads,
                 [&](Resources& resources) { run(layer, rows, resources); });
}

}  // namespace dart
